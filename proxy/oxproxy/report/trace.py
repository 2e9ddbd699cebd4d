"""Finds all records of one message in the audit log, for ``oxproxy trace``.

Open segments, which a sidecar is still writing, are searched too. Spark is started only for file systems that require
Spark, and runs no jobs.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from oxproxy.report.files.storage import Entry, find_segments, translated
from oxproxy.report.partials import DamagedError, texts
from oxproxy.report.request import Request
from oxproxy.report.session import LazySession, Run, opened
from oxproxy.report.store import Partials

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
    with LazySession(request) as session, opened(session, request, "oxproxy trace") as run:
        segments = find_segments(run.storage, request.input, request.lists, with_open=True)
        searched = [at for at in segments if at.day is None or request.wants(at.day)]
        without = set(Partials(run).without(message_id, searched) if request.output else ())
        possible = [at for at in searched if at not in without]
        run.progress.step("searching segments", len(possible))
        publishes = [
            (segment, record)
            for run.progress.done, segment in enumerate(possible)
            for record in _records(run, segment, [message_id])
            if record.get("message_id") == message_id
        ]
        records = publishes + _settles(run, message_id, segments, publishes)
    different = {json.dumps(record): record for _, record in records}.values()  # segments may have been copied
    ordered = sorted(different, key=lambda record: str(record.get("ts")))
    return Found(ordered, len(possible), len(searched) - len(possible))


def _settles(
    run: Run, message_id: str, segments: Sequence[Entry], publishes: Sequence[tuple[Entry, Record]]
) -> list[tuple[Entry, Record]]:
    """Return the settle records found in the segment of each publish and in the sidecar's next segment.

    If a channel number is reused, the numbering of its publishes restarts. A settle record therefore belongs to the
    last preceding publish with its number.
    """
    wanted: dict[Entry, set[str]] = {}
    conns = {str(record.get("conn")) for _, record in publishes}
    for segment, record in publishes:
        series = [other for other in segments if _series(other) == _series(segment)]
        for other in series[series.index(segment) :][:2]:
            wanted.setdefault(other, set()).add(_key(record))
    found = []
    last: dict[str, bool] = {}  # by key: whether the last publish belongs to the message
    for segment in sorted(wanted, key=segments.index):
        for record in _records(run, segment, conns):
            key = _key(record)
            if key not in wanted[segment]:
                continue
            if record.get("kind") == "publish":
                last[key] = record.get("message_id") == message_id
            elif record.get("kind") == "settle" and last.get(key):
                found.append((segment, record))
    return found


def _records(run: Run, segment: Entry, values: Iterable[object]) -> Iterator[Record]:
    """Yield the records of the lines that contain any of the given values, up to the first damage."""
    written = [form for value in values for form in (json.dumps(value), json.dumps(value, ensure_ascii=False))]
    segment, file = _opened(run, segment)
    if file is None:
        return
    with translated(segment.path), suppress(DamagedError), file:
        for text in map(bytes.decode, texts(segment, file)):
            if any(part in text for part in written):
                for line in text.split("\n"):
                    if any(part in line for part in written):
                        with suppress(ValueError, RecursionError):  # not a record
                            if isinstance(record := json.loads(line), dict):
                                yield record


def _opened(run: Run, segment: Entry) -> tuple[Entry, io.BufferedReader | None]:
    """Open a segment's file, which may have been closed since it was listed; None if retention has removed it."""
    for path in dict.fromkeys((segment.path, segment.closed_path)):
        local = run.storage.fetch(path, run.work)
        with translated(path), suppress(FileNotFoundError):
            file = local.open("rb")
            local.unlink()
            return replace(segment, path=path), file
    return segment, None


def _key(record: Record) -> str:
    return json.dumps([record.get(name) for name in ("proxy", "conn", "ch", "seq")])


def _series(segment: Entry) -> tuple[str, str]:
    """Return the directory and name that all segments from a sidecar have in common."""
    before, _, name = segment.closed_path.rpartition("/")
    return before.partition("/date=")[0], name.rsplit("-", 2)[0]
