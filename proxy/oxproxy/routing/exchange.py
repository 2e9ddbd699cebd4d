"""An exchange that the sidecar evaluates: its filters, and its bindings in two layers, each with an index.

The facts and destinations that bindings use are counted when bindings are added and removed. Interest and destinations
are therefore always exact, and are recomputed only if a change affects them. `router` follows chains of exchanges.

Source: the open-exchange specification, sections 1, 8, 10 and 13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from datetime import UTC, tzinfo
from typing import Final, NamedTuple, cast

from oxproxy.routing.bindings.binding import Binding, binding_hash
from oxproxy.routing.bindings.compiled import CompiledBinding
from oxproxy.routing.bindings.exchange_types import COMPILERS, OPEN, compile_binding
from oxproxy.routing.bindings.operators import ALL_HEADERS, CLOCK, HEADER, PROPERTY, QUEUE_NAMES, ROUTING_KEY, FactName
from oxproxy.routing.contract import Contract
from oxproxy.routing.decision import ConditionStep, ExchangeStep, FilterStep, Interest
from oxproxy.routing.engine import operator_step, route, route_traced
from oxproxy.routing.filters import Filter, PayloadFilter, read_filters
from oxproxy.routing.index import Index
from oxproxy.routing.message import UNSEEN_HEADER, Message
from oxproxy.values import EXCHANGE, Destination, Table, text

_NO_INTEREST: Final = Interest()
#: Clients' bindings arrive after all bindings of a rules file (`CompiledBinding.arrival`).
_CLIENTS_ARRIVE: Final = 1 << 40


class InterestCount:
    """Counts the facts that are tested by the bindings and filters of one exchange."""

    __slots__ = ("_body_sizes", "_fact_names", "_headers_whole", "_interest")

    def __init__(self, filters: Iterable[Filter]) -> None:
        cuts = {limit.cut for limit in filters if isinstance(limit, PayloadFilter)}
        self._body_sizes = tuple(sorted(cut for cut in cuts if cut > 0))
        self._headers_whole = any(not isinstance(limit, PayloadFilter) for limit in filters)
        self._fact_names: Counter[FactName] = Counter()
        self._interest: Interest | None = None

    def add(self, fact_names: Iterable[FactName]) -> None:
        for fact_name in fact_names:
            self._fact_names[fact_name] += 1
            if self._fact_names[fact_name] == 1:
                self._interest = None

    def remove(self, fact_names: Iterable[FactName]) -> None:
        for fact_name in fact_names:
            self._fact_names[fact_name] -= 1
            if not self._fact_names[fact_name]:
                del self._fact_names[fact_name]
                self._interest = None

    @property
    def interest(self) -> Interest:
        if self._interest is None:
            self._interest = self._collect()
        return self._interest

    @property
    def sees_queues(self) -> bool:
        """True if the list of queues matters. Unlike `interest`, this is cheap even after a change."""
        return QUEUE_NAMES in self._fact_names

    @property
    def sees_clock(self) -> bool:
        return (CLOCK, "") in self._fact_names

    def _collect(self) -> Interest:
        fact_names = self._fact_names
        whole = self._headers_whole or ALL_HEADERS in fact_names
        headers = {cast("bytes", name) for family, name in fact_names if family == HEADER} - {UNSEEN_HEADER}
        return Interest(
            routing_key=(ROUTING_KEY, "") in fact_names,
            headers=None if whole else frozenset(headers),
            properties=frozenset(cast("str", name) for family, name in fact_names if family == PROPERTY),
            body_sizes=self._body_sizes,
            clock=(CLOCK, "") in fact_names,
            queues=QUEUE_NAMES in fact_names,
        )


def join_interests(interests: Iterable[Interest]) -> Interest:
    result = _NO_INTEREST
    for interest in interests:
        if result == _NO_INTEREST:
            result = interest
            continue
        whole = result.headers is None or interest.headers is None
        result = Interest(
            routing_key=result.routing_key or interest.routing_key,
            headers=None if whole else (result.headers or frozenset()) | (interest.headers or frozenset()),
            properties=result.properties | interest.properties,
            body_sizes=tuple(sorted({*result.body_sizes, *interest.body_sizes})),
            clock=result.clock or interest.clock,
            queues=result.queues or interest.queues,
        )
    return result


class _Identity:
    """The key under which an exchange stores a binding: a reference to the binding, not a copy of its identity."""

    __slots__ = ("_binding",)

    def __init__(self, binding: Binding) -> None:
        self._binding: Final = binding

    def __hash__(self) -> int:
        return hash(self._binding.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._binding.identity == other._binding.identity


class Breach(NamedTuple):
    """A violation because of which a message is rejected or dropped.

    Args:
        filter: name of the violated filter; empty for a contract.
        message: the error message.
        silent: whether the message is dropped silently.
    """

    filter: bytes
    message: str
    silent: bool


class Bindings:
    """The bindings of one layer of an exchange: compiled, indexed, and with the facts and destinations that they use.

    Args:
        exchange: the name of the exchange.
        first_arrival: added to `CompiledBinding.arrival`, so that the bindings arrive after those of another layer.
    """

    __slots__ = (
        "_compiled",
        "_destinations",
        "_exchange",
        "_first_arrival",
        "_free_exchanges",
        "_free_queues",
        "_index",
        "_interest",
        "_next_names",
        "_shared",
        "changes",
    )

    def __init__(self, exchange: bytes, first_arrival: int = 0, interest: InterestCount | None = None) -> None:
        self._exchange = exchange
        self._first_arrival = first_arrival
        #: Increases with every binding that is added or removed.
        self.changes = 0
        self._compiled: dict[_Identity, CompiledBinding] = {}
        self._index = Index()
        self._interest = interest or InterestCount(())
        self._destinations: Counter[Destination] = Counter()
        #: one object per destination, shared by its bindings
        self._shared: dict[Destination, Destination] = {}
        self._next_names: set[bytes] = set()
        self._free_exchanges = self._free_queues = 0

    def __len__(self) -> int:
        return len(self._compiled)

    def add(self, compiled: CompiledBinding) -> bool:
        """Add a binding; return False, and change nothing, if it already exists."""
        binding = compiled.binding
        if self._compiled.setdefault(_Identity(binding), compiled) is not compiled:
            return False
        self.changes += 1
        compiled.arrival = self._first_arrival + self.changes
        compiled.exchange = self._exchange
        compiled.id = binding.id or _hash(binding)
        self._index.add(compiled)
        self._interest.add(compiled.fact_names)
        self._count_destinations(compiled, 1)
        self._free_exchanges += compiled.lets_producer_add_exchanges
        self._free_queues += compiled.chooses_queues
        return True

    def remove(self, binding: Binding) -> bool:
        """Remove the binding that has the same identity as the given binding; return False if there is none."""
        compiled = self._compiled.pop(_Identity(binding), None)
        if compiled is None:
            return False
        self.changes += 1
        self._index.remove(compiled)
        self._interest.remove(compiled.fact_names)
        self._free_exchanges -= compiled.lets_producer_add_exchanges
        self._free_queues -= compiled.chooses_queues
        self._count_destinations(compiled, -1)
        return True

    def _count_destinations(self, compiled: CompiledBinding, change: int) -> None:
        for destination in compiled.destinations:
            kind, name = destination
            count = self._destinations[destination] + change
            if count:
                shared = self._shared.setdefault(destination, destination)
                self._destinations[shared] = count
                if compiled.destination == shared:
                    compiled.destination = shared
                if kind == EXCHANGE:
                    self._next_names.add(name)
            else:
                del self._destinations[destination], self._shared[destination]
                if kind == EXCHANGE:
                    self._next_names.discard(name)

    def has(self, binding: Binding) -> bool:
        return _Identity(binding) in self._compiled

    def uses(self, destination: Destination) -> int:
        return self._destinations[destination]

    @property
    def entries(self) -> list[CompiledBinding]:
        """The bindings in the order in which they were added."""
        return list(self._compiled.values())

    def candidates(self, message: Message) -> Sequence[CompiledBinding]:
        """Return all bindings that must be visited, in visiting order. The result must not be modified."""
        return self._index.candidates(message)

    def dismantle(self, count: int) -> bool:
        """Remove up to `count` unused bindings; return False if there are none left."""
        while count and self._compiled:
            _, compiled = self._compiled.popitem()
            self._index.remove(compiled)
            count -= 1
        return bool(self._compiled)

    @property
    def destinations(self) -> Set[Destination]:
        """A live view of all destinations that bindings and their routes name."""
        return self._destinations.keys()

    @property
    def next_names(self) -> Set[bytes]:
        return self._next_names

    @property
    def lets_producer_add_exchanges(self) -> bool:
        return self._free_exchanges > 0

    @property
    def chooses_queues(self) -> bool:
        return self._free_queues > 0

    @property
    def sees_queues(self) -> bool:
        return self._interest.sees_queues

    @property
    def sees_clock(self) -> bool:
        return self._interest.sees_clock

    @property
    def interest(self) -> Interest:
        return self._interest.interest


class Exchange:
    """One exchange that the sidecar evaluates. Its bindings are in two layers.

    `file` contains the bindings of the rules file. It does not change after it has been compiled. `clients` contains
    the bindings that clients created. All objects for an exchange share this layer: new rules, and candidate rules
    that are compared with them, refer to the layer of the rules in use (`share_clients`). If both layers have the same
    binding, that of the rules file is used.

    Args:
        name: the name to which producers publish.
        type: ``x-open``, ``direct``, ``fanout``, ``topic`` or ``headers``.
        arguments: exchange arguments in declared order; those of an open exchange define its filters.
        local_time: the time zone of ``dtl`` operators, also in clients' bindings; None for the system's time zone.
        contract: conditions that every message has to satisfy.

    Raises:
        ProtocolError: a filter's value is not an integer; 406 on the channel.
        ValueError: the type is unknown.
    """

    __slots__ = ("_local_time", "alternate", "clients", "contract", "file", "filters", "name", "type")

    def __init__(
        self,
        name: bytes,
        type: str,
        arguments: Table = (),
        local_time: tzinfo | None = UTC,
        alternate: bytes | None = None,
        contract: Contract | None = None,
    ) -> None:
        if type not in COMPILERS:
            raise ValueError(f"exchange type {type!r}: expected one of {', '.join(COMPILERS)}")
        self.name = name
        self.type = type
        self.alternate = alternate
        self.filters: tuple[Filter, ...] = read_filters(arguments) if type == OPEN else ()
        self.contract = contract
        self._local_time = local_time
        interest = InterestCount(self.filters)
        if contract is not None:
            interest.add(contract.fact_names)
        self.file = Bindings(name, interest=interest)
        self.clients = Bindings(name, _CLIENTS_ARRIVE)

    def compile(self, binding: Binding) -> CompiledBinding:
        """Check and compile a binding.

        Raises:
            ProtocolError: the binding is not valid; 406 on the channel.
        """
        return compile_binding(self.type, binding, self._local_time)

    def bind(self, binding: Binding, compiled: CompiledBinding | None = None) -> bool:
        """Check, compile and add a binding: to the clients' layer if a client owns it.

        Args:
            compiled: the compiled form of an equal binding, if available.

        Returns:
            False if the layer already has the binding. Nothing is changed in this case.

        Raises:
            ProtocolError: the binding is not valid; 406 on the channel.
        """
        if compiled is None:
            compiled = self.compile(binding)
        else:
            compiled.binding = binding
        return self._layer(binding).add(compiled)

    def unbind(self, binding: Binding) -> bool:
        """Remove the binding with the same identity and the same layer; return False if there is none."""
        return self._layer(binding).remove(binding)

    def _layer(self, binding: Binding) -> Bindings:
        return self.file if binding.owner is None else self.clients

    def clear_clients(self) -> None:
        """Begin a new layer for clients' bindings; others keep the layer that was shared with them."""
        self.clients = Bindings(self.name, _CLIENTS_ARRIVE)

    def share_clients(self, other: Exchange) -> None:
        """Use the clients' layer of an exchange with the same type."""
        self.clients = other.clients

    def follow_local_time(self, other: Exchange) -> None:
        """Compile clients' bindings again whose ``dtl`` operators may have the different time zone of `other`."""
        if self._local_time == other._local_time or not self.clients.sees_clock:
            return
        for compiled in self.clients.entries:
            if (CLOCK, "") in compiled.fact_names:
                self.clients.remove(compiled.binding)
                self.bind(compiled.binding)

    @property
    def changes(self) -> int:
        """Increases with every binding that is added or removed."""
        return self.file.changes + self.clients.changes

    @property
    def client_bindings(self) -> int:
        """Number of bindings that clients created."""
        return len(self.clients)

    def has(self, binding: Binding) -> bool:
        return self.file.has(binding) or self.clients.has(binding)

    def binds(self, destination_type: str, destination: bytes, routing_key: bytes) -> bool:
        """Return True if this destination is bound with this routing key, whatever the arguments of the binding."""
        wanted = (destination_type, destination, routing_key)
        return any(
            wanted == (binding.destination_type, binding.destination, binding.routing_key) for binding in self.bindings
        )

    def uses(self, destination: Destination) -> int:
        return self.file.uses(destination) + self.clients.uses(destination)

    @property
    def bindings(self) -> Iterator[Binding]:
        """The bindings of the rules file, then those of clients, in the order in which they were added."""
        for layer in (self.file, self.clients):
            for compiled in layer.entries:
                yield compiled.binding

    @property
    def entries(self) -> list[CompiledBinding]:
        """The bindings that are visited, in visiting order."""
        # Copied in one step, since another thread may explain a message while this thread adds a binding.
        return self._merged(self.file.entries, self.clients.entries)

    def _merged(self, defined: Sequence[CompiledBinding], declared: Sequence[CompiledBinding]) -> list[CompiledBinding]:
        own = [compiled for compiled in declared if not self.file.has(compiled.binding)] if self.file else declared
        return sorted([*defined, *own])

    @property
    def destinations(self) -> Set[Destination]:
        """All destinations that bindings and their routes name."""
        if not self.clients:
            return self.file.destinations
        return self.file.destinations | self.clients.destinations if self.file else self.clients.destinations

    @property
    def next_names(self) -> Set[bytes]:
        if not self.clients:
            return self.file.next_names
        return self.file.next_names | self.clients.next_names if self.file else self.clients.next_names

    @property
    def lets_producer_add_exchanges(self) -> bool:
        """True if messages can request exchanges that are not named in any binding."""
        return self.file.lets_producer_add_exchanges or self.clients.lets_producer_add_exchanges

    @property
    def chooses_queues(self) -> bool:
        """True if messages can reach queues that are not named in any binding."""
        return self.file.chooses_queues or self.clients.chooses_queues

    @property
    def sees_queues(self) -> bool:
        """True if the exchange chooses among all queues. After a change, this is cheaper than `interest`."""
        return self.file.sees_queues or self.clients.sees_queues

    @property
    def interest(self) -> Interest:
        """Facts that can change this exchange's own result. The exchanges to which it routes are not considered."""
        return join_interests((self.file.interest, self.clients.interest))

    @property
    def checks(self) -> bool:
        """True if messages are checked before the bindings are visited."""
        return bool(self.filters) or self.contract is not None

    def breach(
        self, message: Message, violations: list[tuple[bytes, str]], step: ExchangeStep | None = None
    ) -> Breach | None:
        """Check the filters, then the contract.

        Args:
            violations: receives this exchange's name and each violation of the contract, and of the filters if
                violations are only observed.
            step: receives an entry for each check.

        Returns:
            The first violation that is not only observed; None if the message passes.
        """
        contract = self.contract
        observes = contract is not None and contract.observes
        for limit in self.filters:
            breach = limit.breach(message)
            if step is not None:
                step.filters.append(FilterStep(limit.name, breach, limit.silent, observes and not limit.silent))
            if breach is not None:
                if limit.silent or not observes:
                    return Breach(limit.name, breach, limit.silent)
                violations.append((self.name, text(limit.name)))
        if contract is None:
            return None
        violated = contract.violated(message)
        if step is not None:
            with message.uncharged():
                step.contract += [
                    ConditionStep(
                        condition.written,
                        condition.expected,
                        operator_step(condition.operator, message),
                        index in violated,
                        observes,
                    )
                    for index, condition in enumerate(contract.conditions)
                ]
        for index in violated:
            violations.append((self.name, contract.conditions[index].written))
        return Breach(b"", contract.refusal(violated[0], message), False) if violated and not observes else None

    def route(
        self, message: Message, matched: list[tuple[bytes, str]], step: ExchangeStep | None = None
    ) -> set[Destination] | bytes:
        """Visit the bindings.

        Args:
            message: a message that passed the filters.
            matched: receives the exchange and id of each binding that is true.
            step: receives an entry for each visit.

        Returns:
            The destinations, or the reply text if the channel has to be closed.
        """
        candidates = self._candidates(message)
        if step is None:
            routed = route(candidates, message, matched)
        else:
            routed = route_traced(self.entries, message, matched, step.visits, set(candidates))
        return message.producer.error if routed is None else routed

    def _candidates(self, message: Message) -> Sequence[CompiledBinding]:
        """Return all bindings that must be visited, in visiting order. The result must not be modified."""
        defined = self.file.candidates(message)
        if not self.clients:
            return defined
        declared = self.clients.candidates(message)
        if not declared:
            return defined
        return self._merged(defined, declared) if self.file else declared


def _hash(binding: Binding) -> str:
    return binding_hash(binding.destination_type, binding.destination, binding.routing_key, binding.arguments)
