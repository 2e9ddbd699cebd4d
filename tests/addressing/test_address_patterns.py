from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.addressing.table import AddressPattern
from tests.conformance.messenger import steps_of_match


@pytest.mark.parametrize(
    ("pattern", "address", "taken"),
    [
        (b"COLOSSUS", b"COLOSSUS", ()),
        (b"COLOSSUS", b"COLOSSUS2", None),
        (b"/%/%/%", b"/foo/bar/baz", (b"foo", b"bar", b"baz")),
        (b"*", b"/foo/bar/baz", (b"/foo/bar/baz",)),
        (b"/*baz", b"/foo/bar/baz", (b"foo/bar/",)),
        (b"/%baz", b"/foo/bar/baz", None),
        (b"/%/*", b"/foo/bar/baz", (b"foo", b"bar/baz")),
        (b"**", b"ab", (b"ab", b"")),
        (b"%%", b"ab", (b"ab", b"")),
        (b"*a*", b"banana", (b"banan", b"")),
        (b"%a%", b"banana", (b"banan", b"")),
        (b"*%*", b"a/b", (b"a/b", b"", b"")),
        (b"%*%", b"a/b/c", (b"a", b"/b/c", b"")),
        (b"aa*aa", b"aaa", None),
        (b"aa*aa", b"aaaa", (b"",)),
        (b"", b"", ()),
        (b"", b"a", None),
        (b"%", b"", (b"",)),
        (b"%", b"/", None),
        (b"a*", b"b", None),
        (b"\xff%", b"\xff\x00\n", (b"\x00\n",)),
    ],
)
def test_wildcards_match_the_longest_strings_from_the_left(
    pattern: bytes, address: bytes, taken: tuple[bytes, ...] | None
) -> None:
    assert AddressPattern(pattern).match(address) == taken


def test_wildcards_from_the_65th_on_match_without_capture() -> None:
    pattern = AddressPattern(b"/".join([b"%"] * 70))
    taken = pattern.match(b"/".join(b"%d" % number for number in range(1, 71)))
    assert taken is not None
    assert taken == tuple(b"%d" % number for number in range(1, 65))


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


@pytest.mark.parametrize(
    ("pattern", "other", "covers"),
    [
        (b"*", b"a%b*", True),
        (b"a/*", b"a/%/b", True),
        (b"%", b"*", False),
        (b"%/%", b"a/%", True),
        (b"a%", b"a*", False),
        (b"a*", b"b*", False),
        (b"a", b"a", True),
    ],
)
def test_one_pattern_covers_another(pattern: bytes, other: bytes, covers: bool) -> None:
    assert AddressPattern(pattern).covers(AddressPattern(other)) is covers


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
