"""Buffers audit lines in the event loop and hands them to the writer thread in batches.

`append` puts a line into a list; whole batches go to the thread (`writer_thread`). When the disk or the thread can't
keep up, `best_effort` drops and counts lines; `backpressure` and `strict` set `full`, so that producers are not read.
`strict` also reports which lines are on disk, so that confirms can wait for theirs. Every buffer has a bound. All of it
runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import structlog

from proxy.audit.record import LineRenderer, TimestampText
from proxy.audit.retention import Retention, SegmentCloser
from proxy.audit.segments import DIRECTORY_MODE, InstanceLock, open_segments, safe_instance
from proxy.audit.writer_thread import (
    MAX_SEGMENT_BYTES,
    RETRY_SECONDS,
    Batch,
    RotatingLog,
    RotationSettings,
    WriteResult,
    WriterThread,
)
from proxy.errors import ConfigError
from proxy.relay.counters import AuditCounters

#: Bytes handed to the thread at once: a hand-over then costs nothing per line, and a write takes microseconds.
BATCH_BYTES = 256 << 10
#: Seconds that closing the last segment may take beyond the deadline; the next start does what is left.
_CLOSE_SECONDS = 1.0
#: Seconds after which a disk that has not answered counts as failing: a write that hangs raises no error.
STALL_SECONDS = 5.0


class AuditMode(Enum):
    """What happens when disk or thread can't keep up."""

    BEST_EFFORT = "best_effort"  # traffic first: lines are dropped and counted
    BACKPRESSURE = "backpressure"  # every line is written: producers wait
    STRICT = "strict"  # every line is on disk before its publish is confirmed


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """How the log is kept.

    Args:
        directory: the audit directory; made where its parent exists.
        instance: name of this sidecar; no two that write to one directory share it.
        mode: what is promised.
        buffer_bytes: lines that wait for the disk; beyond it the mode's answer.
        flush_seconds: longest time that a line waits to be handed to the thread.
        segment_bytes: most bytes of text in a segment, up to 128 MiB.
        segment_seconds: longest time that a segment is open.
        retention: how much is kept.
    """

    directory: Path
    instance: str
    mode: AuditMode = AuditMode.BEST_EFFORT
    buffer_bytes: int = 32 << 20
    flush_seconds: float = 0.1
    segment_bytes: int = MAX_SEGMENT_BYTES
    segment_seconds: float = 300.0
    retention: Retention = field(default_factory=Retention)


@dataclass(slots=True)
class _Gap:
    """Lines given up: how many, when the first, when the last (seconds since 1970)."""

    dropped: int
    since: float
    until: float

    def add(self, other: _Gap) -> None:
        self.dropped += other.dropped
        self.since = min(self.since, other.since)
        self.until = max(self.until, other.until)


class AuditWriter:
    """The audit log of one process. Made where the event loop runs.

    Args:
        policy: how it is kept.
        counters: what is counted of it.
        wall: gives seconds since 1970.
        make_log: makes what writes; a test may fail there.

    Attributes:
        full: producers should not be read now (never in best_effort).
        durable: sequence up to which every line is written; in strict, is on disk.
        failure: what the disk says while it refuses lines, or that it does not answer; else None.
        on_full: called when `full` becomes true.
        on_drained: called when it becomes false again.
        on_durable: called with `durable` whenever that has grown.
        on_failing: called when `failure` is no longer None.
    """

    def __init__(
        self,
        policy: AuditPolicy,
        counters: AuditCounters,
        wall: Callable[[], float] = time.time,
        make_log: Callable[..., RotatingLog] = RotatingLog,
    ) -> None:
        self.full = False
        self.durable = 0
        self.failure: str | None = None
        self.on_full: Callable[[], None] = _nothing
        self.on_drained: Callable[[], None] = _nothing
        self.on_durable: Callable[[int], None] = _ignore
        self.on_failing: Callable[[], None] = _nothing
        self._policy = policy
        self._counters = counters
        self._wall = wall
        self._records = LineRenderer(policy.instance)
        self._timestamp = TimestampText()
        self._instance = instance = safe_instance(policy.instance)
        self._closer = SegmentCloser(policy.directory, instance, policy.retention, wall)
        size = min(policy.segment_bytes, MAX_SEGMENT_BYTES)
        sync = policy.mode is AuditMode.STRICT
        layout = RotationSettings(policy.directory, instance, size, policy.segment_seconds, sync)
        log = make_log(layout, self._closer.close_segment, wall, time.monotonic)
        self._may_lose = policy.mode is AuditMode.BEST_EFFORT
        self._thread = WriterThread(log, self._may_lose, self._from_thread)
        self._claim: InstanceLock | None = None
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._closing = False
        self._batch_bytes = min(BATCH_BYTES, policy.buffer_bytes // 4)
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._pending_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: runs while the thread has lines and says nothing
        self._stall: asyncio.TimerHandle | None = None
        self._handed_size = 0
        self._sequence = 0
        self._whole = True
        self._gap: _Gap | None = None
        self._gap_under_way: tuple[int, _Gap] | None = None

    @property
    def strict(self) -> bool:
        """Whether no publish may be confirmed before its line is on disk."""
        return self._policy.mode is AuditMode.STRICT

    @property
    def appended(self) -> int:
        """Number of the last line that was appended; `durable` will have reached it when that is written."""
        return self._sequence + len(self._pending)

    async def start(self) -> None:
        """InstanceLock the directory and start the threads.

        Raises:
            ConfigError: the directory can't be made, is full or not writable, or another process writes there under
                the same instance name.
        """
        left = await asyncio.to_thread(self._prepare)
        self._closer.start(left)
        self._thread.start()

    def append(self, line: bytes) -> None:
        """Take one line, with its line break, beginning with its ``ts``; the publish path calls this."""
        self._pending.append(line)
        self._pending_size += len(line)
        if self._timer is None or self._pending_size >= self._batch_bytes:
            self._crossed()

    def commit_point(self) -> int:
        """Hand over what was appended, and give the sequence that `durable` will have reached when it is written."""
        self._hand_over()
        return self._sequence

    async def close(self, deadline_seconds: float) -> None:
        """Write what was appended, show the last segment and end the threads.

        Args:
            deadline_seconds: longest time to wait for the disk. What it still refuses then is lost and counted;
                what is written and not shown yet is shown by the next start.
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
            _log().error("audit lines lost at the end", count=self._gap.dropped, reason=self.failure)
        if done and self._ended.is_set():
            self._claim.release()
        else:
            # A thread is still at work: the claim ends with the process, and no sooner.
            _log().warning("audit segments are left open; the next start closes them")

    async def _wait_for_end(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return self._ended.is_set()

    def _prepare(self) -> list[Path]:
        """Check the directory and claim the instance; what an earlier process of this name left open."""
        directory = self._policy.directory
        try:
            # The directory alone: where its parent is missing, a volume is not mounted or a name is wrong.
            directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        except FileNotFoundError:
            raise self._fault(f"can't be made: there is no directory {directory.parent}") from None
        except FileExistsError:
            raise self._fault("is no directory") from None
        except OSError as error:
            raise self._fault(f"can't be made: {error.strerror or error}") from error
        try:
            self._claim = InstanceLock.acquire(directory, self._instance)
            if self._claim is not None:
                return open_segments(directory).get(self._instance, [])
        except OSError as error:
            raise self._fault(f"can't be written: {error.strerror or error}") from error
        raise self._fault(f"another process writes here as {self._policy.instance}; names must differ")

    def _fault(self, message: str) -> ConfigError:
        return ConfigError(str(self._policy.directory), 0, "audit.directory", message)

    def _crossed(self) -> None:
        """Begin or end a batch."""
        if self._timer is None:
            self._pending_since = self._wall()
            self._timer = self._loop.call_later(self._policy.flush_seconds, self._flush)
        if self._pending_size >= self._batch_bytes:
            self._hand_over()

    def _flush(self) -> None:
        self._timer = None
        self._hand_over()

    def _hand_over(self) -> None:
        lines, size = self._pending, self._pending_size
        if not lines:
            return
        since, self._pending_since = self._pending_since, self._wall()
        self._pending, self._pending_size = [], 0
        full = self._handed_size + size > self._policy.buffer_bytes
        if self._closing or (self._may_lose and full):
            self._drop(_Gap(len(lines), since, self._pending_since))
            return
        self._put(lines, size)
        if full and not self.full:
            self.full = True
            _log().warning("audit log can't keep up, producers wait", reason=self.failure, repeat="audit")
            self.on_full()

    def _put(self, lines: list[bytes], size: int) -> None:
        self._sequence += len(lines)
        self._handed_size += size
        self._thread.put(Batch(lines, self._sequence, size))
        if self._stall is None:
            self._stall = self._loop.call_later(STALL_SECONDS, self._stalled)

    def _drop(self, gap: _Gap) -> None:
        self._counters.dropped += gap.dropped
        self._remember(gap)
        _log().warning("audit lines dropped", count=gap.dropped, reason=self.failure or "slow", repeat="audit")

    def _remember(self, gap: _Gap) -> None:
        if self._gap is None:
            self._gap = gap
        else:
            self._gap.add(gap)

    def _emit_gap(self) -> None:
        """Say in the log that lines are missing, one such record under way at a time."""
        gap = self._gap
        if gap is None or self._closing or self._gap_under_way is not None:
            return
        now = self._timestamp(self._wall())
        since, until = TimestampText()(gap.since), TimestampText()(gap.until)
        line = self._records.gap(now, gap.dropped, since, until)
        self._put([line], len(line))
        self._gap, self._gap_under_way = None, (self._sequence, gap)

    def _from_thread(self, report: WriteResult | None) -> None:
        """Bring a report from the thread into the loop."""
        with suppress(RuntimeError):  # the loop is closed: the report is not needed any more
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
        self._settle_gap(report)
        if report.lines and self._whole:
            self.durable = report.sequence
            self.on_durable(report.sequence)
        if self.full and self._handed_size <= self._policy.buffer_bytes // 2:
            self.full = False
            self.on_drained()

    def _heard(self) -> None:
        """The thread has said something: it has the whole time again for what it still has."""
        if self._stall is not None:
            self._stall.cancel()
        self._stall = self._loop.call_later(STALL_SECONDS, self._stalled) if self._handed_size else None

    def _stalled(self) -> None:
        self._stall = None
        self._on_health(f"the disk has not answered for {STALL_SECONDS:g} s")

    def _on_health(self, error: str | None) -> None:
        if error is not None:
            mode = self._policy.mode.value
            _log().error("audit log can't be written", reason=error, mode=mode, repeat="audit")
        elif self.failure is not None:
            _log().info("audit log is written again")
        self._fails(error)

    def _fails(self, reason: str | None) -> None:
        began = reason is not None and self.failure is None
        self.failure = reason
        self._counters.failing = reason is not None
        if began:
            self.on_failing()

    def _settle_gap(self, report: WriteResult) -> None:
        """Account for lines that were lost on disk, and for gap records among them."""
        lost = report.lost
        if self._gap_under_way is not None and self._gap_under_way[0] <= report.sequence and report.lines:
            sequence, gap = self._gap_under_way
            self._gap_under_way = None
            if sequence > report.sequence - report.lost:
                lost -= 1
                self._remember(gap)
        if report.lost:
            self._whole = False
            now = self._wall()
            if lost:
                self._drop(_Gap(lost, now, now))
            self._loop.call_later(RETRY_SECONDS, self._emit_gap)
        elif report.lines and self._handed_size <= self._policy.buffer_bytes // 2:
            self._emit_gap()

    def _on_end(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
        if not self._closing:
            self._fails("the thread that writes it has ended")
            self._closing = True
            _log().critical("audit log is not written any more", reason=self.failure)
            if not self._may_lose and not self.full:
                self.full = True
                self.on_full()
        self._ended.set()


def _nothing() -> None:
    return


def _ignore(sequence: int) -> None:
    return


def _log() -> structlog.typing.FilteringBoundLogger:
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return log
