"""Renders pages, and writes a page for each day, a page for each requested range of days, and an index.

Each page is a self-contained HTML file, which uses no scripts, no other files and no network. Its content security
policy prevents browsers from loading anything. The templates escape all data.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from oxproxy.report import charts, wording
from oxproxy.report.charts import Chart, Series, Span, Upright
from oxproxy.report.figures import UNDELIVERED, Figures, Row, read_figures
from oxproxy.report.request import parsed_day
from oxproxy.report.session import Run
from oxproxy.report.tables import Tables

#: File name of the page of the latest run, and name of the directory of all pages.
PAGE, _PAGES = "report.html", "pages"
#: File name of the page of the latest back-test, and the beginning of the link to it while there is no such page.
BACKTEST = "backtest.html"
_NO_BACKTEST = f'<a href="{BACKTEST}" hidden>'
#: File with the index data for each day, kept between runs.
_COUNTS = "_counts.json"
_ENDING = ".html"
#: Order and colours of outcomes, with successful outcomes at the bottom and the others on top.
OUTCOMES = ("routed", "passed", "translated", *UNDELIVERED)
_PERCENTILES = (("p50", 0), ("p95", 3), ("p99", 5))
#: Share of the publishes that should be neither nacked nor lost, and the number of publishes to which a share refers in
#: the chart.
OBJECTIVE, _PER = 0.999, 10_000
_LATENCIES = {"decide": "Decision", "confirm": "Confirm from the broker"}
#: Minimum number of hours for a chart. Fewer hours are shown as a table, since a line with one or two dots is useless.
_LEAST_HOURS = 3
_NAVIGATION = re.compile('<nav class="days".*?</nav>\n', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Days:
    """Links from a page to the nearest earlier and later days that have a page. The links are relative to the page."""

    folder: str = ""
    previous: date | None = None
    next: date | None = None

    @classmethod
    def around(cls, first: date, last: date, pages: Collection[date], folder: str = "") -> Days:
        before, after = [day for day in pages if day < first], [day for day in pages if day > last]
        return cls(folder, max(before, default=None), min(after, default=None))


def write_pages(run: Run, tables: Tables, newest: Figures, changed: Collection[date]) -> None:
    """Write the page for a run, the pages for days that have changed or have no page yet, and the index.

    Links to the new pages are added to existing pages of adjacent days.
    """
    folder = f"{run.output}/{_PAGES}/"
    names = {entry.name for entry in run.storage.entries(folder) if not entry.name.startswith("_")}
    pages = {name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING)}
    before = {day for name in pages if (day := parsed_day(name)) is not None}
    days, dated = newest.days, tables.days()
    new = {days[0]: newest} if len(days) == 1 else {}
    for day in days:
        if day not in new and day in (changed if day in before else dated):
            new[day] = read_figures(run, tables, [day])
    present = before | new.keys()
    for day, figures in new.items():
        run.write_text(f"{folder}{day}{_ENDING}", render(figures, Days.around(day, day, present)))
    adjacent = [Days.around(day, day, present) for day in new.keys() - before]
    for day in {day for links in adjacent for day in (links.previous, links.next) if day} - new.keys():
        path = f"{folder}{day}{_ENDING}"
        run.write_text(path, relinked(run.read_text(path), Days.around(day, day, present)))
    ranges = pages - set(map(str, before)) - {"index"}
    if len(days) > 1:
        name = f"{days[0]}_{days[-1]}"
        ranges.add(name)
        run.write_text(f"{folder}{name}{_ENDING}", render(newest, Days.around(days[0], days[-1], present)))
    _write_index(run, folder, new, present, ranges)
    first, last = (days[0], days[-1]) if days else (date.max, date.max)
    page = render(newest, Days.around(first, last, present, f"{_PAGES}/"), is_latest=True)
    has_backtest = run.storage.exists(f"{run.output}/{BACKTEST}")
    run.write_text(f"{run.output}/{PAGE}", with_backtest(page) if has_backtest else page)


def _write_index(
    run: Run, folder: str, new: Mapping[date, Figures], present: Collection[date], ranges: Collection[str]
) -> None:
    counts = run.read_json(f"{folder}{_COUNTS}")
    for day, figures in new.items():
        counts[str(day)] = {
            "publishes": figures.publishes,
            "undelivered": figures.undelivered,
            "returned": figures.results.get("returned", 0),
            "anomalies": len(figures.anomalies),
        }
    run.write_text(f"{folder}{_COUNTS}", json.dumps(counts))
    rows = [counts.get(str(day), {}) | {"name": str(day)} for day in sorted(present, reverse=True)]
    run.write_text(f"{folder}index{_ENDING}", render_index(rows, sorted(ranges, reverse=True)))


def render(figures: Figures, days: Days = Days(), *, is_latest: bool = False) -> str:
    """Return a page.

    Args:
        is_latest: whether this is the page of the latest run, which has a hidden link to the page of a back-test; see
            `with_backtest`.
    """
    shown = _shown(figures) if figures.publishes else {}
    return _TEMPLATES.get_template("report.html").render(
        figures=figures, days=days, is_latest=is_latest, subject=figures.range, **shown
    )


def render_index(rows: Sequence[Mapping[str, Any]], ranges: Sequence[str]) -> str:
    """Return the index of all pages. Each row contains the name and counts of the page for one day."""
    return _TEMPLATES.get_template("index.html").render(days=rows, ranges=ranges, subject="index")


def relinked(page: str, days: Days) -> str:
    """Return an existing page with new links to days.

    Text from the log is escaped, so it can't contain the element that is replaced.
    """
    navigation = _TEMPLATES.get_template("days.html").render(days=days)
    return _NAVIGATION.sub(lambda _: navigation, page, count=1)


def with_backtest(page: str) -> str:
    """Return the page of the latest run with a visible link to the page of a back-test.

    Text from the log is escaped, so it can't contain the link.
    """
    return page.replace(_NO_BACKTEST, _NO_BACKTEST.replace(" hidden", ""), 1)


def explain_command(lost: Row) -> str:
    message = {"vhost": lost["vhost"], "exchange": lost["exchange"], "routing_key": lost["example_rk"]}
    at = f"{lost['first_seen']:%Y-%m-%dT%H:%M:%SZ}"
    return f"printf %s {shlex.quote(json.dumps(message))} | oxproxy explain --rules RULES.yaml --at {at} --message -"


def _shown(figures: Figures) -> dict[str, Any]:
    """Return the values that the template requires in addition to the figures."""
    step = timedelta(minutes=figures.step_minutes)
    span = charts.covering(figures.steps[0]["begin"], figures.steps[-1]["begin"] + step, step)
    every = wording.minutes(figures.step_minutes)
    stack = _stack(figures)
    trouble = [series for series in stack if series.colour >= OUTCOMES.index(UNDELIVERED[0])]
    size = Series("body bytes", {at["begin"]: at["bytes"] for at in figures.steps}, 1)

    def over_time(several: Sequence[Series], unit: str, symbol: str, title: str) -> Chart:
        most = max(sum(series.values[at["begin"]] for series in several) for at in figures.steps)
        upright = Upright(f"{unit} per {every}", lambda value: wording.short(value, symbol), most)
        return Chart(title, span, upright, several, charts.columns(span, step, several, upright))

    return {
        "depth": charts.DEPTH,
        "every": every,
        "traffic": over_time(stack, "publishes", "", "Publishes over time"),
        "trouble": over_time(trouble, "publishes", "", "Publishes without destination over time") if trouble else None,
        "bytes": over_time([size], "bytes", "B", "Bytes over time"),
        "confirmed": _confirmed(figures),
        "objective": OBJECTIVE,
        "hours_of_day": _hours(figures),
        "latencies": [_latency(figures, kind, title) for kind, title in _LATENCIES.items()],
    }


def _stack(figures: Figures) -> list[Series]:
    seen = figures.outcomes
    order = [name for name in OUTCOMES if name in seen] + sorted(seen.keys() - set(OUTCOMES))
    return [
        Series(
            f"{name} {wording.share(seen[name], figures.publishes)}",
            {at["begin"]: at["outcomes"].get(name, 0) for at in figures.steps},
            (*OUTCOMES, name).index(name),  # other outcomes have the last colour
        )
        for name in order
    ]


def _confirmed(figures: Figures) -> Chart | None:
    """Return the chart of failed confirms, with the objective; None if there are too few hours."""
    if len(figures.confirms) < _LEAST_HOURS:
        return None
    half, limit = timedelta(minutes=30), _PER * (1 - OBJECTIVE)
    hours = {hour["begin"] + half: hour for hour in figures.confirms}
    # A response in the hour after its publish may be the only record of its hour.
    failed = {
        at: _PER * min(1.0, (hour["nacked"] + hour["lost"]) / max(1, hour["publishes"])) for at, hour in hours.items()
    }
    several = [
        Series("nacked or lost", failed, 5),
        Series(f"objective: at most {100 * (1 - OBJECTIVE):g} %", dict.fromkeys(hours, limit), 3),
    ]
    upright = Upright("share of publishes", lambda value: f"{100 * value / _PER:.3g} %", max(limit, *failed.values()))
    span = Span(figures.confirms[0]["begin"], figures.confirms[-1]["begin"] + 2 * half)
    return Chart("Publishes that were nacked or lost", span, upright, several)


def _hours(figures: Figures) -> list[tuple[int, dict[str, list[Row]]]]:
    """Return the most frequent names of each hour of the day, by kind of name."""
    hours: dict[int, dict[str, list[Row]]] = {}
    for row in figures.hours:
        hours.setdefault(row["hour"], {}).setdefault(row["what"], []).append(row)
    return sorted(hours.items())


def _latency(figures: Figures, kind: str, title: str) -> tuple[str, list[Row], Chart | None]:
    hours = [hour for hour in figures.latency if hour["what"] == kind]
    if len(hours) < _LEAST_HOURS:
        return title, hours, None
    half = timedelta(minutes=30)
    several = [
        Series(name, {hour["begin"] + half: hour[f"{name}_us"] for hour in hours}, colour)
        for name, colour in _PERCENTILES
    ]
    positive = [value for series in several for value in series.values.values() if value > 0] or [1.0]
    upright = Upright("latency", wording.micros, max(positive), min(positive))
    span = Span(hours[0]["begin"], hours[-1]["begin"] + 2 * half)
    return title, hours, Chart(f"{title}: percentiles per hour", span, upright, several)


def templates() -> Environment:
    """Return the templates of pages, without the filters that they use."""
    return Environment(
        loader=PackageLoader("oxproxy.report"),  # on a cluster, the package is in an archive
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


_TEMPLATES = templates()
_TEMPLATES.filters |= {
    "place": lambda number: f"{number:.2f}".rstrip("0").rstrip("."),
    "explain": explain_command,
    "octets": lambda number: wording.short(number, "B"),
    "names": lambda names: ", ".join(name or "(default)" for name in names),
    "clock": lambda number: f"{number:02d}-{(number + 1) % 24:02d} h",
    "signed": lambda number: f"{number:+,}",
    "link": lambda name: Markup('<a href="{0}.html">{0}</a>').format(name),
    **{
        name: getattr(wording, name)
        for name in ("whole", "several", "short", "micros", "moment", "hour", "share", "exchange")
    },
}
