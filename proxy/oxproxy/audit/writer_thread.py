"""Writes batches of audit records to the current segment, in a thread, and handles disk errors.

The thread takes all batches from its queue and writes them as one group, with one system call and, in strict mode, one
sync (group commit). In `best_effort` mode, the lines of a failed write are dropped and reported; in the other modes,
the write is retried until `give_up` is called. A failed write leaves no partially written lines.

Every line is written to the directory of its hour, which is read from the line's first field. A segment is closed when
the next lines would make it too large, when it has been open for the maximum time, or when its hour is over.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from errno import EDQUOT, ENOSPC
from itertools import accumulate
from pathlib import Path
from queue import Empty, SimpleQueue
from types import MappingProxyType

import structlog

from oxproxy.audit.policy import AuditMode, AuditPolicy
from oxproxy.audit.segments import OpenSegment, safe_instance
from oxproxy.relay.records.audit_record import HOUR, TIME

_log = structlog.get_logger(__name__)

#: Maximum number of bytes written by one system call and synced together. A higher limit would only use more memory.
GROUP_BYTES = 4 << 20
#: Seconds between two attempts to write to a full or broken disk.
RETRY_SECONDS = 1.0
#: Seconds for which a segment stays open after its hour, so that the hour's last lines don't need another segment.
_GRACE_SECONDS = 2.0
NO_FACTS: Mapping[int, bytes] = MappingProxyType({})
_NO_SPACE = (ENOSPC, EDQUOT)
_is_hour = re.compile(rb"\d{4}-\d\d-\d\dT\d\d").fullmatch


class RotatingLog:
    """Writes the lines of one sidecar to the open segment, and starts a new segment when necessary.

    Args:
        closed: called with the path of each finished segment.
        wall: returns seconds since 1970.
        timer: returns monotonic seconds.
        make: creates a segment; replaced in tests.
    """

    def __init__(
        self,
        policy: AuditPolicy,
        closed: Callable[[Path], None],
        wall: Callable[[], float],
        timer: Callable[[], float],
        make: Callable[[Path, str, str, float], OpenSegment] = OpenSegment.create,
    ) -> None:
        self._policy = policy
        self._closed = closed
        self._wall = wall
        self._timer = timer
        self._make = make
        start = datetime.fromtimestamp(wall(), UTC).strftime("%Y%m%dT%H%M%S%fZ")
        self._name = f"audit-{safe_instance(policy.instance)}-{start}"
        self._number = 0
        self._segment: OpenSegment | None = None
        #: numbers of the records of facts in the open segment
        self._facts: set[int] = set()

    def write(self, lines: list[bytes], facts: Mapping[int, bytes] = NO_FACTS) -> None:
        """Write lines. Written lines are removed from the list, even if an error is raised.

        Args:
            lines: groups of whole lines, ordered by time. The lines of a group have the same time.
            facts: the records of facts, by number, to which the lines may refer, without their beginnings
                (`FactsRecord.line`). Those that the segment does not contain yet are written before the lines.

        Raises:
            OSError: the remaining lines have not been written.
        """
        while lines:
            hour, count, data = self._first_run(lines)
            time = lines[0][TIME]
            segment = self._segment_for(hour, len(data) + len(self._missing(facts, time)))
            data = self._missing(facts, time) + data
            before = segment.size
            try:
                segment.write(data)
                if self._policy.mode is AuditMode.STRICT:
                    segment.sync()
            except OSError as error:
                # If the disk is full, the segment stays open. After any other error, its state is unknown.
                if not segment.restore(before) or error.errno not in _NO_SPACE:
                    self.end_segment()
                raise
            self._facts.update(facts)
            del lines[:count]

    def _missing(self, facts: Mapping[int, bytes], time: bytes) -> bytes:
        """Return the records of facts that the open segment does not contain; all, if no segment is open.

        Args:
            time: the beginning of the records, up to the end of their time.
        """
        return b"".join([time + facts[number] for number in sorted(facts.keys() - self._facts)])

    def wait_seconds(self) -> float | None:
        """Return the seconds until `tick` has to be called; None while no segment is open."""
        segment = self._segment
        if segment is None:
            return None
        by_age = segment.opened + self._policy.segment_seconds - self._timer()
        by_hour = _seconds_to_end(segment.hour, self._wall()) + _GRACE_SECONDS
        return max(0.0, min(by_age, by_hour))

    def tick(self) -> None:
        """Close the segment if it has been open for the maximum time or its hour is over; see `end_segment`."""
        if self.wait_seconds() == 0.0:
            self.end_segment()

    def end_segment(self) -> None:
        """Close the open segment, if there is one, and pass its path to `closed`. The next write opens another segment.

        Raises:
            OSError: closing failed; `closed` has been called nevertheless.
        """
        segment, self._segment = self._segment, None
        self._facts.clear()
        if segment is not None:
            try:
                segment.close()
            finally:
                self._closed(segment.path)

    def _first_run(self, lines: list[bytes]) -> tuple[str, int, bytes]:
        """Return the hour of the first group, the number of groups to write together, and their text."""
        hour = lines[0][HOUR]
        count = len(lines)
        if lines[-1][HOUR] != hour:
            count = next(number for number, group in enumerate(lines) if group[HOUR] != hour)
        data = b"".join(lines[:count])
        limit = self._policy.segment_bytes
        if len(data) > limit:
            if len(lines[0]) > limit:
                lines[:1] = lines[0].splitlines(keepends=True)
            sizes = accumulate(map(len, lines))
            count = max(1, next(number for number, size in enumerate(sizes) if size > limit))
            data = b"".join(lines[:count])
        if _is_hour(hour):
            return hour.decode(), count, data
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H"), count, data

    def _segment_for(self, hour: str, size: int) -> OpenSegment:
        segment = self._segment
        if segment is not None:
            too_large = segment.size and segment.size + size > self._policy.segment_bytes
            too_old = self._timer() - segment.opened >= self._policy.segment_seconds
            if segment.hour != hour or too_large or too_old:
                self.end_segment()
        if self._segment is None:
            self._number += 1
            name = f"{self._name}-{self._number:06d}"
            self._segment = self._make(self._policy.directory, hour, name, self._timer())
        return self._segment


def _seconds_to_end(hour: str, now: float) -> float:
    begin = datetime.fromisoformat(f"{hour}:00:00").replace(tzinfo=UTC)
    return begin.timestamp() + 3600 - now


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines handed to the thread.

    Args:
        lines: groups of whole lines.
        sequence: sequence number of the last line, counting all lines that were handed over.
        size: size of the lines in bytes.
        since: time of the first line, in seconds since 1970.
        until: time of the last line.
        facts: the records of facts to which the lines refer, by number.
    """

    lines: list[bytes]
    count: int
    sequence: int
    size: int
    since: float
    until: float
    facts: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of writing a group of batches.

    Args:
        sequence: sequence number of the last line.
        lines: number of lines; 0 while the write is being retried.
        size: size of the lines in bytes.
        lost: number of dropped lines. These are the last lines of the group.
        lost_size: size of the dropped lines in bytes.
        since: time of the first dropped line, in seconds since 1970.
        until: time of the last dropped line.
        error: the disk's error; None if there was none.
    """

    sequence: int
    lines: int = 0
    size: int = 0
    lost: int = 0
    lost_size: int = 0
    since: float = 0.0
    until: float = 0.0
    error: str | None = None


class WriterThread:
    """The writer thread.

    Args:
        log: the log, used only by this thread.
        may_lose: whether lines that the disk rejects are dropped without a retry.
        report: called in this thread with the result of each group, and at the end with None.
    """

    def __init__(self, log: RotatingLog, may_lose: bool, report: Callable[[WriteResult | None], None]) -> None:
        self._log = log
        self._may_lose = may_lose
        self._report = report
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, batch: Batch) -> None:
        """Hand over lines. Can be called from any thread, and never blocks. The caller must limit the queued bytes."""
        self._queue.put(batch)

    def stop(self) -> None:
        """Write everything that was handed over, then stop."""
        self._queue.put(None)

    def give_up(self) -> None:
        """Stop retrying failed writes."""
        self._give_up.set()

    def _run(self) -> None:
        try:
            stopping = False
            while not stopping:
                group, stopping = self._next_group()
                if group:
                    self._write(group)
                self._end(self._log.tick)
            self._end(self._log.end_segment)
        finally:
            self._report(None)

    def _end(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            # Closing is not retried, so the error must not count as a failure that lasts until the next write.
            _log.error("audit segment can't be closed", reason=str(error), repeat="close")

    def _next_group(self) -> tuple[list[Batch], bool]:
        """Wait for a batch and take all others in the queue; return the batches, and whether to stop."""
        group: list[Batch] = []
        size = 0
        try:
            batch = self._queue.get(timeout=self._log.wait_seconds())
            while batch is not None:
                group.append(batch)
                size += batch.size
                if size >= GROUP_BYTES:
                    return group, False
                batch = self._queue.get_nowait()
        except Empty:
            return group, False
        return group, True

    def _write(self, group: list[Batch]) -> None:
        lines = group[0].lines if len(group) == 1 else [line for batch in group for line in batch.lines]
        facts = {number: record for batch in group for number, record in batch.facts.items()}
        sequence = group[-1].sequence
        count = sum(batch.count for batch in group)
        size = sum(batch.size for batch in group)
        while True:
            try:
                self._log.write(lines, facts)
            except OSError as error:
                if self._may_lose or self._give_up.is_set():
                    lost = sum(part.count(b"\n") for part in lines)
                    lost_size = sum(map(len, lines))
                    ends = accumulate(batch.count for batch in group)
                    since = next(batch.since for batch, end in zip(group, ends, strict=True) if end > count - lost)
                    times = since, group[-1].until
                    self._report(WriteResult(sequence, count, size, lost, lost_size, *times, str(error)))
                    return
                self._report(WriteResult(sequence, error=str(error)))
                self._give_up.wait(RETRY_SECONDS)
            else:
                self._report(WriteResult(sequence, count, size))
                return
