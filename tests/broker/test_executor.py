from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from proxy.broker.connection import ControlConnection
from proxy.broker.methods import LOCKED, DeclareQueue, Method, Refusal
from proxy.broker.reconcile.diff import BindToken, DeclareCarrier, UnbindRows
from proxy.broker.reconcile.executor import Executor
from proxy.broker.reconcile.observed import ObservedState
from proxy.relay.token_table import PLAIN
from tests.broker.clients import text
from tests.broker.observed import Outside, owned, queues, settings, state
from tests.rabbitmq import Broker


@pytest.fixture
def observed() -> ObservedState:
    return ObservedState()


@pytest.fixture
async def executor(broker: Broker, vhost: str, observed: ObservedState) -> AsyncIterator[Executor]:
    limits = settings(broker)
    connection = ControlConnection(limits, vhost)
    await connection.connect()
    yield Executor(limits, state(vhost, {}), connection, observed)
    await connection.close()


def reasons(executor: Executor) -> dict[str, str]:
    return {str(action): failure.why for action, failure in executor.failures.items()}


async def test_refused_actions_are_retried_at_growing_intervals(executor: Executor) -> None:
    action = DeclareQueue(b"amq.reserved")
    attempts = []
    for _ in range(40):
        await executor.carry_out([action])
        attempts.append(executor.failures[action].attempts)
    assert "403" in reasons(executor)["declare queue amq.reserved"]
    tried = [look for look in range(40) if look == 0 or attempts[look] > attempts[look - 1]]
    assert tried == [0, 1, 3, 7, 15, 28]
    await executor.carry_out([])  # no rule needs it any more
    assert executor.failures == {}


async def test_a_queue_with_arguments_that_the_broker_does_not_know_is_a_failure_with_the_brokers_reason(
    executor: Executor, observed: ObservedState
) -> None:
    await executor.carry_out([DeclareQueue(b"odd", ((b"x-queue-type", text("no such type")),))])
    assert not observed.knows(("queue", b"odd"))
    assert "can't be declared: 406" in reasons(executor)["declare queue odd"]
    assert "x-queue-type" in reasons(executor)["declare queue odd"]


async def test_an_alternate_exchange_that_differs_is_a_conflict(executor: Executor) -> None:
    await executor.carry_out([DeclareCarrier(owned("c", alternate=b"one"))])
    await executor.carry_out([DeclareCarrier(owned("c", alternate=b"two"))])
    assert "alternate-exchange" in reasons(executor)["declare direct exchange c"]


async def test_a_locked_queue_may_well_be_bound_by_its_owner(executor: Executor, outside: Outside) -> None:
    carrier = owned("c", bound=queues("mine"))
    await executor.carry_out([DeclareCarrier(carrier)])
    with outside.channel() as channel:
        channel.queue_declare("mine", exclusive=True)
        refused = await executor.bind([BindToken(carrier, ("queue", b"mine"))])
    assert carrier.bound == queues("mine")
    assert [None if refusal is None else refusal.code for refusal in refused.values()] == [LOCKED]


async def test_a_late_refusal_does_not_affect_a_queue_that_a_client_has_declared_and_bound_since(
    executor: Executor, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier, destination = owned("c"), ("queue", b"mine")
    await executor.carry_out([DeclareCarrier(carrier)])
    call_all = ControlConnection.call_all

    async def late(connection: ControlConnection, methods: Sequence[Method]) -> list[Refusal | None]:
        refusals = await call_all(connection, methods)
        carrier.tokens.bind_ok(destination)  # through the connection of the exclusive queue's client
        return refusals

    monkeypatch.setattr(ControlConnection, "call_all", late)
    await executor.bind([BindToken(carrier, destination)])
    assert carrier.bound == queues("mine")


async def test_unbinding_a_missing_binding_is_no_error(executor: Executor, outside: Outside) -> None:
    carrier = owned("c")
    outside.make_queue("a")
    await executor.carry_out([DeclareCarrier(carrier)])
    absent = [("queue", b"a"), ("exchange", b"nowhere")]
    await executor.unbind(UnbindRows(carrier, destination, (PLAIN,)) for destination in absent)
    await executor.bind([BindToken(carrier, ("queue", b"a"))])
    assert outside.bound("c") == queues("a")
