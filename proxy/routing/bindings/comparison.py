"""When is a header's value equal to, less than or of the type of what a binding names?

Each function makes a judge: given the value of a header that is present, it says yes or no. What an absent header
means is not known here. Type letters are kept until the comparison and lost only in it.

Source: the open-exchange specification, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, TypeAlias, cast

from proxy.routing.bindings.binding import typed
from proxy.routing.bindings.patterns import Pattern
from proxy.values import Value

if TYPE_CHECKING:
    from proxy.routing.message import Message

Judge: TypeAlias = Callable[[Value, "Message"], bool]

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


def equals(expected: Value) -> Judge:
    """Equal at the top level: the letter is ignored within a kind."""
    letter, content = expected
    if letter in NUMBERS:
        return lambda value, _: value[0] in NUMBERS and value[1] == content
    if letter in TEXTS:
        return lambda value, _: value[0] in TEXTS and value[1] == content
    key = canonical(expected)
    return lambda value, _: canonical(value) == key


def differs(expected: Value) -> Judge:
    """Not equal at the top level."""
    equal = equals(expected)
    return lambda value, message: not equal(value, message)


def compares(sign: bytes, expected: Value) -> Judge:
    """Numeric, and less or greater by exact mathematical value. `expected` is a number."""
    comparison = _COMPARISONS[sign]
    bound = cast("float", expected.value)
    return lambda value, _: value[0] in NUMBERS and comparison(cast("float", value[1]), bound)


def matches(pattern: Pattern) -> Judge:
    """A long string in which the pattern is found."""
    return lambda value, message: value[0] == "S" and message.search(pattern, cast("bytes", value[1]))


def mismatches(pattern: Pattern) -> Judge:
    """A long string in which the pattern is not found."""
    return lambda value, message: value[0] == "S" and not message.search(pattern, cast("bytes", value[1]))


def has_type(letters: frozenset[str]) -> Judge:
    """Of one of the types."""
    return lambda value, _: value[0] in letters


def lacks_type(letters: frozenset[str]) -> Judge:
    """Of none of the types."""
    return lambda value, _: value[0] not in letters


def present(_value: Value, _message: Message) -> bool:
    """Whatever the value is, void included."""
    return True
