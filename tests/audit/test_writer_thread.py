from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from proxy.audit import writer_thread as module
from proxy.audit.writer_thread import Batch, RotatingLog, RotationSettings, WriteResult, WriterThread

SECONDS = 10.0


class Disk(RotatingLog):
    """A log in memory that refuses as long as `refusing` is set, after writing `before` lines."""

    def __init__(self) -> None:
        super().__init__(RotationSettings(Path(), "m"), lambda path: None, lambda: 0.0, lambda: 0.0)
        self.written: list[bytes] = []
        self.groups: list[int] = []
        self.refusing = threading.Event()
        self.before = 0
        self.hold: threading.Event | None = None
        self.ends = 0

    def write(self, lines: list[bytes]) -> None:
        self.groups.append(len(lines))
        if self.hold is not None:
            assert self.hold.wait(SECONDS)
        if self.refusing.is_set():
            self.written += lines[: self.before]
            del lines[: self.before]
            raise OSError(28, "No space left on device")
        self.written += lines
        lines.clear()

    def wait_seconds(self) -> float | None:
        return None

    def end_segment(self) -> None:
        self.ends += 1
        if self.refusing.is_set():
            raise OSError(5, "Input/output error")


class Bench:
    def __init__(self, may_lose: bool) -> None:
        self.disk = Disk()
        self._reports: SimpleQueue[WriteResult | None] = SimpleQueue()
        self.thread = WriterThread(self.disk, may_lose, self._reports.put)

    def next(self) -> WriteResult | None:
        return self._reports.get(timeout=SECONDS)


def batch(first: int, count: int) -> Batch:
    return Batch([b"%04d\n" % number for number in range(first, first + count)], first + count - 1, 5 * count)


def test_batches_are_written_in_order_and_the_end_comes_last() -> None:
    bench = Bench(may_lose=True)
    for first in (1, 3, 5):
        bench.thread.put(batch(first, 2))
    bench.thread.stop()
    bench.thread.start()
    assert bench.next() == WriteResult(6, 6, 30)
    assert bench.next() is None
    assert bench.disk.written == [b"%04d\n" % number for number in range(1, 7)]
    assert bench.disk.ends == 1


def test_what_waits_is_written_as_one_group() -> None:
    bench = Bench(may_lose=True)
    bench.disk.hold = threading.Event()
    bench.thread.start()
    bench.thread.put(batch(1, 1))
    while not bench.disk.groups:
        threading.Event().wait(0.001)
    for first in (2, 3, 4):
        bench.thread.put(batch(first, 1))
    bench.disk.hold.set()
    assert bench.next() == WriteResult(1, 1, 5)
    assert bench.next() == WriteResult(4, 3, 15)
    bench.thread.stop()
    assert bench.next() is None


def test_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUP_BYTES", 10)
    bench = Bench(may_lose=True)
    for first in range(1, 6):
        bench.thread.put(batch(first, 1))
    bench.thread.stop()
    bench.thread.start()
    assert [bench.next() for _ in range(3)] == [WriteResult(2, 2, 10), WriteResult(4, 2, 10), WriteResult(5, 1, 5)]


def test_lines_that_may_be_lost_are_lost_at_once() -> None:
    bench = Bench(may_lose=True)
    bench.disk.refusing.set()
    bench.disk.before = 1
    bench.thread.start()
    bench.thread.put(batch(1, 3))
    report = bench.next()
    assert report == WriteResult(3, 3, 15, 2, 10, "[Errno 28] No space left on device")
    bench.disk.refusing.clear()
    bench.thread.put(batch(4, 1))
    assert bench.next() == WriteResult(4, 1, 5)
    bench.thread.stop()


def test_lines_that_may_not_be_lost_are_tried_until_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    bench = Bench(may_lose=False)
    bench.disk.refusing.set()
    bench.disk.before = 1
    bench.thread.start()
    bench.thread.put(batch(1, 3))
    refused = WriteResult(3, error="[Errno 28] No space left on device")
    assert [bench.next(), bench.next()] == [refused, refused]
    bench.disk.refusing.clear()
    report = bench.next()
    while report == refused:
        report = bench.next()
    assert report == WriteResult(3, 3, 15)
    assert bench.disk.written == batch(1, 3).lines
    bench.thread.stop()


def test_giving_up_loses_what_the_disk_still_refuses() -> None:
    bench = Bench(may_lose=False)
    bench.disk.refusing.set()
    bench.thread.start()
    bench.thread.put(batch(1, 2))
    bench.thread.put(batch(3, 1))
    bench.thread.stop()
    refused = bench.next()
    assert refused is not None
    assert (refused.lines, refused.error) == (0, "[Errno 28] No space left on device")
    bench.thread.give_up()
    lost = 0
    report = bench.next()
    while report is not None:
        lost += report.lost
        report = bench.next()
    assert lost == 3


def test_a_segment_that_can_not_be_ended_is_told_and_the_thread_ends() -> None:
    bench = Bench(may_lose=True)
    bench.disk.refusing.set()
    bench.thread.start()
    bench.thread.stop()
    assert bench.next() == WriteResult(0, error="[Errno 5] Input/output error")
    assert bench.next() is None
