"""Destinations that publishes request between two passes: limits, memory, and concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from oxproxy.broker.management_api import ExchangeInfo, ManagementApi, QueueInfo
from oxproxy.broker.methods import Refusal
from oxproxy.broker.reconcile.diff import BindToken
from oxproxy.broker.reconcile.executor import Executor
from oxproxy.broker.reconcile.vhost_loop import VhostTopology
from oxproxy.relay.vhost import Delivery
from oxproxy.values import Destination
from tests.broker.conftest import Make
from tests.broker.observed import Outside, missing, owned, queues, router, state


@pytest.fixture
async def topology(make: Make, vhost: str) -> VhostTopology:
    """A virtual host with one exchange, whose rules name no destination, and low limits."""
    return await make(state(vhost, {"c": set()}), bind_limit=4, remember_limit=2)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Destination]:
    """The destinations that the broker was asked to bind."""
    bind, asked = Executor.bind, list[Destination]()

    async def noted(executor: Executor, tokens: Sequence[BindToken]) -> list[Refusal | None]:
        asked.extend(token.destination for token in tokens)
        return await bind(executor, tokens)

    monkeypatch.setattr(Executor, "bind", noted)
    return asked


async def test_without_an_inventory_the_broker_itself_answers(
    make: Make, vhost: str, outside: Outside, asked: list[Destination]
) -> None:
    requests = (await make(state(vhost, {"c": set()}), management=False)).requests
    outside.make_queue("a")
    assert await requests.bind(b"c", queues("a", "b")) == queues("a")
    assert set(asked) == queues("a", "b")


@pytest.mark.parametrize(
    ("delivery", "management"), [(Delivery.QUEUE, True), (Delivery.CARRIER, True), (Delivery.CARRIER, False)]
)
async def test_a_destination_that_is_declared_while_it_is_being_looked_for_is_found(
    make: Make,
    vhost: str,
    outside: Outside,
    monkeypatch: pytest.MonkeyPatch,
    delivery: Delivery,
    management: bool,
) -> None:
    known = state(vhost, {"c": set()}, owned("c", delivery))
    requests = (await make(known, management=management)).requests
    place, name = (ManagementApi, "find") if management else (Executor, "bind")
    look = getattr(place, name)

    async def late(*arguments: object) -> object:
        """Look for the queue; a client declares it before the response is processed."""
        found = await look(*arguments)
        outside.make_queue("a")
        requests.declared(("queue", b"a"))
        return found

    monkeypatch.setattr(place, name, late)
    assert await requests.bind(b"c", queues("a")) == queues("a")
    assert missing(known) == {}


# -- memory of missing destinations ------------------------------------------------------------------------------------


async def test_a_missing_destination_is_not_queried_again(topology: VhostTopology, outside: Outside) -> None:
    await topology.requests.bind(b"c", queues("a"))
    outside.make_queue("a")
    assert await topology.requests.bind(b"c", queues("a")) == set()


async def test_the_memory_of_missing_destinations_is_bounded(topology: VhostTopology) -> None:
    for name in ("a", "b", "c", "d"):
        await topology.requests.bind(b"c", queues(name))
    assert missing(topology.state).keys() == queues("c", "d")


async def test_a_missing_destination_is_remembered_for_one_refresh_interval(make: Make, vhost: str) -> None:
    topology = await make(state(vhost, {"c": set()}), refresh_seconds=0)
    await topology.requests.bind(b"c", queues("a"))
    assert missing(topology.state).keys() == queues("a")
    await topology.refresh()
    assert missing(topology.state) == {}


# -- limit -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("management", [True, False])
async def test_bindings_on_demand_are_limited(make: Make, vhost: str, outside: Outside, management: bool) -> None:
    topology = await make(state(vhost, {"c": set()}), management=management, bind_limit=4)
    await topology.requests.bind(b"c", queues("missing"))  # does not count
    outside.make_queues("a", "b", "c", "d", "e")
    assert len(await topology.requests.bind(b"c", queues("a", "b", "c", "d", "e"))) == 4
    assert topology.requests.bound_count == 4
    [why] = {why for destination, why in missing(topology.state).items() if destination != ("queue", b"missing")}
    assert "the limit of 4 destinations bound on demand has been reached" in why


async def test_destinations_of_rules_do_not_count_towards_the_limit(topology: VhostTopology, outside: Outside) -> None:
    outside.make_queues("a", "b", "c", "d", "e")
    topology.state.router = router({"c": queues("a", "b", "c", "d", "e")})
    assert len(await topology.requests.bind(b"c", queues("a", "b", "c", "d", "e"))) == 5
    assert topology.requests.bound_count == 0


# -- concurrent requests -----------------------------------------------------------------------------------------------


async def test_many_publishes_wait_for_one_attempt(
    topology: VhostTopology, outside: Outside, asked: list[Destination]
) -> None:
    outside.make_queue("a")
    answers = await asyncio.gather(*(topology.requests.bind(b"c", queues("a")) for _ in range(20)))
    assert answers == [queues("a")] * 20
    assert asked == [("queue", b"a")]


async def test_many_publishes_without_a_carrier_wait_for_one_query(
    make: Make, vhost: str, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = (await make(state(vhost, {"c": set()}, owned("c", Delivery.QUEUE)))).requests
    outside.make_queue("a")
    find, asked = ManagementApi.find, list[bytes]()

    async def noted(management: ManagementApi, vhost: str, kind: str, name: bytes) -> QueueInfo | ExchangeInfo | None:
        asked.append(name)
        return await find(management, vhost, kind, name)

    monkeypatch.setattr(ManagementApi, "find", noted)
    answers = await asyncio.gather(*(requests.bind(b"c", queues("a")) for _ in range(20)))
    assert answers == [queues("a")] * 20
    assert asked == [b"a"]


async def test_a_cancelled_publish_does_not_cancel_the_attempt(topology: VhostTopology, outside: Outside) -> None:
    outside.make_queue("a")
    leaving = asyncio.ensure_future(topology.requests.bind(b"c", queues("a")))
    staying = asyncio.ensure_future(topology.requests.bind(b"c", queues("a")))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == queues("a")


async def test_without_a_connection_a_publish_waits_until_the_deadline(make: Make, vhost: str) -> None:
    topology = await make(state(vhost, {"c": set()}), connect=False, deadline_seconds=0.05)
    assert await topology.requests.bind(b"c", queues("a")) == set()


async def test_a_waiting_publish_ends_with_the_control_plane(make: Make, vhost: str) -> None:
    topology = await make(state(vhost, {"c": set()}), connect=False)
    waiting = asyncio.ensure_future(topology.requests.bind(b"c", queues("a")))
    await asyncio.sleep(0)
    await topology.close()
    assert await waiting == set()


async def test_a_successful_bind_invalidates_decisions_without_the_destination(
    topology: VhostTopology, outside: Outside
) -> None:
    await topology.requests.bind(b"c", queues("a"))
    assert missing(topology.state).keys() == queues("a")
    outside.make_queue("a")
    epoch = topology.state.epoch
    topology.requests.declared(("queue", b"a"))
    assert await topology.requests.bind(b"c", queues("a")) == queues("a")
    assert missing(topology.state) == {}
    assert topology.state.epoch > epoch


async def test_the_destinations_of_one_publish_are_bound_as_one_batch_of_limited_size(
    make: Make, vhost: str, outside: Outside, asked: list[Destination]
) -> None:
    topology = await make(state(vhost, {"c": set()}))
    outside.make_queues("a", "b")
    names = [f"missing.{number}" for number in range(1200)]
    assert await topology.requests.bind(b"c", [("queue", b"a"), ("queue", b"b"), *sorted(queues(*names))]) == queues(
        "a", "b"
    )
    assert len(asked) == 2  # the others do not exist
    reasons = list(missing(topology.state).values())
    assert reasons.count("does not exist") == 998
    assert reasons.count("more than 1000 destinations at once") == 202


async def test_publishes_request_a_declared_queue_that_could_not_be_bound_in_time(
    make: Make, vhost: str, outside: Outside
) -> None:
    """The queue may be new, for example because it was deleted elsewhere while the control connection was lost."""
    outside.make_queue("a")
    known = state(vhost, {"c": queues("a")})
    requests = (await make(known)).requests
    assert await requests.bind(b"c", queues("a")) == queues("a")
    epoch = known.epoch
    requests.connected.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await requests.ensure(("queue", b"a"))
    assert (set(known.exchanges[b"c"].tokens.bound), missing(known)) == (set(), {})
    assert known.epoch > epoch
    requests.connected.set()
    await requests.ensure(("queue", b"a"))
    assert known.exchanges[b"c"].tokens.bound.keys() == queues("a")
