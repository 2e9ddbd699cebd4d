"""Creates the tables for one day from the partials of its segments.

Each table is created by one statement on the views ``p_NAME`` (see `proxy.report.store`). Sums and histograms are
added, percentiles are computed from histograms, ranges of numbers are joined, and returns are matched to publishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from string import Template
from typing import Any

import duckdb

from proxy.report import tables as names
from proxy.report.partials import MACROS, SIZE_CLASSES, statements
from proxy.report.request import KnownBinding
from proxy.report.tables import Tables

#: Number of earlier days with which an hour is compared, and minimum number of days required for a comparison.
HISTORY_DAYS, LEAST_DAYS = 28, 3
#: A value whose modified z-score exceeds the limit is an outlier. The factor makes the median absolute deviation
#: comparable to a standard deviation. Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
LIMIT, _FACTOR = 3.5, 1.4826
#: Even if earlier days were very regular, an outlier deviates from the median by more than this fraction of the median.
_LEAST_SHARE = 0.05
#: Maximum number of messages whose path through several sidecars is kept for the page, and of steps in each path.
WAYS, STEPS = 10, 50
#: Returns for the publishes of a day may arrive until this long after the end of the day.
_LATE = timedelta(hours=1)

_SQL = statements(
    "tables.sql",
    history_days=HISTORY_DAYS,
    least_days=LEAST_DAYS,
    limit=LIMIT,
    factor=_FACTOR,
    least_share=_LEAST_SHARE,
    ways=WAYS,
    steps=STEPS,
    sizes=", ".join(
        f"{{'up_to': {'NULL' if bound is None else bound}::BIGINT, 'publishes': total(classes[{place}])}}"
        for place, bound in enumerate(SIZE_CLASSES, 1)
    ),
)


class Merge:
    """Creates the tables for single days.

    Args:
        duck: connection to a database with the partials.
        tables: puts tables in place.
        known: bindings in the rules files; None if no file was given.
        now: time of the run; unfinished hours are not compared.
        trace: whether the table of all publishes is requested.
    """

    def __init__(
        self,
        duck: duckdb.DuckDBPyConnection,
        tables: Tables,
        known: Sequence[KnownBinding] | None,
        now: datetime,
        trace: bool,
    ) -> None:
        self._duck = duck
        self._tables = tables
        self._values = {"now": f"TIMESTAMP '{now.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}'", "is_known": known is not None}
        self._hours: set[date] = set()
        self._trace = trace
        duck.execute(MACROS + _SQL["begin"])
        columns = [[getattr(binding, name) for binding in known or ()] for name in KnownBinding.__slots__]
        duck.execute("INSERT INTO m_known SELECT" + ", ".join([" unnest(?::VARCHAR[])"] * len(columns)), columns)

    def day(self, day: date) -> dict[str, Any]:
        """Write the tables for a day to the staging directory; return the page data that no table contains."""
        end = datetime.combine(day, time()) + timedelta(days=1) + _LATE
        self._values |= {
            "day": f"DATE '{day}'",
            "begin": f"DATE '{day - timedelta(days=1)}'",
            "end": f"TIMESTAMP '{end}'",
        }
        self._compare_with(day)
        self._ask("prepare")
        wanted = [name for name in names.TABLES if name != names.TRACE or self._trace]
        rows = [
            self._write(
                f"table {name}", self._tables.staging(name, day) / "part-0.parquet", "FORMAT parquet, COMPRESSION zstd"
            )
            for name in wanted
        ]
        if not any(rows):
            self._tables.drop(day)
        return self.rejected(day) | self._aside()

    def rejected(self, day: date | None) -> dict[str, Any]:
        """Count the invalid lines from the log directory of a day, and write them to a table."""
        self._values["here"] = "folder IS NULL" if day is None else f"folder = DATE '{day}'"
        file = self._tables.staging(names.REJECTED, day) / "part-0.json.gz"
        if not self._write("rejected", file, "FORMAT json, COMPRESSION gzip"):
            self._tables.drop(day, names.REJECTED)
        answer = self._ask("rejected counts")
        counts = dict(zip((column[0] for column in answer.description), answer.fetchall()[0], strict=True))
        late = counts.pop("late")
        return {"rejected": {why: count for why, count in counts.items() if count}, "late": late}

    def _aside(self) -> dict[str, Any]:
        [(unmatched,)] = self._ask("unmatched").fetchall()
        return {
            "results": dict(self._ask("results").fetchall()),
            "unmatched": unmatched,
            "ways": self._ask("ways").fetchall(),
        }

    def _compare_with(self, day: date) -> None:
        """Load the hourly values of the earlier days with which a day is compared."""
        for other in self._tables.days(names.TRAFFIC):
            if 0 < (day - other).days <= HISTORY_DAYS and other not in self._hours:
                self._hours.add(other)
                for file in self._tables.files(names.TRAFFIC, [other]):
                    self._duck.execute(Template(_SQL["earlier hours"]).substitute(other=other, file=file))
        self._hours.add(day)

    def _write(self, statement: str, file: Path, form: str) -> int:
        [(rows,)] = self._duck.execute(f"COPY ({self._filled(statement)}) TO '{file}' ({form})").fetchall()
        return int(rows)

    def _ask(self, statement: str) -> duckdb.DuckDBPyConnection:
        return self._duck.execute(self._filled(statement))

    def _filled(self, statement: str) -> str:
        return Template(_SQL[statement]).substitute(self._values)
