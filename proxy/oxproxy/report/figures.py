"""Reads the data of a page from the tables, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from string import Template
from typing import Any

import duckdb

from oxproxy.report.days import WAYS
from oxproxy.report.partials import TRACE, statements
from oxproxy.report.session import Run
from oxproxy.report.tables import TABLES, Tables
from oxproxy.report.wording import day_range

#: A row of a list, by column name; see `sql/page.sql`.
Row = dict[str, Any]

#: Outcomes of publishes without a destination.
UNDELIVERED = ("unrouted", "filtered", "rejected")
#: Maximum number of rows in ordinary lists, and in lists whose rows require action.
_MOST_ROWS, _MOST_FINDINGS = 20, 60
#: Lists that contain only the rows with the greatest values: the column with these values, and the maximum number of
#: rows.
_LISTS = {
    "exchanges": ("publishes", _MOST_ROWS),
    "proxies": ("publishes", _MOST_ROWS),
    "destinations": ("publishes", _MOST_ROWS),
    "hot": ("matches", _MOST_ROWS),
    "dead": ("matches", _MOST_FINDINGS),
    "unroutable": ("publishes", _MOST_ROWS),
    "producers": ("publishes", _MOST_ROWS),
    "users": ("publishes", _MOST_ROWS),
    "queues": ("publishes", _MOST_ROWS),
    "reasons": ("publishes", _MOST_ROWS),
    "versions": ("publishes", _MOST_ROWS),
    "anomalies": ("score", _MOST_FINDINGS),
}
#: Maximum number of columns in the time-series chart (each must be visible), and possible widths of a column in
#: minutes.
_MOST_STEPS, _STEPS = 150, (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 10080)

#: The tables of a page.
_SHOWN = [name for name in TABLES if name != TRACE]
_SQL = statements("page.sql")


def added(several: Iterable[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, several), Counter[str]()))


@dataclass(frozen=True)
class Figures:
    """All data of a page. Each attribute is the data of one part of the page, which templates read by name."""

    days: tuple[date, ...]  # requested days, in order
    made: datetime  # time of the run
    segments: int = 0  # number of segments read
    step_minutes: int = 1  # length of a column in the time-series chart
    steps: list[Row] = field(default_factory=list)
    exchanges: list[Row] = field(default_factory=list)
    proxies: list[Row] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)  # versions of the rules used for the decisions
    destinations: list[Row] = field(default_factory=list)
    hot: list[Row] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    bindings_known: bool = False  # whether rules files were given; otherwise `dead` is empty
    unroutable: list[Row] = field(default_factory=list)
    latency: list[Row] = field(default_factory=list)
    producers: list[Row] = field(default_factory=list)
    users: list[Row] = field(default_factory=list)
    queues: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    versions: list[Row] = field(default_factory=list)
    confirms: list[Row] = field(default_factory=list)  # results by hour
    compared: list[Row] = field(default_factory=list)  # exchanges on the last day and on the day before
    hours: list[Row] = field(default_factory=list)  # most frequent names of each hour of the day
    #: upper bound of each size class (None for the last class), and the number of its publishes
    sizes: list[tuple[int | None, int]] = field(default_factory=list)
    anomalies: list[Row] = field(default_factory=list)
    #: message id and steps (see `sql/tables.sql`) of each message that passed through several sidecars
    ways: list[tuple[str, list[Row]]] = field(default_factory=list)
    results: dict[str, int] = field(default_factory=dict)  # number of settle records, by result; acks are only sampled
    rejected: dict[str, int] = field(default_factory=dict)  # number of invalid lines, by reason
    late: int = 0  # number of records in the directory of another day
    duplicates: list[str] = field(default_factory=list)  # names of segments with the same content as another segment
    #: number of rows read for each list, which exceeds the length of the list if the tables contain more rows
    found: dict[str, int] = field(default_factory=dict)

    @property
    def outcomes(self) -> dict[str, int]:
        return added(step["outcomes"] for step in self.steps)

    @property
    def range(self) -> str:
        return day_range(self.days)

    @property
    def publishes(self) -> int:
        return sum(self.outcomes.values())

    @property
    def lost(self) -> dict[str, int]:
        """Numbers of publishes without a destination, by outcome."""
        outcomes = self.outcomes
        return {outcome: outcomes[outcome] for outcome in UNDELIVERED if outcomes.get(outcome)}

    @property
    def undelivered(self) -> int:
        return sum(self.lost.values())

    @property
    def bytes(self) -> int:
        return sum(step["bytes"] for step in self.steps)


def read_figures(run: Run, tables: Tables, days: Sequence[date], present: Collection[str] = ()) -> Figures:
    """Read the data of a page. `present` are the paths of the segments in the log."""
    states = [tables.state(day) for day in (*days, None)]
    copies = [[path for path in paths if path in present] for state in states for paths in state.get("copies", ())]
    ways = [way for state in states for way in state.get("ways", ())]
    return Figures(
        tuple(days),
        run.request.now,
        sum(state.get("segments", 0) for state in states),
        bindings_known=run.request.bindings is not None,
        results=added(state.get("results", {}) for state in states),
        rejected=added(state.get("rejected", {}) for state in states),
        late=sum(state.get("late", 0) for state in states),
        duplicates=sorted({path.rpartition("/")[2] for paths in copies for path in paths[1:]}),
        ways=[
            (message_id, [step | {"ts": datetime.fromisoformat(step["ts"])} for step in steps])
            for message_id, steps in sorted(ways, key=lambda way: (-len(way[1]), way[0]))[:WAYS]
        ],
        **_read_tables(run.duck, tables, days),
    )


def _read_tables(duck: duckdb.DuckDBPyConnection, tables: Tables, days: Sequence[date]) -> dict[str, Any]:
    """Return the fields of `Figures` that are read from the tables; empty if there are no tables."""
    for name in _SHOWN:
        files = [str(file) for day in days for file in tables.files(name, day)]
        if not files:
            return {}
        rows = f"FROM read_parquet({files}, hive_partitioning = true, union_by_name = true)"
        duck.execute(f"CREATE OR REPLACE TEMP VIEW t_{name} AS {rows}")
    [(span,)] = duck.execute(_SQL["span"]).fetchall()
    step = next((step for step in _STEPS if span / step <= _MOST_STEPS), _STEPS[-1])
    # One row more than the page shows is read, so that the page can indicate that there are more rows.
    found = {
        name: _rows(duck, f"FROM ({_SQL[name]}) ORDER BY {by} DESC, COLUMNS(* EXCLUDE {by}) LIMIT {most + 1}")
        for name, (by, most) in _LISTS.items()
    }
    return {
        **{name: found[name][:most] for name, (_, most) in _LISTS.items()},
        "step_minutes": step,
        "steps": _rows(duck, Template(_SQL["steps"]).substitute(minutes=step)),
        "rules": [rules for (rules,) in duck.execute(_SQL["rules"]).fetchall()],
        "latency": _rows(duck, _SQL["latency"]),
        "confirms": _rows(duck, _SQL["confirms"]),
        "compared": _compared(duck, tables, days[-1]),
        "hours": _rows(duck, _SQL["by hour"]),
        "sizes": duck.execute(_SQL["sizes"]).fetchall(),
        "found": {name: len(rows) for name, rows in found.items()},
    }


def _compared(duck: duckdb.DuckDBPyConnection, tables: Tables, day: date) -> list[Row]:
    """Compare the exchanges of a day with those of the day before; empty if one of the days has no tables."""
    both = [[str(file) for file in tables.files("flows", at)] for at in (day - timedelta(days=1), day)]
    if not all(both):
        return []
    source = f"read_parquet({both[0] + both[1]}, hive_partitioning = true, union_by_name = true)"
    duck.execute(f"CREATE OR REPLACE TEMP VIEW t_two_days AS FROM {source}")
    compared = Template(_SQL["compared"]).substitute(day=f"DATE '{day}'")
    return _rows(duck, f"FROM ({compared}) ORDER BY difference DESC, vhost, exchange LIMIT {_MOST_ROWS}")


def _rows(duck: duckdb.DuckDBPyConnection, question: str) -> list[Row]:
    """Return the rows as dictionaries with the column names as keys.

    DuckDB returns times without a zone, so it is set to UTC.
    """
    answer = duck.execute(question)
    columns = [column[0] for column in answer.description]
    return [
        {
            name: value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
            for name, value in zip(columns, row, strict=True)
        }
        for row in answer.fetchall()
    ]
