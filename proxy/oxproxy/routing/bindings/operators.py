"""Operators (the individual conditions of a binding) and topics.

The verdict of an operator is MATCH, MISMATCH or, if the fact is missing, ABSENT. `compiled` combines verdicts.
`arguments` maps argument keys to operators; the key of a new operator has to be added there. When an operator is
created, it rejects an expected value of the wrong type. Its predicate tests a fact that is present. Values keep their
type letters, which only comparisons ignore.

Topic exchanges and the ``rkta`` operators use `Topic`: words are separated by dots, ``*`` matches exactly one word, and
``#`` matches any number of words.

Sources: the open-exchange specification, sections 2, 4 and 5; AMQP 0-9-1 spec, 3.1.3.3.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import tzinfo
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, TypeAlias, cast

from oxproxy.errors import ProtocolError
from oxproxy.routing.bindings.binding import typed
from oxproxy.routing.bindings.patterns import InvalidPattern, Pattern, compile_pattern, latin1_tables, why_invalid
from oxproxy.routing.bindings.producer_routes import begins_with_character, invalid_regex
from oxproxy.routing.decision import Verdict
from oxproxy.routing.error_texts import format_binary, precondition_failed
from oxproxy.routing.message import Message, spelled_integer
from oxproxy.values import Value

ANY_WORDS: Final = b"#"
ONE_WORD: Final = b"*"
#: Case folding as in regular expressions, byte by byte in Latin-1. In UTF-8 strings, only the case of ASCII letters is
#: ignored.
_FOLD: Final = latin1_tables()[:256]


def words_of(text: bytes) -> list[bytes]:
    """Split a topic or a routing key."""
    # For the broker, the empty string contains no words, so `*` does not match the empty routing key.
    return text.split(b".") if text else []


def _run_matches(run: tuple[bytes, ...], words: list[bytes], start: int) -> bool:
    for expected in run:
        if expected != words[start] and expected != ONE_WORD:
            return False
        start += 1
    return True


class Topic:
    """A compiled topic. Every pattern is valid, since topic exchanges reject no patterns.

    Args:
        pattern: words separated by dots.
        ignore_case: whether letters are compared case-insensitively (``rktaci``), as Latin-1.
    """

    __slots__ = ("_first", "_last", "_least", "_middle", "ignores_case", "pattern")

    def __init__(self, pattern: bytes, ignore_case: bool = False) -> None:
        self.pattern = pattern
        self.ignores_case = ignore_case
        words = words_of(pattern.translate(_FOLD) if ignore_case else pattern)
        runs: list[tuple[bytes, ...]] = []
        run: list[bytes] = []
        for word in words:
            if word == ANY_WORDS:
                runs.append(tuple(run))
                run = []
            else:
                run.append(word)
        self._first = tuple(run) if not runs else runs[0]
        self._last = tuple(run) if runs else None
        self._middle = tuple(part for part in runs[1:] if part)
        self._least = sum(word != ANY_WORDS for word in words)

    def matches(self, key: bytes) -> bool:
        """Return True if the routing key matches.

        The cost is at most proportional to the length of the topic times the length of the routing key.
        """
        if self.ignores_case:
            key = key.translate(_FOLD)
        words = words_of(key)
        count = len(words)
        if self._last is None:
            return count == self._least and _run_matches(self._first, words, 0)
        if count < self._least or not _run_matches(self._first, words, 0):
            return False
        end = count - len(self._last)
        if not _run_matches(self._last, words, end):
            return False
        # Between two `#`, the leftmost match is always sufficient, so no backtracking is needed.
        position = len(self._first)
        for run in self._middle:
            while position + len(run) <= end and not _run_matches(run, words, position):
                position += 1
            position += len(run)
            if position > end:
                return False
        return True


@lru_cache(maxsize=4096)
def open_topic(pattern: bytes, ignore_case: bool = False) -> Topic:
    """Return the topic of an ``rkta`` operator.

    The open-exchange plugin turns a topic into a regular expression without quoting it, and rejects the topic if the
    result is invalid. A `Topic` matches as a topic exchange does, but this function rejects what the plugin rejects.

    Raises:
        ProtocolError: the topic is empty, or the resulting regular expression is not valid.
    """
    rewritten = pattern.replace(b"*", rb"(\w+)").replace(b"#.", rb"(\w+.)*", 1).replace(b".#", rb"(.\w+)*", 1)
    rewritten = rewritten.replace(b".", rb"\.").replace(b"#", b".*", 1)
    if not pattern or why_invalid((b"^(?i)" if ignore_case else b"^") + rewritten + b"$"):
        raise precondition_failed("Invalid AMQP topic")
    return Topic(pattern, ignore_case)


def unknown_key(key: bytes) -> ProtocolError:
    """Return the error for an unknown key or a value of the wrong type."""
    opening = "Unknown or invalid argument's key '"
    return precondition_failed(f"{opening}{format_binary(key, len(opening))}'")


def text_of(key: bytes, value: Value) -> bytes:
    """Return the bytes of a long string; reject all other types."""
    if value.letter != "S":
        raise unknown_key(key)
    return cast("bytes", value.value)


def name_of(key: bytes, value: Value) -> bytes:
    """Return a name: a long string with at least one character."""
    text = text_of(key, value)
    if not begins_with_character(text):
        raise unknown_key(key)
    return text


def pattern_of(key: bytes, value: Value) -> Pattern:
    source = text_of(key, value)
    try:
        return compile_pattern(source)
    except InvalidPattern as error:
        raise precondition_failed(invalid_regex(source, str(error))) from error


INTEGERS: Final = frozenset("bBsuIilLT")
FLOATS: Final = frozenset("fd")
NUMBERS: Final = INTEGERS | FLOATS
TEXTS: Final = frozenset("Sx")
_COUNTED: Final = frozenset("AF")
_PLAIN: Final = NUMBERS | TEXTS

#: Canonical form of the empty table and the empty list, which are equal.
_EMPTY = ("F", ())

#: Codes of the comparison operators, for `_compare`.
_EQUAL, _DIFFERENT, _LESS, _AT_MOST, _AT_LEAST, _GREATER = range(6)
#: These codes, by the operator as written in argument keys.
SIGNS: Final = {b"=": _EQUAL, b"!=": _DIFFERENT, b"<": _LESS, b"<=": _AT_MOST, b">=": _AT_LEAST, b">": _GREATER}

#: Suffixes of ``x-?hkex`` and the type letters that each accepts.
TYPE_TESTS: Final = {
    b"s": frozenset("S"),
    b"n": NUMBERS,
    b"b": frozenset("t"),
    b"i": INTEGERS,
    b"a": frozenset("A"),
}


def canonical(value: Value) -> Hashable:
    """Return a key that is the same for equal values.

    Numbers and strings are their own keys, without type letters, since a number never equals bytes. The keys of other
    values include the type letter, so that a boolean does not equal a number.
    """
    letter, content = value
    if letter in _PLAIN:
        return content
    if letter in _COUNTED and not content:
        return _EMPTY
    return typed(value)


def _compare(sign: int, seen: Any, bound: Any) -> bool:
    # The values are not annotated as float, since compiled code would convert integers to floats and round them.
    if sign == _AT_LEAST:
        return bool(seen >= bound)
    if sign == _LESS:
        return bool(seen < bound)
    if sign == _GREATER:
        return bool(seen > bound)
    if sign == _AT_MOST:
        return bool(seen <= bound)
    return bool(seen == bound) is (sign == _EQUAL)


def listed_values(key: bytes, expected: Value) -> tuple[Value, ...]:
    """Return the elements of a list that is not empty; reject all other values."""
    if expected.letter != "A" or not expected.value:
        raise unknown_key(key)
    elements = cast("tuple[Value, ...]", expected.value)
    if any(element.letter == "D" for element in elements):
        raise precondition_failed("Usage of decimal type is forbidden")
    return elements


#: Number of equal parts into which the operator ``share`` divides all values: hundredths of a percent.
_SHARES: Final = 10_000


def share_bounds(key: bytes, expected: Value) -> tuple[int, int]:
    """Return the bounds of a share in hundredths of a percent; the upper bound is not included."""
    bounds: list[int] = []
    for element in listed_values(key, expected):
        percent = element.value
        if element.letter not in NUMBERS or not isinstance(percent, (int, float)) or not 0 <= percent <= 100:
            raise unknown_key(key)
        hundredths = round(percent * 100)
        if abs(percent * 100 - hundredths) > 1e-6:
            raise unknown_key(key)
        bounds.append(hundredths)
    if len(bounds) != 2 or bounds[0] >= bounds[1]:
        raise unknown_key(key)
    return bounds[0], bounds[1]


def share_of(content: bytes) -> int:
    """Return the hundredth of a percent that a value belongs to. The result must be the same everywhere, forever."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big") % _SHARES


def _header_bytes(seen: Value) -> bytes | None:
    """Return a string's bytes, or a number or boolean as text, so that equal values have the same share."""
    letter, content = seen
    if letter in TEXTS:
        return cast("bytes", content)
    if letter in FLOATS and isinstance(content, float) and content.is_integer():
        return b"%d" % int(content)
    if letter in NUMBERS:
        return str(content).encode()
    if letter == "t":
        return b"true" if content else b"false"
    return None


MATCH: Final = Verdict.MATCH
MISMATCH: Final = Verdict.MISMATCH
ABSENT: Final = Verdict.ABSENT

#: Key of an operator in the index: family, item and value.
IndexKey: TypeAlias = tuple[str, Hashable, Hashable]

HEADER: Final = "header"
ROUTING_KEY: Final = "routing key"
PROPERTY: Final = "property"
TOPIC: Final = "topic"
CLOCK: Final = "clock"

#: A fact that can change a result, given as family and name.
FactName: TypeAlias = tuple[str, bytes | str]

ALL_HEADERS: Final[FactName] = ("headers", "")
QUEUE_NAMES: Final[FactName] = ("queues", "")


class Operator:
    """Base class of all operators.

    Operators have few attributes and no closures, since a hundred thousand bindings may have two operators each.

    This is not an ABC, since compiled subclasses of an ABC share its cache of type checks, so that `isinstance` in code
    that is not compiled would mistake one operator for another.

    Args:
        key: the argument's key as declared.
        expected: the argument's value, or one element of a list.
        negated: whether a fact that is present matches if the condition is false.
        optional: whether ABSENT counts as a match with `all` (and with `eq`, for a header).

    Raises:
        ProtocolError: the expected value is not valid; 406 on the channel.
    """

    __slots__ = ("expected", "key", "negated", "optional")

    def __init__(self, key: bytes, expected: Value, negated: bool = False, optional: bool = False) -> None:
        self.key: Final = key
        self.expected: Final = expected
        self.negated: Final = negated
        self.optional: Final = optional

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        """Index keys of which every matching message has at least one; empty if the operator is not an equality."""
        return ()

    @property
    def fact_name(self) -> FactName:
        raise NotImplementedError

    @property
    def absent(self) -> Verdict:
        """Verdict if the fact is missing."""
        return ABSENT

    def seen(self, message: Message) -> Value | bytes | int | None:
        """Return the fact in this message; None if it is missing."""
        raise NotImplementedError

    def predicate(self, seen: Any, message: Message) -> bool:
        """Test a fact that is present."""
        raise NotImplementedError

    def verdict(self, message: Message) -> Verdict:
        seen = self.seen(message)
        if seen is None:
            return self.absent
        return MATCH if self.predicate(seen, message) else MISMATCH


# -- headers -----------------------------------------------------------------------------------------------------------


class HeaderOperator(Operator):
    """Tests the first header with the given name."""

    __slots__ = ("name",)

    def __init__(self, key: bytes, expected: Value, name: bytes, negated: bool = False, optional: bool = False) -> None:
        super().__init__(key, expected, negated, optional)
        self.name: Final = name

    @property
    def uses_up(self) -> bool:
        """True if `eq` and `set` continue with the next header after this operator has matched a header."""
        return False

    @property
    def compares(self) -> bool:
        """True for a comparison (``hkv``, ``hk?v``), False for a test of existence or type."""
        return True

    @property
    def fact_name(self) -> FactName:
        return HEADER, self.name

    def seen(self, message: Message) -> Value | None:
        return message.first.get(self.name)


class HeaderEquals(HeaderOperator):
    """Compares values for equality. The types of numbers and of strings are ignored, except in nested values."""

    __slots__ = ("_content", "_letters")

    def __init__(self, key: bytes, expected: Value, name: bytes, negated: bool = False, optional: bool = False) -> None:
        super().__init__(key, expected, name, negated, optional)
        letter = expected[0]
        #: Types whose values are equal if their content is; None if canonical forms have to be compared.
        self._letters: Final = NUMBERS if letter in NUMBERS else TEXTS if letter in TEXTS else None
        self._content: Final[Hashable] = canonical(expected)

    @property
    def uses_up(self) -> bool:
        return not self.negated

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        return () if self.negated else ((HEADER, self.name, self._content),)

    def predicate(self, seen: Value, message: Message) -> bool:
        letters = self._letters
        if letters is None:
            return (canonical(seen) == self._content) is not self.negated
        return (seen[0] in letters and seen[1] == self._content) is not self.negated


class HeaderIsIn(HeaderOperator):
    """Matches a header that is equal to an element of a list or, if negated, to none of them."""

    __slots__ = ("_contents",)

    def __init__(self, key: bytes, expected: Value, name: bytes, negated: bool = False, optional: bool = False) -> None:
        super().__init__(key, expected, name, negated, optional)
        self._contents: Final = frozenset([canonical(element) for element in listed_values(key, expected)])

    @property
    def uses_up(self) -> bool:
        return not self.negated

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        return () if self.negated else tuple([(HEADER, self.name, content) for content in self._contents])

    def predicate(self, seen: Value, message: Message) -> bool:
        return (canonical(seen) in self._contents) is not self.negated


class HeaderShare(HeaderOperator):
    """Matches a fixed share of all values; lists, tables, decimals and void belong to no share."""

    __slots__ = ("_from", "_to")

    def __init__(self, key: bytes, expected: Value, name: bytes) -> None:
        super().__init__(key, expected, name)
        bounds = share_bounds(key, expected)
        self._from: Final = bounds[0]
        self._to: Final = bounds[1]

    def predicate(self, seen: Value, message: Message) -> bool:
        content = _header_bytes(seen)
        return content is not None and self._from <= share_of(content) < self._to


class HeaderCompares(HeaderOperator):
    """Matches a number by comparing its exact mathematical value; `sign` is a code from SIGNS."""

    __slots__ = ("_bound", "_sign")

    def __init__(self, key: bytes, expected: Value, name: bytes, sign: int, optional: bool = False) -> None:
        if expected[0] not in NUMBERS:
            # The text is that of the open-exchange plugin.
            raise precondition_failed("Type's value of comparison's operators < and > must be numeric")
        super().__init__(key, expected, name, optional=optional)
        self._sign: Final = sign
        self._bound: Final[object] = expected[1]

    def predicate(self, seen: Value, message: Message) -> bool:
        return seen[0] in NUMBERS and _compare(self._sign, seen[1], self._bound)


class HeaderMatches(HeaderOperator):
    """Matches a long string that contains or, if negated, does not contain a match of a pattern."""

    __slots__ = ("_pattern",)

    def __init__(self, key: bytes, expected: Value, name: bytes, negated: bool = False, optional: bool = False) -> None:
        super().__init__(key, expected, name, negated, optional)
        self._pattern: Final = pattern_of(key, expected)

    def predicate(self, seen: Value, message: Message) -> bool:
        if seen[0] != "S":
            return False
        return (self._pattern.search(cast("bytes", seen[1]), message.budget) is True) is not self.negated


class HeaderIsPresent(HeaderOperator):
    """Matches a header of one of the given types or, if negated, of none of them. A void header counts as present.

    Args:
        letters: the types; None for any type.
    """

    __slots__ = ("_letters",)

    def __init__(
        self, key: bytes, expected: Value, name: bytes, letters: frozenset[str] | None = None, negated: bool = False
    ) -> None:
        super().__init__(key, expected, name, negated)
        self._letters: Final = letters

    @property
    def uses_up(self) -> bool:
        return True

    @property
    def compares(self) -> bool:
        return False

    def predicate(self, seen: Value, message: Message) -> bool:
        letters = self._letters
        return letters is None or (seen[0] in letters) is not self.negated


class HeaderIsAbsent(HeaderOperator):
    """Matches if the header is missing."""

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
    """Tests the routing key, which is never absent."""

    __slots__ = ()

    @property
    def fact_name(self) -> FactName:
        return ROUTING_KEY, ""

    def seen(self, message: Message) -> bytes:
        return message.routing_key


class KeyEquals(RoutingKeyOperator):
    """Matches a routing key that is equal to the expected string or, if negated, differs from it."""

    __slots__ = ("_text",)

    def __init__(self, key: bytes, expected: Value, negated: bool = False) -> None:
        super().__init__(key, expected, negated)
        self._text: Final = text_of(key, expected)

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        return () if self.negated else ((ROUTING_KEY, "", self._text),)

    def predicate(self, seen: bytes, message: Message) -> bool:
        return (seen == self._text) is not self.negated


class KeyIsIn(RoutingKeyOperator):
    """Matches a routing key that is equal to an element of a list or, if negated, to none of them."""

    __slots__ = ("_texts",)

    def __init__(self, key: bytes, expected: Value, negated: bool = False) -> None:
        super().__init__(key, expected, negated)
        self._texts: Final = frozenset([text_of(key, element) for element in listed_values(key, expected)])

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        return () if self.negated else tuple([(ROUTING_KEY, "", content) for content in self._texts])

    def predicate(self, seen: bytes, message: Message) -> bool:
        return (seen in self._texts) is not self.negated


class KeyShare(RoutingKeyOperator):
    """Matches a fixed share of all routing keys."""

    __slots__ = ("_from", "_to")

    def __init__(self, key: bytes, expected: Value) -> None:
        super().__init__(key, expected)
        bounds = share_bounds(key, expected)
        self._from: Final = bounds[0]
        self._to: Final = bounds[1]

    def predicate(self, seen: bytes, message: Message) -> bool:
        return self._from <= share_of(seen) < self._to


class KeyMatches(RoutingKeyOperator):
    """Matches a routing key that contains or, if negated, does not contain a match of a pattern."""

    __slots__ = ("_pattern",)

    def __init__(self, key: bytes, expected: Value, negated: bool = False) -> None:
        super().__init__(key, expected, negated)
        self._pattern: Final = pattern_of(key, expected)

    def predicate(self, seen: bytes, message: Message) -> bool:
        return (self._pattern.search(seen, message.budget) is True) is not self.negated


class KeyFits(RoutingKeyOperator):
    """Tests whether the routing key matches or, if negated, does not match a topic."""

    __slots__ = ("_topic",)

    def __init__(self, key: bytes, expected: Value, topic: Topic, negated: bool = False) -> None:
        super().__init__(key, expected, negated)
        self._topic: Final = topic

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        """The topic; a topic without wildcards is indexed as an equality."""
        topic = self._topic
        if self.negated or topic.ignores_case:
            return ()
        pattern = topic.pattern
        return ((TOPIC if b"*" in pattern or b"#" in pattern else ROUTING_KEY, "", pattern),)

    def predicate(self, seen: bytes, message: Message) -> bool:
        return self._topic.matches(seen) is not self.negated


# -- properties --------------------------------------------------------------------------------------------------------

TEXT_PROPERTIES: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
INTEGER_PROPERTIES: Final = ("delivery_mode", "priority", "timestamp", "expiration")


class PropertyOperator(Operator):
    """Tests one property. A property set to the empty string is considered present."""

    __slots__ = ("name",)

    def __init__(self, key: bytes, expected: Value, name: str, negated: bool = False) -> None:
        super().__init__(key, expected, negated)
        self.name: Final = name

    @property
    def fact_name(self) -> FactName:
        return PROPERTY, self.name

    def seen(self, message: Message) -> bytes | int | None:
        return message.properties.get(self.name)


class PropertyIsPresent(PropertyOperator):
    """Matches if the property is set."""

    __slots__ = ()

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        return True


class PropertyIsAbsent(PropertyOperator):
    """Matches if the property is not set."""

    __slots__ = ()

    @property
    def absent(self) -> Verdict:
        return MATCH

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        return False


class PropertyEquals(PropertyOperator):
    """Matches a string property that is equal to the expected string or, if negated, differs from it."""

    __slots__ = ()

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        return () if self.negated else ((PROPERTY, self.name, cast("bytes", self.expected[1])),)

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        return (seen == self.expected[1]) is not self.negated


class PropertyIsIn(PropertyOperator):
    """Matches a property that is equal to an element of a list or, if negated, to none of them."""

    __slots__ = ("_contents", "_is_integer")

    def __init__(self, key: bytes, expected: Value, name: str, negated: bool = False) -> None:
        super().__init__(key, expected, name, negated)
        self._is_integer: Final = name in INTEGER_PROPERTIES
        elements = listed_values(key, expected)
        for element in elements:
            if element.letter not in INTEGERS if self._is_integer else element.letter != "S":
                raise precondition_failed("Invalid property match operator")
        self._contents: Final = frozenset([cast("bytes | int", element.value) for element in elements])

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        return () if self.negated else tuple([(PROPERTY, self.name, content) for content in self._contents])

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        if self._is_integer:
            number = spelled_integer(seen)
            return number is not None and (number in self._contents) is not self.negated
        return (seen in self._contents) is not self.negated


class PropertyShare(PropertyOperator):
    """Matches a fixed share of all values of a property."""

    __slots__ = ("_from", "_to")

    def __init__(self, key: bytes, expected: Value, name: str) -> None:
        super().__init__(key, expected, name)
        bounds = share_bounds(key, expected)
        self._from: Final = bounds[0]
        self._to: Final = bounds[1]

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        content = seen if isinstance(seen, bytes) else b"%d" % seen
        return self._from <= share_of(content) < self._to


class PropertyMatches(PropertyOperator):
    """Matches a string property that contains or, if negated, does not contain a match of a pattern."""

    __slots__ = ("_pattern",)

    def __init__(self, key: bytes, expected: Value, name: str, negated: bool = False) -> None:
        super().__init__(key, expected, name, negated)
        self._pattern: Final = pattern_of(key, expected)

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        return (self._pattern.search(cast("bytes", seen), message.budget) is True) is not self.negated


class PropertyCompares(PropertyOperator):
    """Matches an integer property by comparing it with a number; `sign` is a code from SIGNS."""

    __slots__ = ("_sign",)

    def __init__(self, key: bytes, expected: Value, name: str, sign: int) -> None:
        super().__init__(key, expected, name)
        self._sign: Final = sign

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        return ((PROPERTY, self.name, cast("int", self.expected[1])),) if self._sign == _EQUAL else ()

    def predicate(self, seen: bytes | int, message: Message) -> bool:
        number = spelled_integer(seen)
        return number is not None and _compare(self._sign, number, self.expected[1])


# -- clock -------------------------------------------------------------------------------------------------------------


class ClockOperator(Operator):
    """Matches the time in a time zone against a pattern; the clock is read once per message."""

    __slots__ = ("_pattern", "_zone")

    def __init__(self, key: bytes, expected: Value, zone: tzinfo | None, negated: bool) -> None:
        super().__init__(key, expected, negated)
        self._zone: Final = zone
        self._pattern: Final = pattern_of(key, expected)

    @property
    def fact_name(self) -> FactName:
        return CLOCK, ""

    def predicate(self, seen: bytes, message: Message) -> bool:
        return (self._pattern.search(seen, message.budget) is True) is not self.negated

    def seen(self, message: Message) -> bytes:
        return message.clock(self._zone)
