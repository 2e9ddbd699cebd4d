"""Picks the rows that the page shows from the tables: the largest ones; the tables have the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb

from proxy.report import tables as names
from proxy.report.figures import Figures, Finding, Lost, Matched, Named, Sender, Sent, Step, Stop, Timed

#: Rows of a list; what is farther down is in the tables.
MOST_ROWS = 20
#: Rows of the lists where each row asks for something to be done.
MOST_FINDINGS = 60
#: Messages whose way through several sidecars is shown.
MOST_WAYS = 10
#: Columns of the chart over time: wide enough each to be seen and pointed at.
MOST_STEPS = 150
#: Minutes that a column may stand for.
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 10080)
#: Tables that the page shows.
SHOWN = tuple(name for name in names.TABLES if name != names.TRACE)

Row = tuple[Any, ...]  # values of any column


class Selection:
    """The tables of some days.

    Args:
        duck: a connection.
        files: of each table (`SHOWN`) and day.
    """

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
        """Fill in what the tables have."""
        step, steps = self._over_time()
        hot, dead = self._bindings()
        shown = "CASE exchange WHEN '' THEN '(default)' ELSE exchange END || ' in ' || vhost"
        return replace(
            figures,
            step_minutes=step,
            steps=steps,
            exchanges=self._by_name(shown, "exchanges"),
            proxies=self._by_name("proxy", "proxies"),
            rules=[
                row[0] for row in self._rows("SELECT DISTINCT rules FROM t_bindings WHERE rules <> '' ORDER BY ALL")
            ],
            destinations=self._destinations(),
            hot=hot,
            dead=dead,
            unroutable=self._unroutable(),
            latency=self._latency(),
            producers=self._producers(),
            sizes=self._rows(
                """SELECT size.up_to, total(size.publishes) FROM (SELECT unnest(sizes) AS size FROM t_producers)
                GROUP BY ALL ORDER BY 1 NULLS LAST"""
            ),
            anomalies=self._anomalies(),
            found=self._found,
        )

    def _over_time(self) -> tuple[int, list[Step]]:
        rows = self._rows(
            """SELECT ((date - DATE '1970-01-01') * 24 + hour) * 60 + minute AS clock, outcome, total(publishes),
                total(bytes) FROM t_traffic GROUP BY ALL"""
        )
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

    def _by_name(self, name: str, what: str) -> list[Named]:
        question = f"SELECT {name} AS name, total(publishes) AS publishes, total(bytes) FROM t_traffic GROUP BY ALL"
        return [Named(*row) for row in self._largest(question, "publishes", what)]

    def _destinations(self) -> list[Sent]:
        question = """SELECT vhost, destination, kind, total(publishes) AS publishes, min(first_seen)::TIMESTAMP,
            max(last_seen)::TIMESTAMP FROM t_destinations GROUP BY ALL"""
        return [Sent(*row) for row in self._largest(question, "publishes", "destinations")]

    def _bindings(self) -> tuple[list[Matched], list[Matched]]:
        whole = """SELECT vhost, exchange, binding, total(matches) AS matches, max(last_match)::TIMESTAMP,
            bool_or(in_file) FROM t_bindings GROUP BY ALL HAVING"""
        hot = self._largest(f"{whole} matches > 0", "matches", "hot")
        silent = self._largest(f"{whole} matches = 0", "matches", "dead", MOST_FINDINGS)
        return [Matched(*row) for row in hot], [Matched(*row) for row in silent]

    def _unroutable(self) -> list[Lost]:
        question = """SELECT vhost, exchange, rk_pattern, total(publishes) AS publishes, total(returned),
            min({'t': first_seen, 'rk': example_rk, 'id': example_message_id}) AS example
            FROM t_unroutable GROUP BY vhost, exchange, rk_pattern"""
        rows = self._largest(
            f"SELECT * EXCLUDE example, example.rk, example.id, example.t::TIMESTAMP AS t FROM ({question})",
            "publishes",
            "unroutable",
        )
        return [Lost(*row) for row in rows]

    def _latency(self) -> list[Timed]:
        rows = self._rows(f"SELECT {_BEGIN}, what, p50_us, p95_us, p99_us, samples FROM t_latency ORDER BY 1, 2")
        return [Timed(*row) for row in rows]

    def _producers(self) -> list[Sender]:
        question = """SELECT "user", conn, proxy, total(publishes) AS publishes, total(bytes), max(p95_size),
            max(peak_per_second) FROM t_producers GROUP BY "user", conn, proxy"""
        return [Sender(*row) for row in self._largest(question, "publishes", "producers")]

    def _anomalies(self) -> list[Finding]:
        question = f"SELECT {_BEGIN} AS begin, what, subject, seen, expected, score, example FROM t_anomalies"
        rows = self._largest(question, "score", "anomalies", MOST_FINDINGS)
        return sorted((Finding(*row) for row in rows), key=lambda finding: finding.begin)

    def _largest(self, question: str, by: str, what: str, most: int = MOST_ROWS) -> list[Row]:
        """Return the rows with the greatest values, and note how many there are, or that there are more than these."""
        rows = self._rows(f"FROM ({question}) ORDER BY {by} DESC, COLUMNS(* EXCLUDE {by}) LIMIT {most + 1}")
        self._found[what] = len(rows)
        return rows[:most]

    def _rows(self, question: str) -> list[Row]:
        """Return rows; their times, which DuckDB gives without a zone, are UTC."""
        rows = self._duck.execute(question).fetchall()
        return [tuple(at.replace(tzinfo=UTC) if isinstance(at, datetime) else at for at in row) for row in rows]


#: The beginning of a row's hour.
_BEGIN = "date + INTERVAL 1 HOUR * hour"


def longest_ways(ways: Iterable[tuple[str, list[dict[str, Any]]]]) -> list[tuple[str, list[Stop]]]:
    """Choose the longest of the ways that days have, the first ones by message id among equals."""
    chosen = sorted(ways, key=lambda way: (-len(way[1]), way[0]))[:MOST_WAYS]
    return [(message_id, [_stop(**step) for step in steps]) for message_id, steps in chosen]


def _stop(ts: str, queues: list[str] | None, **others: Any) -> Stop:
    return Stop(ts=datetime.fromisoformat(ts).replace(tzinfo=UTC), queues=queues or [], **others)
