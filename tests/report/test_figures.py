from __future__ import annotations

from datetime import UTC, date, datetime

from proxy.report.figures import Figures
from tests.report.sample import Step

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def test_totals_are_sums_over_all_steps() -> None:
    steps = [Step(NOW, {"routed": 2, "unrouted": 1}, 30), Step(NOW, {"routed": 5}, 12)]
    figures = Figures((), NOW, steps=steps)
    assert (figures.outcomes, figures.publishes, figures.bytes) == ({"routed": 7, "unrouted": 1}, 8, 42)


def test_totals_without_steps_are_zero() -> None:
    assert (Figures((), NOW).publishes, Figures((), NOW).bytes) == (0, 0)


def test_the_range_of_one_day_is_that_day() -> None:
    first, last = date(2026, 11, 20), date(2026, 11, 22)
    days: list[tuple[date, ...]] = [(), (first,), (first, last)]
    assert [Figures(range_of_days, NOW).range for range_of_days in days] == [
        "no day",
        "2026-11-20",
        "2026-11-20 to 2026-11-22",
    ]
