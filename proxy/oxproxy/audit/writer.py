"""Buffers audit records in the event loop and hands them to the writer thread in batches.

`append` adds lines to a list, and whole batches are passed to the thread (`writer_thread`). If the disk or the thread
can't keep up, `best_effort` mode drops and counts lines; `backpressure` and `strict` modes set `full`, so that
producers are paused. `strict` mode also reports which lines are on disk, so that a publish is confirmed only after its
line is on disk. Every buffer is bounded. This module runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from oxproxy.audit.claim import InstanceClaim
from oxproxy.audit.policy import AuditMode, AuditPolicy
from oxproxy.audit.retention import SegmentCloser
from oxproxy.audit.segments import safe_instance
from oxproxy.audit.writer_thread import NO_FACTS, RETRY_SECONDS, Batch, RotatingLog, WriteResult, WriterThread
from oxproxy.relay.counters import AuditCounters
from oxproxy.relay.records.audit_record import TimestampText, gap_record
from oxproxy.relay.records.facts_record import FactsTable

_log = structlog.get_logger(__name__)

#: Number of bytes handed to the thread at once. The cost per line is then negligible, and a write takes microseconds.
BATCH_BYTES = 256 << 10
#: Seconds that closing the last segment may take after the deadline. A segment left open is closed at the next start.
_CLOSE_SECONDS = 1.0
#: Seconds after which an unresponsive disk counts as failing, since a hanging write raises no error.
STALL_SECONDS = 5.0


@dataclass(slots=True)
class _Gap:
    """Dropped lines: their number, and the times of the first and the last (seconds since 1970)."""

    dropped: int
    since: float
    until: float

    def add(self, other: _Gap) -> None:
        self.dropped += other.dropped
        self.since = min(self.since, other.since)
        self.until = max(self.until, other.until)


class _Gaps:
    """Dropped lines. Each of them is counted by exactly one gap record on disk, or is still unreported."""

    def __init__(self) -> None:
        self.unreported: _Gap | None = None
        #: the gap record that is being written, and the sequence number of its line
        self.under_way: tuple[int, _Gap] | None = None

    def add(self, gap: _Gap) -> None:
        if self.unreported is None:
            self.unreported = gap
        else:
            self.unreported.add(gap)

    @property
    def to_report(self) -> _Gap | None:
        """The gap for which a record must be written now; None while another record is being written."""
        return self.unreported if self.under_way is None else None

    def report(self, sequence: int) -> None:
        """Record that the line with this sequence number reports `to_report`."""
        if self.unreported is not None:
            self.under_way, self.unreported = (sequence, self.unreported), None

    def written(self, report: WriteResult) -> int:
        """Process a report from the thread; return the number of lost lines that are not gap records."""
        if self.under_way is None or self.under_way[0] > report.sequence or not report.lines:
            return report.lost
        sequence, gap = self.under_way
        self.under_way = None
        if sequence <= report.sequence - report.lost:
            return report.lost
        self.add(gap)
        return report.lost - 1


@dataclass(slots=True)
class _Pending:
    """Lines that have not been handed to the thread: their number and size, and the time of the first."""

    lines: list[bytes] = field(default_factory=list)
    count: int = 0
    size: int = 0
    since: float = 0.0

    def add(self, lines: bytes, count: int) -> None:
        self.lines.append(lines)
        self.count += count
        self.size += len(lines)


class AuditWriter:
    """The audit log of one process. Must be created in the event loop's thread.

    The attributes beyond its parts belong to one state machine: what was handed to the thread and what it reported.

    Args:
        wall: returns seconds since 1970.
        make_log: creates the log; replaced in tests.
        facts: the facts to which lines refer; None if facts are not recorded.

    Attributes:
        full: True while the sidecar should not read from producers (never in best_effort mode).
        durable: sequence number up to which every line is written or, in strict mode, is on disk.
        failure: the error, while the disk rejects lines or does not respond; otherwise None.
        on_full: called with `full` when it has changed.
        on_durable: called with `durable` whenever it has increased.
        on_failing: called when `failure` changes from None to an error.
    """

    def __init__(
        self,
        policy: AuditPolicy,
        counters: AuditCounters,
        wall: Callable[[], float] = time.time,
        make_log: Callable[..., RotatingLog] = RotatingLog,
        facts: FactsTable | None = None,
    ) -> None:
        self.full = False
        self.durable = 0
        self.failure: str | None = None
        self.on_full: Callable[[bool], None] = _ignore
        self.on_durable: Callable[[int], None] = _ignore
        self.on_failing: Callable[[], None] = _nothing
        self._policy = policy
        self._counters = counters
        self._facts = facts
        self._wall = wall
        self._timestamp = TimestampText()
        self._closer = SegmentCloser(policy.directory, safe_instance(policy.instance), policy.retention, wall)
        log = make_log(policy, self._closer.close_segment, wall, time.monotonic)
        self._may_lose = policy.mode is AuditMode.BEST_EFFORT
        self._thread = WriterThread(log, self._may_lose, self._from_thread)
        self._claim = InstanceClaim(policy)
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._closing = False
        self._batch_bytes = min(BATCH_BYTES, policy.buffer_bytes // 4)
        self._pending = _Pending()
        self._timer: asyncio.TimerHandle | None = None
        #: timer that runs while the thread has lines and has not reported a result
        self._stall: asyncio.TimerHandle | None = None
        self._handed_size = 0
        self._sequence = 0
        self._whole = True
        self._gaps = _Gaps()

    @property
    def strict(self) -> bool:
        """True if a publish must not be confirmed before its line is on disk."""
        return self._policy.mode is AuditMode.STRICT

    @property
    def appended(self) -> int:
        """Sequence number of the last appended line. `durable` reaches this number when the line has been written."""
        return self._sequence + self._pending.count

    async def start(self, stopping: asyncio.Event | None = None) -> bool:
        """Lock the directory and start the threads.

        Args:
            stopping: ends the wait for another process when set (see `InstanceClaim.take`).

        Returns:
            False if `stopping` was set during the wait, so that nothing was started.

        Raises:
            ConfigError: the directory can't be created or written, or another process uses the instance name there.
        """
        left = await self._claim.take(stopping or asyncio.Event())
        if left is None:
            return False
        self._closer.start(left)
        self._thread.start()
        return True

    def append(self, lines: bytes, count: int = 1) -> None:
        """Append the lines of up to 256 publishes from one read of the socket, or one settle line.

        Args:
            lines: lines that begin with the same ``ts`` and end with a line break.
        """
        pending = self._pending
        pending.add(lines, count)
        if self._timer is None:
            pending.since = self._wall()
            self._timer = self._loop.call_later(self._policy.flush_seconds, self._flush)
        if pending.size >= self._batch_bytes:
            self._hand_over()

    def commit_point(self) -> int:
        """Hand appended lines to the thread; return the value that `durable` reaches when they have been written."""
        self._hand_over()
        return self._sequence

    async def close(self, deadline_seconds: float) -> None:
        """Write appended lines, close the last segment and stop the threads.

        Args:
            deadline_seconds: longest time to wait for the disk. Lines that the disk still rejects at the deadline are
                lost and counted. Segments that are written but not yet visible are closed at the next start.
        """
        if not self._claim.held:
            return
        self._hand_over()
        self._emit_gap()
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        began = time.monotonic()
        self._thread.stop()
        if not await self._wait_for_end(deadline_seconds):
            self._thread.give_up()
            await self._wait_for_end(_CLOSE_SECONDS)
        left = max(_CLOSE_SECONDS, began + deadline_seconds - time.monotonic())
        done = await asyncio.to_thread(self._closer.stop, left)
        if self._gaps.unreported is not None:
            _log.error("audit records lost at shutdown", count=self._gaps.unreported.dropped, reason=self.failure)
        if done and self._ended.is_set():
            self._claim.release()
        else:
            # A thread is still running or a segment is still open, so the lock is released only when the process exits.
            _log.warning("audit segments remain open; they are closed at the next start")

    async def _wait_for_end(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return self._ended.is_set()

    def _flush(self) -> None:
        self._timer = None
        self._hand_over()

    def _hand_over(self) -> None:
        batch, until = self._pending, self._wall()
        if not batch.lines:
            return
        self._pending = _Pending(since=until)
        # The size includes new records of facts, so that the buffer's limit includes their memory.
        facts, facts_size = self._facts.take_used() if self._facts is not None else (NO_FACTS, 0)
        size = batch.size + facts_size
        full = self._handed_size + size > self._policy.buffer_bytes
        if self._closing or (self._may_lose and full):
            self._drop(_Gap(batch.count, batch.since, until))
            return
        self._put(batch.lines, batch.count, size, batch.since, until, facts)
        if full and not self.full:
            _log.warning("audit log can't keep up; producers are paused", reason=self.failure, repeat="audit")
            self._set_full(True)

    def _put(
        self,
        lines: list[bytes],
        count: int,
        size: int,
        since: float,
        until: float,
        facts: Mapping[int, bytes] = NO_FACTS,
    ) -> None:
        self._sequence += count
        self._handed_size += size
        self._thread.put(Batch(lines, count, self._sequence, size, since, until, facts))
        if self._stall is None:
            self._stall = self._loop.call_later(STALL_SECONDS, self._stalled)

    def _drop(self, gap: _Gap) -> None:
        self._counters.dropped += gap.dropped
        self._gaps.add(gap)
        _log.warning("audit records dropped", count=gap.dropped, reason=self.failure or "slow", repeat="audit")

    def _emit_gap(self) -> None:
        """Write a record that reports dropped lines, unless such a record is already being written."""
        gap = None if self._closing else self._gaps.to_report
        if gap is None:
            return
        now = self._wall()
        since, until = TimestampText()(gap.since), TimestampText()(gap.until)
        line = gap_record(self._timestamp(now), self._policy.instance, gap.dropped, since, until)
        self._put([line], 1, len(line), now, now)
        self._gaps.report(self._sequence)

    def _from_thread(self, report: WriteResult | None) -> None:
        """Pass a report from the thread to the event loop."""
        with suppress(RuntimeError):  # the loop is closed, so the report is no longer needed
            self._loop.call_soon_threadsafe(self._on_report, report)

    def _on_report(self, report: WriteResult | None) -> None:
        if report is None:
            self._on_end()
            return
        self._handed_size -= report.size
        self._heard()
        self._counters.lines += report.lines - report.lost
        self._counters.text_bytes += report.size - report.lost_size
        self._on_health(report.error)
        self._count_lost(report)
        if report.lines and self._whole:
            self.durable = report.sequence
            self.on_durable(report.sequence)
        if self.full and self._handed_size <= self._policy.buffer_bytes // 2:
            self._set_full(False)

    def _set_full(self, full: bool) -> None:
        self.full = full
        self.on_full(full)

    def _heard(self) -> None:
        """Restart the stall timer after a report from the thread."""
        if self._stall is not None:
            self._stall.cancel()
        self._stall = self._loop.call_later(STALL_SECONDS, self._stalled) if self._handed_size else None

    def _stalled(self) -> None:
        self._stall = None
        self._on_health(f"the disk has not responded for {STALL_SECONDS:g} s")

    def _on_health(self, error: str | None) -> None:
        if error is not None:
            mode = self._policy.mode.value
            _log.error("audit log can't be written", reason=error, mode=mode, repeat="audit")
        elif self.failure is not None:
            _log.info("audit log can be written again", repeat="audit")
        self._fails(error)

    def _fails(self, reason: str | None) -> None:
        began = reason is not None and self.failure is None
        self.failure = reason
        self._counters.failing = reason is not None
        if began:
            self.on_failing()

    def _count_lost(self, report: WriteResult) -> None:
        """Account for lines that the disk rejected, including gap records."""
        if report.lost:
            self._whole = False
        lost = self._gaps.written(report)
        if report.lost:
            if lost:
                self._drop(_Gap(lost, report.since, report.until))
            self._loop.call_later(RETRY_SECONDS, self._emit_gap)
        elif report.lines and self._handed_size <= self._policy.buffer_bytes // 2:
            self._emit_gap()

    def _on_end(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
        if not self._closing:
            self._fails("the writer thread has ended")
            self._closing = True
            _log.critical("audit log is no longer written", reason=self.failure)
            if not self._may_lose and not self.full:
                self._set_full(True)
        self._ended.set()


def _nothing() -> None:
    return


def _ignore(_value: int) -> None:
    return
