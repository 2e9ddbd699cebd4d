"""Selects the rows for a page from the tables: only the rows with the greatest values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb

from proxy.report import tables as names
from proxy.report.figures import Figures, Row, Step
from proxy.report.partials import statements

#: Maximum number of rows in ordinary lists, and in lists whose rows require action.
MOST_ROWS, MOST_FINDINGS = 20, 60
#: Maximum number of messages whose path through several sidecars is shown.
MOST_WAYS = 10
#: Maximum number of columns in the chart over time (each must be visible), and possible widths of a column in minutes.
MOST_STEPS, _STEPS = 150, (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 10080)
#: Tables on the page.
SHOWN = tuple(name for name in names.TABLES if name != names.TRACE)

_SQL = statements("page.sql")


class Selection:
    """The tables for the given days, as files by table (`SHOWN`) and day."""

    def __init__(self, duck: duckdb.DuckDBPyConnection, files: Mapping[str, Mapping[date, Iterable[Path]]]) -> None:
        self._duck = duck
        self._found: dict[str, int] = {}
        for name, by_day in files.items():
            parts = [
                f"SELECT DATE '{day}' AS date, * FROM read_parquet('{file}')"
                for day, several in by_day.items()
                for file in several
            ]
            duck.execute(f"CREATE OR REPLACE TEMP VIEW t_{name} AS {' UNION ALL BY NAME '.join(parts)}")

    def fill(self, figures: Figures) -> Figures:
        step, steps = self._over_time()
        anomalies = self._largest("anomalies", "score", MOST_FINDINGS)
        return replace(
            figures,
            step_minutes=step,
            steps=steps,
            exchanges=self._largest("exchanges", "publishes"),
            proxies=self._largest("proxies", "publishes"),
            rules=[rules for (rules,) in self._duck.execute(_SQL["rules"]).fetchall()],
            destinations=self._largest("destinations", "publishes"),
            hot=self._largest("hot", "matches"),
            dead=self._largest("dead", "matches", MOST_FINDINGS),
            unroutable=self._largest("unroutable", "publishes"),
            latency=self._rows(_SQL["latency"]),
            producers=self._largest("producers", "publishes"),
            sizes=self._duck.execute(_SQL["sizes"]).fetchall(),
            anomalies=sorted(anomalies, key=lambda finding: finding["begin"]),
            found=self._found,
        )

    def _over_time(self) -> tuple[int, list[Step]]:
        rows = self._duck.execute(_SQL["over time"]).fetchall()
        if not rows:
            return 1, []
        times = [row[0] for row in rows]
        span = max(times) - min(times)
        step = next((step for step in _STEPS if span / step <= MOST_STEPS), _STEPS[-1])
        steps: dict[int, Step] = {}
        for at, outcome, publishes, octets in rows:
            begin = at - at % step
            known = steps.get(begin) or Step(datetime.fromtimestamp(begin * 60, UTC), {}, 0)
            known.outcomes[outcome] = known.outcomes.get(outcome, 0) + publishes
            steps[begin] = known._replace(bytes=known.bytes + octets)
        return step, [steps[begin] for begin in sorted(steps)]

    def _largest(self, name: str, by: str, most: int = MOST_ROWS) -> list[Row]:
        """Return the rows with the greatest values. Record how many rows are returned, plus 1 if there are more."""
        rows = self._rows(f"FROM ({_SQL[name]}) ORDER BY {by} DESC, COLUMNS(* EXCLUDE {by}) LIMIT {most + 1}")
        self._found[name] = len(rows)
        return rows[:most]

    def _rows(self, question: str) -> list[Row]:
        """Return rows as values by column. DuckDB returns times without a zone; their zone is set to UTC."""
        answer = self._duck.execute(question)
        columns = [column[0] for column in answer.description]
        return [{name: _utc(value) for name, value in zip(columns, row, strict=True)} for row in answer.fetchall()]


def longest_ways(ways: Iterable[tuple[str, list[Row]]]) -> list[tuple[str, list[Row]]]:
    """Return the longest paths. Paths of equal length are ordered by message id."""
    chosen = sorted(ways, key=lambda way: (-len(way[1]), way[0]))[:MOST_WAYS]
    return [
        (message_id, [step | {"ts": _utc(datetime.fromisoformat(step["ts"]))} for step in steps])
        for message_id, steps in chosen
    ]


def _utc(value: Any) -> Any:  # a value from any column
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
