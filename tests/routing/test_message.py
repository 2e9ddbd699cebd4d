from __future__ import annotations

from datetime import UTC, timedelta, timezone

import pytest

from proxy.routing.bindings.patterns import compile_pattern
from proxy.routing.decision import Facts
from proxy.routing.message import Message, spelled_integer
from proxy.values import Value
from tests.routing.building import facts, message, no_draw, queue_names


def test_first_header_of_a_name_counts() -> None:
    seen = message(Facts(b"", ((b"a", Value("I", 1)), (b"b", Value("I", 2)), (b"a", Value("I", 3)))))
    assert seen.first == {b"a": Value("I", 1), b"b": Value("I", 2)}


def test_sorted_headers_keep_equal_names_in_message_order() -> None:
    seen = message(Facts(b"", ((b"b", Value("I", 1)), (b"a", Value("I", 2)), (b"b", Value("I", 0)))))
    assert [(name, value.value) for name, value in seen.sorted_headers] == [(b"a", 2), (b"b", 1), (b"b", 0)]


def test_bcc_is_not_there() -> None:
    seen = message(facts(headers={"BCC": "x", "CC": "y"}))
    assert seen.headers == ((b"CC", Value("S", b"y")),)
    assert list(seen.first) == [b"CC"]


@pytest.mark.parametrize(
    ("now", "hours", "text"),
    [
        (1_795_248_000.0, 0, b"20261121 080000 6 47"),
        (1_795_248_000.9, 2, b"20261121 100000 6 47"),
        # ISO weeks: 2021-01-01 is a Friday of week 53, 2024-12-30 a Monday of week 1.
        (1_609_459_200.0, 0, b"20210101 000000 5 53"),
        (1_735_516_800.0, 0, b"20241230 000000 1 01"),
        (1_709_164_800.0, 0, b"20240229 000000 4 09"),
        (1_609_459_200.0, -1, b"20201231 230000 4 53"),
    ],
)
def test_clock_text_has_date_time_weekday_and_week(now: float, hours: int, text: bytes) -> None:
    seen = Message(facts(), now, queue_names(), no_draw)
    zone = timezone(timedelta(hours=hours))
    assert seen.clock(zone) == text
    assert len(text) == 20


def test_each_zone_has_its_own_text_of_the_same_instant() -> None:
    seen = message()
    assert seen.clock(UTC) == b"20261121 080000 6 47"
    assert seen.clock(timezone(timedelta(hours=1))) == b"20261121 090000 6 47"
    assert seen.clock(UTC) == b"20261121 080000 6 47"


def test_search_that_gives_up_is_no_match_and_is_counted() -> None:
    seen = message()
    assert compile_pattern(b"b").search(b"abc", seen.budget) is True
    assert compile_pattern(b"^b").search(b"abc", seen.budget) is False
    assert seen.match_limit_hits == 0
    assert compile_pattern(b"(a+)+$").search(b"a" * 60 + b"b", seen.budget) is None
    assert seen.match_limit_hits == 1


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"5", 5),
        (b"005", 5),
        (b"+5", 5),
        (b"-5", -5),
        (b"", None),
        (b"5 ", None),
        (b"5.0", None),
        (b"1_0", None),
        (7, 7),
    ],
)
def test_expiration_is_the_integer_that_it_spells(text: bytes | int, number: int | None) -> None:
    assert spelled_integer(text) == number
