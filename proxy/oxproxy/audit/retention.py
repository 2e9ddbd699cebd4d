"""Compresses closed segments and removes old ones, in a thread with low priority.

Compressing a segment of 128 MiB takes half a second of CPU time, so it is done neither in the event loop nor in the
writer thread. If a segment can't be compressed, for example because the disk is full, it remains uncompressed and
compression is retried. At startup, segments that dead processes left open are closed first.

Retention identifies segments by their file names. It removes only closed segments, starting with the oldest hour. The
size limit applies to the segments of all instances in the directory together, including open segments.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue

import structlog

from oxproxy.audit.segments import compress_segment, hour_files, orphaned_segments

_log = structlog.get_logger(__name__)

#: Maximum number of seconds between two retention runs, and between two attempts to compress a segment.
CHECK_SECONDS = 30.0
#: Niceness, which Linux sets per thread. The priority is lower than that of other work, but the thread never starves.
_NICENESS = 10
_FOLDER = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)")
_SECONDS_OF_AN_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention limits.

    Args:
        seconds: maximum time since the end of a segment's hour; older segments are removed. None for no limit.
        size_bytes: limit for the total size. If it is exceeded, the oldest segments are removed. None for no limit.
    """

    seconds: float | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class _Closed:
    ended: float
    written_ns: int
    path: Path
    size: int


def expire(directory: Path, retention: Retention, now: float) -> list[Path]:
    """Remove files that exceed the retention limits, and emptied directories; return the files, oldest first.

    Args:
        now: seconds since 1970.

    Raises:
        OSError: a file can't be removed.
    """
    if retention.seconds is None and retention.size_bytes is None:
        return []
    closed, total = _listed(directory)
    removed = []
    for segment in sorted(closed):
        too_old = retention.seconds is not None and segment.ended <= now - retention.seconds
        too_much = retention.size_bytes is not None and total > retention.size_bytes
        if not (too_old or too_much):
            break
        segment.path.unlink(missing_ok=True)
        total -= segment.size
        removed.append(segment.path)
    for emptied in {path.parent for path in removed}:
        _remove_empty(emptied)
    return removed


def _listed(directory: Path) -> tuple[list[_Closed], int]:
    """Return the closed segments, and the total size of all segments, including open ones."""
    closed = []
    total = 0
    for path in hour_files(directory, "*audit-*.jsonl*"):
        try:
            status = path.stat()
        except FileNotFoundError:  # just closed or removed by another process
            continue
        total += status.st_size
        ended = _end_of(path.parent)
        if ended is not None and path.name.startswith("audit-") and path.name.endswith(".jsonl.gz"):
            closed.append(_Closed(ended, status.st_mtime_ns, path, status.st_size))
    return closed, total


def _end_of(directory: Path) -> float | None:
    """Return the end of a directory's hour in seconds since 1970; None if its name is not an hour."""
    match = _FOLDER.fullmatch(f"{directory.parent.name}/{directory.name}")
    if match is None:
        return None
    try:
        begin = datetime.fromisoformat(f"{match[1]}T{match[2]}:00:00").replace(tzinfo=UTC)
    except ValueError:
        return None
    return begin.timestamp() + _SECONDS_OF_AN_HOUR


def _remove_empty(directory: Path) -> None:
    for empty in (directory, directory.parent):
        try:
            empty.rmdir()
        except OSError:  # not empty, or removed concurrently
            return


class SegmentCloser:
    """The thread that compresses closed segments and removes old ones.

    Args:
        instance: name of this sidecar in file names.
        wall: returns seconds since 1970.
    """

    def __init__(self, directory: Path, instance: str, retention: Retention, wall: Callable[[], float]) -> None:
        self._directory = directory
        self._instance = instance
        self._retention = retention
        self._wall = wall
        self._queue: SimpleQueue[Path | None] = SimpleQueue()
        self._waiting: list[Path] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit-closer", daemon=True)

    def start(self, left: Iterable[Path]) -> None:
        """Start the thread, which also closes the segments that an earlier process of this instance left open."""
        for path in left:
            self._queue.put(path)
        self._thread.start()

    def close_segment(self, path: Path) -> None:
        """Queue a finished segment. Can be called from any thread, and never blocks."""
        self._queue.put(path)

    def stop(self, timeout_seconds: float) -> bool:
        """Finish the queued work, then stop; return True if all own segments are closed and the thread has ended.

        Open segments of dead instances are left for the next start, since closing them could take minutes.

        Args:
            timeout_seconds: longest time to wait. Segments that remain are closed at the next start of a sidecar.
        """
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive() and not self._waiting

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        self._close_abandoned()
        self._expire()
        stopping = False
        while not stopping:
            try:
                path = self._queue.get(timeout=CHECK_SECONDS)
                stopping = path is None
                if path is not None:
                    self._waiting.append(path)
            except Empty:
                pass
            self._waiting = [path for path in self._waiting if not self._close(path)]
            self._expire()

    def _close(self, path: Path) -> bool:
        """Compress a segment; return False if the compression must be retried."""
        try:
            compress_segment(path)
        except FileNotFoundError:
            _log.warning("audit segment was removed by another process", segment=str(path))
        except OSError as error:
            _log.error("audit segment can't be closed", segment=str(path), reason=str(error), repeat="close")
            return False
        return True

    def _close_abandoned(self) -> None:
        try:
            with closing(orphaned_segments(self._directory, self._instance)) as orphaned:
                for path in chain.from_iterable(orphaned):
                    if self._stopping.is_set():
                        return
                    self._close(path)
        except OSError as error:
            _log.error("audit segments of other instances can't be closed", reason=str(error))

    def _expire(self) -> None:
        try:
            removed = expire(self._directory, self._retention, self._wall())
        except OSError as error:
            _log.error("old audit segments can't be removed", reason=str(error), repeat="expire")
            return
        if removed:
            _log.info("old audit segments removed", count=len(removed), newest=str(removed[-1]))
