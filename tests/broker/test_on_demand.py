from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.broker.connection import ControlConnection
from proxy.broker.management_api import ManagementApi
from proxy.broker.reconcile.diff import BindToken, DeclareCarrier
from proxy.broker.reconcile.executor import Executor
from proxy.broker.reconcile.observed import ObservedState
from proxy.broker.reconcile.reconciler import Reconciler
from proxy.broker.reconcile.relay_requests import RelayRequests
from proxy.broker.task_supervisor import Supervisor
from proxy.relay.vhost import Delivery, OwnedExchange, VhostState
from tests.broker.observed import Outside, exchanges, owned, queues, router, settings
from tests.rabbitmq import Broker


class Counting(Executor):
    """Counts requests to the broker."""

    asked = 0

    async def bind_one(self, token: BindToken) -> str | None:
        self.asked += 1
        return await super().bind_one(token)


class Bench:
    """One carrier and the on-demand binding of its destinations."""

    def __init__(self, broker: Broker, vhost: str, **limits: object) -> None:
        self.settings = settings(broker, **limits)
        self.exchange: OwnedExchange = owned("c")
        self.state = VhostState(vhost, router({"c": ()}), {b"c": self.exchange})
        self.observed = ObservedState()
        self.management = ManagementApi(self.settings, broker.management)
        self.connection = ControlConnection(self.settings, vhost)
        self.executor = Counting(self.settings, self.state, self.connection, self.observed)
        self.requests = self.new(self.management)

    def new(self, management: ManagementApi | None) -> RelayRequests:
        reconciler = Reconciler(self.settings, self.state, self.connection, management)
        reconciler.executor, reconciler.names = self.executor, self.observed
        return RelayRequests(reconciler, Supervisor(), lambda: None, lambda exchange: None, lambda: None)

    async def open(self) -> None:
        await self.connection.connect()
        await self.executor.carry_out([DeclareCarrier(self.exchange)])
        self.requests.connected.set()

    async def close(self) -> None:
        await self.requests.close()
        await self.connection.close()
        await self.management.close()


@pytest.fixture
async def bench(broker: Broker, vhost: str) -> AsyncIterator[Bench]:
    made = Bench(broker, vhost, bind_limit=4, remember_limit=2)
    await made.open()
    yield made
    await made.close()


async def test_existing_destinations_are_bound_and_others_are_missing(bench: Bench, outside: Outside) -> None:
    outside.make_queue("a")
    bound = await bench.requests.bind(b"c", queues("a", "b") | exchanges("amq.topic", "x"))
    assert bound == outside.bound("c") == bench.exchange.bound == queues("a") | exchanges("amq.topic")
    assert bench.state.missing == {("queue", b"b"): "does not exist", ("exchange", b"x"): "does not exist"}


async def test_with_queue_delivery_a_queue_that_is_declared_while_it_is_being_looked_for_is_found(
    bench: Bench, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.exchange.delivery = Delivery.QUEUE
    look = ManagementApi.find

    async def late(management: ManagementApi, vhost: str, kind: str, name: bytes) -> object:
        found = await look(management, vhost, kind, name)
        outside.make_queue("a")
        bench.requests.declared(("queue", b"a"))
        return found

    monkeypatch.setattr(ManagementApi, "find", late)
    assert await bench.requests.bind(b"c", queues("a")) == queues("a")
    assert bench.state.missing == {}


async def test_the_inventory_is_queried_before_the_broker(bench: Bench) -> None:
    bench.observed.queues_listed({}, {})
    await bench.requests.bind(b"c", queues("a"))
    assert bench.executor.asked == 0
    assert bench.state.missing == {("queue", b"a"): "does not exist"}


async def test_a_queue_that_the_last_listing_lacks_is_found(bench: Bench, outside: Outside) -> None:
    bench.observed.queues_listed({}, {})
    outside.make_queue("a")
    assert await bench.requests.bind(b"c", queues("a")) == queues("a")


async def test_without_an_inventory_the_broker_itself_answers(bench: Bench, outside: Outside) -> None:
    requests = bench.new(None)
    requests.connected.set()
    outside.make_queue("a")
    assert await requests.bind(b"c", queues("a", "b")) == queues("a")
    assert bench.executor.asked == 2


async def test_a_missing_destination_is_not_queried_again(bench: Bench, outside: Outside) -> None:
    await bench.requests.bind(b"c", queues("a"))
    outside.make_queue("a")
    asked = bench.executor.asked
    assert await bench.requests.bind(b"c", queues("a")) == set()
    assert bench.executor.asked == asked


async def test_an_invalid_name_is_never_sent(bench: Bench) -> None:
    await bench.requests.bind(b"c", {("queue", b"\xff"), ("queue", b"")})
    assert bench.executor.asked == 0
    assert bench.connection.connected


async def test_the_memory_of_missing_destinations_is_bounded(bench: Bench) -> None:
    for name in ("a", "b", "c", "d"):
        await bench.requests.bind(b"c", queues(name))
    assert bench.state.missing.keys() == queues("c", "d")
    assert bench.requests.missing().keys() == queues("c", "d")


async def test_a_missing_destination_is_remembered_for_one_refresh_interval(broker: Broker, vhost: str) -> None:
    bench = Bench(broker, vhost, refresh_seconds=0)
    await bench.open()
    await bench.requests.bind(b"c", queues("a"))
    assert bench.requests.missing() == {}
    await bench.close()


async def test_a_forgotten_destination_is_queried_again(bench: Bench, outside: Outside) -> None:
    await bench.requests.bind(b"c", queues("a"))
    outside.make_queue("a")
    bench.requests.declared(("queue", b"a"))
    assert bench.state.missing == {}
    assert await bench.requests.bind(b"c", queues("a")) == queues("a")


@pytest.mark.parametrize("listed", [True, False])
async def test_a_destination_that_is_declared_while_it_is_being_looked_for_is_found(
    bench: Bench, outside: Outside, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    place, name = (ManagementApi, "find") if listed else (Executor, "bind_one")
    look = getattr(place, name)

    async def late(*arguments: object) -> object:
        """Look for the queue; a client declares it before the response is processed."""
        found = await look(*arguments)
        outside.make_queue("a")
        bench.requests.declared(("queue", b"a"))
        return found

    monkeypatch.setattr(place, name, late)
    if listed:
        bench.observed.queues_listed({}, {})
    assert await bench.requests.bind(b"c", queues("a")) == queues("a")
    assert bench.state.missing == {}


async def test_bindings_on_demand_are_limited(bench: Bench, outside: Outside) -> None:
    outside.make_queues("a", "b", "c", "d", "e")
    bound = await bench.requests.bind(b"c", queues("a", "b", "c", "d", "e"))
    assert len(bound) == 4
    assert bench.requests.bound_count == 4
    [why] = bench.state.missing.values()
    assert "the limit of 4 destinations bound on demand has been reached" in why


async def test_destinations_of_rules_do_not_count_towards_the_limit(bench: Bench, outside: Outside) -> None:
    outside.make_queues("a", "b", "c", "d", "e")
    bench.state.router = router({"c": queues("a", "b", "c", "d", "e")})
    assert len(await bench.requests.bind(b"c", queues("a", "b", "c", "d", "e"))) == 5
    assert bench.requests.bound_count == 0


async def test_a_refused_destination_does_not_count_towards_the_limit(bench: Bench) -> None:
    await bench.requests.bind(b"c", queues("a"))
    assert bench.requests.bound_count == 0


async def test_many_publishes_wait_for_one_attempt(bench: Bench, outside: Outside) -> None:
    outside.make_queue("a")
    answers = await asyncio.gather(*(bench.requests.bind(b"c", queues("a")) for _ in range(20)))
    assert answers == [queues("a")] * 20
    assert bench.executor.asked == 1


async def test_a_cancelled_publish_does_not_cancel_the_attempt(bench: Bench, outside: Outside) -> None:
    outside.make_queue("a")
    leaving = asyncio.ensure_future(bench.requests.bind(b"c", queues("a")))
    staying = asyncio.ensure_future(bench.requests.bind(b"c", queues("a")))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == queues("a")


async def test_without_a_connection_a_publish_waits_until_the_deadline(broker: Broker, vhost: str) -> None:
    bench = Bench(broker, vhost, deadline_seconds=0.05)
    assert await bench.requests.bind(b"c", queues("a")) == set()
    await bench.close()


async def test_an_exclusive_queue_is_not_tried(bench: Bench) -> None:
    bench.observed.add_queue(b"mine", exclusive=True)
    await bench.requests.bind(b"c", queues("mine"))
    assert bench.executor.asked == 0
    assert bench.state.missing == {("queue", b"mine"): "exclusive queue of another connection"}


async def test_a_successful_bind_invalidates_cached_decisions(bench: Bench, outside: Outside) -> None:
    outside.make_queue("a")
    flight = asyncio.ensure_future(bench.requests.bind(b"c", queues("a")))
    await asyncio.sleep(0)
    bench.state.missing["queue", b"a"] = "said somebody else meanwhile"
    epoch = bench.state.epoch
    await flight
    assert bench.state.missing == {}
    assert bench.state.epoch > epoch
