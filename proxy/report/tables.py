"""Defines the names of a report's tables, and replaces the tables for a day.

The new tables for a day are first written next to the old tables; then each old directory is removed, and the new
directory is moved into place. The inputs of a day's tables are recorded in ``_days/``. The record is deleted before the
replacement and written again afterwards. If a run is killed in between, the next run creates the tables again.
Concurrent runs with the same output are not supported.

A day with records has a directory in each table, possibly with a file without rows, so that readers always find the
columns. A day without records has no directory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from proxy.report.partials import folder_day
from proxy.report.storage import Storage

#: The tables of a report.
TRAFFIC, DESTINATIONS, BINDINGS, UNROUTABLE = "traffic", "destinations", "bindings", "unroutable"
LATENCY, PRODUCERS, ANOMALIES, TRACE = "latency", "producers", "anomalies", "trace"
TABLES = (TRAFFIC, DESTINATIONS, BINDINGS, UNROUTABLE, LATENCY, PRODUCERS, ANOMALIES, TRACE)
#: Invalid lines, as JSON lines.
REJECTED = "_rejected"
#: Directory of invalid lines in segments outside date directories.
UNDATED = "unknown"
#: Readers skip names that begin with ``_``.
_STAGING, _DAYS = "_staging", "_days"


class Tables:
    """The tables of one output directory; ``work`` is a temporary directory on this machine."""

    def __init__(self, storage: Storage, output: str, work: Path) -> None:
        self._storage = storage
        self._output = output
        self._staged = work / "tables"
        self._fetched = work / "fetched"

    def begin(self) -> None:
        """Remove the files of a run that was killed, and create directories."""
        self._storage.remove(f"{self._output}/{_STAGING}")
        self._storage.make(self._output)

    def staging(self, name: str, day: date | None) -> Path:
        """Return the local directory to which a table for a day is written."""
        folder = self._staged / name / _folder(day)
        folder.mkdir(parents=True)
        return folder

    def drop(self, day: date | None, *only: str) -> None:
        """Remove the new tables for a day, or only the given tables."""
        for name in only or TABLES:
            shutil.rmtree(self._staged / name, ignore_errors=True)

    def exchange(self, day: date | None, state: dict[str, Any] | None) -> bool:
        """Replace the tables for a day with the new tables. ``state`` describes the inputs of the new tables.

        Returns:
            True if the day had tables and no longer has any.
        """
        folder, staging = _folder(day), f"{self._output}/{_STAGING}"
        self._storage.remove(f"{self._output}/{_DAYS}/{folder}.json")
        if self._staged.exists():
            self._storage.put(self._staged, staging)
        written = {entry.name for entry in self._storage.entries(staging)}
        gone = False
        for name in (*TABLES, REJECTED):
            placed = f"{self._output}/{name}/{folder}"
            was_there = self._storage.remove(placed)
            if name in written:
                self._storage.make(f"{self._output}/{name}")
                self._storage.move(f"{staging}/{name}/{folder}", placed)
            gone |= was_there and name == TRAFFIC and name not in written
        self._storage.remove(staging)
        if state is not None:
            self._storage.make(f"{self._output}/{_DAYS}")
            self._storage.write(f"{self._output}/{_DAYS}/{folder}.json", json.dumps(state))
        return gone

    def state(self, day: date | None) -> dict[str, Any]:
        """Return the recorded inputs of a day's tables; empty if another version created the tables."""
        return self._storage.read_json(f"{self._output}/{_DAYS}/{_folder(day)}.json")

    def days(self, name: str) -> list[date]:
        """Return the days for which a table exists, in order."""
        days = (folder_day(f"{entry.name}/") for entry in self._storage.entries(f"{self._output}/{name}"))
        return [day for day in days if day is not None]

    def files(self, name: str, days: Iterable[date]) -> list[Path]:
        """Return the files of a table as links or copies on this machine."""
        files = []
        for day in days:
            for entry in self._storage.entries(f"{self._output}/{name}/{_folder(day)}"):
                if entry.name.endswith(".parquet"):
                    self._fetched.mkdir(exist_ok=True)
                    files.append(self._storage.fetch(entry.path, self._fetched))
        return files


def _folder(day: date | None) -> str:
    return f"date={day or UNDATED}"
