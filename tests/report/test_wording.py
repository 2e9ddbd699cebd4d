from __future__ import annotations

from datetime import UTC, datetime

import pytest

from oxproxy.report import wording

TIME = datetime(2026, 11, 20, 23, 5, 9, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (999.6, "1 k"),
        (1000, "1 k"),
        (999_499, "999 k"),
        (999_600, "1 M"),
        (12_345, "12.3 k"),
        (1_250_000, "1.25 M"),
        (2e9, "2 G"),
        (0.5, "0.5"),
    ],
)
def test_short_numbers_have_at_most_three_digits(number: float, text: str) -> None:
    assert wording.short(number) == text


def test_a_unit_follows_its_prefix() -> None:
    assert wording.short(1_250_000, "B") == "1.25 MB"
    assert wording.short(12, "B") == "12 B"


def test_numbers_above_the_last_prefix_are_written_out() -> None:
    assert wording.short(5e18) == "5000 P"


@pytest.mark.parametrize(
    ("time", "text"),
    [(0.5, "0.5 µs"), (12.34, "12.3 µs"), (999, "999 µs"), (999.7, "1 ms"), (1500, "1.5 ms"), (2_500_000, "2.5 s")],
)
def test_times_have_a_suitable_unit(time: float, text: str) -> None:
    assert wording.micros(time) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "minute"), (10, "10 minutes"), (60, "hour"), (120, "2 hours"), (1440, "day"), (10080, "week")],
)
def test_steps_are_named_by_the_largest_suitable_unit(count: int, text: str) -> None:
    assert wording.minutes(count) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "0 %"), (0, 10, "0.0 %"), (1, 8, "12.5 %"), (1, 10**6, "< 0.1 %"), (5, 5, "100.0 %")],
)
def test_a_small_share_is_not_shown_as_zero(part: int, whole: int, text: str) -> None:
    assert wording.share(part, whole) == text


def test_digits_of_counts_are_grouped() -> None:
    assert wording.whole(2_000_000) == "2,000,000"


def test_a_time_is_shown_to_the_second() -> None:
    assert wording.moment(TIME) == "2026-11-20 23:05:09"


def test_an_hour_is_shown_with_its_end() -> None:
    assert wording.hour(TIME) == "2026-11-20 23-00 h"


def test_the_default_exchange_has_a_display_name() -> None:
    assert (wording.exchange(""), wording.exchange("e")) == ("(default)", "e")


@pytest.mark.parametrize(("number", "text"), [(0, "0 segments"), (1, "1 segment"), (2000, "2,000 segments")])
def test_nouns_are_singular_or_plural(number: int, text: str) -> None:
    assert wording.several(number, "segment") == text
    assert wording.several(number, "publish", "publishes").endswith("es") == (number != 1)
