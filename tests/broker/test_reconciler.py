from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from oxproxy.broker.connection import ControlConnection, ControlSettings
from oxproxy.broker.methods import Bind, Find, Method, Refusal
from oxproxy.broker.reconcile.desired import desired_state
from oxproxy.broker.reconcile.reconciler import Reconciler
from oxproxy.relay.vhost import Delivery
from oxproxy.values import Destination, Value
from tests.broker.clients import declare_here, stored
from tests.broker.observed import bind_token, owned, queues, router, state
from tests.relay.wire import token

A: Destination = ("queue", b"a")
ABSENT = "does not exist"
ANY = ((b"x-match", Value("S", b"any")),)


class FakeConnection(ControlConnection):
    """A connection to a broker that refuses given names, and records what it was sent."""

    def __init__(self) -> None:
        #: The time, and the duration of each call.
        self.now = self.takes_seconds = 0.0
        self.sent: list[Method] = []
        self.refusals: dict[Method, Refusal] = {}
        #: called while the broker executes methods
        self.meanwhile: Callable[[], object] = lambda: None

    async def call_all(self, methods: Sequence[Method]) -> list[Refusal | None]:
        self.sent += methods
        self.now += self.takes_seconds
        self.meanwhile()
        return [self.refusals.get(method) for method in methods]

    async def call(self, method: Method) -> Refusal | None:
        [refusal] = await self.call_all([method])
        return refusal

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
    settings = ControlSettings(hosts=(), username="control", password="", retries_per_pass=2)
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
        missing = (await reconciler.reconcile(lambda: desired)).missing
        turns.append(connection.tried())
        assert missing == dict.fromkeys(MANY if refused else (), "does not exist")
    assert [len(turn) for turn in turns] == [2, 2, 2]
    assert set().union(*turns) == MANY


async def test_without_listings_a_clients_binding_ends_with_its_destination(
    reconciler: Reconciler, connection: FakeConnection
) -> None:
    exchange = declare_here(reconciler.state, "ox", stored("ox", "a"), stored("ox", "a", ANY), stored("ox", "b"))
    connection.refuse(b"ox", A)
    await reconciler.run_pass(thorough=False)
    assert [binding.destination for binding in exchange.clients.values()] == [("queue", b"b")]
    assert reconciler.state.missing() == {}


async def test_a_binding_that_a_client_creates_during_a_pass_stays(
    reconciler: Reconciler, connection: FakeConnection
) -> None:
    exchange = declare_here(reconciler.state, "ox", stored("ox", "a"))
    connection.refuse(b"ox", A)

    def bind() -> None:
        reconciler.state.add_binding(stored("ox", "a", ANY))
        exchange.tokens.bind_ok(A, (token(*A),))

    connection.meanwhile = bind
    await reconciler.run_pass(thorough=False)
    assert len(exchange.clients) == 2
    assert A in exchange.tokens.bound


@pytest.mark.parametrize("again", [False, True])
async def test_an_exchange_that_a_client_declares_again_while_the_broker_reports_its_absence_stays(
    reconciler: Reconciler, connection: FakeConnection, again: bool
) -> None:
    declare_here(reconciler.state, "ox", stored("ox", "a"))
    look_up = Find(("exchange", b"ox"))
    connection.refusals[look_up] = Refusal(404, "NOT_FOUND - no exchange")

    def declare_again() -> None:
        if look_up in connection.sent:
            connection.meanwhile = lambda: None
            reconciler.state.remove_exchange(b"ox")
            declare_here(reconciler.state, "ox", stored("ox", "b"))

    if again:
        connection.meanwhile = declare_again
    await reconciler.run_pass(thorough=False)
    assert list(reconciler.state.exchanges) == [b"ox"] * again


async def test_a_destination_is_missing_from_its_refusal_until_it_is_bound(
    reconciler: Reconciler, connection: FakeConnection
) -> None:
    known = reconciler.state
    exchange, other = owned("x"), owned("other")
    known.swap({b"x": exchange, b"other": other}, router({"x": queues("a"), "other": queues("b")}))
    connection.refuse(b"x", A)
    await reconciler.run_pass(thorough=False)
    assert known.missing() == {"queue a": ABSENT}
    exchange.tokens.bind_ok(A, (token(*A),))
    assert known.missing() == {}
    for table in (exchange.tokens, other.tokens):
        table.refused(A, "403", 1.0)
    assert known.missing() == {"queue a": "403"}
    known.swap({b"other": other}, router({"other": queues("b")}))
    assert known.missing() == {}  # no rule names it
    known.missing_others = {("exchange", b"alternate"): ABSENT}
    known.missing_remote = {("far", A): ABSENT}
    assert known.missing() == {"exchange alternate": ABSENT, "queue a on broker far": ABSENT}
