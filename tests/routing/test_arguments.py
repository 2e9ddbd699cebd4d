from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from proxy.routing.exchange import Exchange
from proxy.values import Value
from tests.routing.building import Plain, exchange, facts, many, queues, refusal, table, to_queue, value


def _unknown(key: str) -> str:
    return f"Unknown or invalid argument's key '<<\"{key}\">>'"


def test_a_huge_number_in_a_set_is_out_of_range() -> None:
    made = exchange(to_queue("q", {"x-match": "set " + "9" * 5000, "a": 1}))
    assert queues(made, facts(headers={"a": 1})) == []


@pytest.mark.parametrize(
    ("key", "element"), [("x-del-dest", ""), ("x-order", 100), ("x-goto-ontrue", 100), ("x-goto-onfalse", 100)]
)
def test_lists_are_refused_for_operators_with_a_single_value(key: str, element: Plain) -> None:
    assert refusal(to_queue("q", {key: many(element)})) == _unknown(key)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", ["x-open", "headers", "topic", "direct", "fanout"])
def test_infinity_and_nan_are_refused(number: float, kind: str) -> None:
    for entry in (value(number), Value("f", number), table(k=number), table(k=many(number))):
        text = refusal(to_queue("q", {"a": entry}), kind)
        assert text == "Argument 'a' holds a number that is infinite or NaN"


def test_infinity_and_nan_are_refused_in_a_list() -> None:
    text = refusal(to_queue("q", {"x-match": "any", "a": many(1, float("nan"))}))
    assert text == "Argument 'a' holds a number that is infinite or NaN"


def test_duplicate_arguments_are_both_operators() -> None:
    binding = to_queue("q")
    twice = ((b"x-?hkv= a", Value("I", 1)), (b"x-?hkv= a", Value("I", 2)))
    assert queues(exchange(replace(binding, arguments=twice)), facts(headers={"a": 1})) == []


@pytest.mark.parametrize(
    ("key", "pattern", "true"),
    [
        ("x-?dture", "^20261121 08", True),
        ("x-?dture", "^20261121 10", False),
        ("x-?dtu!re", "^20261121 10", True),
        ("x-?dtlre", "^20261121 10.* 6 47$", True),
        ("x-?dtl!re", "^20261121 10", False),
    ],
)
def test_clock_operators_read_universal_or_local_time(key: str, pattern: str, true: bool) -> None:
    made = Exchange(b"xo", "x-open", local_time=timezone(timedelta(hours=2)))
    made.bind(to_queue("q", {key: pattern}))
    assert (queues(made) == ["q"]) is true
