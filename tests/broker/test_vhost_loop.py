from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.broker.management_api import ManagementApi
from proxy.broker.methods import declare_carrier
from proxy.broker.reconcile.desired import DesiredState
from proxy.broker.reconcile.reconciler import PreparedRules
from proxy.broker.reconcile.vhost_loop import VhostTopology
from proxy.broker.task_supervisor import Supervisor
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.vhost import Delivery, VhostState
from tests.broker.observed import (
    Outside,
    Queue,
    every_token,
    exchanges,
    has,
    owned,
    queues,
    router,
    settings,
    state,
    until,
)
from tests.rabbitmq import Broker

Make = Callable[..., Awaitable[VhostTopology]]


@pytest.fixture
async def make(broker: Broker) -> AsyncIterator[Make]:
    """Build a control plane for a state, connected unless `connect` is false; closed after the test."""
    ending: list[Callable[[], Awaitable[None]]] = []

    async def build(
        known: VhostState, *asked: Queue, connect: bool = True, management: bool = True, **more: Any
    ) -> VhostTopology:
        limits = settings(broker, **more)
        listing = ManagementApi(limits, broker.management) if management else None
        topology = VhostTopology(limits, known, asked, listing, lambda: None, Supervisor())
        ending.append(topology.close)
        if listing is not None:
            ending.append(listing.close)
        if connect:
            await topology.connect()
        return topology

    yield build
    for end in ending:
        await end()


@pytest.mark.parametrize("management", [True, False])
async def test_the_objects_of_rules_are_declared(make: Make, outside: Outside, vhost: str, management: bool) -> None:
    known = state(vhost, {"documents": queues("a", "b")}, owned("documents", alternate=b"amq.fanout"))
    await make(known, Queue(b"a"), Queue(b"b"), management=management)
    carrier = outside.exchange("documents")
    assert [carrier[key] for key in ("type", "durable", "internal")] == ["direct", True, False]
    assert carrier["arguments"] == {"x-open-exchange": True, "alternate-exchange": "amq.fanout"}
    assert outside.queue("a")["durable"] is True
    assert outside.bound("documents") == queues("a", "b")
    assert known.exchanges[b"documents"].bound == queues("a", "b")
    assert known.missing == {}


@pytest.mark.parametrize("management", [True, False])
async def test_an_existing_queue_is_used_unchanged(make: Make, outside: Outside, vhost: str, management: bool) -> None:
    outside.make_queue("a", x_max_length=5, x_queue_type="classic")
    known = state(vhost, {"documents": queues("a")})
    await make(known, Queue(b"a"), management=management)
    assert outside.queue("a")["arguments"] == {"x-max-length": 5, "x-queue-type": "classic"}
    assert outside.bound("documents") == queues("a")


async def test_queues_and_exchanges_are_destinations_under_another_carrier_name(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_queue("Käse ~ (1)")
    known = state(
        vhost,
        {"legacy": queues("Käse ~ (1)") | exchanges("amq.topic")},
        owned("legacy", carrier=b"legacy.oxproxy"),
    )
    await make(known)
    assert outside.bound("legacy.oxproxy") == queues("Käse ~ (1)") | exchanges("amq.topic")


async def test_three_hundred_destinations_are_all_bound(make: Make, outside: Outside, vhost: str) -> None:
    # Exchanges, because the broker declares them much faster than queues, and binding them is the same work.
    names = [f"x{number}" for number in range(300)]
    known = state(vhost, {"documents": exchanges(*names)})
    topology = await make(known)
    assert len(known.missing) == 300
    await topology.connection.call_all([declare_carrier(owned(name)) for name in names])
    await topology.refresh()
    assert outside.bound("documents") == known.exchanges[b"documents"].bound == exchanges(*names)
    assert known.missing == {}


async def test_queue_delivery_declares_nothing_and_reports_what_is_missing(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_queue("a")
    before = outside.broker.api("GET", f"exchanges/{vhost}")
    direct = owned("direct", Delivery.QUEUE, alternate=b"nowhere")
    known = state(vhost, {"direct": queues("a", "b") | exchanges("amq.topic", "x")}, direct)
    await make(known)
    assert outside.broker.api("GET", f"exchanges/{vhost}") == before
    assert direct.bound == set()
    assert known.missing == {
        ("queue", b"b"): "does not exist",
        ("exchange", b"x"): "does not exist",
        ("exchange", b"nowhere"): "alternate exchange of direct: does not exist",
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
    assert known.missing == {("exchange", b"x"): "does not exist"}


@pytest.mark.parametrize("management", [True, False])
async def test_a_missing_destination_is_reported_and_the_others_are_bound(
    make: Make, outside: Outside, vhost: str, management: bool
) -> None:
    outside.make_queue("a")
    known = state(vhost, {"documents": queues("a", "b") | exchanges("x") | {("queue", b"\xff")}})
    with capture_logs() as events:
        await make(known, management=management)
    assert outside.bound("documents") == queues("a")
    assert known.missing == {
        ("queue", b"b"): "does not exist",
        ("exchange", b"x"): "does not exist",
        ("queue", b"\xff"): "the name is not UTF-8",
    }
    [event] = has(events, "destinations missing")
    assert event["count"] == 3


async def test_missing_destinations_are_logged_once_per_change(make: Make, outside: Outside, vhost: str) -> None:
    known = state(vhost, {"documents": queues("a", "b")})
    topology = await make(known)
    with capture_logs() as events:
        await topology.refresh()
        await topology.refresh()
    assert has(events, "destinations missing") == []
    outside.make_queue("a")
    with capture_logs() as events:
        await topology.refresh()
        await topology.refresh()
    [event] = has(events, "destinations found")
    assert event["destinations"] == ["queue a"]


@pytest.mark.parametrize("management", [True, False])
async def test_an_exclusive_queue_is_missing_with_that_reason(
    make: Make, outside: Outside, vhost: str, management: bool
) -> None:
    known = state(vhost, {"documents": queues("mine", "ours")})
    with outside.channel() as channel:
        channel.queue_declare("mine", exclusive=True)
        channel.queue_declare("ours")
        topology = await make(known, management=management)
        assert known.missing == {("queue", b"mine"): "exclusive queue of another connection"}
        assert outside.bound("documents") == queues("ours")
        # The owner's connection binds the queue. Without the management API, the sidecar has to assume this.
        channel.queue_bind("mine", "documents", every_token(vhost).of("queue", b"mine")[0].decode())
        known.exchanges[b"documents"].tokens.bind_ok(("queue", b"mine"))
        await topology.refresh()
        assert known.missing == {}
        assert known.exchanges[b"documents"].bound == queues("mine", "ours")


@pytest.mark.parametrize("management", [True, False])
async def test_a_queue_deleted_and_declared_again_directly_on_the_broker_is_followed(
    make: Make, outside: Outside, vhost: str, management: bool
) -> None:
    outside.make_queue("a")
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known, management=management)
    documents = known.exchanges[b"documents"]

    outside.delete_queue("a")
    epoch = known.epoch
    await topology.refresh()
    assert documents.bound == set()
    assert known.missing == {("queue", b"a"): "does not exist"}
    assert known.epoch > epoch

    outside.make_queue("a")
    epoch = known.epoch
    await topology.refresh()
    assert documents.bound == queues("a")
    assert outside.bound("documents") == queues("a")
    assert known.missing == {}
    assert known.epoch > epoch


@pytest.mark.parametrize("management", [True, False])
async def test_a_queue_deleted_and_declared_again_between_two_passes_is_bound_again(
    make: Make, outside: Outside, vhost: str, management: bool
) -> None:
    outside.make_queue("a")
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known, management=management)
    outside.delete_queue("a")
    outside.make_queue("a")
    await topology.refresh()
    assert outside.bound("documents") == queues("a")


@pytest.mark.parametrize("management", [True, False])
async def test_a_carrier_deleted_directly_on_the_broker_is_declared_and_bound_again(
    make: Make, outside: Outside, vhost: str, management: bool
) -> None:
    outside.make_queue("a")
    topology = await make(state(vhost, {"documents": queues("a")}), management=management)
    outside.delete_exchange("documents")
    await topology.refresh()
    assert outside.bound("documents") == queues("a")


async def test_a_pass_without_changes_keeps_the_epoch(make: Make, outside: Outside, vhost: str) -> None:
    outside.make_queue("a")
    known = state(vhost, {"documents": queues("a", "b")}, regex=True)
    topology = await make(known)
    epoch, names = known.epoch, known.queues
    await topology.refresh()
    assert known.epoch == epoch
    assert known.queues is names


async def test_regex_routes_see_every_queue(make: Make, outside: Outside, vhost: str) -> None:
    outside.make_queues("b", "a")
    known = state(vhost, {"documents": queues("a")}, regex=True)
    topology = await make(known)
    assert list(known.queues.names) == [b"a", b"b"]
    version, epoch = known.queues.version, known.epoch
    outside.make_queue("c")
    await topology.refresh()
    assert list(known.queues.names) == [b"a", b"b", b"c"]
    assert known.queues.version == version + 1
    assert known.epoch > epoch


async def test_without_the_management_api_regex_routes_see_queues_of_rules_and_declares(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_queue("unknown")
    known = state(vhost, {"documents": queues("a")}, regex=True)
    topology = await make(known, Queue(b"a"), management=False)
    topology.requests.declared(("queue", b"b"))
    await topology.refresh()
    assert list(known.queues.names) == [b"a", b"b"]


@pytest.mark.parametrize("kind", ["topic", "direct"])
async def test_an_existing_exchange_prevents_the_load_with_an_error_that_names_both_solutions(
    make: Make, outside: Outside, vhost: str, kind: str
) -> None:
    outside.make_exchange("documents", kind)
    topology = await make(state(vhost, {"documents": set(), "others": set()}), Queue(b"a"), connect=False)
    with pytest.raises(UpstreamError) as caught:
        await topology.connect()
    assert caught.value.failure is UpstreamFailure.REFUSED
    assert "exchange documents exists" in caught.value.message
    assert "carrier: NAME" in caught.value.message
    assert "delivery: queue" in caught.value.message
    assert not topology.health.ready
    assert "others" not in {item["name"] for item in outside.broker.api("GET", f"exchanges/{vhost}")}


async def test_without_the_management_api_a_conflicting_exchange_is_detected_by_its_declare(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_exchange("documents", "topic")
    topology = await make(state(vhost, {"documents": set()}), connect=False, management=False)
    with pytest.raises(UpstreamError) as caught:
        await topology.connect()
    assert caught.value.failure is UpstreamFailure.REFUSED
    assert "inequivalent arg 'type'" in caught.value.message
    assert "delivery: queue" in caught.value.message


async def test_an_internal_exchange_can_not_be_a_destination_of_queue_delivery(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_exchange("inner", "fanout", internal=True)
    direct = owned("direct", Delivery.QUEUE)
    topology = await make(state(vhost, {"direct": exchanges("inner")}, direct), connect=False)
    with pytest.raises(UpstreamError, match="inner is internal"):
        await topology.connect()


async def test_a_carrier_replaced_directly_on_the_broker_is_reported_and_others_work(
    make: Make, outside: Outside, vhost: str
) -> None:
    known = state(vhost, {"documents": queues("a"), "others": queues("b")})
    topology = await make(known)
    outside.delete_exchange("documents")
    outside.make_exchange("documents", "topic")
    outside.make_queues("a", "b")
    with capture_logs() as events:
        await topology.refresh()
        await topology.refresh()
    assert outside.bindings("documents") == set()
    assert outside.bound("others") == queues("b")
    assert ("queue", b"a") in known.missing
    assert len(has(events, "rules conflict with the broker")) == 1
    assert len(topology.reconciler.conflicts) == 1


@pytest.fixture
def restricted(broker: Broker, vhost: str) -> Any:
    """A control user with few permissions: configure, write and read are given by name."""
    broker.create_user(vhost, "hush", "monitoring")
    yield lambda configure, write, read: broker.grant(vhost, vhost, configure, write, read)
    broker.delete_user(vhost)


@pytest.mark.parametrize("management", [True, False])
async def test_a_refused_carrier_is_an_error_that_names_the_permission(
    make: Make, vhost: str, restricted: Callable[[str, str, str], None], management: bool
) -> None:
    restricted("^none$", ".*", ".*")
    known = state(vhost, {"documents": set()})
    topology = await make(known, connect=False, management=management, username=vhost, password="hush")
    with pytest.raises(UpstreamError) as caught:
        await topology.connect()
    assert caught.value.failure is UpstreamFailure.REFUSED
    assert "configure permission" in caught.value.message
    assert "hush" not in caught.value.message


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
    assert known.exchanges[b"documents"].bound == outside.bound("documents") == queues("a")
    assert known.missing == {}
    assert len(topology.reconciler.executor.failing()) == (0 if management else 1)


@pytest.mark.parametrize("management", [True, False])
async def test_a_destination_that_may_not_be_bound_is_missing_and_the_others_are_bound(
    make: Make, outside: Outside, vhost: str, restricted: Callable[[str, str, str], None], management: bool
) -> None:
    outside.make_queues("a", "b")
    restricted(".*", "^(a|documents)$", ".*")
    known = state(vhost, {"documents": queues("a", "b")})
    topology = await make(known, management=management, username=vhost, password="hush")
    assert outside.bound("documents") == queues("a")
    assert "write permission on this queue" in known.missing["queue", b"b"]
    [failing] = topology.reconciler.executor.failing()
    assert failing.startswith("bind queue b to exchange documents: refused: ")
    restricted(".*", ".*", ".*")
    await topology.refresh()
    assert outside.bound("documents") == queues("a", "b")
    assert topology.reconciler.executor.failing() == []


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
    assert known.exchanges[b"documents"].bound == queues("a")
    assert len(has(events, "inventory not complete")) == 1
    assert len(topology.reconciler.observer.failures) == 1


async def test_a_management_api_that_is_down_does_not_prevent_readiness(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_queue("a")
    known = state(vhost, {"documents": queues("a", "b")})
    topology = await make(known, connect=False, management=False)
    topology.reconciler.observer._management = ManagementApi(settings(outside.broker), "http://127.0.0.1:1")
    await topology.connect()
    await topology.reconciler.observer._management.close()
    assert topology.health.ready
    assert outside.bound("documents") == queues("a")
    assert known.missing == {("queue", b"b"): "does not exist"}


async def test_a_declared_queue_has_its_tokens_when_ensure_returns(make: Make, outside: Outside, vhost: str) -> None:
    known = state(vhost, {"first": queues("a"), "second": queues("a"), "third": set()}, regex=True)
    topology = await make(known)
    outside.make_queue("a")
    assert topology.requests.interested(b"a")
    epoch = known.epoch
    await topology.requests.ensure(("queue", b"a"))
    assert outside.bound("first") == outside.bound("second") == queues("a")
    assert outside.bound("third") == set()
    assert known.exchanges[b"first"].bound == queues("a")
    assert known.missing == {}
    assert list(known.queues.names) == [b"a"]
    assert known.epoch > epoch


async def test_a_declared_queue_is_bound_even_if_its_token_was_known(make: Make, outside: Outside, vhost: str) -> None:
    outside.make_queue("a")
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known)
    outside.delete_queue("a")
    outside.make_queue("a")
    epoch = known.epoch
    await topology.requests.ensure(("queue", b"a"))
    assert outside.bound("documents") == queues("a")
    assert known.epoch == epoch  # the relays' state was correct, so they need not repeat their requests


async def test_a_declared_queue_that_is_refused_is_missing_and_nothing_is_raised(
    make: Make, outside: Outside, vhost: str
) -> None:
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known)
    await topology.requests.ensure(("queue", b"a"))  # it does not exist
    assert known.missing == {("queue", b"a"): "does not exist"}
    with outside.channel() as channel:
        channel.queue_declare("a", exclusive=True)
        await topology.requests.ensure(("queue", b"a"))
        assert known.missing == {("queue", b"a"): "exclusive queue of another connection"}


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


async def test_queues_of_rules_demands_and_regex_routes_are_of_interest(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_queue("demanded")
    direct = owned("direct", Delivery.QUEUE)
    known = state(vhost, {"documents": queues("a"), "direct": queues("b")}, direct)
    topology = await make(known)
    await topology.requests.bind(b"documents", queues("demanded"))
    assert [topology.requests.interested(name) for name in (b"a", b"b", b"demanded", b"c")] == [
        True,
        True,
        True,
        False,
    ]
    rules = router({"documents": queues("a"), "direct": queues("b")}, regex=True)
    topology.reconciler.swap(PreparedRules(known.exchanges, rules, (), ()))
    assert topology.requests.interested(b"c")


async def test_a_queue_declared_through_us_is_known_at_once(make: Make, vhost: str) -> None:
    direct = owned("direct", Delivery.QUEUE)
    known = state(vhost, {"direct": queues("a")}, direct, regex=True)
    topology = await make(known)
    assert ("queue", b"a") in known.missing
    epoch = known.epoch
    topology.requests.declared(("queue", b"a"))
    assert known.missing == {}
    assert list(known.queues.names) == [b"a"]
    assert known.epoch > epoch


async def test_a_declare_that_concerns_no_rule_keeps_cached_decisions(make: Make, vhost: str) -> None:
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known)
    epoch = known.epoch
    topology.requests.declared(("queue", b"reply-1"))
    topology.requests.queue_deleted(b"reply-1")
    assert known.epoch == epoch


async def test_a_queue_deleted_through_us_is_forgotten_at_once(make: Make, outside: Outside, vhost: str) -> None:
    outside.make_queues("a", "b")
    known = state(vhost, {"documents": queues("a")}, regex=True)
    topology = await make(known)
    epoch = known.epoch
    outside.delete_queue("a")
    topology.requests.queue_deleted(b"a")
    assert known.exchanges[b"documents"].bound == set()
    assert ("queue", b"a") in known.missing
    assert list(known.queues.names) == [b"b"]
    assert known.epoch > epoch


@pytest.mark.parametrize("management", [True, False])
async def test_what_is_declared_through_us_at_the_end_of_a_pass_is_not_missing(
    make: Make, outside: Outside, vhost: str, management: bool
) -> None:
    known = state(vhost, {"direct": queues("a") | exchanges("x")}, owned("direct", Delivery.QUEUE))
    topology = await make(known, management=management)
    assert known.missing.keys() == queues("a") | exchanges("x")
    warn = topology.reconciler.observer.warn

    async def warn_late(desired: DesiredState) -> None:
        await warn(desired)
        outside.make_queue("a")
        outside.make_exchange("x")
        topology.requests.declared(("queue", b"a"))
        topology.requests.declared(("exchange", b"x"))

    topology.reconciler.observer.warn = warn_late  # type: ignore[method-assign]
    await topology.refresh(thorough=True)
    assert known.missing == {}


async def test_binding_on_demand_in_queue_delivery_checks_what_can_be_published_to(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_exchange("there")
    outside.make_exchange("inside", internal=True)
    direct = owned("direct", Delivery.QUEUE)
    known = state(vhost, {"direct": set()}, direct)
    topology = await make(known)
    assert await topology.requests.bind(b"direct", exchanges("there", "inside", "ghost")) == exchanges("there")
    assert known.missing["exchange", b"ghost"] == "does not exist"
    assert "internal" in known.missing["exchange", b"inside"]
    assert await topology.requests.bind(b"nowhere", queues("a")) == set()


async def test_new_rules_are_bound_before_the_swap_and_old_tokens_unbound_after_it(
    make: Make, outside: Outside, vhost: str
) -> None:
    outside.make_queues("a", "b", "c", "extra")
    known = state(vhost, {"documents": queues("a", "b"), "dropped": queues("a")})
    topology = await make(known, grace_seconds=0)
    await topology.requests.bind(b"documents", queues("extra"))

    rules = router({"documents": queues("b", "c"), "fresh": queues("d")})
    evaluated = {b"documents": owned("documents"), b"fresh": owned("fresh")}
    new = await topology.reconciler.prepare(evaluated, rules, [Queue(b"d")])
    assert outside.bound("documents") == queues("a", "b", "c", "extra")
    assert outside.bound("fresh") == queues("d")
    assert evaluated[b"documents"].bound == queues("a", "b", "c", "extra")

    topology.reconciler.swap(new)
    epoch = known.epoch
    known.handover_seconds = 0.0
    await topology.retire(new.retired)
    assert outside.plainly_bound("documents") == queues("b", "c", "extra")
    assert outside.bound("dropped") == set()
    assert evaluated[b"documents"].bound == queues("b", "c", "extra")
    assert known.epoch > epoch


async def test_a_pass_in_the_grace_period_does_not_restore_a_token(make: Make, outside: Outside, vhost: str) -> None:
    outside.make_queues("a", "b", "c")
    known = state(vhost, {"documents": queues("a", "b")})
    topology = await make(known)
    rules, evaluated = router({"documents": queues("c")}), {b"documents": owned("documents")}
    new = await topology.reconciler.prepare(evaluated, rules, [])
    known.exchanges, known.router = evaluated, rules
    topology.reconciler.release(new.retired)
    await topology.requests.bind(b"documents", queues("b"))  # a producer uses a destination of previous rules
    await topology.refresh()
    assert evaluated[b"documents"].bound == queues("b", "c")
    await topology.reconciler.unbind(new.retired)
    assert outside.plainly_bound("documents") == queues("b", "c")
    await topology.refresh()
    assert outside.plainly_bound("documents") == queues("b", "c")


async def test_tokens_bound_for_prepared_rules_are_not_unbound(make: Make, outside: Outside, vhost: str) -> None:
    outside.make_queues("a", "b")
    topology = await make(state(vhost, {"documents": queues("a")}))
    rules, evaluated = router({"documents": queues("b")}), {b"documents": owned("documents")}
    new = await topology.reconciler.prepare(evaluated, rules, [])
    topology.reconciler.swap(new)
    topology.reconciler.release(new.retired)
    again, back = router({"documents": queues("a")}), {b"documents": owned("documents")}
    prepared = await topology.reconciler.prepare(back, again, [])
    await topology.reconciler.unbind(new.retired)
    topology.reconciler.swap(prepared)
    assert back[b"documents"].bound >= queues("a")
    assert outside.bound("documents") >= queues("a")


async def test_new_rules_that_meet_a_conflict_change_nothing(make: Make, outside: Outside, vhost: str) -> None:
    outside.make_queue("a")
    outside.make_exchange("legacy", "fanout")
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known)
    evaluated = {b"documents": owned("documents"), b"legacy": owned("legacy")}
    with pytest.raises(UpstreamError, match="legacy"):
        await topology.reconciler.prepare(
            evaluated, router({"documents": queues("a"), "legacy": set()}), [Queue(b"refused")]
        )
    await topology.refresh()
    assert topology.reconciler.conflicts == ()
    assert [item["name"] for item in outside.broker.api("GET", f"queues/{vhost}")] == ["a"]
    assert known.exchanges[b"documents"].bound == queues("a")


@pytest.fixture
async def running() -> AsyncIterator[Callable[[VhostTopology], None]]:
    tasks: list[asyncio.Task[None]] = []
    yield lambda topology: tasks.append(asyncio.ensure_future(topology.run(lambda: False)))
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_running_control_plane_repeats_its_passes(
    make: Make, outside: Outside, vhost: str, running: Callable[[VhostTopology], None]
) -> None:
    known = state(vhost, {"documents": queues("a")})
    topology = await make(known, connect=False, refresh_seconds=0.02)
    running(topology)
    await until(lambda: ("queue", b"a") in known.missing)
    outside.make_queue("a")
    await until(lambda: known.missing == {})
    assert outside.bound("documents") == queues("a")


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
        known.exchanges[b"documents"].tokens.not_bound(("queue", b"a"))
        outside.broker.create_vhost(vhost)
        await until(lambda: known.exchanges[b"documents"].bound == queues("a"))
    assert outside.bound("documents") == queues("a")
    assert len(has(events, "control connection lost")) == 1
    assert len(has(events, "control connection failed")) <= 3


async def test_old_tokens_are_unbound_after_a_lost_connection(
    make: Make, outside: Outside, vhost: str, running: Callable[[VhostTopology], None]
) -> None:
    outside.make_queues("a", "b")
    known = state(vhost, {"documents": queues("a", "b"), "dropped": queues("a")})
    topology = await make(known, connect=False, grace_seconds=0, refresh_seconds=60, retry_seconds=0.01)
    running(topology)
    await until(lambda: topology.health.ready)
    rules, evaluated = router({"documents": queues("b")}), {b"documents": owned("documents")}
    new = await topology.reconciler.prepare(evaluated, rules, [])
    topology.reconciler.swap(new)
    known.handover_seconds = 0.0
    await topology.connection.close()
    async with asyncio.timeout(30):
        await topology.retire(new.retired)
    assert outside.plainly_bound("documents") == queues("b")
    assert outside.bound("dropped") == set()


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
