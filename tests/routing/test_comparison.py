from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.routing.bindings.operators import (
    SIGNS,
    TYPE_TESTS,
    HeaderCompares,
    HeaderDiffers,
    HeaderEquals,
    HeaderIsPresent,
    HeaderMatches,
    canonical,
)
from proxy.routing.bindings.patterns import compile_pattern
from proxy.values import Value
from tests.routing.building import VOID, many, message, table
from tests.routing.random_rules import SEEN

_MESSAGE = message()
_values = st.sampled_from(SEEN)


def _equals(expected: Value, seen: Value) -> bool:
    return HeaderEquals(b"", expected, b"a").predicate(seen, _MESSAGE)


def _differs(expected: Value, seen: Value) -> bool:
    return HeaderDiffers(b"", expected, b"a").predicate(seen, _MESSAGE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Value("b", 5), Value("T", 5)),
        (Value("I", 1), Value("d", 1.0)),
        (Value("S", b"x"), Value("x", b"x")),
        (Value("t", True), Value("t", True)),
        (VOID, VOID),
        (table(), many()),
        (table(k=1), table(k=1)),
        (Value("F", ((b"k", Value("L", 1)),)), Value("F", ((b"k", Value("l", 1)),))),
        (Value("d", 0.0), Value("d", -0.0)),
    ],
)
def test_equal_whatever_the_letter_within_a_kind(one: Value, other: Value) -> None:
    assert _equals(one, other)
    assert _equals(other, one)
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Value("I", 1), Value("t", True)),
        (Value("I", 0), Value("t", False)),
        (Value("I", 0), VOID),
        (Value("S", b""), VOID),
        (Value("S", b"5"), Value("I", 5)),
        (Value("S", b"Red"), Value("S", b"red")),
        (Value("S", "é".encode()), Value("S", "e\u0301".encode())),
        (Value("l", 2**53 + 1), Value("d", 2.0**53)),
        (Value("f", 0.10000000149011612), Value("d", 0.1)),
        (table(k=1), Value("F", ((b"k", Value("l", 1)),))),
        (table(k=1), table(k=1.0)),
        (table(k=1, j=2), table(j=2, k=1)),
        (table(), VOID),
        (Value("I", 1), many(1)),
        (Value("I", 5), Value("D", (0, 5))),
        (Value("S", b"x"), table(x=1)),
    ],
)
def test_different_kinds_and_values_are_not_equal(one: Value, other: Value) -> None:
    assert not _equals(one, other)
    assert _differs(one, other)
    assert canonical(one) != canonical(other)


@given(one=_values, other=_values)
def test_canonical_keys_are_equal_exactly_where_values_are(one: Value, other: Value) -> None:
    equal = _equals(one, other)
    found = {canonical(one): True}.get(canonical(other), False)
    not_a_number = isinstance(one.value, float) and one.value != one.value
    assert found == equal or not_a_number
    assert _differs(one, other) is not equal


@pytest.mark.parametrize(
    ("sign", "bound", "below", "at", "above"),
    [
        (b"<", Value("I", 5), True, False, False),
        (b"<=", Value("d", 5.0), True, True, False),
        (b">=", Value("T", 5), False, True, True),
        (b">", Value("f", 5.0), False, False, True),
    ],
)
def test_numbers_are_compared_across_types(sign: bytes, bound: Value, below: bool, at: bool, above: bool) -> None:
    operator = HeaderCompares(b"", bound, b"a", SIGNS[sign])
    assert [operator.predicate(value, _MESSAGE) for value in (Value("d", 4.5), Value("T", 5), Value("l", 6))] == [
        below,
        at,
        above,
    ]


@pytest.mark.parametrize("value", [Value("S", b"5"), Value("t", True), VOID, Value("D", (0, 5)), many(5), table()])
@pytest.mark.parametrize("sign", [b"<", b"<=", b">=", b">"])
def test_what_is_no_number_compares_with_none(sign: bytes, value: Value) -> None:
    assert not HeaderCompares(b"", Value("I", 5), b"a", SIGNS[sign]).predicate(value, _MESSAGE)


def test_comparison_is_exact_beyond_the_doubles() -> None:
    assert HeaderCompares(b"", Value("d", 2.0**53), b"a", SIGNS[b">"]).predicate(Value("l", 2**53 + 1), _MESSAGE)


def test_regexes_look_at_long_strings_only() -> None:
    pattern = compile_pattern(b"^a")
    seen = [Value("S", b"ab"), Value("S", b"b"), Value("x", b"ab"), Value("I", 1)]
    found, missed = (HeaderMatches(b"", VOID, b"a", pattern, negated) for negated in (False, True))
    assert [found.predicate(value, _MESSAGE) for value in seen] == [True, False, False, False]
    assert [missed.predicate(value, _MESSAGE) for value in seen] == [False, True, False, False]


@pytest.mark.parametrize(
    ("value", "types"),
    [
        (Value("S", b""), "s"),
        (Value("x", b""), ""),
        (Value("I", 1), "ni"),
        (Value("T", 1), "ni"),
        (Value("f", 1.0), "n"),
        (Value("D", (0, 1)), ""),
        (Value("t", True), "b"),
        (VOID, ""),
        (many(1), "a"),
        (table(), ""),
    ],
)
def test_each_value_is_of_its_types_and_no_other(value: Value, types: str) -> None:
    for name, letters in TYPE_TESTS.items():
        of_type = HeaderIsPresent(b"", VOID, b"a", letters)
        of_no_such_type = HeaderIsPresent(b"", VOID, b"a", letters, negated=True)
        assert of_type.predicate(value, _MESSAGE) is (name.decode() in types)
        assert of_no_such_type.predicate(value, _MESSAGE) is (name.decode() not in types)
    assert HeaderIsPresent(b"", VOID, b"a").predicate(value, _MESSAGE)
