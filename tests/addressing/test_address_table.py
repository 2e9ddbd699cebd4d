from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.addressing.table import AddressIndex, AddressPattern, AddressRule, AddressTable, Translation


def table(*rules: tuple[bytes, bytes | None]) -> AddressTable:
    return AddressTable([AddressRule(pattern, translation) for pattern, translation in rules])


def result(pattern: bytes, translation: bytes, address: bytes) -> bytes | None:
    translation_result = table((pattern, translation)).translate(address)
    assert translation_result is not None
    return translation_result.address


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        (b"$1-$2", b"a-b/c"),
        (b"$01", b"a"),
        (b"$10", b""),
        (b"$3", b""),
        (b"$0", b"a/b/c"),
        (b"$18446744073709551617", b""),
        (b"$$1", b"$1"),
        (b"$$$1", b"$a"),
        (b"x$y", b"xa/b/cy"),
        (b"x$", b"xa/b/c"),
        (b"*%", b"*%"),
        (b"", b""),
    ],
)
def test_variables_are_filled(translation: bytes, expected: bytes) -> None:
    assert result(b"%/*", translation, b"a/b/c") == expected


def test_captured_text_is_not_expanded() -> None:
    assert result(b"*", b"<$1>", b"$1*%$$") == b"<$1*%$$>"


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
