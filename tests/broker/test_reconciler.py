from __future__ import annotations

from collections.abc import Sequence

import pytest

from proxy.broker.connection import ControlConnection, ControlSettings
from proxy.broker.methods import Method, Refusal
from proxy.broker.reconcile.desired import desired_state
from proxy.broker.reconcile.reconciler import Reconciler
from proxy.relay.vhost import Delivery
from proxy.values import Destination
from tests.broker.observed import bind_token, owned, queues, router, state


class FakeConnection(ControlConnection):
    """A connection to a broker that refuses given names, and records what it was sent."""

    def __init__(self) -> None:
        #: The time, and the duration of each call.
        self.now = self.takes_seconds = 0.0
        self.sent: list[Method] = []
        self.refusals: dict[Method, Refusal] = {}

    async def call_all(self, methods: Sequence[Method]) -> list[Refusal | None]:
        self.sent += methods
        self.now += self.takes_seconds
        return [self.refusals.get(method) for method in methods]

    def refuse(self, carrier: bytes, *destinations: Destination) -> None:
        for destination in destinations:
            self.refusals[bind_token(carrier, destination)] = Refusal(404, "NOT_FOUND - no queue")

    def bound(self, carrier: bytes, destinations: set[Destination]) -> set[Destination]:
        """The given destinations that were bound since the last call, whether refused or not."""
        sent, self.sent = self.sent, []
        return {destination for destination in destinations if bind_token(carrier, destination) in sent}


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
def reconciler(connection: FakeConnection) -> Reconciler:
    settings = ControlSettings(hosts=(), username="control", password="", retries_per_look=2)
    return Reconciler(settings, state("/", {}), connection, None, clock=lambda: connection.now)


MANY = queues("a", "b", "c", "d", "e")


async def test_refused_tokens_are_retried_in_turn_a_few_per_pass(
    reconciler: Reconciler, connection: FakeConnection
) -> None:
    desired = desired_state({b"x": owned("x")}, router({"x": MANY}))
    connection.refuse(b"x", *MANY)
    await reconciler.reconcile(lambda: desired, ())
    assert connection.bound(b"x", MANY) == MANY
    turns = []
    for _ in range(3):
        missing = await reconciler.reconcile(lambda: desired)
        turns.append(connection.bound(b"x", MANY))
        assert missing == dict.fromkeys(MANY, "does not exist")
    assert [len(turn) for turn in turns] == [2, 2, 2]
    assert set().union(*turns) == MANY


async def test_a_new_destination_does_not_wait_for_its_turn(reconciler: Reconciler, connection: FakeConnection) -> None:
    exchange = owned("x")
    connection.refuse(b"x", *MANY)
    await reconciler.reconcile(lambda: desired_state({b"x": exchange}, router({"x": MANY})), ())
    connection.bound(b"x", MANY)
    fresh = queues("f", "g", "h")
    await reconciler.reconcile(lambda: desired_state({b"x": exchange}, router({"x": MANY | fresh})))
    assert connection.bound(b"x", fresh) == fresh
    assert exchange.bound == fresh


async def test_without_listings_tokens_are_bound_again_in_turn_a_few_per_pass(
    reconciler: Reconciler, connection: FakeConnection
) -> None:
    exchange = owned("x")
    desired = desired_state({b"x": exchange}, router({"x": MANY}))
    await reconciler.reconcile(lambda: desired, ())
    assert exchange.bound == MANY
    connection.bound(b"x", MANY)
    turns = []
    for _ in range(3):
        await reconciler.reconcile(lambda: desired)
        turns.append(connection.bound(b"x", MANY))
    assert [len(turn) for turn in turns] == [2, 2, 2]
    assert set().union(*turns) == MANY


async def test_a_full_pass_binds_all_tokens_again(reconciler: Reconciler, connection: FakeConnection) -> None:
    exchange = owned("x", bound=MANY | queues("on demand"))
    await reconciler.reconcile(lambda: desired_state({b"x": exchange}, router({"x": MANY})), ())
    assert connection.bound(b"x", MANY | queues("on demand")) == MANY | queues("on demand")


@pytest.mark.parametrize(("takes_seconds", "looks"), [(0.01, 1), (10.0, 2)])
async def test_a_long_full_pass_is_repeated_before_its_result_counts(
    reconciler: Reconciler, connection: FakeConnection, takes_seconds: float, looks: int
) -> None:
    connection.takes_seconds = takes_seconds
    desired = desired_state({b"x": owned("x")}, router({"x": queues("a")}))
    await reconciler.reconcile(lambda: desired, ())
    assert connection.sent.count(bind_token(b"x", ("queue", b"a"))) == looks


async def test_a_destination_missing_on_one_of_two_carriers_is_missing(
    reconciler: Reconciler, connection: FakeConnection
) -> None:
    connection.refuse(b"y", ("queue", b"a"))
    desired = desired_state({b"x": owned("x"), b"y": owned("y")}, router({"x": queues("a"), "y": queues("a")}))
    assert await reconciler.reconcile(lambda: desired, ()) == {("queue", b"a"): "does not exist"}


async def test_without_listings_a_few_names_are_queried_in_each_pass(
    reconciler: Reconciler, connection: FakeConnection
) -> None:
    desired = desired_state({b"x": owned("x", Delivery.QUEUE)}, router({"x": MANY}))
    await reconciler.reconcile(lambda: desired, ())
    assert len(connection.sent) == len(MANY)
    connection.sent.clear()
    await reconciler.reconcile(lambda: desired)
    await reconciler.reconcile(lambda: desired)
    assert len(connection.sent) == 4
    assert len(set(connection.sent)) == 4  # in turn
