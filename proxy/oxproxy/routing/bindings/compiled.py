"""Compiled bindings, and the match types that decide whether a binding is true.

A `CompiledBinding` has the same attributes for every exchange type: a `Match`, effects for both results, a position in
the visiting order, and the data that the index and caches need. `exchange_types` creates it.

The four subclasses of `Match` are the match types. They combine the verdicts of operators; `eq` and `set` also read the
whole header table. Each subclass declares which facts it reads in addition to those of its operators, and which
equalities must hold for the binding to be true. A `Draft` collects operators and effects while `arguments` reads the
arguments of a binding.

Source: the open-exchange specification, sections 1, 3, 3.1, 7 and 8; section 11, "every other ``x-`` key, or a known
key with a value of the wrong type".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from operator import attrgetter, itemgetter
from typing import Final, TypeAlias, cast

from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.bindings.operators import (
    ABSENT,
    ALL_HEADERS,
    HEADER,
    MATCH,
    MISMATCH,
    ROUTING_KEY,
    TOPIC,
    FactName,
    HeaderOperator,
    IndexKey,
    Operator,
)
from oxproxy.routing.bindings.producer_routes import NAMED_ROUTES, PATTERN_ROUTES
from oxproxy.routing.bindings.routes import Effects, EffectsDraft
from oxproxy.routing.message import Message
from oxproxy.values import EXCHANGE, Destination, Table, Value

_REGEX_HEADERS: Final[tuple[FactName, ...]] = tuple((HEADER, name) for name in PATTERN_ROUTES)

#: Index keys of which at least one holds.
_Equalities: TypeAlias = tuple[IndexKey, ...]

_by_header = attrgetter("name")
_entry_name = itemgetter(0)
#: number of headers that are compared one by one before a binary search
_NEAR: Final = 8


class Match(ABC):
    """The condition of a binding: its operators, combined by a match type."""

    __slots__ = ()

    @abstractmethod
    def truth(self, message: Message) -> bool:
        """Return True if the binding is true for a message."""

    @property
    def required(self) -> tuple[_Equalities, ...]:
        """Groups of equalities. If the binding is true, at least one equality of every group holds."""
        return ()

    @property
    def fact_names(self) -> tuple[FactName, ...]:
        """Facts that the result depends on, in addition to those of the operators."""
        return ()


class MatchAll(Match):
    """True if every operator matches; optional operators also match if the fact is absent."""

    __slots__ = ("_operators",)

    def __init__(self, operators: tuple[Operator, ...]) -> None:
        if any(operator.optional for operator in operators):
            # Mandatory operators come first, which gives the same results with fewer pattern searches.
            operators = tuple(sorted(operators, key=_is_optional))
        self._operators: Final = operators

    def truth(self, message: Message) -> bool:
        for operator in self._operators:
            verdict = operator.verdict(message)
            if verdict is not MATCH and (verdict is MISMATCH or not operator.optional):
                return False
        return True

    @property
    def required(self) -> tuple[_Equalities, ...]:
        return _index_keys([operator for operator in self._operators if not operator.optional])


class MatchAny(Match):
    """True if at least one operator matches."""

    __slots__ = ("_operators",)

    def __init__(self, operators: tuple[Operator, ...]) -> None:
        self._operators: Final = operators

    def truth(self, message: Message) -> bool:
        for operator in self._operators:
            if operator.verdict(message) is MATCH:
                return True
        return False

    @property
    def required(self) -> tuple[_Equalities, ...]:
        """One group with the equalities of all operators, if every operator is an equality."""
        either: list[IndexKey] = []
        for operator in self._operators:
            index_keys = operator.index_keys
            if not index_keys:
                return ()
            either += index_keys
        return (tuple(either),)


class MatchEq(Match):
    """True if the other operators match and the header operators describe the header table exactly."""

    __slots__ = ("_rest", "_walk")

    def __init__(self, headers: Sequence[HeaderOperator], others: Sequence[Operator]) -> None:
        self._walk: Final = _arranged(headers)
        self._rest: Final = MatchAll(tuple(others))

    def truth(self, message: Message) -> bool:
        return self._rest.truth(message) and _walk_eq(self._walk, message)

    @property
    def required(self) -> tuple[_Equalities, ...]:
        return self._rest.required + _index_keys([operator for operator in self._walk if not operator.optional])

    @property
    def fact_names(self) -> tuple[FactName, ...]:
        return (ALL_HEADERS,)


class MatchSet(Match):
    """True if at least `least` header operators match, none mismatches a header, and all other operators match."""

    __slots__ = ("_least", "_rest", "_walk")

    def __init__(self, headers: Sequence[HeaderOperator], others: Sequence[Operator], least: int) -> None:
        self._walk: Final = _arranged(headers)
        self._rest: Final = MatchAll(tuple(others))
        self._least: Final = least

    def truth(self, message: Message) -> bool:
        return self._rest.truth(message) and _walk_set(self._walk, message) >= self._least

    @property
    def required(self) -> tuple[_Equalities, ...]:
        """Equalities in mandatory operators, including header operators if all of them must match."""
        if self._least >= len(self._walk):
            return self._rest.required + _index_keys(self._walk)
        return self._rest.required

    @property
    def fact_names(self) -> tuple[FactName, ...]:
        """The whole header table, if headers that are not tested by any operator can affect the count."""
        return (ALL_HEADERS,) if _count_can_stop(self._walk) else ()


def _is_optional(operator: Operator) -> bool:
    return operator.optional


def _index_keys(operators: Sequence[Operator]) -> tuple[_Equalities, ...]:
    """Return the index keys of operators that must all match, with topics last."""
    groups: list[_Equalities] = []
    for operator in operators:
        index_keys = operator.index_keys
        if index_keys:
            groups.append(index_keys)
    if len(groups) > 1:
        groups.sort(key=_is_topic)
    return tuple(groups)


def _is_topic(index_keys: _Equalities) -> bool:
    return index_keys[0][0] == TOPIC


def _arranged(headers: Sequence[HeaderOperator]) -> tuple[HeaderOperator, ...]:
    """Sort by header name, then by descending argument key, and reverse the elements of lists.

    The input is sorted by ascending argument key, with the elements of lists in order.
    """
    arranged = list(reversed(headers))
    arranged.sort(key=_by_header)
    return tuple(arranged)


def _walk_eq(walk: tuple[HeaderOperator, ...], message: Message) -> bool:
    headers = message.sorted_headers
    at, end = 0, len(headers)
    for operator in walk:
        if at == end or headers[at][0] > operator.name:
            if operator.absent is ABSENT and not operator.optional:
                return False
            continue
        name, value = headers[at]
        if name < operator.name or not operator.predicate(value, message):
            return False
        at += operator.uses_up
    return at == end


def _walk_set(walk: tuple[HeaderOperator, ...], message: Message) -> int:
    """Return the number of operators that matched; -1 if the header of an operator is present but does not match."""
    headers = message.sorted_headers
    at, end, count = 0, len(headers), 0
    for operator in walk:
        at = _skip_smaller(headers, at, operator.name)
        if at == end or headers[at][0] > operator.name:
            if operator.absent is MATCH:
                count += 1
            elif at == end and not operator.compares:
                return count
            continue
        if not operator.predicate(headers[at][1], message):
            return -1
        count += 1
        at += operator.uses_up
    return count


def _skip_smaller(headers: Table, at: int, name: bytes) -> int:
    end = len(headers)
    near = min(end, at + _NEAR)
    while at < near and headers[at][0] < name:
        at += 1
    # A message may have thousands of headers, and an exchange thousands of bindings that search them.
    return at if at < near or at == end else bisect_left(headers, name, at, key=_entry_name)


def _count_can_stop(walk: tuple[HeaderOperator, ...]) -> bool:
    """Return True if a header that is not tested by any operator can affect the count.

    If no header is left, counting stops at the next test of existence or type, and later tests of absence are not
    counted. An additional header at the end can prevent this stop.
    """
    tests = [at for at, operator in enumerate(walk) if not operator.compares and operator.absent is ABSENT]
    absences = [at for at, operator in enumerate(walk) if operator.absent is MATCH]
    return bool(tests and absences) and tests[0] < absences[-1]


@dataclass(slots=True)
class Draft:
    """The arguments of a binding that have been read so far."""

    destination: Destination  # the declared destination
    zone: tzinfo | None = UTC  # the time zone of ``dtl`` operators; None for the system's time zone
    headers: list[HeaderOperator] = field(default_factory=list)
    others: list[Operator] = field(default_factory=list)
    order: int = 0
    effects: dict[bool, EffectsDraft] = field(default_factory=dict)
    queue_of_routing_key: bool = False
    extensions: bool = False  # whether operators are allowed that the open-exchange plugin does not have

    def on(self, result: bool) -> EffectsDraft:
        draft = self.effects.get(result)
        if draft is None:
            draft = self.effects[result] = EffectsDraft()
        return draft


def count_regexes(arguments: Table) -> int:
    lists = (value.value if value.letter == "A" else (value,) for key, value in arguments if is_regex_key(key))
    return sum(len(cast("tuple[Value, ...]", values)) for values in lists)


def is_regex_key(key: bytes) -> bool:
    """Return True if arguments with this key contain a regular expression or a list of regular expressions."""
    head = key.partition(b" ")[0]
    if head.startswith(b"x-?"):
        return head.endswith(b"re") and head != b"x-?hkexre"
    return head.startswith((b"x-addq", b"x-delq", b"x-add1q")) and b"re-on" in head


#: Value of `index_place` for a binding that is always visited. For a binding that is indexed, `index_place` is the
#: position of a group in `required`; the binding is indexed by all keys of this group.
ALWAYS_VISITED: Final = -1


@dataclass(slots=True, eq=False)
class CompiledBinding:
    """A binding that is ready to be visited.

    There may be a hundred thousand bindings, so most values that can be derived from attributes are not stored, and the
    values are not in further objects.
    """

    binding: Binding
    order: int
    match_type: str  # name of the match type, for explanations
    match: Match  # the condition
    operators: tuple[Operator, ...]  # for explanations and `fact_names`; also stored in `match`
    destination: Destination | None  # added if true; None for the queue named by the routing key
    on_true: Effects | None = None  # effects if true; None if it only adds the destination
    on_false: Effects | None = None  # effects if false
    regexes: int = 0  # number of regular expressions in its arguments
    exchange: bytes = b""  # name of its exchange
    id: str = ""  # id of the binding in decisions
    arrival: int = 0  # increases with every binding of its exchange
    index_place: int = ALWAYS_VISITED  # by which group of keys the binding is indexed
    asks_producer: bool = field(init=False)
    destination_only: bool = field(init=False)

    def __post_init__(self) -> None:
        self.asks_producer = any(effects.asks_producer for effects in self.effects)
        #: Whether its only effect is to add one destination if it is true.
        self.destination_only = not self.effects and self.destination is not None

    def __hash__(self) -> int:
        """Return a number that is unique in the exchange. Compiled classes with `__lt__` have no default hash."""
        return self.arrival

    def __lt__(self, other: CompiledBinding) -> bool:
        """Return True if the binding is visited before another binding of its exchange.

        The sort keys are the `last` flag, the order, the sequence (descending) and the arrival (descending).
        """
        if self.binding.last is not other.binding.last:
            return other.binding.last
        if self.order != other.order:
            return self.order < other.order
        if self.binding.sequence != other.binding.sequence:
            return self.binding.sequence > other.binding.sequence
        return self.arrival > other.arrival

    @property
    def label(self) -> tuple[bytes, str]:
        return self.exchange, self.id

    def truth(self, message: Message) -> bool:
        """Return True if the binding is true for a message.

        Searches are charged to the binding's owner. If the owner's budget is spent, a binding that needs a search is
        false.
        """
        if not self.regexes:
            return self.match.truth(message)
        owner = self.binding.owner
        if message.payer is not owner:
            message.charge(owner)
        true = self.match.truth(message)
        if message.budget.exceeded:
            message.note_spent(owner)
            return False
        return true

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        """The binding's keys in the index; none if it is always visited."""
        if self.index_place == ALWAYS_VISITED:
            return ()
        return tuple(dict.fromkeys(self.match.required[self.index_place]))

    @property
    def effects(self) -> list[Effects]:
        """`on_true` and `on_false`, unless they are None."""
        return [effects for effects in (self.on_true, self.on_false) if effects is not None]

    @property
    def idle_when_false(self) -> bool:
        """True if the binding has no effect when it is false, so that the visit may be skipped."""
        return self.on_false is None and not self.asks_producer

    @property
    def fact_names(self) -> frozenset[FactName]:
        fact_names = {operator.fact_name for operator in self.operators}
        fact_names.update(self.match.fact_names)
        for effects in self.effects:
            fact_names.update(effects.fact_names)
        if self.asks_producer:
            # An invalid regex in these headers closes the channel, even if the binding does not permit the header.
            fact_names.update(_REGEX_HEADERS)
        if self.destination is None:
            fact_names.add((ROUTING_KEY, ""))
        return frozenset(fact_names)

    @property
    def chooses(self) -> bool:
        """True if messages choose destinations that the binding adds: by routing key, a pattern or headers."""
        return self.destination is None or any(effects.chooses for effects in self.effects)

    @property
    def lets_producer_add_exchanges(self) -> bool:
        return any(NAMED_ROUTES.get(header) == EXCHANGE for effects in self.effects for header in effects.granted_add)

    @property
    def chooses_queues(self) -> bool:
        """True if messages can reach queues that the binding does not name: by routing key, a pattern or headers."""
        granted = [header for effects in self.effects for header in effects.granted_add]
        patterns = any(effects.add_queues for effects in self.effects)
        return self.destination is None or patterns or any(NAMED_ROUTES.get(header) != EXCHANGE for header in granted)

    @property
    def destinations(self) -> frozenset[Destination]:
        """All destinations that the binding names: the declared destination and those of its routes."""
        named = (effects.add for effects in self.effects)
        own = frozenset(((self.binding.destination_type, self.binding.destination),))
        return own.union(*named)
