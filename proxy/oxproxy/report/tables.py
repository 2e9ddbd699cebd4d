"""Creates the tables for one day from the tables of its hours, and puts them in place of the old tables.

Tasks create the tables (see `oxproxy.report.days`), except for the anomalies, which also need the tables of earlier
days.

The new tables for a day are first written next to the old tables; then each old directory is removed, and the new
directory is moved into place. The inputs of a day's tables are recorded in the file ``_days.json``. The record is
deleted before the replacement and written again afterwards. If a run is killed in between, the next run creates the
tables again.

A day with records has a directory in each table, possibly with a file without rows, so that readers always find the
columns. A day without records has no directory.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from string import Template
from typing import Any

from oxproxy.report import days
from oxproxy.report.days import LAST, REJECTED, Made, Part
from oxproxy.report.files.storage import LocalFiles, folder_day
from oxproxy.report.hours import Hour
from oxproxy.report.partials import MACROS, TRACE, statements
from oxproxy.report.session import Run, explained

#: The tables of a report.
TRAFFIC = "traffic"
TABLES = (
    *(TRAFFIC, "flows", "destinations", "bindings", "unroutable", "latency", "confirms", "producers", "anomalies"),
    TRACE,
)
#: Readers skip names that begin with ``_``.
_STAGING, _DAYS = "_staging", "_days.json"

#: Part of the fingerprint of a day's tables. It must be increased whenever a change to the code affects the tables.
_EDITION = 4
#: Number of earlier days with which an hour is compared, and the minimum numbers of comparable days, and of publishes
#: on each of them.
_HISTORY_DAYS, _LEAST_DAYS, _LEAST_RECORDS = 28, 3, 100

_SQL = statements("tables.sql", history_days=_HISTORY_DAYS, least_days=_LEAST_DAYS, least_records=_LEAST_RECORDS)


class Tables:
    """The tables of one output directory.

    A day that is None stands for the segments outside date directories. Only the invalid lines of these segments are
    written, since their records belong to the days of their timestamps.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._staged = run.work / "tables"
        run.storage.make(run.output)
        run.storage.remove(f"{run.output}/{_STAGING}")  # left by a run that was killed
        run.duck.execute(MACROS + _SQL["begin anomalies"])
        self._states: dict[str, dict[str, Any]] = run.read_json(f"{run.output}/{_DAYS}")
        self._days = {
            day
            for entry in run.storage.entries(f"{run.output}/{TRAFFIC}")
            if (day := folder_day(f"{entry.name}/")) is not None
        }

    def days(self) -> list[date]:
        """Return the days that have tables, in order."""
        return sorted(self._days)

    def files(self, name: str, day: date) -> list[Path]:
        """Link or copy the files of a table into the local directory of the day; return their paths."""
        entries = self._run.storage.entries(f"{self._run.output}/{name}/{_folder(day)}")
        folder = self._run.work / _folder(day)
        folder.mkdir(exist_ok=True)
        return [self._run.storage.fetch(entry.path, folder) for entry in entries if entry.name.endswith(".parquet")]

    def state(self, day: date | None) -> dict[str, Any]:
        """Return the recorded inputs and page data of a day's tables; empty if there are none."""
        return self._states.get(str(day), {})

    def fingerprint(self, day: date | None, hours: Sequence[Hour]) -> str:
        """Return a fingerprint of the inputs of a day's tables."""
        inputs: list[object] = [hour.version for hour in hours]
        if day is not None:
            request = self._run.request
            begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
            inputs += [
                _EDITION,
                min(24, max(0, int((request.now - begin).total_seconds()) // 3600)),
                [str(other) for other in self._history(day)],
                None if request.bindings is None else sorted(map(repr, request.bindings)),
                request.trace,
                self.state(day - timedelta(days=1)).get("last") if day > date.min else None,
            ]
        return hashlib.blake2b(json.dumps(inputs).encode(), digest_size=16).hexdigest()

    def make(self, day: date | None, fingerprint: str, hours: Sequence[Hour]) -> None:
        """Create the tables of a day.

        Raises:
            ConfigError: the tables of the hours can't be read, or a task failed.
        """
        with explained(f"creating the tables of {day or 'no day'}"):
            state = self._create(day, hours)
        self._replace(day, state | {"fingerprint": fingerprint})

    def _create(self, day: date | None, hours: Sequence[Hour]) -> dict[str, Any]:
        """Create the tables of a day in the local directory; return the page data."""
        self._run.progress.step(f"creating the tables of {day or 'no day'}", len(TABLES))
        self._staged.mkdir()
        request = self._run.request
        results = self._run_parts(days.parts(day, hours, request.bindings, request.trace), hours) if hours else []
        state: dict[str, Any] = {}
        for made in results:
            state |= made.state
        if day is not None and results:
            findings = [finding for made in results for finding in made.findings]
            found = self._find_anomalies(day, findings)
            if not found + sum(made.rows for made in results):
                for name in (*TABLES, LAST):
                    shutil.rmtree(self._staged / name, ignore_errors=True)
        return state

    def _run_parts(self, parts: Sequence[Part], hours: Sequence[Hour]) -> list[Made]:
        day = parts[0].day
        eve = f"{self._run.output}/{LAST}/{_folder(day - timedelta(days=1))}/part-0.parquet" if day else ""
        eve = eve if eve and self.state(day - timedelta(days=1) if day else None) else ""
        directories = {hour.unit % 24: f"{self._run.output}/{hour.folder}" for hour in hours}
        eve = eve if eve and self._run.storage.exists(eve) else ""
        if isinstance(self._run.storage, LocalFiles):
            make = functools.partial(days.made_files, directories=directories, eve=eve, target=self._staged)
            return self._run.session.mapped(make, parts, self._size(directories), self._run.progress)
        results = []
        for made in self._run.session.made(parts, directories, eve, self._run.progress):
            for name, content in made.files.items():
                target = self._staged / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            results.append(made)
        return results

    def _size(self, directories: dict[int, str]) -> int:
        return sum(entry.size for folder in directories.values() for entry in self._run.storage.entries(folder))

    def _find_anomalies(self, day: date, findings: Sequence[tuple[Any, ...]]) -> int:
        """Write the table of anomalies; return its number of rows."""
        duck, values = self._run.duck, {"day": f"DATE '{day}'", "now": self._now()}
        loaded = {other for (other,) in duck.execute("SELECT DISTINCT date FROM m_hours").fetchall()}
        duck.execute(f"DELETE FROM m_hours WHERE date = DATE '{day}'")
        earlier = [other for other in self._history(day) if other not in loaded]
        files = [str(file) for other in earlier for file in self.files(TRAFFIC, other)]
        (self._run.work / "today" / _folder(day)).mkdir(parents=True, exist_ok=True)
        today = self._run.work / "today" / _folder(day) / "part-0.parquet"
        today.unlink(missing_ok=True)
        today.symlink_to(self._staged / TRAFFIC / "part-0.parquet")
        duck.execute(Template(_SQL["hours"]).substitute(files=[*files, str(today)]))
        duck.execute(Template(_SQL["deviations"]).substitute(values))
        duck.execute("DELETE FROM m_findings")
        columns = [list(column) for column in zip(*findings, strict=True)] or [[] for _ in range(7)]
        kinds = ("INTEGER", "VARCHAR", "VARCHAR", "DOUBLE", "DOUBLE", "DOUBLE", "VARCHAR")
        values_sql = ", ".join(f"unnest(?::{kind}[])" for kind in kinds)
        duck.execute(f"INSERT INTO m_findings SELECT {values_sql}", columns)
        folder = self._staged / "anomalies"
        folder.mkdir()
        [(rows,)] = duck.execute(
            f"COPY ({_SQL['table anomalies']}) TO '{folder}/part-0.parquet' (FORMAT parquet, COMPRESSION zstd)"
        ).fetchall()
        return int(rows)

    def _now(self) -> str:
        return f"TIMESTAMP '{self._run.request.now.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}'"

    def _replace(self, day: date | None, state: dict[str, Any]) -> None:
        staging = f"{self._run.output}/{_STAGING}"
        if self._states.pop(str(day), None) is not None:
            self._write_states()
        written = {folder.name for folder in self._staged.iterdir()}
        if written:
            self._run.storage.put(self._staged, staging)
        else:
            self._staged.rmdir()
        for name in (*TABLES, LAST, REJECTED):
            placed = f"{self._run.output}/{name}/{_folder(day)}"
            self._run.storage.remove(placed)
            if name in written:
                self._run.storage.make(f"{self._run.output}/{name}")
                self._run.storage.move(f"{staging}/{name}", placed)
        self._run.storage.remove(staging)
        self._states[str(day)] = state
        self._write_states()
        if day is not None:
            (self._days.add if TRAFFIC in written else self._days.discard)(day)

    def _write_states(self) -> None:
        self._run.write_text(f"{self._run.output}/{_DAYS}", json.dumps(self._states))

    def _history(self, day: date) -> list[date]:
        """Return the earlier days that have tables and are compared with a day."""
        return [other for other in self.days() if 0 < (day - other).days <= _HISTORY_DAYS]


def _folder(day: date | None) -> str:
    return f"date={day or 'unknown'}"
