from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

import pytest

from proxy.report.charts import HEIGHT, WIDTH, Series, Span, Upright, bars, columns, cut, decades, lines, rounds

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = Span(BEGIN, BEGIN + 24 * HOUR)
SVG = "{http://www.w3.org/2000/svg}"


def upright(most: float = 100, least: float = 0) -> Upright:
    return Upright("publishes per hour", str, most, least)


def drawn(chart: str) -> ET.Element:
    """The picture of a chart, without its legend."""
    text = chart[: chart.index("</svg>") + 6].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return ET.fromstring(text)


def texts(chart: str, kind: str) -> list[str]:
    return [found.text or "" for found in drawn(chart).iter(f"{SVG}text") if found.get("class") == kind]


@pytest.mark.parametrize(
    ("most", "marks"),
    [
        (0, [0, 1]),
        (4, [0, 1, 2, 3, 4]),
        (100, [0, 20, 40, 60, 80, 100]),
        (23_500, [0, 5000, 10_000, 15_000, 20_000, 25_000]),
    ],
)
def test_marks_are_round_and_reach_beyond_the_largest_value(most: float, marks: list[float]) -> None:
    assert rounds(most) == marks


@pytest.mark.parametrize(
    ("least", "most", "marks"), [(3, 700, [1, 10, 100, 1000]), (5, 5, [1, 10]), (10, 10, [10, 100])]
)
def test_marks_of_a_logarithmic_axis_are_powers_of_ten(least: float, most: float, marks: list[float]) -> None:
    assert decades(least, most) == marks


def test_both_axes_say_what_they_measure() -> None:
    chart = columns(DAY, HOUR, [Series("routed", {BEGIN: 5.0}, 0)], upright(), "t")
    assert texts(chart, "title") == ["2026-11-20, UTC", "publishes per hour"]
    assert texts(chart, "x")[:2] == ["00:00", "03:00"]
    assert texts(chart, "y")[-1] == "100.0"


@pytest.mark.parametrize(
    ("days", "first"), [(0.01, "00:00"), (1, "00:00"), (4, "11-20 00 h"), (20, "2026-11-20"), (400, "2026-11-20")]
)
def test_marks_of_time_fit_the_span(days: float, first: str) -> None:
    span = Span(BEGIN, BEGIN + timedelta(days=days))
    marks = texts(columns(span, HOUR, [], upright(), "t"), "x")
    assert marks[0] == first
    assert 2 <= len(marks) <= 12


def test_a_span_over_midnight_does_not_claim_to_be_one_day() -> None:
    span = Span(BEGIN + 20 * HOUR, BEGIN + 30 * HOUR)
    assert texts(columns(span, HOUR, [], upright(), "t"), "title")[0] == "UTC"


def test_series_stand_on_top_of_each_other() -> None:
    chart = columns(DAY, HOUR, [Series("a", {BEGIN: 40.0}, 0), Series("b", {BEGIN: 20.0}, 1)], upright(), "t")
    lower, higher = drawn(chart).iter(f"{SVG}rect")
    top, height = float(higher.get("y", 0)), float(higher.get("height", 0))
    assert top + height == pytest.approx(float(lower.get("y", 0)), abs=0.11)
    assert float(lower.get("height", 0)) == pytest.approx(2 * height, rel=0.01)


def test_every_mark_tells_its_value() -> None:
    chart = columns(DAY, HOUR, [Series("routed", {BEGIN: 5.0}, 0)], upright(), "t")
    assert "<title>2026-11-20 00:00 routed: 5.0</title>" in chart


def test_all_of_a_chart_lies_within_its_picture() -> None:
    series = [Series("a", {BEGIN + hour * HOUR: 10.0 * hour + 1 for hour in range(24)}, 0)]
    for chart in (columns(DAY, HOUR, series, upright(250), "t"), lines(DAY, series, upright(250, 1), "t")):
        for mark in (*drawn(chart).iter(f"{SVG}rect"), *drawn(chart).iter(f"{SVG}circle")):
            assert 0 <= float(mark.get("x") or mark.get("cx") or -1) <= WIDTH
            assert 0 <= float(mark.get("y") or mark.get("cy") or -1) <= HEIGHT


def test_a_logarithmic_axis_gives_each_power_of_ten_the_same_room() -> None:
    axis = upright(1000, 1)
    places = [axis.at(value) for value in (1, 10, 100, 1000)]
    assert places[0] - places[1] == pytest.approx(places[1] - places[2])
    assert axis.at(0) == places[0]


def test_a_line_has_a_dot_for_each_value_so_that_one_value_shows() -> None:
    chart = lines(DAY, [Series("p50", {BEGIN: 5.0}, 0)], upright(10, 1), "t")
    assert len(list(drawn(chart).iter(f"{SVG}circle"))) == 1


def test_bars_are_as_long_as_their_values() -> None:
    chart = bars([("a", 10.0), ("b", 5.0)], str, "t")
    long, short = (float(bar.get("width", 0)) for bar in drawn(chart).iter(f"{SVG}rect"))
    assert long == pytest.approx(2 * short)
    assert texts(chart, "name") == ["a", "b"]
    assert texts(chart, "value") == ["10.0", "5.0"]


def test_no_bars_are_no_fault() -> None:
    assert drawn(bars([], str, "t")).get("viewBox") == f"0 0 {WIDTH} 8"


def test_names_from_the_log_can_not_become_markup() -> None:
    hostile = "</text><script>alert(1)</script>"
    for chart in (
        bars([(hostile, 1.0)], str, hostile),
        columns(DAY, HOUR, [Series(hostile, {BEGIN: 1.0}, 0)], upright(), hostile),
    ):
        assert "<script" not in chart


def test_long_names_are_cut_in_the_middle_and_told_whole() -> None:
    name = "a" * 50 + "z" * 50
    assert cut(name, 21) == "a" * 10 + "…" + "z" * 10
    assert name in bars([(name, 1.0)], str, "t")
