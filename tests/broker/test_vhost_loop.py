from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from oxproxy.broker.connection import ControlConnection
from oxproxy.broker.management_api import ManagementApi, QueueInfo
from oxproxy.broker.methods import DeclareQueue, Method, Refusal, declare_carrier
from oxproxy.broker.reconcile.desired import DesiredState
from oxproxy.broker.reconcile.diff import BindToken
from oxproxy.broker.reconcile.vhost_loop import VhostTopology
from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.relay.vhost import Delivery
from tests.broker.clients import declare_here, stored, text
from tests.broker.conftest import Make
from tests.broker.observed import Outside, Queue, exchanges, has, missing, owned, queues, router, state, until
from tests.rabbitmq import Broker
from tests.relay.wire import token


@pytest.mark.parametrize("management", [True, False])
async def test_the_objects_of_rules_are_declared_and_existing_queues_are_used_unchanged(
    make: Make, outside: Outside, vhost: str, management: bool
) -> None:
    outside.make_queue("Käse ~ (1)", x_max_length=5, x_queue_type="classic")
    named = queues("a", "Käse ~ (1)") | exchanges("amq.topic")
    known = state(vhost, {"documents": named}, owned("documents", carrier=b"carrier", alternate=b"amq.fanout"))
    await make(known, Queue(b"a"), Queue("Käse ~ (1)".encode()), management=management)
    carrier = outside.exchange("carrier")
    assert [carrier[key] for key in ("type", "durable", "internal")] == ["direct", True, False]
    assert carrier["arguments"] == {"x-open-exchange": True, "alternate-exchange": "amq.fanout"}
    assert outside.queue("a")["durable"] is True
    assert outside.queue("Käse ~ (1)")["arguments"] == {"x-max-length": 5, "x-queue-type": "classic"}
    assert outside.bound("carrier") == known.exchanges[b"documents"].tokens.bound.keys() == named
    assert missing(known) == {}


async def test_three_hundred_missing_destinations_are_one_short_line_and_all_bound_later(
    make: Make, outside: Outside, vhost: str
) -> None:
    # Exchanges, because the broker declares them much faster than queues, and binding them is the same work.
    names = [f"x{number}" for number in range(300)]
    known = state(vhost, {"documents": exchanges(*names)})
    with capture_logs() as events:
        topology = await make(known)
    [event] = has(events, "destinations missing")
    assert (len(missing(known)), event["count"], len(event["destinations"])) == (300, 300, 20)
    await topology.connection.call_all([declare_carrier(owned(name)) for name in names])
    await topology.refresh()
    assert outside.bound("documents") == known.exchanges[b"documents"].tokens.bound.keys() == exchanges(*names)
    assert missing(known) == {}


async def test_queue_delivery_declares_nothing_and_reports_what_is_missing(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_queue("a")
    before = outside.broker.api("GET", f"exchanges/{vhost}")
    direct = owned("direct", Delivery.QUEUE, alternate=b"nowhere")
    further = owned("further", Delivery.QUEUE, alternate=b"direct")  # which is evaluated in the sidecar
    passing = owned("passing", Delivery.QUEUE, unmatched_pass=True)
    named = {"direct": queues("a", "b") | exchanges("amq.topic", "x"), "further": set(), "passing": set()}
    known = state(vhost, named, direct, further, passing)
    await make(known)
    assert outside.broker.api("GET", f"exchanges/{vhost}") == before
    assert direct.tokens.bound.keys() == set()
    assert known.missing() == {
        "queue b": "does not exist",
        "exchange x": "does not exist",
        "exchange nowhere": "alternate exchange of direct: does not exist",
        "exchange passing": "the broker's own exchange for unmatched messages of passing: does not exist",
    }


async def test_queue_delivery_detects_missing_queues_without_the_management_api(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_queue("a")
    direct = owned("direct", Delivery.QUEUE)
    known = state(vhost, {"direct": queues("a", "b") | exchanges("amq.topic", "x")}, direct)
    with outside.channel() as channel:
        channel.queue_declare("b", exclusive=True)  # the default exchange also reaches exclusive queues
        await make(known, management=False)
    assert missing(known) == {("exchange", b"x"): "does not exist"}


@pytest.mark.parametrize("management", [True, False])
async def test_a_missing_destination_is_reported_and_the_others_are_bound(
    make: Make, outside: Outside, vhost: str, management: bool
) -> None:
    outside.make_queue("a")
    known = state(vhost, {"documents": queues("a", "b") | exchanges("x") | {("queue", b"\xff")}})
    with capture_logs() as events:
        await make(known, management=management)
    assert outside.bound("documents") == queues("a")
    assert missing(known) == {
        ("queue", b"b"): "does not exist",
        ("exchange", b"x"): "does not exist",
        ("queue", b"\xff"): "the name is not UTF-8",
    }
    [event] = has(events, "destinations missing")
    assert event["count"] == 3


@pytest.mark.parametrize("management", [True, False])
async def test_an_exclusive_queue_is_missing_with_that_reason(
    make: Make, outside: Outside, vhost: str, management: bool
) -> None:
    known = state(vhost, {"documents": queues("mine", "ours")})
    with outside.channel() as channel:
        channel.queue_declare("mine", exclusive=True)
        channel.queue_declare("ours")
        topology = await make(known, management=management)
        assert missing(known) == {("queue", b"mine"): "exclusive queue of another connection"}
        assert outside.bound("documents") == queues("ours")
        # The owner's connection binds the queue. Without the management API, the sidecar has to assume this.
        channel.queue_bind("mine", "documents", token("queue", b"mine", vhost).decode())
        known.exchanges[b"documents"].tokens.bind_ok(("queue", b"mine"), (token("queue", b"mine", vhost),))
        await topology.refresh()
        assert missing(known) == {}
        assert known.exchanges[b"documents"].tokens.bound.keys() == queues("mine", "ours")


@pytest.mark.parametrize("management", [True, False])
async def test_objects_deleted_directly_on_the_broker_are_missing_until_they_are_declared_and_bound_again(
    make: Make, outside: Outside, vhost: str, management: bool
) -> None:
    outside.make_queue("a")
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known, management=management)
    documents = known.exchanges[b"documents"]

    outside.delete_queue("a")
    epoch = known.epoch
    await topology.refresh()
    assert (set(documents.tokens.bound), missing(known)) == (set(), {("queue", b"a"): "does not exist"})
    assert known.epoch > epoch

    outside.make_queue("a")
    epoch = known.epoch
    await topology.refresh()
    assert documents.tokens.bound.keys() == outside.bound("documents") == queues("a")
    assert missing(known) == {}
    assert known.epoch > epoch

    outside.delete_queue("a")  # and declared again before the next pass
    outside.make_queue("a")
    await topology.refresh()
    assert outside.bound("documents") == queues("a")

    outside.delete_exchange("documents")
    await topology.refresh()
    assert outside.bound("documents") == queues("a")


async def test_queues_declared_and_deleted_during_a_listing_are_neither_lost_nor_undone(
    make: Make, outside: Outside, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.make_queue("gone")
    known = state(vhost, {"direct": queues("gone", "new")}, owned("direct", Delivery.QUEUE))
    topology = await make(known)
    listing = ManagementApi.queues

    async def meanwhile(management: ManagementApi, name: str) -> dict[bytes, QueueInfo]:
        listed = await listing(management, name)
        outside.delete_queue("gone")
        topology.requests.queue_deleted(b"gone")
        assert b"gone" not in known.queues.names
        outside.make_queue("new")
        topology.requests.declared(("queue", b"new"))
        return listed

    monkeypatch.setattr(ManagementApi, "queues", meanwhile)
    await topology.refresh()
    assert missing(known) == {("queue", b"gone"): "does not exist"}
    assert list(known.queues.names) == [b"new"]


async def test_a_pass_without_changes_keeps_the_epoch(make: Make, outside: Outside, vhost: str) -> None:
    outside.make_queue("a")
    known = state(vhost, {"documents": queues("a", "b")}, regex=True)
    topology = await make(known)
    epoch, names = known.epoch, known.queues
    await topology.refresh()
    assert known.epoch == epoch
    assert known.queues is names


async def test_without_the_management_api_regex_routes_see_queues_of_rules_and_declares(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_queue("unknown")
    known = state(vhost, {"documents": queues("a")}, regex=True)
    topology = await make(known, Queue(b"a"), management=False)
    topology.requests.declared(("queue", b"b"))
    await topology.refresh()
    assert list(known.queues.names) == [b"a", b"b"]


async def test_a_carrier_whose_name_the_broker_refuses_is_a_conflict(make: Make, vhost: str) -> None:
    topology = await make(state(vhost, {"x": set()}, owned("x", carrier=b"\xff")), connect=False)
    with pytest.raises(UpstreamError, match="the carrier can't be declared: the name is not UTF-8") as caught:
        await topology.connect()
    assert caught.value.failure is UpstreamFailure.REFUSED


async def test_a_carrier_replaced_directly_on_the_broker_is_reported_and_others_work(
    make: Make, outside: Outside, vhost: str
) -> None:
    known = state(vhost, {"others": queues("a", "b"), "documents": queues("a")})
    topology = await make(known)
    outside.delete_exchange("documents")
    outside.make_exchange("documents", "topic")
    outside.make_queues("a", "b")
    with capture_logs() as events:
        await topology.refresh()
        await topology.refresh()
    assert outside.bindings("documents") == set()
    assert outside.bound("others") == queues("a", "b")
    assert missing(known).keys() == queues("a")
    assert len(has(events, "rules conflict with the broker")) == 1
    assert len(topology.reconciler.conflicts) == 1


@pytest.fixture
def restricted(broker: Broker, vhost: str) -> Any:
    """A control user with few permissions: configure, write and read are given by name."""
    broker.create_user(vhost, "hush", "monitoring")
    yield lambda configure, write, read: broker.grant(vhost, vhost, configure, write, read)
    broker.delete_user(vhost)


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("management", [True, False])
async def test_a_bound_destination_is_reached_after_the_permission_to_bind_it_is_withdrawn(
    make: Make,
    outside: Outside,
    vhost: str,
    restricted: Callable[[str, str, str], None],
    management: bool,
    thorough: bool,
) -> None:
    outside.make_queue("a")
    restricted(".*", ".*", ".*")
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known, management=management, username=vhost, password="hush")
    restricted(".*", "^documents$", ".*")
    await topology.refresh(thorough=thorough)
    assert known.exchanges[b"documents"].tokens.bound.keys() == outside.bound("documents") == queues("a")
    assert missing(known) == {}


async def test_a_failed_listing_does_not_prevent_readiness(make: Make, outside: Outside, vhost: str) -> None:
    # A foreign binding with arguments and a ~ in its key makes 3.10.8 return 500 for this carrier.
    outside.make_queue("a")
    outside.make_exchange("documents", "direct", x_open_exchange=True)
    with outside.channel() as channel:
        channel.queue_bind("a", "documents", "odd~key", {"argument": 1})
    known = state(vhost, {"documents": queues("a")})
    with capture_logs() as events:
        topology = await make(known)
        await topology.refresh()
    assert topology.health.ready
    assert known.exchanges[b"documents"].tokens.bound.keys() == queues("a")
    assert len(has(events, "inventory not complete")) == 1
    assert len(topology.reconciler.observer.failures) == 1


async def test_a_declared_queue_that_may_not_be_bound_is_missing(make: Make, outside: Outside, vhost: str) -> None:
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known)
    with outside.channel() as channel:
        channel.queue_declare("a", exclusive=True)
        await topology.requests.ensure(("queue", b"a"))
        assert missing(known) == {("queue", b"a"): "exclusive queue of another connection"}


async def test_ensure_waits_for_the_connection_until_the_deadline(make: Make, vhost: str) -> None:
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known, connect=False, deadline_seconds=0.05)
    with capture_logs() as events:
        await topology.requests.ensure(("queue", b"a"))
    assert len(has(events, "queue declared but not bound yet")) == 1


async def test_ensure_continues_once_the_connection_is_open(make: Make, outside: Outside, vhost: str) -> None:
    outside.make_queue("a")
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known, connect=False)
    ensured = asyncio.ensure_future(topology.requests.ensure(("queue", b"a")))
    await topology.connect()
    await ensured
    assert outside.bound("documents") == queues("a")


async def test_a_thousand_declared_queues_and_bindings_do_not_compute_the_desired_state(
    make: Make, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("the desired state was computed")

    known = state(vhost, {"documents": queues("a")})
    requests = (await make(known)).requests
    declare_here(known, "ox")
    monkeypatch.setattr("oxproxy.broker.reconcile.reconciler.desired_state", never)
    for number in range(1_000):
        name = f"q{number}"
        assert not requests.interested(name.encode())
        requests.declared(("queue", name.encode()))
        known.add_binding(stored("ox", name, (), number))
    requests.queue_deleted(b"q500")
    assert len(known.exchanges[b"ox"].clients) == 999


async def test_a_declare_that_concerns_no_rule_keeps_cached_decisions(make: Make, vhost: str) -> None:
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known)
    epoch = known.epoch
    topology.requests.declared(("queue", b"reply-1"))
    topology.requests.queue_deleted(b"reply-1")
    assert known.epoch == epoch


@pytest.mark.parametrize("management", [True, False])
async def test_what_is_declared_through_us_at_the_end_of_a_pass_is_not_missing(
    make: Make, outside: Outside, vhost: str, management: bool
) -> None:
    known = state(vhost, {"direct": queues("a") | exchanges("x")}, owned("direct", Delivery.QUEUE))
    topology = await make(known, management=management)
    assert missing(known).keys() == queues("a") | exchanges("x")
    warn = topology.reconciler.observer.warnings.warn

    async def warn_late(desired: DesiredState) -> None:
        await warn(desired)
        outside.make_queue("a")
        outside.make_exchange("x")
        topology.requests.declared(("queue", b"a"))
        topology.requests.declared(("exchange", b"x"))

    topology.reconciler.observer.warnings.warn = warn_late  # type: ignore[method-assign]
    await topology.refresh(thorough=True)
    assert missing(known) == {}


async def test_binding_on_demand_in_queue_delivery_checks_what_can_be_published_to(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_exchange("there")
    outside.make_exchange("inside", internal=True)
    direct = owned("direct", Delivery.QUEUE)
    known = state(vhost, {"direct": set()}, direct)
    topology = await make(known)
    assert await topology.requests.bind(b"direct", exchanges("there", "inside", "ghost")) == exchanges("there")
    assert missing(known)["exchange", b"ghost"] == "does not exist"
    assert "internal" in missing(known)["exchange", b"inside"]
    assert await topology.requests.bind(b"nowhere", queues("a")) == set()


async def test_new_rules_are_bound_before_the_swap_and_old_tokens_stay(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_queues("a", "b", "c", "extra")
    known = state(vhost, {"documents": queues("a", "b"), "dropped": queues("a")})
    topology = await make(known)
    await topology.requests.bind(b"documents", queues("extra"))

    rules = router({"documents": queues("b", "c"), "fresh": queues("d")})
    evaluated = {b"documents": owned("documents"), b"fresh": owned("fresh")}
    new = await topology.reconciler.prepare(evaluated, rules, [Queue(b"d")])
    assert outside.bound("documents") == queues("a", "b", "c", "extra")
    assert outside.bound("fresh") == queues("d")
    assert evaluated[b"documents"].tokens.bound.keys() == queues("a", "b", "c", "extra")

    epoch = known.epoch
    topology.reconciler.swap(new)
    await topology.refresh()
    assert outside.bound("documents") == queues("a", "b", "c", "extra")
    assert outside.bound("dropped") == queues("a")
    assert known.epoch > epoch


@pytest.fixture
async def running() -> AsyncIterator[Callable[[VhostTopology], None]]:
    tasks: list[asyncio.Task[None]] = []
    yield lambda topology: tasks.append(asyncio.ensure_future(topology.run(lambda: False)))
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("management", [True, False])
async def test_after_a_lost_connection_everything_is_declared_and_bound_again(
    make: Make, outside: Outside, vhost: str, running: Callable[[VhostTopology], None], management: bool
) -> None:
    known = state(vhost, {"documents": queues("a")})
    topology = await make(
        known,
        Queue(b"a"),
        connect=False,
        management=management,
        refresh_seconds=60,
        retry_seconds=0.01,
        retry_limit_seconds=0.1,
    )
    with capture_logs() as events:
        running(topology)
        await until(lambda: topology.health.ready)
        outside.broker.delete_vhost(vhost)
        assert await topology.connection.wait_lost(30)
        known.exchanges[b"documents"].tokens.deleted(("queue", b"a"))
        outside.broker.create_vhost(vhost)
        await until(lambda: known.exchanges[b"documents"].tokens.bound.keys() == queues("a"))
    assert outside.bound("documents") == queues("a")
    assert len(has(events, "control connection lost")) == 1
    assert len(has(events, "control connection failed")) <= 3


async def test_an_unreachable_broker_is_logged_once_and_retried(
    make: Make, vhost: str, running: Callable[[VhostTopology], None]
) -> None:
    attempts = asyncio.Event()

    topology = await make(
        state(vhost, {}), connect=False, retry_seconds=0.001, retry_limit_seconds=0.001, password="hush"
    )
    count = 0
    connect = topology.connection.connect

    async def counting() -> None:
        nonlocal count
        count += 1
        if count == 3:
            attempts.set()
        await connect()

    topology.connection.connect = counting  # type: ignore[method-assign]
    with capture_logs() as events:
        running(topology)
        async with asyncio.timeout(30):
            await attempts.wait()
    [event] = has(events, "control connection failed")
    assert "hush" not in str(event)
    assert not topology.connected


async def test_the_connection_is_retried_soon_while_a_publish_waits_for_it(
    make: Make, outside: Outside, vhost: str, running: Callable[[VhostTopology], None]
) -> None:
    """Otherwise, the pause before the last attempt would be longer than the deadline of the publish."""
    outside.make_queue("a")
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known, connect=False, retry_seconds=0.01, retry_limit_seconds=60)
    connect, failures = topology.connection.connect, 12

    async def restarting() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise UpstreamError(UpstreamFailure.UNAVAILABLE, "connection refused")
        await connect()

    topology.connection.connect = restarting  # type: ignore[method-assign]
    publish = asyncio.ensure_future(topology.requests.bind(b"documents", queues("a")))
    running(topology)
    assert await publish == queues("a")


# -- refused actions ---------------------------------------------------------------------------------------------------


async def test_refused_actions_are_retried_at_growing_intervals(make: Make, vhost: str) -> None:
    executor = (await make(state(vhost, {}))).reconciler.executor
    action = DeclareQueue(b"amq.reserved")
    attempts = []
    for _ in range(40):
        await executor.carry_out([action])
        attempts.append(executor.failures[action].attempts)
    assert "403" in executor.failures[action].why
    tried = [look for look in range(40) if look == 0 or attempts[look] > attempts[look - 1]]
    assert tried == [0, 1, 3, 7, 15, 28]
    await executor.carry_out([])  # no rule needs it any more
    assert executor.failures == {}


async def test_a_queue_with_arguments_that_the_broker_does_not_know_is_a_failure_with_the_brokers_reason(
    make: Make, vhost: str
) -> None:
    known = state(vhost, {})
    topology = await make(known, DeclareQueue(b"odd", ((b"x-queue-type", text("no such type")),)))
    [failing] = topology.reconciler.executor.failing()
    assert failing.startswith("declare queue odd: can't be declared: 406")
    assert "x-queue-type" in failing
    assert known.missing().keys() == {"queue odd"}
    assert "can't be declared: 406" in known.missing()["queue odd"]


async def test_a_late_refusal_does_not_affect_a_queue_that_a_client_has_declared_and_bound_since(
    make: Make, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier, destination = owned("c"), ("queue", b"mine")
    executor = (await make(state(vhost, {"c": set()}, carrier))).reconciler.executor
    call = ControlConnection.call

    async def late(connection: ControlConnection, method: Method) -> Refusal | None:
        refusal = await call(connection, method)
        carrier.tokens.bind_ok(
            destination, (token(*destination, vhost),)
        )  # through the connection of the exclusive queue's client
        return refusal

    monkeypatch.setattr(ControlConnection, "call", late)
    await executor.bind([BindToken(carrier, destination, token(*destination, vhost))])
    assert carrier.tokens.bound.keys() == queues("mine")
