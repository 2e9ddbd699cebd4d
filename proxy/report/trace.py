"""Finds all records of one message in the audit log, for ``oxproxy trace``.

The segments are read directly. A segment is skipped if the bloom filter in its partial shows that the segment can't
contain the message. Spark is started only for file systems that require Spark, and runs no jobs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from proxy.errors import ConfigError
from proxy.report.partials import FOLDER, MACROS, DamagedError, inflated, texts
from proxy.report.request import Request
from proxy.report.session import LazySession
from proxy.report.storage import Entry, Storage, StorageError, find_segments, translated

Record = dict[str, Any]  # as in JSON


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: records ordered by time, and the numbers of segments read and skipped."""

    records: list[Record]
    read: int
    skipped: int


def trace(message_id: str, request: Request) -> Found:
    """Find all records of a message. If the request has the output directory of a report, segments can be skipped.

    Raises:
        ConfigError: the directory does not exist or can't be read.
    """
    try:
        with LazySession(request) as session, tempfile.TemporaryDirectory(prefix="oxproxy-trace-") as work:
            files = session.storage(request.input, request.output)
            if not files.is_folder(request.input):
                raise ConfigError(request.input, 0, "--input", "no such directory")
            segments = find_segments(files, request.input, request.lists)
            searched = [at for at in segments if at.day is None or request.wants(at.day)]
            search = _Search(files, Path(work), message_id)
            known = search.known_without(request.output) if request.output else set()
            possible = [at for at in searched if (at.path, at.size, at.modified) not in known]
            records = search.publishes(possible)
            records += search.settles(segments, records)
    except StorageError as error:
        raise ConfigError("oxproxy trace", 0, "", str(error)) from error
    different = {json.dumps(record): record for _, record in records}.values()  # segments may have been copied
    ordered = sorted(different, key=lambda record: str(record.get("ts")))
    return Found(ordered, len(possible), len(searched) - len(possible))


@dataclass(frozen=True, slots=True)
class _Search:
    files: Storage
    work: Path
    message_id: str

    def known_without(self, report: str) -> set[tuple[str, int, int]]:
        """Return path, size and time of the segments whose bloom filters show that they don't contain the message."""
        piece = self.work / "segments.parquet"
        known = set()
        with duckdb.connect() as duck:
            duck.execute(MACROS)
            for entry in self.files.entries(f"{report}/{FOLDER}"):
                if entry.name.endswith(".parquet"):
                    file = self.files.fetch(entry.path, self.work)
                    for (data,) in duck.execute(f"SELECT data FROM '{file}' WHERE name = 'segments'").fetchall():
                        piece.write_bytes(data)
                        rows = duck.execute(
                            f"""SELECT path, size, modified FROM '{piece}' WHERE bloom IS NULL OR list_contains([
                                get_bit(bloom::BIT, place::INTEGER)
                                FOR place IN bloom_places(md5_number_lower(?), octet_length(bloom) * 8)], 0)""",
                            [self.message_id],
                        )
                        known.update(rows.fetchall())
        return known

    def publishes(self, segments: Sequence[Entry]) -> list[tuple[Entry, Record]]:
        """Return the publishes with the message id, each with its segment."""
        return [
            (segment, record)
            for segment in segments
            for record in self._records(segment, [self.message_id])
            if record.get("message_id") == self.message_id
        ]

    def settles(
        self, segments: Sequence[Entry], publishes: Sequence[tuple[Entry, Record]]
    ) -> list[tuple[Entry, Record]]:
        """Return the settle records found in the segment of each publish and in the sidecar's next segment.

        If a channel number is reused, its publishes have the same numbers again. A settle record belongs to the last
        publish before it.
        """
        wanted: dict[Entry, set[str]] = {}
        conns = {str(record.get("conn")) for _, record in publishes}
        for segment, record in publishes:
            series = [other for other in segments if _series(other) == _series(segment)]
            for other in series[series.index(segment) :][:2]:
                wanted.setdefault(other, set()).add(_key(record))
        found = []
        last: dict[str, bool] = {}  # whether the last publish with a key is one of the message
        for segment in sorted(wanted, key=segments.index):
            for record in self._records(segment, conns):
                key = _key(record)
                if key not in wanted[segment]:
                    continue
                if record.get("kind") == "publish":
                    last[key] = record.get("message_id") == self.message_id
                elif record.get("kind") == "settle" and last.get(key):
                    found.append((segment, record))
        return found

    def _records(self, segment: Entry, values: Iterable[object]) -> Iterator[Record]:
        """Yield the records of the lines that contain any of the given values, up to the first damage."""
        written = [form for value in values for form in (json.dumps(value), json.dumps(value, ensure_ascii=False))]
        local = self.files.fetch(segment.path, self.work)
        # Retention may have removed the segment.
        with translated(segment.path), suppress(DamagedError, FileNotFoundError), local.open("rb") as file:
            local.unlink()
            for text in texts(inflated(file, segment.path.endswith(".gz"))):
                if any(part in text for part in written):
                    for line in text.split("\n"):
                        if any(part in line for part in written):
                            with suppress(ValueError, RecursionError):  # not a record
                                if isinstance(record := json.loads(line), dict):
                                    yield record


def _key(record: Record) -> str:
    return json.dumps([record.get(name) for name in ("proxy", "conn", "ch", "seq")])


def _series(segment: Entry) -> tuple[str, str]:
    """Return the directory and name that all segments from a sidecar have in common."""
    before, _, name = segment.path.rpartition("/")
    return before.partition("/date=")[0], name.rsplit("-", 2)[0]
