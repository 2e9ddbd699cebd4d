from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from proxy.broker.connection import ControlConnection
from proxy.broker.reconcile.executor import Executor
from proxy.broker.reconcile.observer import ObservedState
from tests.broker.world import Outside, Queue, owned, queues, settings
from tests.rabbitmq import Broker


@pytest.fixture
def outside(broker: Broker, vhost: str) -> Outside:
    return Outside(broker, vhost)


@pytest.fixture
def observed() -> ObservedState:
    return ObservedState()


@pytest.fixture
async def executor(broker: Broker, vhost: str, observed: ObservedState) -> AsyncIterator[Executor]:
    connection = ControlConnection(settings(broker), vhost)
    await connection.connect()
    yield Executor(connection, observed, broker.username)
    await connection.close()


async def test_queues_are_found_or_made_and_learned(
    executor: Executor, observed: ObservedState, outside: Outside
) -> None:
    outside.make_queue("there", x_max_length=1)
    with outside.channel() as channel:
        channel.queue_declare("mine", exclusive=True)
        refused = await executor.declare_queues([Queue(b"there"), Queue(b"mine"), Queue(b"lacking"), Queue(b"\xff")])
    assert refused == {}
    assert outside.queue("lacking")["durable"] is True
    assert set(observed.queues) == {b"there", b"mine", b"lacking"}
    assert observed.exclusive(("queue", b"mine"))


async def test_a_queue_that_can_not_be_made_is_refused_with_the_brokers_text(executor: Executor) -> None:
    refused = await executor.declare_queues([Queue(b"amq.reserved")])
    assert "403" in refused["queue", b"amq.reserved"]


async def test_a_queue_known_to_be_there_is_not_asked_for(
    executor: Executor, observed: ObservedState, outside: Outside
) -> None:
    observed.add_queue(b"known")
    await executor.declare_queues([Queue(b"known")])
    assert outside.broker.api("GET", f"queues/{outside.vhost}") == []


async def test_declaring_a_carrier_again_is_no_conflict(executor: Executor) -> None:
    assert await executor.declare_carriers([owned("c")]) == []
    assert await executor.declare_carriers([owned("c")]) == []


async def test_an_alternate_exchange_that_differs_is_a_conflict(executor: Executor) -> None:
    await executor.declare_carriers([owned("c", alternate=b"one")])
    [conflict] = await executor.declare_carriers([owned("c", alternate=b"two")])
    assert "alternate-exchange" in conflict


async def test_bound_tells_what_stands(executor: Executor, outside: Outside) -> None:
    carrier = owned("c", bound=queues("gone"))
    outside.make_queue("a")
    await executor.declare_carriers([carrier])
    refused = await executor.bind([(carrier, ("queue", name)) for name in (b"a", b"gone")])
    assert carrier.bound == outside.bound("c") == queues("a")
    assert refused == {(carrier, ("queue", b"gone")): "does not exist"}


async def test_a_locked_queue_may_well_be_bound_by_its_owner(executor: Executor, outside: Outside) -> None:
    carrier = owned("c", bound=queues("mine"))
    await executor.declare_carriers([carrier])
    with outside.channel() as channel:
        channel.queue_declare("mine", exclusive=True)
        refused = await executor.bind([(carrier, ("queue", b"mine"))])
    assert carrier.bound == queues("mine")
    assert list(refused.values()) == ["exclusive queue of another connection"]


async def test_one_token_is_bound_or_refused(executor: Executor, outside: Outside) -> None:
    carrier = owned("c")
    outside.make_queue("a")
    await executor.declare_carriers([carrier])
    assert await executor.bind_one((carrier, ("queue", b"a"))) is None
    assert await executor.bind_one((carrier, ("queue", b"b"))) == "does not exist"
    assert carrier.bound == queues("a")


async def test_unbinding_spares_what_is_needed_again(executor: Executor, outside: Outside) -> None:
    carrier = owned("c")
    outside.make_queues("a", "b")
    await executor.declare_carriers([carrier])
    tokens = [(carrier, destination) for destination in sorted(queues("a", "b"))]
    await executor.bind(tokens)
    await executor.unbind(tokens, lambda token: token[1] == ("queue", b"a"))
    assert outside.bound("c") == queues("a")


async def test_unbinding_what_is_not_there_is_no_fault(executor: Executor, outside: Outside) -> None:
    carrier = owned("c")
    outside.make_queue("a")
    await executor.declare_carriers([carrier])
    await executor.unbind([(carrier, ("queue", b"a")), (carrier, ("exchange", b"nowhere"))], lambda token: False)
    await executor.bind([(carrier, ("queue", b"a"))])
    assert outside.bound("c") == queues("a")


async def test_the_broker_says_what_it_does_not_have(executor: Executor, outside: Outside) -> None:
    outside.make_queue("a")
    asked = [("queue", b"a"), ("queue", b"b"), ("exchange", b"amq.topic"), ("exchange", b"x")]
    with outside.channel() as channel:
        channel.queue_declare("mine", exclusive=True)
        lacking = await executor.find_missing([*asked, ("queue", b"mine")])
    assert lacking == {("queue", b"b"): "does not exist", ("exchange", b"x"): "does not exist"}
