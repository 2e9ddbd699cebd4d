"""Operators: what one condition of a binding finds in a message; topics, which some of them match.

An operator answers MATCH, MISMATCH or ABSENT (what it asks for is not there). What a binding makes of the answers is in
`compiled`; which argument makes which operator, in `arguments`, where a new operator gets its key. A predicate compares
the value of a header that is present: equal to, less than or of the type of what a binding names. Type letters are kept
until the comparison and ignored only in it.

A `Topic` serves topic exchanges and the ``rkta`` operators: words stand between dots, ``*`` is exactly one word, ``#``
any number of them.

Sources: the open-exchange specification, sections 2, 4 and 5; AMQP 0-9-1 spec, 3.1.3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Any, Protocol, TypeAlias, cast

from proxy.routing.bindings.binding import typed
from proxy.routing.bindings.patterns import InvalidPattern, Pattern, compile_pattern, latin1_tables
from proxy.routing.decision import Verdict
from proxy.routing.message import Message
from proxy.values import Value

_ANY_WORDS = b"#"
_ONE_WORD = b"*"
#: The folding of the regular expressions, byte by byte: Latin-1. Two texts in UTF-8 become equal by it only
#: where they differ in ASCII case alone.
_FOLD = latin1_tables()[:256]


class InvalidTopic(ValueError):  # noqa: N818 - reads as a verdict on a topic, not as a fault of ours
    """A topic that the ``rkta`` operators refuse."""


def _words(text: bytes) -> list[bytes]:
    # The broker reads the empty text as no word at all, so that `*` does not match the empty routing key.
    return text.split(b".") if text else []


def _run_matches(run: tuple[bytes, ...], words: list[bytes], start: int) -> bool:
    for expected in run:
        if expected != words[start] and expected != _ONE_WORD:
            return False
        start += 1
    return True


class Topic:
    """A compiled topic; any pattern is one, since the topic exchange refuses none.

    Args:
        pattern: words between dots.
        ignore_case: compare letters without case (``rktaci``), as Latin-1.
    """

    __slots__ = ("_first", "_ignore_case", "_last", "_least", "_middle", "pattern")

    def __init__(self, pattern: bytes, ignore_case: bool = False) -> None:
        """Split the pattern at its ``#`` into runs of words."""
        self.pattern = pattern
        self._ignore_case = ignore_case
        words = _words(pattern.translate(_FOLD) if ignore_case else pattern)
        runs: list[tuple[bytes, ...]] = []
        run: list[bytes] = []
        for word in words:
            if word == _ANY_WORDS:
                runs.append(tuple(run))
                run = []
            else:
                run.append(word)
        self._first = tuple(run) if not runs else runs[0]
        self._last = tuple(run) if runs else None
        self._middle = tuple(part for part in runs[1:] if part)
        self._least = sum(word != _ANY_WORDS for word in words)

    def matches(self, key: bytes) -> bool:
        """Whether the routing key fits. Work grows with the product of the lengths at worst, never faster."""
        if self._ignore_case:
            key = key.translate(_FOLD)
        words = _words(key)
        count = len(words)
        if self._last is None:
            return count == self._least and _run_matches(self._first, words, 0)
        if count < self._least or not _run_matches(self._first, words, 0):
            return False
        end = count - len(self._last)
        if not _run_matches(self._last, words, end):
            return False
        # Between two `#` the leftmost place is as good as any other, so that nothing has to be tried again.
        position = len(self._first)
        for run in self._middle:
            while position + len(run) <= end and not _run_matches(run, words, position):
                position += 1
            position += len(run)
            if position > end:
                return False
        return True


def check_open_topic(pattern: bytes, ignore_case: bool = False) -> None:
    """Refuse what the open exchange refuses as a topic.

    The plugin turns a topic into a regular expression without quoting, and refuses the topic when the result
    is not valid. Ours matches as a topic exchange does, but a topic that was refused stays refused.

    Raises:
        InvalidTopic: the topic is empty, or its rewrite is not a regular expression.
    """
    if not pattern:
        raise InvalidTopic("empty topic")
    rewritten = pattern.replace(b"*", rb"(\w+)").replace(b"#.", rb"(\w+.)*", 1).replace(b".#", rb"(.\w+)*", 1)
    rewritten = rewritten.replace(b".", rb"\.").replace(b"#", b".*", 1)
    try:
        compile_pattern((b"^(?i)" if ignore_case else b"^") + rewritten + b"$")
    except InvalidPattern as error:
        raise InvalidTopic(f"not a topic: {error}") from error


@lru_cache(maxsize=4096)
def open_topic(pattern: bytes, ignore_case: bool = False) -> Topic:
    """The topic of an ``rkta`` operator.

    Raises:
        InvalidTopic: see ``check_open_topic``.
    """
    check_open_topic(pattern, ignore_case)
    return Topic(pattern, ignore_case)


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
    # Not as float: compiled code would round integers to it.
    bound = cast("Any", expected.value)
    return lambda value, _: value[0] in NUMBERS and bool(comparison(cast("Any", value[1]), bound))


def matches(pattern: Pattern) -> Predicate:
    """A long string in which the pattern is found."""
    return lambda value, message: value[0] == "S" and pattern.search(cast("bytes", value[1]), message.budget) is True


def mismatches(pattern: Pattern) -> Predicate:
    """A long string in which the pattern is not found."""
    return lambda value, message: (
        value[0] == "S" and pattern.search(cast("bytes", value[1]), message.budget) is not True
    )


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

    def seen(self, message: Message) -> Value | bytes | int | None:
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
        found = self.pattern.search(message.clock(self.zone), message.budget) is True
        return MATCH if found is not self.negated else MISMATCH

    def seen(self, message: Message) -> bytes:
        """The time as the pattern saw it."""
        return message.clock(self.zone)


def header_index_key(name: bytes, expected: Value) -> IndexKey:
    """Where a header equal to `expected` is found."""
    return HEADER, name, canonical(expected)
