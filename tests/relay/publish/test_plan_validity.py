"""A cached decision is always the decision that would be made now, whatever has changed in between."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from oxproxy.addressing.table import AddressRule, AddressTable
from oxproxy.addressing.targets import AddressBook
from oxproxy.relay.declare.storage import identity_key
from oxproxy.relay.plan.plan import Plans
from oxproxy.relay.tokens import Secrets
from oxproxy.relay.vhost import BindingCopy, DeclaredExchange, Delivery, StoredBinding, VhostState
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import EXCHANGE, QUEUE, Destination
from tests.relay.wire import Wire, owned, publish, state, table
from tests.routing.building import Plain, arguments, exchange

#: Exchanges in rules files, with their deliveries; clients also declare `CLIENTS`.
FILE = {"xo": Delivery.CARRIER, "next": Delivery.CARRIER, "queued": Delivery.QUEUE}
CLIENTS = ("client", "late")
#: Bindings that the rules files always have: exchange, destination, and index of the conditions.
RULES = (
    ("xo", (QUEUE, b"a"), 1),
    ("xo", (EXCHANGE, b"next"), 0),
    ("next", (QUEUE, b"b"), 0),
    ("queued", (EXCHANGE, b"own"), 0),
)
QUEUES = ("a", "b", "jobs.1")
DESTINATIONS: tuple[Destination, ...] = (
    *((QUEUE, name.encode()) for name in QUEUES),
    *((EXCHANGE, name.encode()) for name in ("next", "client", "late", "own")),
)
#: Messages that are published to every exchange after each change.
MESSAGES = tuple(
    publish(key, table(**headers), to=name)
    for name in (*FILE, *CLIENTS, "own")
    for key, headers in (("key", {"type": "report", "x-addq-ontrue": "b"}), ("a", {"other": "1"}))
)
#: Conditions and routes of bindings.
CONDITIONS: tuple[dict[str, Plain], ...] = (
    {},
    {"x-?hkv= type": "report"},
    {"x-?hkv= other": "1"},
    {"x-?rk=": "key"},
    {"x-addqre-ontrue": "^jobs"},
    {"x-addq-ontrue": "b", "x-order": 100},
    {"x-msg-addq-ontrue": ""},
    {"x-delq-ontrue": "a", "x-stop-ontrue": ""},
)
BOOKS = (
    None,
    AddressBook(AddressTable([AddressRule(b"a", b"/queue/b"), AddressRule(b"/exchange/own/*", b"/queue/a")])),
)

_exchanges = st.sampled_from((*FILE, *CLIENTS))
_bindings = st.tuples(_exchanges, st.sampled_from(DESTINATIONS), st.sampled_from(range(len(CONDITIONS))), st.booleans())
_places = st.one_of(
    st.sampled_from([("xo", (QUEUE, b"a")), ("xo", (QUEUE, b"b")), ("queued", (EXCHANGE, b"own"))]),
    st.tuples(_exchanges, st.sampled_from(DESTINATIONS)),
)
_events = st.sampled_from(("bound", "refused", "deleted", "declared"))
#: Each change begins with the name of the method of `_Changes` that makes it.
_changes = st.one_of(
    st.tuples(st.just("bind"), _bindings),
    st.tuples(st.just("unbind"), _bindings),
    st.tuples(st.just("destination"), _places, _events),
    st.tuples(st.just("queue"), st.sampled_from(QUEUES), st.booleans()),
    st.tuples(st.just("declare"), st.sampled_from(CLIENTS), st.sampled_from((None, "own", "next", "xo"))),
    st.tuples(st.just("remove"), st.sampled_from(CLIENTS)),
    st.tuples(st.just("reload"), st.lists(_bindings, max_size=4), st.sampled_from((None, "own", "client"))),
    st.tuples(st.just("addresses"), st.sampled_from(range(len(BOOKS)))),
    st.tuples(st.just("secrets"), st.sampled_from((b"1", b"2"))),
)


class _Changes:
    """Changes one virtual host as the control plane and the clients' relays do."""

    def __init__(self) -> None:
        self._sequences = count(1)
        made = self._rules([], None)
        self.state = state(*((one, owned(one, FILE[name])) for name, one in made.items()))
        self._bind_all()

    def _bind_all(self) -> None:
        """Bind what the rules name, as the control plane does before new rules are used."""
        for name, of in self.state.exchanges.items():
            for destination in self.state.router.destinations(name):
                token = self.state.candidates(of, destination)[0]
                of.tokens.bind_ok(destination, (token,) if of.delivery is Delivery.CARRIER else ())

    def _rules(self, bindings: list[tuple[str, Destination, int, bool]], alternate: str | None) -> dict[str, Exchange]:
        made = {name: exchange(name=name, alternate=alternate if name == "xo" else None) for name in FILE}
        for source, destination, condition in (*RULES, *(binding[:3] for binding in bindings)):
            if source in made:
                made[source].bind(self._binding(source, destination, condition))
        return made

    def _binding(self, source: str, destination: Destination, condition: int) -> Binding:
        return Binding(source.encode(), *destination, b"", arguments(CONDITIONS[condition]), extensions=True)

    def _stored(self, source: str, destination: Destination, condition: int, signed: bool) -> StoredBinding:
        binding = self._binding(source, destination, condition)
        copy = BindingCopy(next(self._sequences), "user", b"", b"s", 0 if signed else None)
        return StoredBinding(binding, identity_key(binding.identity), (copy,))

    def bind(self, binding: tuple[str, Destination, int, bool]) -> None:
        stored = self._stored(*binding)
        of = self.state.router.exchanges.get(stored.binding.exchange)
        if of is not None and (of.name in self.state.exchanges) and not self._by_file(stored):
            self.state.add_binding(stored)

    def _by_file(self, stored: StoredBinding) -> bool:
        name = stored.binding.exchange
        known = stored.binding.identity in self.state.exchanges[name].clients
        return not known and self.state.router.exchanges[name].has(stored.binding)

    def unbind(self, binding: tuple[str, Destination, int, bool]) -> None:
        self.state.remove_binding(self._stored(*binding))

    def destination(self, place: tuple[str, Destination], event: str) -> None:
        name, destination = place
        of = self.state.exchanges.get(name.encode())
        if of is None:
            return
        if event == "bound":
            token = self.state.candidates(of, destination)[0]
            of.tokens.bind_ok(destination, (token,) if of.delivery is Delivery.CARRIER else ())
        elif event == "refused":
            of.tokens.refused(destination, "refused", 0.0)
        elif event == "deleted":
            of.tokens.deleted(destination)
        else:
            of.tokens.declared(destination)

    def queue(self, name: str, exists: bool) -> None:
        queues = self.state.queues
        self.state.set_queues(queues.with_name(name.encode()) if exists else queues.without_name(name.encode()))

    def declare(self, name: str, alternate: str | None) -> None:
        if name.encode() not in self.state.exchanges:
            made = exchange(name=name, alternate=alternate)
            declared = DeclaredExchange(True, False, False, b"", next(self._sequences))
            self.state.add_exchange(owned(made, declared=declared), made)

    def remove(self, name: str) -> None:
        if name.encode() in self.state.exchanges:
            self.state.remove_exchange(name.encode())

    def reload(self, bindings: list[tuple[str, Destination, int, bool]], alternate: str | None) -> None:
        made = self._rules(bindings, alternate)
        exchanges = {name.encode(): owned(one, FILE[name]) for name, one in made.items()}
        for name, of in self.state.exchanges.items():
            if name not in exchanges:
                exchanges[name] = of
                made[name.decode()] = self.state.router.exchanges[name]
        self.state.swap(exchanges, Router(made.values()))
        self._bind_all()

    def addresses(self, number: int) -> None:
        self.state.set_addresses(BOOKS[number])

    def secrets(self, secret: bytes) -> None:
        self.state.set_secrets(Secrets([secret]))


def _sent(changed: VhostState, plans: Plans | None, message: bytes) -> tuple[object, ...]:
    """Publish on a new connection; return what is sent to both sides, and the requests to the control plane."""
    wire = Wire(changed)
    if plans is not None:
        wire.plans = plans
        wire.connect()
    wire.open()
    sent = wire.produce(message)
    requests = [request[1:] for request in wire.relay.connection.pending.requests]
    return sent, requests, wire.relay.connection.channels[1].state, b"".join(wire.relay.connection.to_producer)


@given(st.lists(_changes, min_size=1, max_size=12))
def test_a_cached_decision_equals_a_new_one(steps: list[tuple[object, ...]]) -> None:
    changes = _Changes()
    plans = Wire(changes.state).plans
    for name, *values in steps:
        change: Callable[..., None] = getattr(changes, str(name))
        change(*values)
        for message in MESSAGES:
            assert _sent(changes.state, plans, message) == _sent(changes.state, None, message)
