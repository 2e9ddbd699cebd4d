from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import pytest

from proxy.broker.topology import Topology
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.counters import Counters
from tests.broker.observed import Outside, Queue, owned, queues, reconcile, router, settings, state, until
from tests.private_broker import free_port
from tests.rabbitmq import Broker


@pytest.fixture
def second(broker: Broker, vhost: str) -> Iterator[str]:
    name = f"{vhost}-second"
    broker.create_vhost(name)
    yield name
    broker.delete_vhost(name)


@pytest.fixture
async def closing() -> AsyncIterator[Callable[[Topology], Topology]]:
    made: list[Topology] = []

    def keep(topology: Topology) -> Topology:
        made.append(topology)
        return topology

    yield keep
    for topology in made:
        await topology.close()


Keep = Callable[[Topology], Topology]


async def test_every_virtual_host_gets_the_objects_of_its_rules(
    closing: Keep, broker: Broker, vhost: str, second: str
) -> None:
    states = {name: state(name, {"documents": queues("a")}) for name in (vhost, second)}
    topology = closing(Topology(settings(broker), states, {vhost: [Queue(b"a")], second: [Queue(b"a")]}))
    before = topology.ready
    await topology.start()
    assert (before, topology.ready) == (False, True)
    assert Outside(broker, vhost).bound("documents") == Outside(broker, second).bound("documents") == queues("a")


async def test_a_conflict_in_one_virtual_host_is_raised(closing: Keep, broker: Broker, vhost: str, second: str) -> None:
    Outside(broker, second).make_exchange("documents", "fanout")
    states = {name: state(name, {"documents": queues("a")}) for name in (vhost, second)}
    topology = closing(Topology(settings(broker), states, {}))
    with pytest.raises(UpstreamError) as caught:
        await topology.start()
    assert caught.value.failure is UpstreamFailure.REFUSED
    assert second in caught.value.message
    assert not topology.ready


async def test_an_unreachable_broker_is_unavailable(closing: Keep) -> None:
    unreachable = Broker("127.0.0.1", free_port(), "http://127.0.0.1:1")
    topology = closing(Topology(settings(unreachable, patience_seconds=0), {"/": state("/", {})}, {}))
    with pytest.raises(UpstreamError) as caught:
        await topology.start()
    assert caught.value.failure is UpstreamFailure.UNAVAILABLE


async def test_run_completes_a_failed_start(closing: Keep, broker: Broker, vhost: str) -> None:
    known = state(vhost, {"documents": queues("a")})
    topology = closing(Topology(settings(broker, refresh_seconds=0.02, retry_seconds=0.01), {vhost: known}, {}))
    outside = Outside(broker, vhost)
    outside.make_exchange("documents", "fanout")
    with pytest.raises(UpstreamError):
        await topology.start()
    running = asyncio.ensure_future(topology.run())
    outside.delete_exchange("documents")
    await until(lambda: topology.ready)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert outside.exchange("documents")["type"] == "direct"


async def test_status_lists_missing_destinations_and_foreign_bindings(
    closing: Keep, outside: Outside, vhost: str
) -> None:
    outside.make_queue("a")
    topology = closing(Topology(settings(outside.broker), {vhost: state(vhost, {"documents": queues("a", "b")})}, {}))
    await topology.start()
    outside.bind("documents", "a", "by hand")
    await reconcile(topology, vhost)
    [status] = topology.status()
    assert [status[key] for key in ("vhost", "ready", "connected", "queues")] == [vhost, True, True, 1]
    assert status["missing"] == {"queue b": "does not exist"}
    assert list(status["foreign"]) == ["documents"]
    assert "by hand" in status["foreign"]["documents"][0]
    assert status["conflicts"] == ()
    assert status["inventory_failures"] == ()
    assert status["refreshed_at"] is not None
    counters = Counters()
    topology.count(counters)
    assert (counters.missing_destinations, counters.foreign_bindings) == (1, 1)


async def test_calls_of_relays_reach_their_virtual_host(closing: Keep, outside: Outside, vhost: str) -> None:
    known = state(vhost, {"documents": queues("a")})
    topology = closing(Topology(settings(outside.broker), {vhost: known}, {}))
    await topology.start()
    outside.make_queues("a", "b")
    requests = topology.requests_of(vhost)
    assert requests is not None
    assert requests.interested(b"a")
    requests.declared(("queue", b"b"))
    await requests.ensure(("queue", b"a"))
    assert await requests.bind(b"documents", queues("b")) == queues("b")
    assert outside.bound("documents") == queues("a", "b")
    requests.queue_deleted(b"b")
    assert known.exchanges[b"documents"].bound == queues("a")


async def test_a_virtual_host_without_rules_and_clients_is_not_managed(closing: Keep, broker: Broker) -> None:
    topology = closing(Topology(settings(broker), {}, {}))
    await topology.start()
    assert topology.requests_of("/") is None
    assert topology.ready


async def test_new_rules_are_prepared_swapped_and_the_old_retired(closing: Keep, outside: Outside, vhost: str) -> None:
    outside.make_queues("a", "b")
    known = state(vhost, {"documents": queues("a")})
    topology = closing(Topology(settings(outside.broker, grace_seconds=0), {vhost: known}, {}))
    await topology.start()
    rules, evaluated = router({"documents": queues("b")}), {b"documents": owned("documents")}
    new = await topology.managed(vhost).prepare(evaluated, rules, [])
    topology.managed(vhost).reconciler.swap(new)
    assert topology.managed(vhost).requests.interested(b"b")
    known.handover_seconds = 0.0
    await topology.managed(vhost).retire(new.retired)
    assert outside.plainly_bound("documents") == queues("b")
