"""Selects the data of pages from the tables, and writes a page for each day and each requested range, and an index."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

from proxy.report.figures import Figures, Row, Step, added
from proxy.report.page import Days, relinked, render, render_index
from proxy.report.partials import statements
from proxy.report.session import Run
from proxy.report.storage import read_json, read_text, write_text
from proxy.report.tables import TABLES, TRACE, WAYS, Tables

#: The page of the latest run, and the directory of all pages.
PAGE, _PAGES = "report.html", "pages"
#: File with the index data for each day, kept between runs.
_COUNTS = "_counts.json"
_ENDING = ".html"
#: Maximum number of rows in ordinary lists, and in lists whose rows require action.
_MOST_ROWS, _MOST_FINDINGS = 20, 60
#: Lists that contain only the rows with the greatest values: the column with these values, and the number of rows.
_LISTS = {
    "exchanges": ("publishes", _MOST_ROWS),
    "proxies": ("publishes", _MOST_ROWS),
    "destinations": ("publishes", _MOST_ROWS),
    "hot": ("matches", _MOST_ROWS),
    "dead": ("matches", _MOST_FINDINGS),
    "unroutable": ("publishes", _MOST_ROWS),
    "producers": ("publishes", _MOST_ROWS),
    "anomalies": ("score", _MOST_FINDINGS),
}
#: Maximum number of columns in the time-series chart (each must be visible), and possible widths of a column in
#: minutes.
_MOST_STEPS, _STEPS = 150, (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 10080)

_SHOWN = [name for name in TABLES if name != TRACE]
_SQL = statements("page.sql")


class Pages:
    """The pages of one output directory."""

    def __init__(self, run: Run, tables: Tables) -> None:
        self._run = run
        self._tables = tables
        self._folder = f"{run.output}/{_PAGES}"
        names = {entry.name for entry in run.storage.entries(self._folder) if not entry.name.startswith("_")}
        pages = {name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING)}
        self._days = {day for name in pages if (day := _day(name)) is not None}
        self._ranges = pages - set(map(str, self._days)) - {"index"}

    def write(self, newest: Figures, changed: Collection[date]) -> None:
        """Write the page for a run and those for days that have changed or have no page, and update adjacent pages."""
        days = newest.days
        new = {days[0]: newest} if len(days) == 1 else {}
        dated = self._tables.days()
        for day in days:
            if day not in new and day in (changed if day in self._days else dated):
                new[day] = self.figures([day])
        before = self._days
        self._days = before | new.keys()
        for day, figures in new.items():
            self._put(str(day), render(figures, self._around(day)))
        adjacent = [self._around(day) for day in new.keys() - before]
        for day in {day for links in adjacent for day in (links.previous, links.next) if day} - new.keys():
            page = read_text(self._run.storage, f"{self._folder}/{day}{_ENDING}")
            self._put(str(day), relinked(page, self._around(day)))
        if len(days) > 1:
            name = f"{days[0]}_{days[-1]}"
            self._ranges.add(name)
            self._put(name, render(newest, Days.around(days[0], days[-1], self._days)))
        self._write_index(new)
        first, last = (days[0], days[-1]) if days else (date.max, date.max)
        links = Days.around(first, last, self._days, f"{_PAGES}/")
        write_text(self._run.storage, f"{self._run.output}/{PAGE}", render(newest, links))

    def figures(self, days: Sequence[date]) -> Figures:
        """Read the data of a page."""
        states = [self._tables.state(day) for day in (*days, None)]
        [(segments,)] = self._run.duck.execute(
            """SELECT count(*) FROM live WHERE list_has_any(days, ?::DATE[])
            OR (len(days) = 0 AND path IN (SELECT path FROM present))""",
            [days],
        ).fetchall()
        copies = self._run.duck.execute(
            """SELECT list(parse_filename(path) ORDER BY path)[2:] FROM latest SEMI JOIN present USING (path)
            WHERE records > 0 AND list_has_any(days, ?::DATE[]) GROUP BY content HAVING count(*) > 1""",
            [days],
        ).fetchall()
        figures = Figures(
            tuple(days),
            self._run.request.now,
            segments,
            bindings_known=self._run.request.bindings is not None,
            results=added(state.get("results", {}) for state in states),
            rejected=added(state.get("rejected", {}) for state in states),
            late=sum(state.get("late", 0) for state in states),
            unmatched=sum(state.get("unmatched", 0) for state in states),
            duplicates=sorted(name for (names,) in copies for name in names),
            ways=_longest_ways(way for state in states for way in state.get("ways", ())),
        )
        return self._with_rows(figures) if self._open(days) else figures

    def _open(self, days: Sequence[date]) -> bool:
        """Create the views ``t_NAME`` over the tables of the given days. Return False if there are no tables."""
        for name in _SHOWN:
            parts = [
                f"SELECT DATE '{day}' AS date, * FROM read_parquet('{file}')"
                for day in days
                for file in self._tables.files(name, day)
            ]
            if not parts:
                return False
            self._run.duck.execute(f"CREATE OR REPLACE TEMP VIEW t_{name} AS {' UNION ALL BY NAME '.join(parts)}")
        return True

    def _with_rows(self, figures: Figures) -> Figures:
        step, steps = self._over_time()
        # One row more than the page shows, so that the page can show that there are more.
        found = {
            name: self._rows(f"FROM ({_SQL[name]}) ORDER BY {by} DESC, COLUMNS(* EXCLUDE {by}) LIMIT {most + 1}")
            for name, (by, most) in _LISTS.items()
        }
        lists: dict[str, Any] = {name: found[name][:most] for name, (_, most) in _LISTS.items()}
        lists["anomalies"].sort(key=lambda finding: finding["begin"])
        return replace(
            figures,
            step_minutes=step,
            steps=steps,
            rules=[rules for (rules,) in self._run.duck.execute(_SQL["rules"]).fetchall()],
            latency=self._rows(_SQL["latency"]),
            sizes=self._run.duck.execute(_SQL["sizes"]).fetchall(),
            found={name: len(rows) for name, rows in found.items()},
            **lists,
        )

    def _over_time(self) -> tuple[int, list[Step]]:
        """Return the minutes per column of the time-series chart, and the columns."""
        rows = self._run.duck.execute(_SQL["over time"]).fetchall()
        times = [row[0] for row in rows]
        span = max(times, default=0) - min(times, default=0)
        step = next((step for step in _STEPS if span / step <= _MOST_STEPS), _STEPS[-1])
        steps: dict[int, Step] = {}
        for at, outcome, publishes, octets in rows:
            begin = at - at % step
            known = steps.get(begin) or Step(datetime.fromtimestamp(begin * 60, UTC), {}, 0)
            known.outcomes[outcome] = known.outcomes.get(outcome, 0) + publishes
            steps[begin] = known._replace(bytes=known.bytes + octets)
        return step, [steps[begin] for begin in sorted(steps)]

    def _rows(self, question: str) -> list[Row]:
        """Return rows as values by column. DuckDB returns times without a zone; their zone is set to UTC."""
        answer = self._run.duck.execute(question)
        columns = [column[0] for column in answer.description]
        return [{name: _utc(value) for name, value in zip(columns, row, strict=True)} for row in answer.fetchall()]

    def _write_index(self, new: dict[date, Figures]) -> None:
        path = f"{self._folder}/{_COUNTS}"
        counts = read_json(self._run.storage, path)
        for day, figures in new.items():
            counts[str(day)] = {
                "publishes": figures.publishes,
                "undelivered": figures.undelivered,
                "returned": figures.results.get("returned", 0),
                "anomalies": len(figures.anomalies),
            }
        write_text(self._run.storage, path, json.dumps(counts))
        rows = [counts.get(str(day), {}) | {"name": str(day)} for day in sorted(self._days, reverse=True)]
        self._put("index", render_index(rows, sorted(self._ranges, reverse=True)))

    def _around(self, day: date) -> Days:
        return Days.around(day, day, self._days)

    def _put(self, name: str, page: str) -> None:
        write_text(self._run.storage, f"{self._folder}/{name}{_ENDING}", page)


def _longest_ways(ways: Iterable[tuple[str, list[Row]]]) -> list[tuple[str, list[Row]]]:
    """Return the longest paths. Paths of equal length are ordered by message id."""
    chosen = sorted(ways, key=lambda way: (-len(way[1]), way[0]))[:WAYS]
    return [
        (message_id, [step | {"ts": _utc(datetime.fromisoformat(step["ts"]))} for step in steps])
        for message_id, steps in chosen
    ]


def _day(name: str) -> date | None:
    try:
        return date.fromisoformat(name)
    except ValueError:
        return None


def _utc(value: Any) -> Any:  # a value from any column
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
