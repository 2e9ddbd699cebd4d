"""Operators: what one condition of a binding finds in a message.

An operator answers MATCH, MISMATCH or ABSENT (what it asks for is not there). What a binding makes of the answers is in
`compiled`; which argument makes which operator, in `arguments`.

A predicate compares the value of a header that is present: equal to, less than or of the type of what a binding names.
Type letters are kept until the comparison and ignored only in it.

Source: the open-exchange specification, sections 2, 4 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import tzinfo
from operator import ge, gt, le, lt
from typing import Protocol, TypeAlias, cast

from proxy.routing.bindings.binding import typed
from proxy.routing.bindings.patterns import Pattern
from proxy.routing.message import Message
from proxy.routing.trace import Verdict
from proxy.values import Value

Predicate: TypeAlias = Callable[[Value, Message], bool]

INTEGERS = frozenset("bBsuIilLT")
FLOATS = frozenset("fd")
NUMBERS = INTEGERS | FLOATS
TEXTS = frozenset("Sx")
_COUNTED = frozenset("AF")
_PLAIN = NUMBERS | TEXTS

#: What the empty table and the empty list have in common.
_EMPTY = ("F", ())

_COMPARISONS = {b"<": lt, b"<=": le, b">=": ge, b">": gt}

#: Suffixes of ``x-?hkex`` and the letters that each takes for its type.
TYPE_TESTS = {
    b"s": frozenset("S"),
    b"n": NUMBERS,
    b"b": frozenset("t"),
    b"i": INTEGERS,
    b"a": frozenset("A"),
}


def canonical(value: Value) -> Hashable:
    """One and the same key for all values that are equal at the top level, whatever their letters.

    Numbers and texts stand for themselves (a number never equals bytes); the other kinds carry their letter, so that
    a boolean is no number.
    """
    letter, content = value
    if letter in _PLAIN:
        return content
    if letter in _COUNTED and not content:
        return _EMPTY
    return typed(value)


def equals(expected: Value) -> Predicate:
    """Equal at the top level: the letter is ignored within a kind."""
    letter, content = expected
    if letter in NUMBERS:
        return lambda value, _: value[0] in NUMBERS and value[1] == content
    if letter in TEXTS:
        return lambda value, _: value[0] in TEXTS and value[1] == content
    key = canonical(expected)
    return lambda value, _: canonical(value) == key


def differs(expected: Value) -> Predicate:
    """Not equal at the top level."""
    equal = equals(expected)
    return lambda value, message: not equal(value, message)


def compares(sign: bytes, expected: Value) -> Predicate:
    """Numeric, and less or greater by exact mathematical value. `expected` is a number."""
    comparison = _COMPARISONS[sign]
    bound = cast("float", expected.value)
    return lambda value, _: value[0] in NUMBERS and comparison(cast("float", value[1]), bound)


def matches(pattern: Pattern) -> Predicate:
    """A long string in which the pattern is found."""
    return lambda value, message: value[0] == "S" and message.search(pattern, cast("bytes", value[1]))


def mismatches(pattern: Pattern) -> Predicate:
    """A long string in which the pattern is not found."""
    return lambda value, message: value[0] == "S" and not message.search(pattern, cast("bytes", value[1]))


def has_type(letters: frozenset[str]) -> Predicate:
    """Of one of the types."""
    return lambda value, _: value[0] in letters


def lacks_type(letters: frozenset[str]) -> Predicate:
    """Of none of the types."""
    return lambda value, _: value[0] not in letters


def present(_value: Value, _message: Message) -> bool:
    """Whatever the value is, void included."""
    return True


MATCH = Verdict.MATCH
MISMATCH = Verdict.MISMATCH
ABSENT = Verdict.ABSENT

#: Where an index finds what an operator asks for: family, what of it, and the value.
IndexKey: TypeAlias = tuple[str, Hashable, Hashable]

HEADER = "header"
ROUTING_KEY = "routing key"
PROPERTY = "property"
TOPIC = "topic"
CLOCK = "clock"

#: A fact that can change an answer: family and name.
FactName: TypeAlias = tuple[str, bytes | str]

ALL_HEADERS: FactName = ("headers", "")
QUEUE_NAMES: FactName = ("queues", "")


class Operator(Protocol):
    """What all families have in common."""

    @property
    def key(self) -> bytes:
        """The argument's key as it was declared."""

    @property
    def expected(self) -> Value:
        """The argument's value, one element of it where it was a list."""

    @property
    def optional(self) -> bool:
        """Whether ABSENT is good enough under `all`."""

    @property
    def index_key(self) -> IndexKey | None:
        """For an equality: the only place where a message that it matches can be found."""

    @property
    def fact_name(self) -> FactName:
        """The fact that it looks at."""

    def verdict(self, message: Message) -> Verdict:
        """The answer."""

    def seen(self, message: Message) -> object:
        """What it looks at, as it is in this message; None where it is absent."""


@dataclass(slots=True, eq=False)
class HeaderOperator:
    """Looks at the first header of a name.

    Args:
        key: see Operator.
        expected: see Operator.
        name: of the header.
        predicate: decides where the header is present.
        optional: whether absence satisfies `all` and `eq`.
        absent: the answer where the header is absent.
        uses_up: whether the walk of `eq` and `set` continues after a header that it matched.
        compares: whether it is a comparison (``hkv``, ``hk?v``), not a test of existence or type.
        index_key: see Operator.
    """

    key: bytes
    expected: Value
    name: bytes
    predicate: Predicate
    optional: bool = False
    absent: Verdict = ABSENT
    uses_up: bool = False
    compares: bool = True
    index_key: IndexKey | None = None

    @property
    def fact_name(self) -> FactName:
        """The header."""
        return HEADER, self.name

    def verdict(self, message: Message) -> Verdict:
        """MATCH or MISMATCH by the predicate where the header is there."""
        value = message.first.get(self.name)
        if value is None:
            return self.absent
        return MATCH if self.predicate(value, message) else MISMATCH

    def seen(self, message: Message) -> Value | None:
        """The header's value."""
        return message.first.get(self.name)


@dataclass(slots=True, eq=False)
class RoutingKeyOperator:
    """Looks at the routing key, which is never absent."""

    key: bytes
    expected: Value
    predicate: Callable[[bytes, Message], bool]
    index_key: IndexKey | None = None
    optional: bool = False

    @property
    def fact_name(self) -> FactName:
        """The routing key."""
        return ROUTING_KEY, ""

    def verdict(self, message: Message) -> Verdict:
        """MATCH or MISMATCH."""
        return MATCH if self.predicate(message.routing_key, message) else MISMATCH

    def seen(self, message: Message) -> bytes:
        """The routing key."""
        return message.routing_key


@dataclass(slots=True, eq=False)
class PropertyOperator:
    """Looks at one property; one that is set to the empty string is there."""

    key: bytes
    expected: Value
    name: str
    predicate: Callable[[bytes | int, Message], bool]
    absent: Verdict = ABSENT
    index_key: IndexKey | None = None
    optional: bool = False

    @property
    def fact_name(self) -> FactName:
        """The property."""
        return PROPERTY, self.name

    def verdict(self, message: Message) -> Verdict:
        """MATCH or MISMATCH by the predicate where the property is set."""
        value = message.properties.get(self.name)
        if value is None:
            return self.absent
        return MATCH if self.predicate(value, message) else MISMATCH

    def seen(self, message: Message) -> bytes | int | None:
        """The property's value."""
        return message.properties.get(self.name)


@dataclass(slots=True, eq=False)
class ClockOperator:
    """Looks at the time of one zone, read once for the message."""

    key: bytes
    expected: Value
    zone: tzinfo
    pattern: Pattern
    negated: bool
    index_key: IndexKey | None = None
    optional: bool = False

    @property
    def fact_name(self) -> FactName:
        """The clock."""
        return CLOCK, ""

    def verdict(self, message: Message) -> Verdict:
        """MATCH or MISMATCH."""
        found = message.search(self.pattern, message.clock(self.zone))
        return MATCH if found is not self.negated else MISMATCH

    def seen(self, message: Message) -> bytes:
        """The time as the pattern saw it."""
        return message.clock(self.zone)


def header_index_key(name: bytes, expected: Value) -> IndexKey:
    """Where a header equal to `expected` is found."""
    return HEADER, name, canonical(expected)
