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
    ClockOperator,
    HeaderOperator,
    PropertyOperator,
    RoutingKeyOperator,
    equals,
    header_index_key,
    present,
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
    operator = HeaderOperator(b"key", _RED, b"color", equals(_RED))
    assert operator.verdict(message(facts(headers=headers))) is verdict
    assert operator.fact_name == (HEADER, b"color")


def test_header_operator_can_ask_for_absence() -> None:
    operator = HeaderOperator(b"key", _RED, b"color", lambda _value, _message: False, absent=MATCH)
    assert operator.verdict(message()) is MATCH
    assert operator.verdict(message(facts(headers={"color": "red"}))) is MISMATCH


def test_header_operator_shows_what_it_saw() -> None:
    operator = HeaderOperator(b"key", _RED, b"color", present)
    assert operator.seen(message(facts(headers={"color": "blue"}))) == value("blue")
    assert operator.seen(message()) is None


def test_routing_key_is_never_absent() -> None:
    operator = RoutingKeyOperator(b"key", _RED, lambda seen, _: seen == b"")
    assert operator.verdict(message(facts(""))) is MATCH
    assert operator.verdict(message(facts("k"))) is MISMATCH
    assert operator.seen(message(facts("k"))) == b"k"
    assert operator.fact_name == (ROUTING_KEY, "")


def test_property_set_to_the_empty_string_is_there() -> None:
    operator = PropertyOperator(b"key", _RED, "type", lambda seen, _: seen == b"")
    assert operator.verdict(message(facts(properties={"type": ""}))) is MATCH
    assert operator.verdict(message(facts(properties={"type": "x"}))) is MISMATCH
    assert operator.verdict(message(facts(properties={"app_id": ""}))) is ABSENT
    assert operator.seen(message(facts(properties={"type": "x"}))) == b"x"
    assert operator.fact_name == (PROPERTY, "type")


def test_property_of_zero_is_there() -> None:
    operator = PropertyOperator(b"key", _RED, "priority", lambda seen, _: seen == 0)
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
    assert header_index_key(b"a", Value("I", 1)) == header_index_key(b"a", Value("d", 1.0))
    assert header_index_key(b"a", Value("I", 1)) != header_index_key(b"a", Value("t", True))
    assert header_index_key(b"a", Value("I", 1)) != header_index_key(b"b", Value("I", 1))
