from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxproxy.addressing.table import AddressIndex, AddressPattern, AddressRule, AddressTable, Translation
from tests.conformance.messenger import steps_of_match


def table(*rules: tuple[bytes, bytes | None]) -> AddressTable:
    return AddressTable([AddressRule(pattern, translation) for pattern, translation in rules])


def result(pattern: bytes, translation: bytes, address: bytes) -> bytes | None:
    translation_result = table((pattern, translation)).translate(address)
    assert translation_result is not None
    return translation_result.address


def test_the_64th_variable_works_and_the_65th_gives_nothing() -> None:
    pattern = b"/".join([b"%"] * 65)
    address = b"/".join(b"v%d" % number for number in range(1, 66))
    assert result(pattern, b"$64|$65", address) == b"v64|"


def test_the_first_matching_rule_decides_and_its_result_is_final() -> None:
    rules = table((b"a*", b"b"), (b"ab", b"never"), (b"b", b"c"))
    assert rules.translate(b"ab") == Translation(0, (b"b",), b"b")
    assert rules.translate(b"b") == Translation(2, (), b"c")
    assert rules.translate(b"x") is None


def test_a_missing_address_is_matched_as_the_empty_string() -> None:
    assert table((b"", b"x")).translate(None) == Translation(0, (), b"x")


def test_a_rule_without_translation_gives_no_address() -> None:
    assert table((b"a", None)).translate(b"a") == Translation(0, (), None)


def test_an_address_table_without_rules_is_false() -> None:
    assert not table()
    assert table((b"a", b"b"))


def test_passwords_are_not_shown() -> None:
    rule = AddressRule(b"*", b"amqp://fred:trustno1@$1")
    translation = AddressTable([rule]).translate(b"host/q")
    assert translation is not None
    assert translation.address == b"amqp://fred:trustno1@host/q"
    for text in (
        repr(rule),
        str(rule),
        repr(translation),
        str(translation),
        repr(rule.shown),
        repr(translation.shown),
        repr([translation]),
    ):
        assert "trustno1" not in text
    assert translation.shown == b"amqp://fred:***@host/q"


def test_rules_that_earlier_ones_hide_are_found() -> None:
    rules = table(
        (b"a/*", b"1"), (b"a/%/b", b"2"), (b"c", b"3"), (b"%", b"4"), (b"c", b"5"), (b"*", b"6"), (b"x/y", b"7")
    )
    assert list(rules.shadowed()) == [(1, 0), (4, 2), (6, 5)]


def index_of(*patterns: bytes) -> AddressIndex:
    return AddressIndex([AddressPattern(pattern) for pattern in patterns])


def test_patterns_that_differ_only_in_the_middle_are_distinguished() -> None:
    index = index_of(*(b"%%/team%d/*" % number for number in range(1000)))
    assert index.candidates(b"eu/team998/order") == [998]
    assert len(index.candidates(b"eu/nobody/order")) == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ab/*%", max_size=8), max_size=12), st.text("ab/", max_size=10))
def test_the_first_matching_pattern_is_always_a_candidate(patterns: list[str], address: str) -> None:
    compiled = [AddressPattern(pattern.encode()) for pattern in patterns]
    fitting = [at for at, pattern in enumerate(compiled) if pattern.match(address.encode()) is not None]
    candidates = AddressIndex(compiled).candidates(address.encode())
    assert candidates == sorted(set(candidates))
    assert fitting[:1] == [at for at in candidates if at in fitting][:1]


def reference(pattern: bytes, address: bytes) -> list[bytes] | None:
    """The definition of pattern matching, as a recursive function."""
    if not pattern:
        return None if address else []
    if pattern[:1] not in (b"*", b"%"):
        return reference(pattern[1:], address[1:]) if address[:1] == pattern[:1] else None
    for size in range(len(address), -1, -1):
        if pattern[:1] == b"*" or b"/" not in address[:size]:
            rest = reference(pattern[1:], address[size:])
            if rest is not None:
                return [address[:size], *rest]
    return None


@settings(max_examples=400, deadline=None)
@given(st.text("ab/*%", max_size=9), st.text("ab/", max_size=12))
def test_pattern_matching_follows_the_definition(pattern: str, address: str) -> None:
    expected = reference(pattern.encode(), address.encode())
    taken = AddressPattern(pattern.encode()).match(address.encode())
    assert taken == (tuple(expected) if expected is not None else None)


@settings(max_examples=300, deadline=None)
@given(st.text("ab/*%", max_size=6), st.text("ab/*%", max_size=6), st.lists(st.text("ab/", max_size=4), max_size=6))
def test_a_pattern_matches_what_covered_patterns_match(pattern: str, other: str, runs: list[str]) -> None:
    if not AddressPattern(pattern.encode()).covers(AddressPattern(other.encode())):
        return
    filled = iter(runs)
    address = "".join(
        next(filled, "") if c == "*" else next(filled, "").replace("/", "") if c == "%" else c for c in other
    )
    assert AddressPattern(pattern.encode()).match(address.encode()) is not None


@pytest.mark.parametrize("wildcard", [b"*", b"%", b"%a*", b"*%"])
def test_the_steps_do_not_depend_on_the_length_of_the_address(wildcard: bytes) -> None:
    pattern = (wildcard + b"a") * 12 + b"b"
    steps = {steps_of_match(pattern, b"a" * size) for size in (300, 600, 20_000)}
    assert len(steps) == 1
    assert steps.pop() <= 20 * len(pattern)


def test_twice_the_wildcards_is_at_most_two_and_a_half_times_the_steps() -> None:
    once, twice = (steps_of_match(b"*%a" * count + b"b", b"a" * 500) for count in (10, 20))
    assert twice <= 2.5 * once


def test_a_long_address_needs_no_deep_stack() -> None:
    assert AddressPattern(b"*%b").match(b"a" * 200_000) is None
    assert AddressPattern(b"%" * 130).match(b"a" * 200_000) is not None
