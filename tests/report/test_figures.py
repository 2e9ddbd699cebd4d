from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path

from oxproxy.cli.main import main
from oxproxy.report.figures import Figures
from tests.report.lines import publish, segment, settle
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


def rows(folder: Path, section: str, lines: list[str]) -> list[list[str]]:
    """Return the cells of the table rows in a section of a report without Spark."""
    segment(folder / "in", lines)
    assert main(["report", "--input", str(folder / "in"), "--output", str(folder / "out")]) == 0
    page = (folder / "out/report.html").read_text().partition(f'<section id="{section}">')[2].partition("</section>")[0]
    return [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in page.split("<tr>")[2:]]


def test_versions_of_rules_are_compared_within_a_virtual_host(tmp_path: Path) -> None:
    lines = [publish(rules="r1", vhost="a"), publish(rules="r2", vhost="a"), publish(rules="r1", vhost="b")]
    assert [row[:3] for row in rows(tmp_path, "rules", lines)] == [["e", "a", "r1"], ["e", "a", "r2"]]


def test_responses_in_an_hour_without_publishes_are_shown(tmp_path: Path) -> None:
    lines = [
        *[publish(seq=number, ts=f"2026-11-20T{hour}:59:00Z") for number, hour in ((1, "07"), (2, "09"), (3, "10"))],
        *[settle(seq=number, result="lost", ts="2026-11-20T08:00:00Z") for number in (1, 2)],
    ]
    hours = rows(tmp_path, "confirms", lines)
    assert hours[1] == ["2026-11-20 08-09 h", "0", "0", "2", "0", "0"]
    assert [row[1] for row in hours] == ["1", "0", "1", "1"]
    assert "<title>2026-11-20 08:30 nacked or lost: 100 %<" in (tmp_path / "out/report.html").read_text()
