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
from dataclasses import dataclass
from pathlib import Path

import structlog

from oxproxy.audit.policy import AuditMode, AuditPolicy
from oxproxy.audit.retention import SegmentCloser
from oxproxy.audit.segments import DIRECTORY_MODE, InstanceLock, open_segments, safe_instance
from oxproxy.audit.writer_thread import NO_FACTS, RETRY_SECONDS, Batch, RotatingLog, WriteResult, WriterThread
from oxproxy.errors import ConfigError
from oxproxy.relay.counters import AuditCounters
from oxproxy.relay.records.audit_record import TimestampText, gap_record
from oxproxy.relay.records.facts_record import FactsTable

_log = structlog.get_logger(__name__)

#: Number of bytes handed to the thread at once. The cost per line is then negligible, and a write takes microseconds.
BATCH_BYTES = 256 << 10
#: Seconds that closing the last segment may take after the deadline. A segment left open is closed at the next start.
_CLOSE_SECONDS = 1.0
#: Seconds between two attempts to lock the instance.
_LOCK_POLL_SECONDS = 0.05
#: Seconds after which a lock is considered to be held by a running instance, unless the lock file shows that its holder
#: is closing old segments. The file is written immediately after locking.
_HELD_SECONDS = 0.5
#: Seconds to wait for another process to close the segments of this instance. A hanging file system may block it.
_OTHER_CLOSES_SECONDS = 30.0
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


class AuditWriter:
    """The audit log of one process. Must be created in the event loop's thread.

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
        self._instance = instance = safe_instance(policy.instance)
        self._closer = SegmentCloser(policy.directory, instance, policy.retention, wall)
        log = make_log(policy, self._closer.close_segment, wall, time.monotonic)
        self._may_lose = policy.mode is AuditMode.BEST_EFFORT
        self._thread = WriterThread(log, self._may_lose, self._from_thread)
        self._claim: InstanceLock | None = None
        self._waits_for_other = False
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._closing = False
        self._batch_bytes = min(BATCH_BYTES, policy.buffer_bytes // 4)
        self._pending: list[bytes] = []
        self._pending_count = 0
        self._pending_size = 0
        self._pending_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: timer that runs while the thread has lines and has not reported a result
        self._stall: asyncio.TimerHandle | None = None
        self._handed_size = 0
        self._sequence = 0
        self._whole = True
        self._gap: _Gap | None = None
        self._gap_under_way: tuple[int, _Gap] | None = None

    @property
    def strict(self) -> bool:
        """True if a publish must not be confirmed before its line is on disk."""
        return self._policy.mode is AuditMode.STRICT

    @property
    def appended(self) -> int:
        """Sequence number of the last appended line. `durable` reaches this number when the line has been written."""
        return self._sequence + self._pending_count

    async def start(self, stopping: asyncio.Event | None = None) -> bool:
        """Lock the directory and start the threads.

        If another process is closing segments that this instance left open, wait until it has finished, at most
        `_OTHER_CLOSES_SECONDS`.

        Args:
            stopping: ends the wait when set.

        Returns:
            False if `stopping` was set during the wait, so that nothing was started.

        Raises:
            ConfigError: the directory can't be created or written, or another process uses the instance name there.
        """
        stopping = stopping or asyncio.Event()
        await asyncio.to_thread(self._make_directory)
        began = self._loop.time()
        left = await asyncio.to_thread(self._lock, 0.0)
        while left is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _LOCK_POLL_SECONDS)
                return False
            left = await asyncio.to_thread(self._lock, self._loop.time() - began)
        self._closer.start(left)
        self._thread.start()
        return True

    def append(self, lines: bytes, count: int = 1) -> None:
        """Append the lines of up to 256 publishes from one read of the socket, or one settle line.

        Args:
            lines: lines that begin with the same ``ts`` and end with a line break.
        """
        self._pending.append(lines)
        self._pending_count += count
        self._pending_size += len(lines)
        if self._timer is None:
            self._pending_since = self._wall()
            self._timer = self._loop.call_later(self._policy.flush_seconds, self._flush)
        if self._pending_size >= self._batch_bytes:
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
        if self._claim is None:
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
        if self._gap is not None:
            _log.error("audit records lost at shutdown", count=self._gap.dropped, reason=self.failure)
        if done and self._ended.is_set():
            self._claim.release()
        else:
            # A thread is still running or a segment is still open, so the lock is released only when the process exits.
            _log.warning("audit segments remain open; they are closed at the next start")

    async def _wait_for_end(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return self._ended.is_set()

    def _make_directory(self) -> None:
        directory = self._policy.directory
        try:
            # Parents are not created: a missing parent means that a volume is not mounted, or that the name is wrong.
            directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        except FileNotFoundError:
            raise self._fault(f"can't be created: there is no directory {directory.parent}") from None
        except FileExistsError:
            raise self._fault("is not a directory") from None
        except OSError as error:
            raise self._fault(f"can't be created: {error.strerror or error}") from error

    def _lock(self, waited_seconds: float) -> list[Path] | None:
        """Try to lock the instance, and return the segments that an earlier process left open.

        Return None if another process holds the lock and may release it soon.
        """
        directory = self._policy.directory
        try:
            self._claim = InstanceLock.acquire(directory, self._instance)
            if self._claim is not None:
                return open_segments(directory).get(self._instance, [])
            ends_soon = InstanceLock.is_for_closing(directory, self._instance)
        except OSError as error:
            raise self._fault(f"can't be written: {error.strerror or error}") from error
        if not ends_soon and waited_seconds > _HELD_SECONDS:
            raise self._fault(
                f"another process is already writing to this directory as {self._policy.instance}; names must be unique"
            )
        if waited_seconds > _OTHER_CLOSES_SECONDS:
            raise self._fault(
                f"can't be written: another process has been closing old segments for {_OTHER_CLOSES_SECONDS:g} s"
            )
        if ends_soon and not self._waits_for_other:
            self._waits_for_other = True
            text = "waiting for another process to close old audit segments"
            _log.warning(text, instance=self._policy.instance)
        return None

    def _fault(self, message: str) -> ConfigError:
        return ConfigError(str(self._policy.directory), 0, "audit.directory", message)

    def _flush(self) -> None:
        self._timer = None
        self._hand_over()

    def _hand_over(self) -> None:
        lines, count, size = self._pending, self._pending_count, self._pending_size
        if not lines:
            return
        since, self._pending_since = self._pending_since, self._wall()
        self._pending, self._pending_count, self._pending_size = [], 0, 0
        # The size includes new records of facts, so that the buffer's limit includes their memory.
        facts, facts_size = self._facts.take_used() if self._facts is not None else (NO_FACTS, 0)
        size += facts_size
        full = self._handed_size + size > self._policy.buffer_bytes
        if self._closing or (self._may_lose and full):
            self._drop(_Gap(count, since, self._pending_since))
            return
        self._put(lines, count, size, since, self._pending_since, facts)
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
        self._remember(gap)
        _log.warning("audit records dropped", count=gap.dropped, reason=self.failure or "slow", repeat="audit")

    def _remember(self, gap: _Gap) -> None:
        if self._gap is None:
            self._gap = gap
        else:
            self._gap.add(gap)

    def _emit_gap(self) -> None:
        """Write a record that reports dropped lines, unless such a record is already being written."""
        gap = self._gap
        if gap is None or self._closing or self._gap_under_way is not None:
            return
        now = self._wall()
        since, until = TimestampText()(gap.since), TimestampText()(gap.until)
        line = gap_record(self._timestamp(now), self._policy.instance, gap.dropped, since, until)
        self._put([line], 1, len(line), now, now)
        self._gap, self._gap_under_way = None, (self._sequence, gap)

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
        lost = report.lost
        if self._gap_under_way is not None and self._gap_under_way[0] <= report.sequence and report.lines:
            sequence, gap = self._gap_under_way
            self._gap_under_way = None
            if sequence > report.sequence - report.lost:
                lost -= 1
                self._remember(gap)
        if report.lost:
            self._whole = False
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
