from __future__ import annotations

from datetime import UTC

import pytest

from proxy.routing.bindings.operators import (
    ABSENT,
    CLOCK,
    HEADER,
    MATCH,
    MISMATCH,
    PROPERTY,
    ROUTING_KEY,
    SIGNS,
    ClockOperator,
    HeaderEquals,
    HeaderIsAbsent,
    HeaderIsPresent,
    KeyEquals,
    PropertyCompares,
    PropertyEquals,
)
from proxy.routing.bindings.patterns import compile_pattern
from proxy.routing.decision import Verdict
from proxy.values import Value
from tests.routing.building import facts, message, value

_RED = value("red")


@pytest.mark.parametrize(
    ("headers", "verdict"),
    [({"color": "red"}, MATCH), ({"color": "blue"}, MISMATCH), ({"size": "red"}, ABSENT)],
)
def test_header_operator_answers_for_the_header_of_its_name(headers: dict[str, str], verdict: Verdict) -> None:
    operator = HeaderEquals(b"key", _RED, b"color")
    assert operator.verdict(message(facts(headers=headers))) is verdict
    assert operator.fact_name == (HEADER, b"color")


def test_header_operator_can_ask_for_absence() -> None:
    operator = HeaderIsAbsent(b"key", _RED, b"color")
    assert operator.verdict(message()) is MATCH
    assert operator.verdict(message(facts(headers={"color": "red"}))) is MISMATCH


def test_header_operator_shows_what_it_saw() -> None:
    operator = HeaderIsPresent(b"key", _RED, b"color")
    assert operator.seen(message(facts(headers={"color": "blue"}))) == value("blue")
    assert operator.seen(message()) is None


def test_routing_key_is_never_absent() -> None:
    operator = KeyEquals(b"key", value(""))
    assert operator.verdict(message(facts(""))) is MATCH
    assert operator.verdict(message(facts("k"))) is MISMATCH
    assert operator.seen(message(facts("k"))) == b"k"
    assert operator.fact_name == (ROUTING_KEY, "")


def test_property_set_to_the_empty_string_is_there() -> None:
    operator = PropertyEquals(b"key", value(""), "type")
    assert operator.verdict(message(facts(properties={"type": ""}))) is MATCH
    assert operator.verdict(message(facts(properties={"type": "x"}))) is MISMATCH
    assert operator.verdict(message(facts(properties={"app_id": ""}))) is ABSENT
    assert operator.seen(message(facts(properties={"type": "x"}))) == b"x"
    assert operator.fact_name == (PROPERTY, "type")


def test_property_of_zero_is_there() -> None:
    operator = PropertyCompares(b"key", value(0), "priority", SIGNS[b"="])
    assert operator.verdict(message(facts(properties={"priority": 0}))) is MATCH


@pytest.mark.parametrize(
    ("pattern", "negated", "verdict"),
    [(b"^2026", False, MATCH), (b"^2025", False, MISMATCH), (b"^2026", True, MISMATCH), (b"^2025", True, MATCH)],
)
def test_clock_operator_matches_the_time_as_text(pattern: bytes, negated: bool, verdict: Verdict) -> None:
    operator = ClockOperator(b"key", _RED, UTC, compile_pattern(pattern), negated)
    assert operator.verdict(message()) is verdict
    assert operator.seen(message()) == b"20261121 080000 6 47"
    assert operator.fact_name == (CLOCK, "")


def test_equal_values_of_different_types_are_found_at_one_place() -> None:
    integer = HeaderEquals(b"", Value("I", 1), b"a").index_key
    assert integer == HeaderEquals(b"", Value("d", 1.0), b"a").index_key
    assert integer != HeaderEquals(b"", Value("t", True), b"a").index_key
    assert integer != HeaderEquals(b"", Value("I", 1), b"b").index_key
