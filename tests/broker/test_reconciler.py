from __future__ import annotations

from collections.abc import Sequence

import pytest

from oxproxy.broker.connection import ControlConnection, ControlSettings
from oxproxy.broker.methods import Bind, Find, Method, Refusal
from oxproxy.broker.reconcile.desired import desired_state
from oxproxy.broker.reconcile.reconciler import Reconciler
from oxproxy.relay.vhost import Delivery
from oxproxy.values import Destination
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

    def tried(self) -> set[Destination]:
        """The destinations that were bound or looked for since the last call, whether refused or not."""
        sent, self.sent = self.sent, []
        return {method.destination for method in sent if isinstance(method, Bind | Find)}


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
def reconciler(connection: FakeConnection) -> Reconciler:
    settings = ControlSettings(hosts=(), username="control", password="", retries_per_look=2)
    return Reconciler(settings, state("/", {}), connection, None, clock=lambda: connection.now)


MANY = queues("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("delivery", "refused"),
    [(Delivery.CARRIER, True), (Delivery.CARRIER, False), (Delivery.QUEUE, False)],
    ids=["refused tokens", "tokens", "names in queue delivery"],
)
async def test_without_listings_a_few_destinations_are_verified_in_turn_in_each_pass(
    reconciler: Reconciler, connection: FakeConnection, delivery: Delivery, refused: bool
) -> None:
    desired = desired_state({b"x": owned("x", delivery)}, router({"x": MANY}))
    if refused:
        connection.refuse(b"x", *MANY)
    await reconciler.reconcile(lambda: desired, ())
    assert connection.tried() == MANY
    turns = []
    for _ in range(3):
        missing = await reconciler.reconcile(lambda: desired)
        turns.append(connection.tried())
        assert missing == dict.fromkeys(MANY if refused else (), "does not exist")
    assert [len(turn) for turn in turns] == [2, 2, 2]
    assert set().union(*turns) == MANY
