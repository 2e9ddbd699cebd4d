from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from oxproxy.report.charts import DEPTH, Chart, Series, Span, Upright, columns, covering

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = Span(BEGIN, BEGIN + 24 * HOUR)


def upright(most: float = 100, least: float = 0) -> Upright:
    return Upright("publishes per hour", str, most, least)


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (0, [0, 1]),
        (4, [0, 1, 2, 3, 4]),
        (100, [0, 20, 40, 60, 80, 100]),
        (23_500, [0, 5000, 10_000, 15_000, 20_000, 25_000]),
    ],
)
def test_ticks_are_round_numbers_up_to_at_least_the_largest_value(most: float, ticks: list[float]) -> None:
    assert upright(most).ticks == ticks


@pytest.mark.parametrize(
    ("least", "most", "ticks"), [(3, 700, [1, 10, 100, 1000]), (5, 5, [1, 10]), (10, 10, [10, 100])]
)
def test_ticks_of_a_logarithmic_axis_are_powers_of_ten(least: float, most: float, ticks: list[float]) -> None:
    assert upright(most, least).ticks == ticks


def test_ticks_of_counts_are_integers() -> None:
    assert upright(1).ticks == [0, 1]
    assert upright(12).ticks == [0, 5, 10, 15]


def test_both_axes_have_titles() -> None:
    chart = Chart("t", DAY, upright(), [Series("routed", {BEGIN: 5.0}, 0)])
    assert (chart.span.title, chart.upright.title) == ("2026-11-20, UTC", "publishes per hour")
    assert [text for _, text in chart.span.times][:2] == ["00:00", "03:00"]
    assert chart.upright.levels[-1] == (0, "100.0")


@pytest.mark.parametrize(
    ("days", "first"), [(0.01, "00:00"), (1, "00:00"), (4, "11-20 00 h"), (20, "2026-11-20"), (400, "2026-11-20")]
)
def test_time_marks_depend_on_the_span(days: float, first: str) -> None:
    ticks = Span(BEGIN, BEGIN + timedelta(days=days)).times
    assert ticks[0] == (0.0, first)
    assert 2 <= len(ticks) <= 12
    assert all(0 <= place <= 100 for place, _ in ticks)


def test_time_marks_are_within_the_plot() -> None:
    span = Span(BEGIN + 10 * HOUR + timedelta(minutes=7), BEGIN + 12 * HOUR)
    assert span.times[0][0] >= 0


def test_a_span_over_midnight_names_both_days() -> None:
    assert Span(BEGIN + 20 * HOUR, BEGIN + 30 * HOUR).title == "2026-11-20 to 2026-11-21, UTC"


@pytest.mark.parametrize("number", [1, 2, 29])
def test_few_values_are_drawn_as_narrow_columns(number: int) -> None:
    minute = timedelta(minutes=1)
    begin = BEGIN + 9 * HOUR + 17 * minute
    span = covering(begin, begin + number * minute, minute)
    assert span.begin <= begin
    assert span.end >= begin + number * minute
    ticks = columns(span, minute, [Series("a", {begin: 1.0}, 0)], upright())
    assert [mark.width <= 3 for mark in ticks] == [True]


def test_a_long_span_is_not_extended() -> None:
    assert covering(BEGIN + HOUR, BEGIN + 40 * HOUR, HOUR) == Span(BEGIN + HOUR, BEGIN + 40 * HOUR)


def test_columns_of_several_series_are_stacked() -> None:
    lower, higher = columns(DAY, HOUR, [Series("a", {BEGIN: 40.0}, 0), Series("b", {BEGIN: 20.0}, 1)], upright())
    assert higher.y + higher.height == pytest.approx(lower.y)
    assert lower.height == pytest.approx(2 * higher.height)


def test_every_mark_has_a_tooltip() -> None:
    (mark,) = columns(DAY, HOUR, [Series("routed", {BEGIN: 5.0}, 0)], upright())
    assert mark.tooltip == "2026-11-20 00:00 routed: 5.0"


def test_all_marks_are_within_the_plot() -> None:
    series = [Series("a", {BEGIN + hour * HOUR: 10.0 * hour + 1 for hour in range(24)}, 0)]
    for column in columns(DAY, HOUR, series, upright(250)):
        assert 0 <= column.x <= column.x + column.width <= 100
        assert 0 <= column.y <= column.y + column.height <= DEPTH
    for time, value in series[0].values.items():
        assert 0 <= DAY.at(time) <= 100
        assert 0 <= upright(250, 1).at(value) <= DEPTH


def test_powers_of_ten_are_equidistant_on_a_logarithmic_axis() -> None:
    axis = upright(1000, 1)
    places = [axis.at(value) for value in (1, 10, 100, 1000)]
    assert places[0] - places[1] == pytest.approx(places[1] - places[2])
    assert axis.at(0) == places[0]
