"""A binding ready to be visited, and the match types that decide whether it is true.

A `CompiledBinding` is the same for every exchange type: a `Match`, effects for both results, a place in the order of
visits, and what index and caches must know about it. It is made by `exchange_types`.

The four `match_` functions are the match types. They know operators by their verdicts only; `eq` and `set` also walk
the whole header table. Each states which facts beyond those of its operators it looks at and which equalities it
cannot be true without. A `Draft` collects operators and effects while `arguments` reads the arguments of a binding.

Source: the open-exchange specification, sections 1, 3, 3.1, 7 and 8; section 11, "every other ``x-`` key, or a known
key with a value of the wrong type".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from operator import attrgetter
from typing import TypeAlias, cast

from proxy.errors import ProtocolError
from proxy.routing.bindings.binding import Binding
from proxy.routing.bindings.operators import (
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
from proxy.routing.bindings.patterns import InvalidPattern, Pattern, compile_pattern
from proxy.routing.bindings.producer_routes import NAMED_ROUTES, PATTERN_ROUTES, begins_with_character, invalid_regex
from proxy.routing.bindings.routes import Effects, EffectsDraft
from proxy.routing.error_texts import format_binary, precondition_failed
from proxy.routing.message import Message
from proxy.values import EXCHANGE, Destination, Table, Value

#: Whether a binding is true for a message.
Truth: TypeAlias = Callable[[Message], bool]
#: Place in the order of visits: order, then the greater sequence, then the later arrival.
Rank: TypeAlias = tuple[int, int, int]

_REGEX_HEADERS: tuple[FactName, ...] = tuple((HEADER, name) for name in PATTERN_ROUTES)

_by_header = attrgetter("name")


@dataclass(frozen=True, slots=True)
class Match:
    """What a fold makes of a binding's operators.

    Args:
        truth: whether the binding is true for a message.
        required: equalities that all hold where the binding is true.
        either: equalities of which at least one holds where the binding is true; None: it can do without.
        fact_names: facts beyond those of the operators that the truth depends on.
    """

    truth: Truth
    required: tuple[IndexKey, ...] = ()
    either: tuple[IndexKey, ...] | None = None
    fact_names: tuple[FactName, ...] = ()


def match_all(operators: Sequence[Operator]) -> Match:
    """True when every operator matches, an optional one also where it is absent."""
    strict = tuple(operator.verdict for operator in operators if not operator.optional)
    lenient = tuple(operator.verdict for operator in operators if operator.optional)
    index_keys = _index_keys(operator for operator in operators if not operator.optional)
    if len(strict) == 1 and not lenient:
        only = strict[0]
        return Match(lambda message: only(message) is MATCH, index_keys)

    def truth(message: Message) -> bool:
        for verdict in strict:
            if verdict(message) is not MATCH:
                return False
        for verdict in lenient:
            if verdict(message) is MISMATCH:
                return False
        return True

    return Match(truth, index_keys)


def match_any(operators: Sequence[Operator]) -> Match:
    """True when at least one operator matches."""
    verdicts = tuple(operator.verdict for operator in operators)

    def truth(message: Message) -> bool:
        for verdict in verdicts:
            if verdict(message) is MATCH:
                return True
        return False

    index_keys = [operator.index_key for operator in operators]
    known = tuple(index_key for index_key in index_keys if index_key is not None)
    return Match(truth, either=known if len(known) == len(index_keys) else None)


def match_eq(headers: Sequence[HeaderOperator], others: Sequence[Operator]) -> Match:
    """True when the others match and the header table is exactly what the header operators describe."""
    walk = _arranged(headers)
    rest = match_all(others)

    def truth(message: Message) -> bool:
        return rest.truth(message) and _walk_eq(walk, message)

    index_keys = rest.required + _index_keys(each for each in headers if not each.optional)
    return Match(truth, index_keys, fact_names=(ALL_HEADERS,))


def match_set(headers: Sequence[HeaderOperator], others: Sequence[Operator], least: int) -> Match:
    """True when the others match, no header operator fails on a present header and at least `least` succeed."""
    walk = _arranged(headers)
    rest = match_all(others)

    def truth(message: Message) -> bool:
        return rest.truth(message) and _walk_set(walk, message) >= least

    index_keys = rest.required
    if least >= len(walk):
        # None of them may be missing from the count, so that each must succeed.
        index_keys += _index_keys(headers)
    return Match(truth, index_keys, fact_names=(ALL_HEADERS,) if _count_can_stop(walk) else ())


def _index_keys(operators: Iterable[Operator]) -> tuple[IndexKey, ...]:
    """The equalities among operators that must all match; topics only where there is nothing better."""
    index_keys = [operator.index_key for operator in operators if operator.index_key is not None]
    return tuple(sorted(index_keys, key=lambda index_key: index_key[0] == TOPIC))


def _arranged(headers: Sequence[HeaderOperator]) -> tuple[HeaderOperator, ...]:
    """By header name; under one name by descending argument key, elements of a list in reverse.

    They come by ascending key, elements in order.
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
    """How many operators succeeded; -1 where one failed."""
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
    while at < end and headers[at][0] < name:
        at += 1
    return at


def _count_can_stop(walk: tuple[HeaderOperator, ...]) -> bool:
    """Whether headers that no operator names can change the count.

    They can by being there at all: counting stops at a test of existence or type after the last header, which
    shows only where a test of absence follows.
    """
    tests = [at for at, operator in enumerate(walk) if not operator.compares and operator.absent is ABSENT]
    absences = [at for at, operator in enumerate(walk) if operator.absent is MATCH]
    return bool(tests and absences) and tests[0] < absences[-1]


@dataclass(slots=True)
class Draft:
    """What has been read of a binding's arguments so far.

    Args:
        destination: the declared one.
        zone: local time.
    """

    destination: Destination
    zone: tzinfo = UTC
    headers: list[HeaderOperator] = field(default_factory=list)
    others: list[Operator] = field(default_factory=list)
    order: int = 0
    effects: dict[bool, EffectsDraft] = field(default_factory=dict)
    queue_of_routing_key: bool = False

    def on(self, result: bool) -> EffectsDraft:
        """The effects of one result."""
        draft = self.effects.get(result)
        if draft is None:
            draft = self.effects[result] = EffectsDraft()
        return draft


#: Reads a value (an element of it, where it was a list) into the draft; gets the whole key too.
Reader: TypeAlias = Callable[[Draft, bytes, Value], None]
#: The same for keys that end with the name of a header, which comes last.
HeaderReader: TypeAlias = Callable[[Draft, bytes, Value, bytes], None]


def unknown_key(key: bytes) -> ProtocolError:
    """The refusal of a key that is not known, or whose value is of the wrong type."""
    opening = "Unknown or invalid argument's key '"
    return precondition_failed(f"{opening}{format_binary(key, len(opening))}'")


def text_of(key: bytes, value: Value) -> bytes:
    """The bytes of a long string; nothing else will do."""
    if value.letter != "S":
        raise unknown_key(key)
    return cast("bytes", value.value)


def name_of(key: bytes, value: Value) -> bytes:
    """A name: a long string with at least one character."""
    text = text_of(key, value)
    if not begins_with_character(text):
        raise unknown_key(key)
    return text


def pattern_of(key: bytes, value: Value) -> Pattern:
    """A long string that is a regex."""
    source = text_of(key, value)
    try:
        return compile_pattern(source)
    except InvalidPattern as error:
        raise precondition_failed(invalid_regex(source, str(error))) from error


def count_regexes(arguments: Table) -> int:
    """Count the regular expressions in the arguments of a binding."""
    lists = (value.value if value.letter == "A" else (value,) for key, value in arguments if is_regex_key(key))
    return sum(len(cast("tuple[Value, ...]", values)) for values in lists)


def is_regex_key(key: bytes) -> bool:
    """Whether an argument's value is a regular expression, or a list of them."""
    head = key.partition(b" ")[0]
    if head.startswith(b"x-?"):
        return head.endswith(b"re") and head != b"x-?hkexre"
    return head.startswith((b"x-addq", b"x-delq", b"x-add1q")) and b"re-on" in head


def _within_budget(truth: Truth, owner: str | None) -> Truth:
    """Charge the searches to the owner; a binding that needs a search when the owner's budget is spent is false."""

    def bounded(message: Message) -> bool:
        if message.payer is not owner:
            message.charge(owner)
        true = truth(message)
        if message.budget.exceeded:
            message.note_spent(owner)
            return False
        return true

    return bounded


@dataclass(slots=True, eq=False)
class CompiledBinding:
    """A binding ready to be visited.

    Args:
        binding: as it was declared.
        order: its order.
        match_type: name of the match type, for people.
        match: truth, and what it depends on.
        operators: for people and for what they look at; `match` holds them as well.
        destination: added when true; None: the queue that the routing key names.
        on_true: effects when true, None where there are none beyond the destination.
        on_false: effects when false.
        rank: its place, given by the exchange that it is bound to.
        regexes: regular expressions in its arguments.
        label: exchange and id, as a decision lists them.
        index_keys: where the index has put it.
    """

    binding: Binding
    order: int
    match_type: str
    match: Match
    operators: tuple[Operator, ...]
    destination: Destination | None
    on_true: Effects | None = None
    on_false: Effects | None = None
    regexes: int = 0
    rank: Rank = (0, 0, 0)
    label: tuple[bytes, str] = (b"", "")
    index_keys: tuple[IndexKey, ...] | None = None
    truth: Truth = field(init=False)
    asks_producer: bool = field(init=False)
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        """Work out what the engine asks for at each visit."""
        truth = self.match.truth
        self.truth = _within_budget(truth, self.binding.owner) if self.regexes else truth
        effects = [each for each in (self.on_true, self.on_false) if each is not None]
        self.asks_producer = any(each.asks_producer for each in effects)
        #: Adds one destination when true and does nothing else.
        self.plain = not effects and self.destination is not None

    @property
    def idle_when_false(self) -> bool:
        """Whether a visit changes nothing when it is false, so that it may be left out."""
        return self.on_false is None and not self.asks_producer

    @property
    def fact_names(self) -> frozenset[FactName]:
        """The facts that can change what it does."""
        fact_names = {operator.fact_name for operator in self.operators}
        fact_names.update(self.match.fact_names)
        for effects in (self.on_true, self.on_false):
            if effects is not None:
                fact_names.update(effects.fact_names)
        if self.asks_producer:
            # An invalid regex among them closes the channel, whatever the binding permits.
            fact_names.update(_REGEX_HEADERS)
        if self.destination is None:
            fact_names.add((ROUTING_KEY, ""))
        return frozenset(fact_names)

    @property
    def lets_producer_add_exchanges(self) -> bool:
        """Whether a message can name further exchanges itself."""
        effects = [each for each in (self.on_true, self.on_false) if each is not None]
        return any(NAMED_ROUTES.get(header) == EXCHANGE for each in effects for header in each.granted_add)

    @property
    def chooses_queues(self) -> bool:
        """Whether a message can reach queues that it does not name: by a pattern, or since the message names them."""
        effects = [each for each in (self.on_true, self.on_false) if each is not None]
        granted = any(NAMED_ROUTES.get(header) != EXCHANGE for each in effects for header in each.granted_add)
        return self.destination is None or granted or any(each.add_queues for each in effects)

    @property
    def destinations(self) -> frozenset[Destination]:
        """Everything that it names as a destination: the declared one and what its routes add."""
        named = {(self.binding.destination_type, self.binding.destination)}
        for effects in (self.on_true, self.on_false):
            if effects is not None:
                named |= effects.add
        return frozenset(named)


#: What is kept in visiting order. A rank is unique in its exchange, so that it alone orders entries.
Entry: TypeAlias = tuple[Rank, CompiledBinding]
