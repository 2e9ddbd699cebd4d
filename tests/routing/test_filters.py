"""Tests cases of filters that are not recorded in `tests/conformance/vectors/open-exchange/filters.jsonl.gz`."""

from __future__ import annotations

import pytest

from proxy.routing.decision import Facts
from proxy.routing.filters import HeadersFilter, PayloadFilter, read_filters
from tests.routing.building import Plain, arguments, facts, many, message


def _breach(limits: dict[str, int], seen: Facts) -> str | None:
    """The error of the first violated limit."""
    return next(filter(None, (limit.breach(message(seen)) for limit in read_filters(arguments(limits)))), None)


def _heavy(**headers: Plain) -> Facts:
    return facts(headers=headers)


def test_very_deep_lists_do_not_exhaust_the_stack() -> None:
    deep = many()
    for _ in range(5000):
        deep = many(deep)
    assert _breach({"max-headers-depth": 10_000, "max-headers-size": 10**9}, _heavy(a=deep)) is None


@pytest.mark.parametrize("limit", ["max-headers-depth", "max-headers-size"])
def test_a_negative_headers_limit_rejects_every_message(limit: str) -> None:
    assert _breach({limit: -1}, facts()) == f"M{limit[1:].replace('-', ' ')} hit."


def test_headers_are_checked_in_the_order_of_their_names() -> None:
    limits = {"max-headers-depth": 1, "max-headers-size": 20}
    assert _breach(limits, _heavy(b=many(many()), a="x" * 30)) == "Max headers size hit."
    assert _breach(limits, _heavy(a=many(many()), b="x" * 30)) == "Max headers depth hit."


def test_depth_of_a_header_is_tested_before_its_size() -> None:
    limits = {"max-headers-depth": 1, "max-headers-size": 5}
    assert _breach(limits, _heavy(a=many("xxxxxxxxx", many()))) == "Max headers depth hit."


def test_a_size_threshold_is_the_first_size_with_the_other_result() -> None:
    assert PayloadFilter(b"", 10, True, False).cut == 10
    assert PayloadFilter(b"", 10, False, False).cut == 11
    assert HeadersFilter(b"", 1, 1).silent is False
