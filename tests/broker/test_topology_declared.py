"""Declarations of clients, through the whole control plane, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from aio_pika.abc import AbstractIncomingMessage
from structlog.testing import capture_logs

from oxproxy.broker.connection import DeclaredSettings
from oxproxy.broker.declared.announcements import EXCHANGE, Announcements
from oxproxy.broker.management_api import ManagementApi
from oxproxy.broker.reconcile.observer import Observer
from oxproxy.broker.topology import Topology
from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.relay.declare.storage import KEPT, exchange_arguments, kept_arguments, pack
from oxproxy.relay.original_address import longstr_entry
from oxproxy.relay.vhost import VhostState
from oxproxy.routing.decision import Facts
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import Table, Value
from tests.broker.clients import AUTO_DELETE, Client, client, declare_here, stored, text
from tests.broker.observed import Outside, has, owned, queues, reconcile, router, settings, state, until
from tests.private_broker import free_port
from tests.rabbitmq import Broker
from tests.relay.wire import token
from tests.routing.building import arguments

Start = Callable[..., Awaitable[Topology]]


@pytest.fixture
async def app(broker: Broker, vhost: str) -> AsyncIterator[Client]:
    async with client(settings(broker), vhost) as connected:
        yield connected


@pytest.fixture
async def start(broker: Broker) -> AsyncIterator[Start]:
    """A control plane that has started; without rules unless states are given."""
    ending: list[Callable[[], Any]] = []

    async def build(states: dict[str, VhostState] | None = None, *, run: bool = False, **more: Any) -> Topology:
        declared = DeclaredSettings(announce=more.pop("announcing", False))
        topology = Topology(settings(broker, declared=declared, **more), states or {}, {})
        ending.append(topology.close)
        await topology.start()
        if run:
            task = asyncio.ensure_future(topology.run())
            ending.append(task.cancel)
        return topology

    yield build
    for end in reversed(ending):
        ended = end()
        if asyncio.iscoroutine(ended):
            with suppress(asyncio.CancelledError):
                await ended


def known(topology: Topology, vhost: str) -> VhostState:
    return topology.managed(vhost).state


def routed(vhost_state: VhostState, exchange: bytes, headers: Table = (), key: bytes = b"") -> tuple[bytes, ...]:
    facts = Facts(key, headers=headers)
    return vhost_state.router.decide(exchange, facts, 0.0, vhost_state.queues, lambda below: 0).queues


RICH: Table = (
    (b"x-match", text("all")),
    (b"x-?hkv= wide", Value("l", 5)),
    (b"x-?hkv= double", Value("d", 0.1)),
    (b"x-?hkv= stamp", Value("T", 1_700_000_000)),
    (b"x-?hkv= bytes", text(b"\xff\xfe")),
)


async def test_an_exchange_declared_again_through_another_sidecar_is_a_new_one(
    start: Start, app: Client, outside: Outside, vhost: str
) -> None:
    await app.declare("ox", ((b"max-payload-size", Value("I", 1)),), 1, AUTO_DELETE)
    vhost_state = known(topology := await start(), vhost)
    before = vhost_state.exchanges[b"ox"]
    outside.delete_exchange("ox")
    await app.declare("ox", ((b"max-payload-size", Value("I", 2)),), 2)
    await reconcile(topology, vhost)
    after = vhost_state.exchanges[b"ox"]
    assert after is not before
    assert after.arguments == ((b"max-payload-size", Value("I", 2)),)


async def test_the_same_bind_through_two_sidecars_counts_as_one_and_the_lowest_sequence_wins(
    start: Start, app: Client, outside: Outside, vhost: str
) -> None:
    outside.make_queues("a")
    await app.declare("ox")
    await app.bind(stored("ox", "a", (), 30), stored("ox", "a", (), 20), stored("ox", "a", (), 25))
    vhost_state = known(topology := await start(), vhost)
    [back] = vhost_state.exchanges[b"ox"].clients.values()
    assert [copy.sequence for copy in back.copies] == [20, 25, 30]
    assert back.binding.sequence == 20
    assert len(list(vhost_state.router.exchanges[b"ox"].bindings)) == 1
    await app.unbind(stored("ox", "a", (), 20))
    await reconcile(topology, vhost)
    [back] = vhost_state.exchanges[b"ox"].clients.values()
    assert [copy.sequence for copy in back.copies] == [25, 30]
    assert back.binding.sequence == 25
    [rule] = vhost_state.router.exchanges[b"ox"].bindings
    assert rule.sequence == 25


async def test_the_same_arguments_in_another_order_through_another_sidecar_leave_one_binding(
    start: Start, app: Client, outside: Outside, vhost: str
) -> None:
    outside.make_queues("a")
    await app.declare("ox")
    first, second = stored("ox", "a", RICH, 1), stored("ox", "a", RICH[::-1], 2)
    await app.bind(second, first)
    vhost_state = known(topology := await start(), vhost)
    (merged,) = vhost_state.exchanges[b"ox"].clients.values()
    assert merged.copies == (*app.signed(first).copies, *app.signed(second).copies)
    await app.unbind(first)
    await app.unbind(second)
    await reconcile(topology, vhost)
    assert vhost_state.exchanges[b"ox"].clients == {}
    assert {name for _, name, _ in outside.bindings("ox")} == {b"a"}  # the token stays


async def test_an_announced_bind_to_an_exchange_of_the_file_is_seen_on_its_carrier(
    start: Start, app: Client, outside: Outside, vhost: str
) -> None:
    outside.make_queues("a")
    shaped = owned("ruled", carrier=b"carrier")
    there = state(vhost, {"ruled": set()}, shaped)
    await start({vhost: there}, refresh_seconds=3600.0, run=True, announcing=True)
    announcing = VhostState(vhost, Router(()))
    first = await start({vhost: announcing}, run=True, announcing=True)
    carried = stored("ruled", "a", (), 5)
    await app.bind(carried._replace(binding=replace(carried.binding, exchange=b"carrier")))
    first.managed(vhost).requests.changed(b"ruled")
    await until(lambda: routed(there, b"ruled") == (b"a",))


async def test_a_damaged_record_is_logged_once_and_the_others_are_used(
    start: Start, app: Client, outside: Outside, vhost: str
) -> None:
    outside.make_queues("a", "b")
    good, bad = stored("ox", "a", (), 1), stored("ox", "b", RICH, 2)
    await app.declare("ox")
    await app.declare_raw("worse", exchange_arguments(1, b"")[:-4] + b"!!!!")
    await app.bind(good, bad._replace(key=good.key))
    await app.bind_raw("ox", "b", bad.key, kept_arguments(2, bad.copies[0].entries)[:-4] + b"!!!!")
    await app.bind_raw("ox", "b", bad.key, longstr_entry(KEPT, pack(3, b"\x01a?")))
    outside.bind("ox", "a", "x.o.p.e.n.x.b.by.hand")
    with capture_logs() as events:
        vhost_state = known(topology := await start(), vhost)
        await reconcile(topology, vhost)
    assert list(vhost_state.exchanges) == [b"ox"]
    assert list(vhost_state.exchanges[b"ox"].clients.values()) == [app.signed(good)]
    assert len(has(events, "a client declaration can't be used")) == 4


async def test_foreign_exchanges_are_not_evaluated(start: Start, app: Client, outside: Outside, vhost: str) -> None:
    outside.make_exchange("marked by hand", "direct", x_open_exchange=True)
    outside.make_exchange("other type", "topic", x_open_exchange=True, x_oxproxy="AAAAAAAAAAAAAA==")
    outside.make_exchange("not marked", "direct", x_oxproxy="AAAAAAAAAAAAAA==")
    await app.declare("ox")
    topology = await start({vhost: state(vhost, {})})
    assert list(known(topology, vhost).exchanges) == [b"ox"]
    outside.delete_exchange("ox")
    outside.make_exchange("ox")
    await reconcile(topology, vhost)
    assert known(topology, vhost).exchanges == {}


async def test_changes_by_clients_during_a_listing_are_neither_lost_nor_undone(
    start: Start, app: Client, outside: Outside, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.make_queues("old", "new", "gone", "passing", "other")
    names = ("old", "gone", "passing", "new", "other")
    old, gone, passing, new, other = (stored("ox", name, (), number) for number, name in enumerate(names))
    await app.declare("ox")
    await app.bind(old, gone)
    vhost_state = known(topology := await start(), vhost)
    management = topology._management
    assert management is not None
    listing = management.changed_bindings

    async def meanwhile(*asked: Any) -> Any:
        await app.bind(passing, other)
        vhost_state.add_binding(passing)
        answer = await listing(*asked)
        vhost_state.remove_binding(passing)  # unbound after the listing, which contains it
        vhost_state.remove_binding(gone)
        vhost_state.add_binding(new)
        await app.unbind(passing, gone)
        await app.bind(new)
        return answer

    monkeypatch.setattr(management, "changed_bindings", meanwhile)
    await reconcile(topology, vhost)
    assert routed(vhost_state, b"ox") == (b"new", b"old")
    monkeypatch.undo()
    await reconcile(topology, vhost)
    assert routed(vhost_state, b"ox") == (b"new", b"old", b"other")


async def test_an_exchange_deleted_during_a_listing_stays_deleted(
    start: Start, app: Client, outside: Outside, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.declare("ox", sequence=1)
    vhost_state = known(topology := await start(), vhost)
    management = topology._management
    assert management is not None
    listing = management.exchanges

    async def meanwhile(name: str) -> Any:
        await app.declare("passing", sequence=2)
        declare_here(vhost_state, "passing", sequence=2)
        answer = await listing(name)
        for gone in ("ox", "passing"):
            vhost_state.remove_exchange(gone.encode())
            outside.delete_exchange(gone)
        await app.declare("new", sequence=3)
        declare_here(vhost_state, "new", sequence=3)
        return answer

    monkeypatch.setattr(management, "exchanges", meanwhile)
    await reconcile(topology, vhost)
    assert list(vhost_state.exchanges) == [b"new"]
    monkeypatch.undo()
    await reconcile(topology, vhost)
    assert list(vhost_state.exchanges) == [b"new"]


async def test_bindings_of_a_destination_are_looked_up_although_they_change_meanwhile(
    start: Start, app: Client, outside: Outside, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.make_queues("a", "b")
    await app.declare("ox")
    elsewhere, here, gone = (stored("ox", "a", arguments({"x-?hkv= n": n}), n) for n in (1, 2, 3))
    await app.bind(gone)
    vhost_state = known(topology := await start(), vhost)
    await app.bind(elsewhere, stored("ox", "b"))
    management = topology._management
    assert management is not None
    listing = management.changed_bindings

    async def meanwhile(*asked: Any) -> Any:
        monkeypatch.undo()
        answer = await listing(*asked)
        await app.unbind(gone)
        await app.bind(here)
        vhost_state.remove_binding(gone)
        vhost_state.add_binding(here)
        return answer

    monkeypatch.setattr(management, "changed_bindings", meanwhile)
    await topology.managed(vhost).requests.look_up(b"ox", ("queue", b"a"))
    found = vhost_state.exchanges[b"ox"].clients.values()
    assert {item.binding.identity for item in found} == {item.binding.identity for item in (elsewhere, here)}


async def test_a_virtual_host_without_permission_is_reported_and_does_not_affect_others(
    start: Start, broker: Broker, vhost: str
) -> None:
    broker.create_user(vhost, "hush", "monitoring")
    try:
        topology = await start(run=True, username=vhost, password="hush", retry_seconds=0.01)
        with capture_logs() as events:
            await topology.adopt(vhost)
        assert topology.ready
        assert topology.follows(vhost)
        assert vhost in " ".join(topology.degraded)
        assert len(has(events, "control connection failed")) == 1
    finally:
        broker.delete_user(vhost)


@pytest.mark.parametrize("tags", ["", "management"])
@pytest.mark.parametrize("password", ["", "wrong"])
async def test_declarations_are_kept_while_the_broker_refuses_the_control_user(
    start: Start, broker: Broker, vhost: str, tags: str, password: str
) -> None:
    with broker.temporary_user(tags) as user:
        limits = {"retry_seconds": 0.01, "retry_limit_seconds": 0.01}
        place = {} if tags else {"management": None}
        topology = await start(run=True, username=user, password=password or user, **limits, **place)
        await topology.adopt(vhost)
        declare_here(known(topology, vhost), "ox")
        login, attempts = topology.managed(vhost).connection.connect, 0

        async def counting() -> None:
            nonlocal attempts
            attempts += 1
            await login()

        topology.managed(vhost).connection.connect = counting  # type: ignore[method-assign]
        await until(lambda: attempts == 6)
        assert list(known(topology, vhost).exchanges) == [b"ox"]


async def test_an_auto_delete_exchange_is_deleted_with_the_queue_of_its_last_binding(
    start: Start, app: Client, outside: Outside, vhost: str
) -> None:
    outside.make_queues("a", "routed to")
    await app.declare("ox", flags=AUTO_DELETE)
    await app.bind(stored("ox", "a"))
    mine = VhostState(vhost, Router(()))
    topology = await start({vhost: mine}, run=True, refresh_seconds=3600.0)
    with outside.channel() as channel:
        channel.queue_bind("routed to", "ox", token("queue", b"routed to", vhost).decode())
    mine.exchanges[b"ox"].tokens.bind_ok(("queue", b"routed to"), (token("queue", b"routed to", vhost),))
    outside.delete_queue("a")
    topology.managed(vhost).requests.queue_deleted(b"a")
    await until(lambda: not mine.exchanges)
    assert "ox" not in {item["name"] for item in outside.broker.api("GET", f"exchanges/{vhost}")}


# -- without the management API, and with delivery: queue ---------------------------------------------------------


async def test_without_the_management_api_deleted_objects_are_noticed(
    start: Start, app: Client, outside: Outside, vhost: str
) -> None:
    outside.make_queues("a", "b")
    topology = await start({vhost: state(vhost, {})}, management=None)
    vhost_state = known(topology, vhost)
    for name in ("ox", "vanishing"):
        await app.declare(name)
        await app.bind(stored(name, "a"), stored(name, "b"))
        declare_here(vhost_state, name, stored(name, "a"), stored(name, "b"))
    await reconcile(topology, vhost)
    assert routed(vhost_state, b"ox") == (b"a", b"b")
    outside.delete_queue("a")
    outside.delete_exchange("vanishing")
    await reconcile(topology, vhost)
    assert set(vhost_state.exchanges) == {b"ox"}
    assert routed(vhost_state, b"ox") == (b"b",)
    assert vhost_state.missing() == {}


async def test_a_sidecar_waits_for_the_management_api_and_then_starts_without_it(
    start: Start, app: Client, outside: Outside, vhost: str
) -> None:
    outside.make_queues("a")
    await app.declare("ox")
    await app.bind(stored("ox", "a"))
    dead = f"http://127.0.0.1:{free_port()}"
    with capture_logs() as events:
        topology = await start(management=dead, patience_seconds=0.2, retry_seconds=0.05)
    assert topology.ready
    assert "can't be listed" in " ".join(topology.degraded)
    assert len(has(events, "virtual hosts with client declarations can't be listed")) == 1


async def test_a_sidecar_is_not_ready_before_it_has_read_the_bindings_of_listed_exchanges(
    broker: Broker, app: Client, outside: Outside, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.make_queues("a")
    await app.declare("ox")
    await app.bind(stored("ox", "a"))

    listing, slow = ManagementApi.changed_bindings, UpstreamError(UpstreamFailure.TIMEOUT, "no response")

    async def too_slow(*asked: Any) -> Any:
        raise slow

    monkeypatch.setattr(ManagementApi, "changed_bindings", too_slow)
    topology = Topology(settings(broker, retry_seconds=0.05), {}, {})
    with pytest.raises(UpstreamError, match="no response"):
        await topology.start()
    assert not topology.ready
    monkeypatch.setattr(ManagementApi, "changed_bindings", listing)
    await topology.start()
    assert routed(known(topology, vhost), b"ox") == (b"a",)
    await topology.close()


def slow_lists(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[bytes]:
    """Delay each list of bindings; return the exchanges whose bindings are listed, as they are requested."""
    listing, listed = ManagementApi.changed_bindings, list[bytes]()

    async def slow(self: ManagementApi, vhost: str, exchange: bytes, *asked: Any) -> Any:
        listed.append(exchange)
        await asyncio.sleep(seconds)
        return await listing(self, vhost, exchange, *asked)

    monkeypatch.setattr(ManagementApi, "changed_bindings", slow)
    return listed


def announcements(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[bytes]]:
    """Return the virtual hosts whose pending announcements have been sent or lost, and the announcements received."""
    send, receive = Announcements._send, Announcements._received
    sent, received = list[str](), list[bytes]()

    async def sending(self: Announcements) -> None:
        await send(self)
        sent.append(self._vhost)

    async def receiving(self: Announcements, message: AbstractIncomingMessage) -> None:
        await receive(self, message)
        received.append(message.body)

    monkeypatch.setattr(Announcements, "_send", sending)
    monkeypatch.setattr(Announcements, "_received", receiving)
    return sent, received


async def test_bindings_on_which_no_rule_relies_are_listed_once_at_the_start_however_long_it_takes(
    start: Start, app: Client, outside: Outside, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.make_queues("a")
    await app.declare("ox")
    await app.bind(stored("ox", "a"))
    listed = slow_lists(monkeypatch, 0.8)
    topology = await start({vhost: state(vhost, {"documents": queues("a")})}, refresh_seconds=0.2)
    assert sorted(listed) == [b"documents", b"ox"]
    assert routed(known(topology, vhost), b"ox") == (b"a",)
    assert outside.bound("documents") == outside.bound("ox") == queues("a")


@pytest.mark.parametrize("announcing", [True, False])
async def test_a_long_list_is_requested_less_often_where_sidecars_announce_their_changes(
    start: Start, app: Client, outside: Outside, vhost: str, monkeypatch: pytest.MonkeyPatch, announcing: bool
) -> None:
    outside.make_queues("a", "b")
    await app.declare("ox")
    await app.bind(stored("ox", "a"))
    listed, (_, received) = slow_lists(monkeypatch, 1.1), announcements(monkeypatch)
    topology = await start({vhost: state(vhost, {"documents": queues("a")})}, announcing=announcing)
    await reconcile(topology, vhost)  # requests the whole list; the first list was requested by destination
    await reconcile(topology, vhost)  # receives an equal list
    listed.clear()
    await reconcile(topology, vhost)
    assert sorted(listed) == ([] if announcing else [b"documents", b"ox"])
    if announcing:
        second = await start({}, announcing=True)
        await app.bind(stored("ox", "b", (), 2))
        second.managed(vhost).requests.changed(b"ox")
        await until(lambda: len(received) == len((topology, second)))
        await reconcile(topology, vhost)
        assert routed(known(topology, vhost), b"ox") == (b"a", b"b")


async def test_changes_are_announced_again_after_the_exchange_for_announcements_was_deleted(
    start: Start, app: Client, outside: Outside, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.make_queues("a", "b", "c")
    await app.declare("ox")
    await app.bind(stored("ox", "a"))
    listed, (sent, received) = slow_lists(monkeypatch, 1.1), announcements(monkeypatch)
    first, second = await start({}, announcing=True), await start({}, announcing=True)
    for _ in range(2):
        await reconcile(first, vhost)
    listed.clear()
    await reconcile(first, vhost)
    assert listed == []
    outside.delete_exchange(EXCHANGE)
    await app.bind(stored("ox", "b", (), 2))
    second.managed(vhost).requests.changed(b"ox")  # the announcement is lost
    await until(lambda: sent)
    await reconcile(second, vhost)
    await reconcile(first, vhost)
    assert routed(known(first, vhost), b"ox") == (b"a", b"b")
    await reconcile(first, vhost)
    await app.bind(stored("ox", "c", (), 3))
    received.clear()
    second.managed(vhost).requests.changed(b"ox")
    await until(lambda: len(received) == len((first, second)))
    await reconcile(first, vhost)
    assert routed(known(first, vhost), b"ox") == (b"a", b"b", b"c")


async def test_a_deleted_queue_makes_the_next_pass_list_the_bindings_of_its_exchanges(
    start: Start, app: Client, outside: Outside, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.make_queues("a", "b")
    await app.declare("ox")
    await app.bind(stored("ox", "a"), stored("ox", "b", (), 2))
    topology = await start(announcing=True)
    monkeypatch.setattr(Observer, "current", lambda self, desired: frozenset(item.name for item in desired.carriers))
    outside.delete_queue("a")
    await reconcile(topology, vhost)
    assert routed(known(topology, vhost), b"ox") == (b"b",)


# -- new rules --------------------------------------------------------------------------------------------------


async def test_new_rules_keep_declarations_of_clients(start: Start, app: Client, outside: Outside, vhost: str) -> None:
    outside.make_queues("a", "b", "c", "d")
    for name in ("ox", "taken", "vanishing"):
        await app.declare(name)
    mine = state(vhost, {"documents": queues("a"), "dropped": queues("a")})
    topology = await start({vhost: mine})
    early = stored("documents", "b", (), 4)
    in_both_rules = stored("documents", "d", (), 5)
    await app.bind(stored("ox", "b"), stored("documents", "c", (), 2), stored("taken", "b"), early, in_both_rules)
    await reconcile(topology, vhost)

    rules = router({"documents": queues("d"), "taken": queues("a")})
    evaluated = {b"documents": owned("documents"), b"taken": owned("taken")}
    new = await topology.managed(vhost).prepare(evaluated, rules, [])
    late = stored("documents", "a", (), 3)
    await app.bind(late)
    mine.add_binding(late)
    await app.unbind(early)
    mine.remove_binding(early)
    outside.delete_exchange("vanishing")
    mine.remove_exchange(b"vanishing")
    topology.managed(vhost).reconciler.swap(new)
    assert set(mine.exchanges) == set(mine.router.exchanges) == mine.carriers == {b"documents", b"ox", b"taken"}
    assert mine.exchanges[b"taken"].declared is None
    for _ in range(2):
        clients = mine.exchanges[b"documents"].clients.values()
        assert {client.binding.destination for client in clients} == {b"a", b"c", b"d"}
        assert routed(mine, b"ox") == (b"b",)
        assert routed(mine, b"taken") == (b"a", b"b")
        assert routed(mine, b"documents") == (b"a", b"c", b"d")
        await reconcile(topology, vhost)
    assert outside.bound("documents") == queues("a", "b", "c", "d")  # a token that no binding needs stays


async def test_a_clients_binding_that_new_rules_make_invalid_is_named(
    start: Start, app: Client, outside: Outside, vhost: str
) -> None:
    outside.make_queues("a")
    mine = VhostState(vhost, Router([Exchange(b"x", "headers")]), {b"x": replace(owned("x"), type="headers")})
    topology = await start({vhost: mine})
    await app.bind(stored("x", "a", ((b"x-nonsense", text("")),)))
    await reconcile(topology, vhost)
    assert len(mine.exchanges[b"x"].clients) == 1
    new = await topology.managed(vhost).prepare({b"x": owned("x")}, Router([Exchange(b"x", "x-open")]), [])
    with capture_logs() as events:
        topology.managed(vhost).reconciler.swap(new)
    [event] = has(events, "new rules reject a client's binding")
    assert "Unknown or invalid argument's key" in event["error"]
    assert mine.exchanges[b"x"].clients == {}
