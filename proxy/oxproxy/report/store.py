"""Manages the hours in an output directory: determines which segments are new, and adds them to their hours.

The file ``index.json`` names the current version of the tables of each hour. Tasks write new versions, which have no
effect until the index, which is replaced as a whole, names them. A killed run therefore neither loses segments nor
counts them twice. The table ``ledger`` of an hour lists its segments with the digests of their contents.

For each hour, the index also contains a digest of the list of segments in the hour's directories. If the list has not
changed, the ledger is not read. The cost of a run therefore depends on what is new.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import duckdb

from oxproxy.errors import ConfigError
from oxproxy.report import partials
from oxproxy.report.files.storage import LOOSE, Entry, LocalFiles, local_path, unit_day, unit_folder
from oxproxy.report.hours import FOLDER, MOST_UNITS, Hour, Merge, merged_files
from oxproxy.report.session import Run, explained

_INDEX = f"{FOLDER}/index.json"
#: Approximate limit, in stored bytes, of the segments read by one job. A killed run loses the results of one job.
_JOB_BYTES = 1 << 30
#: Starting a task takes as long as reading this number of stored bytes.
_LEAST_BYTES = 2 << 20
#: Each core runs one task, or several tasks, up to this number, if each of them reads at least this number of stored
#: bytes. With several tasks per core, all cores finish at about the same time, and the progress is shown more often.
_TASK_BYTES, _TASKS_PER_CORE = 24 << 20, 12
#: Number of stored bytes of segments whose hours are merged together.
_MERGED_BYTES = 4 << 20
#: Cost of opening a file, expressed as the number of bytes that could be read in the same time.
_OPEN_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Update:
    """The result of reading new segments."""

    read: int = 0  # number of segments read
    ignored: tuple[str, ...] = ()  # changed segments that can't replace their earlier content


class Partials:
    """The hours of one output directory."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pieces = run.work / "pieces"
        self._pieces.mkdir()
        content = run.read_json(f"{run.output}/{_INDEX}") or run.read_json(f"{run.output}/{FOLDER}/_index.json")
        self._hours: dict[int, Hour] = {}
        self._listings: dict[int, str] = {}
        for unit, row in content.get("hours", {}).items():
            self._hours[int(unit)] = Hour(
                int(unit), row["version"], tuple(row["tables"]), row["publishes"], tuple(row["days"])
            )
            self._listings[int(unit)] = row["listing"]

    def hours(self, day: date | None) -> list[Hour]:
        """Return the hours of a day, in order; for None, the unit of the segments outside date directories."""
        chosen = [hour for unit, hour in self._hours.items() if (None if unit == LOOSE else unit_day(unit)) == day]
        return sorted(chosen, key=lambda hour: hour.unit)

    def days(self, segments: Sequence[Entry]) -> list[date]:
        """Return the days of the given segments' directories and records, in order."""
        units = {segment.unit for segment in segments}
        days = {unit_day(unit) for unit in units if unit != LOOSE}
        for unit in units & self._hours.keys():
            days |= {unit_day(24 * number) for number in self._hours[unit].days}
        return sorted(days)

    def update(self, segments: Sequence[Entry], forgetting: Mapping[str, Entry] | None = None) -> Update:
        """Read the segments that are new or have changed.

        Args:
            forgetting: if given, all segments in the log by path; segments of `forget_days` that are not among them
                are removed.

        Raises:
            ConfigError: a segment can't be read, or the output can't be written.
        """
        listed: dict[int, list[Entry]] = {}
        for segment in segments:
            listed.setdefault(segment.unit, []).append(segment)
        listings = {unit: self._listing(entries) for unit, entries in listed.items()}
        stale = [unit for unit in sorted(listed) if self._listings.get(unit) != listings[unit]]
        known = {row["path"]: row for row in self._ledger(stale) if row["is_home"]}
        new: list[Entry] = []
        rebuilt: set[int] = set()
        ignored: list[str] = []
        for segment in (segment for unit in stale for segment in listed[unit]):
            row = known.get(segment.path)
            if row is None or (row["size"], row["modified"]) == (segment.size, segment.modified):
                if row is None or (self._run.request.trace and not row["traced"]):
                    new.append(segment)
            elif self._digest(segment) == row["content"]:
                new.append(segment)
            elif self._can_be_read_again({segment.unit, *row["hours"]}):
                rebuilt |= {segment.unit, *row["hours"]}
                new.append(segment)
            else:
                ignored.append(segment.path)
        self._add(new, rebuilt)
        if forgetting is not None:
            self._forget(segments, forgetting)
        if stale:
            for unit in stale:
                if not any(path in ignored for path in (segment.path for segment in listed[unit])):
                    self._listings[unit] = listings[unit]
            self._commit()
        return Update(len(new), tuple(ignored))

    def without(self, message_id: str, segments: Iterable[Entry]) -> list[Entry]:
        """Return the segments whose bloom filters rule out the given message.

        A report that is running may remove a ledger. No segment of its hour is returned.
        """
        self._run.duck.execute(partials.MACROS)
        known: set[tuple[str, int, int]] = set()
        listed = list(segments)
        for unit in {segment.unit for segment in listed}:
            with suppress(ConfigError, duckdb.IOException):
                for file in self._ledgers([unit]):
                    known |= set(self._run.duck.execute(_WITHOUT.format(file=file), [message_id]).fetchall())
        return [segment for segment in listed if (segment.path, segment.size, segment.modified) in known]

    def _listing(self, entries: Iterable[Entry]) -> str:
        rows = [[entry.path, entry.size, entry.modified] for entry in entries]
        text = json.dumps([self._run.request.trace, rows])
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def _ledgers(self, units: Iterable[int]) -> list[Path]:
        """Link or copy the ledgers of units to this machine."""
        present = [self._hours[unit] for unit in units if unit in self._hours]
        folder = f"{self._run.output}/"
        return [self._run.storage.fetch(f"{folder}{hour.folder}/ledger.parquet", self._run.work) for hour in present]

    def _ledger(self, units: Iterable[int]) -> list[dict[str, Any]]:
        files = [str(file) for file in self._ledgers(units)]
        if not files:
            return []
        result = self._run.duck.execute(f"SELECT * EXCLUDE bloom FROM read_parquet({files})")
        columns = [column[0] for column in result.description]
        return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]

    def _digest(self, segment: Entry) -> str:
        copy = self._run.storage.fetch(segment.path, self._run.work)
        with copy.open("rb") as file:
            return partials.digest(segment, file)[0]

    def _present(self, units: Iterable[int]) -> dict[str, Entry | None]:
        """Return the segments in the ledgers of units by path; None for those that no longer exist."""
        paths = {row["path"] for row in self._ledger(units)}
        folders = {path.rpartition("/")[0] for path in paths}
        entries = {entry.path: entry for folder in folders for entry in self._run.storage.entries(folder)}
        return {path: entries.get(path) for path in paths}

    def _can_be_read_again(self, units: Iterable[int]) -> bool:
        return all(self._present(units).values())

    def _forget(self, segments: Sequence[Entry], present: Mapping[str, Entry]) -> None:
        """Remove deleted segments from the hours of the requested days."""
        request = self._run.request
        root = f"{self._run.storage.whole(request.input).rstrip('/')}/"
        chosen = set(request.named_days() or filter(request.wants, self.days(segments)))
        units = [unit for unit in self._hours if unit == LOOSE or unit_day(unit) in chosen]
        deleted = {
            unit
            for unit in units
            for row in self._ledger([unit])
            if row["path"].startswith(root) and row["path"] not in present
        }
        if deleted:
            again = {row["path"] for row in self._ledger(deleted)} & present.keys()
            self._add([present[path] for path in sorted(again)], deleted)

    def _add(self, new: Sequence[Entry], rebuilt: set[int]) -> None:
        """Add segments to their hours. Some hours are created again from the segments that they contain."""
        if rebuilt:
            again = self._present(rebuilt) | {segment.path: segment for segment in new}
            self._job([entry for entry in again.values() if entry is not None], rebuilt)
        elif new:
            jobs = split(new, 1 + _cost(new) // _JOB_BYTES)
            for number, job in enumerate(jobs, 1):
                self._job(job, rebuilt, f", part {number} of {len(jobs)}" if len(jobs) > 1 else "")

    def _job(self, segments: Sequence[Entry], rebuilt: set[int], part: str = "") -> None:
        """Read segments and merge them into their hours. The progress shows which part of the new segments they are."""
        self._run.progress.step(f"reading segments{part}", len(segments))
        segments = sorted(segments, key=lambda segment: (segment.unit, segment.path))
        with explained("reading the log"):
            if isinstance(self._run.storage, LocalFiles):
                made = self._read_local(segments, rebuilt) if segments else []
            else:
                made = self._read_remote(segments, rebuilt) if segments else []
        before = {unit: self._hours.get(unit) for unit in {hour.unit for hour in made} | rebuilt}
        for unit in rebuilt:
            self._hours.pop(unit, None)
        self._hours |= {hour.unit: hour for hour in made}
        self._commit()
        for unit in before:
            current = self._hours.get(unit)
            for entry in self._run.storage.entries(f"{self._run.output}/{FOLDER}/{unit_folder(unit)}"):
                if current is None or entry.name != current.version:
                    self._run.storage.remove(entry.path)

    def _commit(self) -> None:
        rows = {
            unit: {
                "version": hour.version,
                "tables": hour.tables,
                "publishes": hour.publishes,
                "days": hour.days,
                "listing": self._listings.get(unit, ""),
            }
            for unit, hour in sorted(self._hours.items())
        }
        self._run.write_text(f"{self._run.output}/{_INDEX}", json.dumps({"hours": rows}))

    def _old(self, unit: int, rebuilt: set[int]) -> Hour | None:
        return None if unit in rebuilt else self._hours.get(unit)

    def _read_local(self, job: Sequence[Entry], rebuilt: set[int]) -> list[Hour]:
        """Read segments on this machine. The tasks open the files, since a Spark query would take seconds to plan."""
        session, cost = self._run.session, _cost(job)
        count, parallel = 1, session.needs_spark(cost)
        if parallel:
            cores = session.context.defaultParallelism
            count = min(1 + cost // _LEAST_BYTES, cores * min(_TASKS_PER_CORE, 1 + cost // cores // _TASK_BYTES))
        files = [[(segment, local_path(segment.path)) for segment in part] for part in split(job, count)]
        counter = session.counter(self._run.progress, in_spark=parallel)
        trace = self._run.request.trace
        read = functools.partial(partials.read_files, traced=trace, target=self._pieces, count=counter)
        pieces = [piece for part in session.mapped(read, files, cost, self._run.progress) for piece in part]
        units = sorted({unit for touched, _, _ in pieces for unit in touched})
        merges = []
        for batch in _batches(units, session.context.defaultParallelism if parallel else 1, cost):
            merge = Merge(batch)
            for touched, name, path in pieces:
                if not set(batch).isdisjoint(touched):
                    merge.add(name, path)
            for unit in batch:
                if (old := self._old(unit, rebuilt)) is not None:
                    for name in old.tables:
                        merge.add_old(unit, name, local_path(f"{self._run.output}/{old.folder}/{name}.parquet"))
            merges.append(merge)
        self._run.progress.step("merging hours", len(units))
        merging = functools.partial(merged_files, output=self._run.output)
        made = [hour for part in session.mapped(merging, merges, cost, self._run.progress) for hour in part]
        for _, _, path in pieces:
            path.unlink()
        return made

    def _read_remote(self, job: Sequence[Entry], rebuilt: set[int]) -> list[Hour]:
        """Read segments through Hadoop, and put the merged tables, which tasks return, into their place."""
        old = {unit: hour for unit, hour in self._hours.items() if unit not in rebuilt}
        made = []
        for hour, files in self._run.session.merged(self._run, job, old):
            for name, content in files.items():
                local = self._run.work / "table"
                local.write_bytes(content)
                self._run.storage.put(local, f"{self._run.output}/{hour.folder}/{name}")
            made.append(hour)
        return made


#: The segments whose bloom filters show that they don't contain a message.
_WITHOUT = """SELECT path, size, modified FROM '{file}' WHERE is_home AND (bloom IS NULL OR list_contains([
    get_bit(bloom::BIT, place::INTEGER)
    FOR place IN bloom_places(number_of(?), octet_length(bloom) * 8)], 0))"""


def _cost(segments: Sequence[Entry]) -> int:
    """Return the cost of opening and reading segments, as a number of stored bytes."""
    return sum(segment.size + _OPEN_BYTES for segment in segments)


def split(segments: Sequence[Entry], count: int) -> list[list[Entry]]:
    """Divide segments into up to the given number of parts of about the same cost, each with successive segments."""
    parts: list[list[Entry]] = [[] for _ in range(count)]
    whole, done = _cost(segments), 0
    for segment in segments:
        parts[done * count // whole].append(segment)
        done += _cost([segment])
    return [part for part in parts if part]


def _batches(units: Sequence[int], cores: int, cost: int) -> list[list[int]]:
    """Divide units into batches that are merged together: large hours are merged one at a time."""
    count = min(len(units), max(cores, 1 + cost // _MERGED_BYTES, -(-len(units) // MOST_UNITS)))
    return [list(units[number * len(units) // count : (number + 1) * len(units) // count]) for number in range(count)]
