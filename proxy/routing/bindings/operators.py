"""Operators: what one condition of a binding finds in a message; topics, which some of them match.

An operator answers MATCH, MISMATCH or ABSENT (what it asks for is not there). What a binding makes of the answers is in
`compiled`; which argument makes which operator, in `arguments`, where a new operator gets its key. The predicate of an
operator decides about what is present: equal to, less than or of the type of what a binding names. Type letters are
kept until the comparison and ignored only in it.

A `Topic` serves topic exchanges and the ``rkta`` operators: words stand between dots, ``*`` is exactly one word, ``#``
any number of them.

Sources: the open-exchange specification, sections 2, 4 and 5; AMQP 0-9-1 spec, 3.1.3.3.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import tzinfo
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

from proxy.routing.bindings.binding import typed
from proxy.routing.bindings.patterns import InvalidPattern, Pattern, compile_pattern, latin1_tables
from proxy.routing.decision import Verdict
from proxy.routing.message import Message, spelled_integer
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

    __slots__ = ("_first", "_last", "_least", "_middle", "ignores_case", "pattern")

    def __init__(self, pattern: bytes, ignore_case: bool = False) -> None:
        self.pattern = pattern
        self.ignores_case = ignore_case
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
        if self.ignores_case:
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
        # Between two `#` the leftmost place is as good as any other, so that nothing has to be retried.
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


INTEGERS = frozenset("bBsuIilLT")
FLOATS = frozenset("fd")
NUMBERS = INTEGERS | FLOATS
TEXTS = frozenset("Sx")
_COUNTED = frozenset("AF")
_PLAIN = NUMBERS | TEXTS

#: What the empty table and the empty list have in common.
_EMPTY = ("F", ())

#: Signs of the comparisons of numbers, as `_compare` knows them.
_EQUAL, _DIFFERENT, _LESS, _AT_MOST, _AT_LEAST, _GREATER = range(6)
SIGNS = {b"=": _EQUAL, b"!=": _DIFFERENT, b"<": _LESS, b"<=": _AT_MOST, b">=": _AT_LEAST, b">": _GREATER}

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


def _compare(sign: int, seen: Any, bound: Any) -> bool:
    # Not typed as float: compiled code would round integers to it.
    if sign == _AT_LEAST:
        return bool(seen >= bound)
    if sign == _LESS:
        return bool(seen < bound)
    if sign == _GREATER:
        return bool(seen > bound)
    if sign == _AT_MOST:
        return bool(seen <= bound)
    return bool(seen == bound) is (sign == _EQUAL)


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


class Operator:
    """What all families have in common.

    Operators have no state and no closures: there are two of them to a binding, and a hundred thousand bindings.

    Args:
        key: the argument's key as it was declared.
        expected: the argument's value, one element of it where it was a list.
        optional: whether ABSENT is good enough under `all` (and under `eq`, for a header).
    """

    __slots__ = ("expected", "key", "optional")

    def __init__(self, key: bytes, expected: Value, optional: bool = False) -> None:
        self.key: Final = key
        self.expected: Final = expected
        self.optional: Final = optional

    @property
    def index_key(self) -> IndexKey | None:
        """For an equality: the only place where a message that it matches can be found."""
        return None

    @property
    def fact_name(self) -> FactName:
        raise NotImplementedError

    @property
    def absent(self) -> Verdict:
        """The answer where what it looks at is not there."""
        return ABSENT

    def seen(self, message: Message) -> Value | bytes | int | None:
        """What it looks at, as it is in this message; None if it is absent."""
        raise NotImplementedError

    def predicate(self, seen: Any, message: Message) -> bool:
        """Decide about what is there."""
        raise NotImplementedError

    def verdict(self, message: Message) -> Verdict:
        seen = self.seen(message)
        if seen is None:
            return self.absent
        return MATCH if self.predicate(seen, message) else MISMATCH


# -- headers -----------------------------------------------------------------------------------------------------------


class HeaderOperator(Operator):
    """Looks at the first header of a name.

    Args:
        key: see Operator.
        expected: see Operator.
        name: of the header.
        optional: see Operator.
    """

    __slots__ = ("name",)

    def __init__(self, key: bytes, expected: Value, name: bytes, optional: bool = False) -> None:
        super().__init__(key, expected, optional)
        self.name: Final = name

    @property
    def uses_up(self) -> bool:
        """Whether the walk of `eq` and `set` continues after a header that it matched."""
        return False

    @property
    def compares(self) -> bool:
        """Whether it is a comparison (``hkv``, ``hk?v``), not a test of existence or type."""
        return True

    @property
    def fact_name(self) -> FactName:
        return HEADER, self.name

    def seen(self, message: Message) -> Value | None:
        return message.first.get(self.name)


class HeaderEquals(HeaderOperator):
    """Equal at the top level: the letter is ignored within a kind."""

    __slots__ = ("_content", "_letters")

    def __init__(self, key: bytes, expected: Value, name: bytes, optional: bool = False) -> None:
        super().__init__(key, expected, name, optional)
        letter = expected[0]
        #: Types of which equal content is enough; None: values are compared by their canonical form.
        self._letters: Final = NUMBERS if letter in NUMBERS else TEXTS if letter in TEXTS else None
        self._content: Final[Hashable] = canonical(expected)

    @property
    def uses_up(self) -> bool:
        return True

    @property
    def index_key(self) -> IndexKey | None:
        return HEADER, self.name, self._content

    def predicate(self, seen: Value, message: Message) -> bool:
        letters = self._letters
        if letters is None:
            return canonical(seen) == self._content
        return seen[0] in letters and seen[1] == self._content


class HeaderDiffers(HeaderEquals):
    """Not equal at the top level."""

    __slots__ = ()

    @property
    def uses_up(self) -> bool:
        return False

    @property
    def index_key(self) -> IndexKey | None:
        """None: it is true nearly everywhere."""
        return None

    def predicate(self, seen: Value, message: Message) -> bool:
        letters = self._letters
        if letters is None:
            return canonical(seen) != self._content
        return not (seen[0] in letters and seen[1] == self._content)


class HeaderCompares(HeaderOperator):
    """Numeric, and less or greater by exact mathematical value.

    Args:
        key: see Operator.
        expected: a number.
        name: see HeaderOperator.
        sign: a value of SIGNS.
        optional: see Operator.
    """

    __slots__ = ("_bound", "_sign")

    def __init__(self, key: bytes, expected: Value, name: bytes, sign: int, optional: bool = False) -> None:
        super().__init__(key, expected, name, optional)
        self._sign: Final = sign
        self._bound: Final[object] = expected[1]

    def predicate(self, seen: Value, message: Message) -> bool:
        return seen[0] in NUMBERS and _compare(self._sign, seen[1], self._bound)


class HeaderMatches(HeaderOperator):
    """A long string in which a pattern is found, or is not found where it is negated."""

    __slots__ = ("_negated", "_pattern")

    def __init__(
        self, key: bytes, expected: Value, name: bytes, pattern: Pattern, negated: bool = False, optional: bool = False
    ) -> None:
        super().__init__(key, expected, name, optional)
        self._pattern: Final = pattern
        self._negated: Final = negated

    def predicate(self, seen: Value, message: Message) -> bool:
        if seen[0] != "S":
            return False
        return (self._pattern.search(cast("bytes", seen[1]), message.budget) is True) is not self._negated


class HeaderIsPresent(HeaderOperator):
    """There, void included, and of one of some types, or of none of them where it is negated.

    Args:
        key: see Operator.
        expected: see Operator.
        name: see HeaderOperator.
        letters: the types; None: any.
        negated: see above.
    """

    __slots__ = ("_letters", "_negated")

    def __init__(
        self, key: bytes, expected: Value, name: bytes, letters: frozenset[str] | None = None, negated: bool = False
    ) -> None:
        super().__init__(key, expected, name)
        self._letters: Final = letters
        self._negated: Final = negated

    @property
    def uses_up(self) -> bool:
        return True

    @property
    def compares(self) -> bool:
        return False

    def predicate(self, seen: Value, message: Message) -> bool:
        letters = self._letters
        return letters is None or (seen[0] in letters) is not self._negated


class HeaderIsAbsent(HeaderOperator):
    """Not there."""

    __slots__ = ()

    @property
    def absent(self) -> Verdict:
        return MATCH

    @property
    def compares(self) -> bool:
        return False

    def predicate(self, seen: Value, message: Message) -> bool:
        return False


# -- routing key -------------------------------------------------------------------------------------------------------


class RoutingKeyOperator(Operator):
    """Looks at the routing key, which is never absent."""

    __slots__ = ()

    @property
    def fact_name(self) -> FactName:
        return ROUTING_KEY, ""

    def seen(self, message: Message) -> bytes:
        return message.routing_key


class KeyEquals(RoutingKeyOperator):
    """Equal to the expected text, or not equal where it is negated."""

    __slots__ = ("_negated", "_text")

    def __init__(self, key: bytes, expected: Value, negated: bool = False) -> None:
        super().__init__(key, expected)
        self._text: Final = cast("bytes", expected[1])
        self._negated: Final = negated

    @property
    def index_key(self) -> IndexKey | None:
        return None if self._negated else (ROUTING_KEY, "", self._text)

    def predicate(self, seen: bytes, message: Message) -> bool:
        return (seen == self._text) is not self._negated


class KeyMatches(RoutingKeyOperator):
    """A routing key in which a pattern is found, or is not found where it is negated."""

    __slots__ = ("_negated", "_pattern")

    def __init__(self, key: bytes, expected: Value, pattern: Pattern, negated: bool = False) -> None:
        super().__init__(key, expected)
        self._pattern: Final = pattern
        self._negated: Final = negated

    def predicate(self, seen: bytes, message: Message) -> bool:
        return (self._pattern.search(seen, message.budget) is True) is not self._negated


class KeyFits(RoutingKeyOperator):
    """A routing key that fits a topic, or does not where it is negated."""

    __slots__ = ("_negated", "_topic")

    def __init__(self, key: bytes, expected: Value, topic: Topic, negated: bool = False) -> None:
        super().__init__(key, expected)
        self._topic: Final = topic
        self._negated: Final = negated

    @property
    def index_key(self) -> IndexKey | None:
        """Where a routing key that fits is found; a topic without wildcards is an equality."""
        topic = self._topic
        if self._negated or topic.ignores_case:
            return None
        pattern = topic.pattern
        return TOPIC if b"*" in pattern or b"#" in pattern else ROUTING_KEY, "", pattern

    def predicate(self, seen: bytes, message: Message) -> bool:
        return self._topic.matches(seen) is not self._negated


# -- properties --------------------------------------------------------------------------------------------------------


class PropertyOperator(Operator):
    """Looks at one property; one that is set to the empty string is there."""

    __slots__ = ("name",)

    def __init__(self, key: bytes, expected: Value, name: str) -> None:
        super().__init__(key, expected)
        self.name: Final = name

    @property
    def fact_name(self) -> FactName:
        return PROPERTY, self.name

    def seen(self, message: Message) -> bytes | int | None:
        return message.properties.get(self.name)


class PropertyIsPresent(PropertyOperator):
    """Set."""

    __slots__ = ()

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        return True


class PropertyIsAbsent(PropertyOperator):
    """Not set."""

    __slots__ = ()

    @property
    def absent(self) -> Verdict:
        return MATCH

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        return False


class PropertyEquals(PropertyOperator):
    """A text property equal to the expected text, or not equal where it is negated."""

    __slots__ = ("_negated",)

    def __init__(self, key: bytes, expected: Value, name: str, negated: bool = False) -> None:
        super().__init__(key, expected, name)
        self._negated: Final = negated

    @property
    def index_key(self) -> IndexKey | None:
        return None if self._negated else (PROPERTY, self.name, cast("bytes", self.expected[1]))

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        return (seen == self.expected[1]) is not self._negated


class PropertyMatches(PropertyOperator):
    """A text property in which a pattern is found, or is not found where it is negated."""

    __slots__ = ("_negated", "_pattern")

    def __init__(self, key: bytes, expected: Value, name: str, pattern: Pattern, negated: bool = False) -> None:
        super().__init__(key, expected, name)
        self._pattern: Final = pattern
        self._negated: Final = negated

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        return (self._pattern.search(cast("bytes", seen), message.budget) is True) is not self._negated


class PropertyCompares(PropertyOperator):
    """An integer property that compares so; `sign` is a value of SIGNS."""

    __slots__ = ("_sign",)

    def __init__(self, key: bytes, expected: Value, name: str, sign: int) -> None:
        super().__init__(key, expected, name)
        self._sign: Final = sign

    @property
    def index_key(self) -> IndexKey | None:
        return (PROPERTY, self.name, cast("int", self.expected[1])) if self._sign == _EQUAL else None

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        number = spelled_integer(seen)
        return number is not None and _compare(self._sign, number, self.expected[1])


# -- clock -------------------------------------------------------------------------------------------------------------


class ClockOperator(Operator):
    """Looks at the time of one zone, read once for the message."""

    __slots__ = ("_negated", "_pattern", "_zone")

    def __init__(self, key: bytes, expected: Value, zone: tzinfo, pattern: Pattern, negated: bool) -> None:
        super().__init__(key, expected)
        self._zone: Final = zone
        self._pattern: Final = pattern
        self._negated: Final = negated

    @property
    def fact_name(self) -> FactName:
        return CLOCK, ""

    def predicate(self, seen: bytes, message: Message) -> bool:
        return (self._pattern.search(seen, message.budget) is True) is not self._negated

    def seen(self, message: Message) -> bytes:
        return message.clock(self._zone)
