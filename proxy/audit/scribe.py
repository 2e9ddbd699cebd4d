"""Who writes batches of lines, and what does it do when the disk refuses?

A thread. It takes what waits in its queue, writes it as one group (one system call, and where lines must be on disk
one sync: group commit), and reports. A refusal is tried again until it is told to give up, or, where lines may be
lost, reported as lost at once. Who waits for a report is not known here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from proxy.audit.journal import Journal

#: Bytes written by one system call, and made durable at once: more would only hold more memory.
GROUP_BYTES = 4 << 20
#: Seconds between two attempts to write what a full or broken disk refused.
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines on their way to disk.

    Args:
        lines: the lines.
        sequence: number of the last one, counting all lines that were handed over.
        size: their bytes.
    """

    lines: list[bytes]
    sequence: int
    size: int


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a group of batches.

    Args:
        sequence: number of its last line.
        lines: how many lines it had; 0 while they are still being tried.
        size: their bytes.
        lost: how many of its last lines were given up.
        lost_size: their bytes.
        error: what the disk said, where it refused.
    """

    sequence: int
    lines: int = 0
    size: int = 0
    lost: int = 0
    lost_size: int = 0
    error: str | None = None


class Scribe:
    """The thread that writes.

    Args:
        journal: where to; used by this thread only.
        may_lose: whether lines that the disk refuses are given up at once.
        report: takes what became of a group, and None as the last thing of all; called in this thread.
    """

    def __init__(self, journal: Journal, may_lose: bool, report: Callable[[Report | None], None]) -> None:
        """Prepare; nothing runs before `start`."""
        self._journal = journal
        self._may_lose = may_lose
        self._report = report
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit-scribe", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, batch: Batch) -> None:
        """Hand lines over; from any thread, never waits. The caller bounds what is under way."""
        self._queue.put(batch)

    def stop(self) -> None:
        """End after what was handed over has been written."""
        self._queue.put(None)

    def give_up(self) -> None:
        """Don't try again what the disk refuses."""
        self._give_up.set()

    def _run(self) -> None:
        try:
            stopping = False
            while not stopping:
                group, stopping = self._next_group()
                if group:
                    self._write(group)
                self._end(self._journal.tick)
            self._end(self._journal.end_segment)
        finally:
            self._report(None)

    def _end(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            self._report(Report(0, error=str(error)))

    def _next_group(self) -> tuple[list[Batch], bool]:
        """Wait for a batch and take what else waits; the batches, and whether the end was asked for."""
        group: list[Batch] = []
        size = 0
        try:
            batch = self._queue.get(timeout=self._journal.wait_seconds())
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
        sequence = group[-1].sequence
        count = len(lines)
        size = sum(batch.size for batch in group)
        while True:
            try:
                self._journal.write(lines)
            except OSError as error:
                if self._may_lose or self._give_up.is_set():
                    lost_size = sum(map(len, lines))
                    self._report(Report(sequence, count, size, len(lines), lost_size, str(error)))
                    return
                self._report(Report(sequence, error=str(error)))
                self._give_up.wait(RETRY_SECONDS)
            else:
                self._report(Report(sequence, count, size))
                return
