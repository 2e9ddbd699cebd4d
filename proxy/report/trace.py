"""Finds all records of one message in the audit log, for ``oxproxy trace``.

The segments are read directly. A segment is skipped if the bloom filter in its partial shows that the segment can't
contain the message. Spark is started only for file systems that require Spark, and runs no jobs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb

from proxy.errors import ConfigError
from proxy.report.partials import BLOOM_HASHES, FOLDER, DamagedError, bloom_place, inflated, texts
from proxy.report.request import Request
from proxy.report.storage import Files, LocalFiles, Segment, StorageError, find_segments

Record = dict[str, Any]  # as in JSON


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: records ordered by time, and the numbers of segments read and skipped."""

    records: list[Record]
    read: int
    skipped: int


def trace(message_id: str, request: Request, report: str | None) -> Found:
    """Find all records of a message. If the output directory of a report is given, some segments can be skipped.

    Raises:
        ConfigError: the directory does not exist or can't be read.
    """
    try:
        with _files(request, report) as files, tempfile.TemporaryDirectory(prefix="oxproxy-trace-") as work:
            if not files.is_folder(request.input):
                raise ConfigError(request.input, 0, "--input", "no such directory")
            segments = find_segments(files, request.input, request.wants)
            search = _Search(files, Path(work), message_id)
            possible = [segment for segment in segments if segment.path not in search.impossible(report, segments)]
            records = search.publishes(possible)
            records += search.settles(segments, records)
    except StorageError as error:
        raise ConfigError("oxproxy trace", 0, "", str(error)) from error
    ordered = sorted((record for _, record in records), key=lambda record: str(record.get("ts")))
    return Found(ordered, len(possible), len(segments) - len(possible))


class _Search:
    def __init__(self, files: Files, work: Path, message_id: str) -> None:
        self._files = files
        self._work = work
        self._id = message_id

    def impossible(self, report: str | None, segments: Sequence[Segment]) -> set[str]:
        if report is None:
            return set()
        kept = [
            self._files.fetch(entry.path, self._work)
            for entry in self._files.entries(f"{report}/{FOLDER}")
            if entry.name.endswith(".parquet")
        ]
        known = set()
        with duckdb.connect() as duck:
            bits = "octet_length(bloom) * 8"
            places = [f"get_bit(bloom::BIT, {bloom_place('id', n, bits)}::INTEGER) = 0" for n in range(BLOOM_HASHES)]
            for number, file in enumerate(kept):
                batches = duck.execute(f"SELECT data FROM '{file}' WHERE name = 'segments'").fetchall()
                for (data,) in batches:
                    piece = self._work / f"segments-{number}.parquet"
                    piece.write_bytes(data)
                    rows = duck.execute(
                        f"""SELECT path, size, modified FROM (SELECT *, md5_number_lower(?) AS id FROM '{piece}')
                        WHERE bloom IS NULL OR {" OR ".join(places)}""",
                        [self._id],
                    )
                    known.update(rows.fetchall())
        return {segment.path for segment in segments if (segment.path, segment.size, segment.modified) in known}

    def publishes(self, segments: Sequence[Segment]) -> list[tuple[Segment, Record]]:
        """Return the publishes with the message id, each with its segment."""
        written = [json.dumps(self._id), json.dumps(self._id, ensure_ascii=False)]
        return [
            (segment, record)
            for segment in segments
            for record in self._records(segment, written)
            if record.get("message_id") == self._id
        ]

    def settles(self, segments: Sequence[Segment], publishes: Sequence[tuple[Segment, Record]]) -> list[Any]:
        """Return the settle records found in the segment of each publish and in the sidecar's next segment."""
        wanted: dict[str, tuple[Segment, set[tuple[Any, ...]]]] = {}
        for segment, record in publishes:
            series = [other for other in segments if _series(other) == _series(segment)]
            for other in series[series.index(segment) :][:2]:
                wanted.setdefault(other.path, (other, set()))[1].add(_key(record))
        return [
            (segment, record)
            for segment, keys in wanted.values()
            for record in self._records(segment, ['"settle"'])
            if record.get("kind") == "settle" and _key(record) in keys
        ]

    def _records(self, segment: Segment, written: Sequence[str]) -> Iterator[Record]:
        """Yield the records of the lines that contain any of the given strings."""
        local = self._files.fetch(segment.path, self._work)
        content = local.read_bytes()
        local.unlink()
        try:
            for text in texts(inflated(content, segment.path.endswith(".gz"))):
                if any(part in text for part in written):
                    yield from filter(None, map(_record, (x for x in text.split("\n") if any(p in x for p in written))))
        except DamagedError:
            return


def _record(line: str) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _key(record: Record) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("proxy", "conn", "ch", "seq"))


def _series(segment: Segment) -> tuple[str, str]:
    """Return the directory and name that all segments from a sidecar have in common."""
    before, _, name = segment.path.rpartition("/")
    return before.partition("/date=")[0], name.rsplit("-", 2)[0]


@contextmanager
def _files(request: Request, report: str | None) -> Iterator[Files]:
    paths = [path for path in (request.input, report) if path is not None]
    if request.master is None and all(urlsplit(path).scheme in ("", "file") for path in paths):
        yield LocalFiles()
        return
    from proxy.report.session import session
    from proxy.report.storage import Storage

    with session(request) as spark:
        yield Storage(spark)
