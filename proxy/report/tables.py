"""Creates the tables for one day from the partials of its segments, and puts them in place of the old tables.

Each table is created by one statement on the views ``p_NAME`` (see `proxy.report.store`).

The new tables for a day are first written next to the old tables; then each old directory is removed, and the new
directory is moved into place. The inputs of a day's tables are recorded in ``_days/``. The record is deleted before the
replacement and written again afterwards. If a run is killed in between, the next run creates the tables again.

A day with records has a directory in each table, possibly with a file without rows, so that readers always find the
columns. A day without records has no directory.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from string import Template
from typing import Any

import duckdb

from proxy.report.partials import MACROS, statements
from proxy.report.request import KnownBinding
from proxy.report.session import Run
from proxy.report.storage import folder_day
from proxy.report.store import inputs

#: The tables of a report.
TRAFFIC, TRACE = "traffic", "trace"
TABLES = (TRAFFIC, "destinations", "bindings", "unroutable", "latency", "producers", "anomalies", TRACE)
#: Invalid lines, as JSON lines.
REJECTED = "_rejected"
#: Readers skip names that begin with ``_``.
_STAGING, _DAYS = "_staging", "_days"
_PARQUET, _JSON = ("parquet", "FORMAT parquet, COMPRESSION zstd"), ("json.gz", "FORMAT json, COMPRESSION gzip")

#: Part of the fingerprint of a day's tables. It must be increased whenever a change to the code affects the tables.
_EDITION = 3
#: Number of earlier days with which an hour is compared.
_HISTORY_DAYS = 28
#: Maximum number of messages whose path through several sidecars is shown.
WAYS = 10

_SQL = statements("tables.sql", history_days=_HISTORY_DAYS, ways=WAYS)


class Tables:
    """The tables of one output directory.

    A day that is None stands for the segments outside date directories. Only the invalid lines of these segments are
    written, since their records belong to the days of their timestamps.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._staged = run.work / "tables"
        self._values = {
            "now": f"TIMESTAMP '{run.request.now.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}'",
            "is_known": run.request.bindings is not None,
        }
        run.storage.make(run.output)
        run.storage.remove(f"{run.output}/{_STAGING}")  # left by a run that was killed
        known = run.request.bindings or ()
        columns = [[getattr(binding, name) for binding in known] for name in KnownBinding.__slots__]
        run.duck.execute(MACROS + _SQL["begin"])
        run.duck.execute("INSERT INTO m_known SELECT" + ", ".join([" unnest(?::VARCHAR[])"] * len(columns)), columns)

    def days(self) -> list[date]:
        """Return the days that have tables, in order."""
        days = (folder_day(f"{entry.name}/") for entry in self._run.storage.entries(f"{self._run.output}/{TRAFFIC}"))
        return [day for day in days if day is not None]

    def files(self, name: str, day: date) -> list[Path]:
        """Link or copy the files of a table into the local directory of the day; return their paths."""
        entries = self._run.storage.entries(f"{self._run.output}/{name}/{_folder(day)}")
        folder = self._run.work / _folder(day)
        folder.mkdir(exist_ok=True)
        return [self._run.storage.fetch(entry.path, folder) for entry in entries if entry.name.endswith(".parquet")]

    def state(self, day: date | None) -> dict[str, Any]:
        """Return the recorded inputs and page data of a day's tables; empty for tables from an earlier version."""
        return self._run.read_json(self._state_file(day))

    def fingerprint(self, day: date | None) -> str:
        """Return a fingerprint of the inputs of a day's tables."""
        rows = self._run.duck.execute(f"SELECT content FROM live WHERE {inputs(day)} ORDER BY content").fetchall()
        parts: list[object] = [content for (content,) in rows]
        if day is not None:
            request = self._run.request
            begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
            parts += [
                _EDITION,
                min(24, max(0, int((request.now - begin).total_seconds()) // 3600)),
                [str(other) for other in self._history(day)],
                None if request.bindings is None else sorted(map(repr, request.bindings)),
                request.trace,
            ]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

    def make(self, day: date | None, fingerprint: str) -> None:
        data = {} if day is None else self._create(day)
        self._replace(day, {"fingerprint": fingerprint, **self._set_aside(day), **data})

    def _create(self, day: date) -> dict[str, Any]:
        """Write the tables for a day to a local directory. Return the page data that no table contains."""
        self._values["day"] = f"DATE '{day}'"
        loaded = {other for (other,) in self._run.duck.execute("SELECT DISTINCT date FROM m_hours").fetchall()}
        earlier = [other for other in self._history(day) if other not in loaded]
        if files := [str(file) for other in earlier for file in self.files(TRAFFIC, other)]:
            self._run.duck.execute(Template(_SQL["earlier hours"]).substitute(files=files))
        self._ask("prepare")
        wanted = [name for name in TABLES if name != TRACE or self._run.request.trace]
        if not sum(self._write(name, *_PARQUET) for name in wanted):
            shutil.rmtree(self._staged)
        [(unmatched,)] = self._ask("unmatched").fetchall()
        results, ways = self._ask("results").fetchall(), self._ask("ways").fetchall()
        return {"results": dict(results), "unmatched": unmatched, "ways": ways}

    def _set_aside(self, day: date | None) -> dict[str, Any]:
        """Count the invalid lines in the log directory of a day, and write them to a local directory."""
        self._values["here"] = "folder IS NULL" if day is None else f"folder = DATE '{day}'"
        if not self._write(REJECTED, *_JSON):
            shutil.rmtree(self._staged / REJECTED)
        [(late,)] = self._ask("late").fetchall()
        return {"rejected": dict(self._ask("rejected counts").fetchall()), "late": late}

    def _replace(self, day: date | None, state: dict[str, Any]) -> None:
        staging = f"{self._run.output}/{_STAGING}"
        self._run.storage.remove(self._state_file(day))
        written = {folder.name for folder in self._staged.iterdir()}
        if written:
            self._run.storage.put(self._staged, staging)
        for name in (*TABLES, REJECTED):
            placed = f"{self._run.output}/{name}/{_folder(day)}"
            self._run.storage.remove(placed)
            if name in written:
                self._run.storage.make(f"{self._run.output}/{name}")
                self._run.storage.move(f"{staging}/{name}", placed)
        self._run.storage.remove(staging)
        self._run.write_text(self._state_file(day), json.dumps(state))

    def _history(self, day: date) -> list[date]:
        """Return the earlier days that have tables and are compared with a day."""
        return [other for other in self.days() if 0 < (day - other).days <= _HISTORY_DAYS]

    def _write(self, name: str, ending: str, form: str) -> int:
        """Write a table to a local directory; return the number of rows."""
        folder = self._staged / name
        folder.mkdir(parents=True)
        statement = self._filled(f"table {name}")
        [(rows,)] = self._run.duck.execute(f"COPY ({statement}) TO '{folder}/part-0.{ending}' ({form})").fetchall()
        return int(rows)

    def _ask(self, statement: str) -> duckdb.DuckDBPyConnection:
        return self._run.duck.execute(self._filled(statement))

    def _filled(self, statement: str) -> str:
        return Template(_SQL[statement]).substitute(self._values)

    def _state_file(self, day: date | None) -> str:
        return f"{self._run.output}/{_DAYS}/{_folder(day)}.json"


def _folder(day: date | None) -> str:
    return f"date={day or 'unknown'}"
