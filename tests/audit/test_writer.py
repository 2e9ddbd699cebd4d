from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from oxproxy.audit import claim as claiming
from oxproxy.audit import retention as closing
from oxproxy.audit import segments, writer, writer_thread
from oxproxy.audit.policy import AuditMode, AuditPolicy
from oxproxy.audit.retention import Retention
from oxproxy.audit.segments import InstanceLock, OpenSegment
from oxproxy.audit.writer import AuditWriter
from oxproxy.audit.writer_thread import NO_FACTS, RotatingLog
from oxproxy.errors import ConfigError
from oxproxy.observe.logs import configure
from oxproxy.relay.counters import AuditCounters
from oxproxy.relay.records.audit_record import TimestampText

#: A time in the future, so that the hour does not end.
TS = "2196-11-21T07:59:59.000001Z"
SECONDS = 20.0


def line(number: int) -> bytes:
    return f'{{"ts":"{TS}","n":{number}}}\n'.encode()


def policy(directory: Path, mode: AuditMode = AuditMode.BEST_EFFORT, **changes: object) -> AuditPolicy:
    return replace(AuditPolicy(directory, "m", mode), **changes)  # type: ignore[arg-type]  # by name


def records(directory: Path) -> list[dict[str, Any]]:  # Any: JSON
    """Return the records that Spark would read, from files that do not begin with an underscore or a dot."""
    read = []
    for path in sorted(matching_files(directory, "[!_.]*.gz")):
        read += [json.loads(text) for text in gzip.decompress(path.read_bytes()).splitlines()]
    return read


def numbers(directory: Path) -> list[int]:
    return [record["n"] for record in records(directory) if "n" in record]


def matching_files(directory: Path, pattern: str) -> list[Path]:
    return list(directory.rglob(pattern))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110  the writer's thread sets no asyncio event
            await asyncio.sleep(0.001)


class Disk:
    """Lets a test reject or delay the writes of a log."""

    def __init__(self) -> None:
        self.refusing = threading.Event()
        self.open = threading.Event()
        self.open.set()
        #: set while a write waits for the disk
        self.waiting = threading.Event()

    def log(self, *arguments: Any) -> RotatingLog:  # Any: passed on unchanged
        disk = self

        class Disturbed(RotatingLog):
            def write(self, lines: list[bytes], facts: Mapping[int, bytes] = NO_FACTS) -> None:
                disk.waiting.set()
                assert disk.open.wait(SECONDS)
                disk.waiting.clear()
                if disk.refusing.is_set():
                    raise OSError(28, "No space left on device")
                super().write(lines, facts)

        return Disturbed(*arguments)


@asynccontextmanager
async def writing(policy: AuditPolicy, disk: Disk | None = None) -> AsyncIterator[tuple[AuditWriter, AuditCounters]]:
    counters = AuditCounters()
    log: Callable[..., RotatingLog] = disk.log if disk else RotatingLog
    audit = AuditWriter(policy, counters, make_log=log)
    await audit.start()
    try:
        yield audit, counters
    finally:
        await audit.close(SECONDS)


async def test_every_line_is_counted_and_visible_after_close(tmp_path: Path) -> None:
    async with writing(policy(tmp_path)) as (audit, counters):
        for number in range(1000):
            audit.append(line(number))
    assert numbers(tmp_path) == list(range(1000))
    assert counters.lines == 1000
    assert counters.text_bytes == sum(len(line(number)) for number in range(1000))
    assert counters.dropped == 0
    assert not matching_files(tmp_path, "_*"), "hidden files remain"


async def test_lines_reach_the_disk_without_further_traffic(tmp_path: Path) -> None:
    async with writing(policy(tmp_path, flush_seconds=0.01)) as (audit, counters):
        audit.append(line(1))
        await until(lambda: counters.lines == 1)
        assert [path.read_bytes() for path in matching_files(tmp_path, "_audit-*.jsonl")] == [line(1)]


async def test_a_line_after_close_is_counted_as_dropped(tmp_path: Path) -> None:
    async with writing(policy(tmp_path)) as (audit, counters):
        pass
    audit.append(line(1))
    audit.commit_point()
    assert (counters.lines, counters.dropped) == (0, 1)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: (path.rmdir(), path.parent.rmdir()), "can't be created: there is no directory .*/logs"),
        (lambda path: (path.rmdir(), path.write_bytes(b"")), "is not a directory"),
    ],
)
async def test_a_directory_that_cannot_be_created_is_an_error_at_the_start(
    tmp_path: Path, prepare: Callable[[Path], object], message: str
) -> None:
    directory = tmp_path / "logs" / "audit"
    directory.mkdir(parents=True)
    prepare(directory)
    audit = AuditWriter(policy(directory), AuditCounters())
    with pytest.raises(ConfigError, match=message) as caught:
        await audit.start()
    assert (caught.value.file, caught.value.key) == (str(directory), "audit.directory")
    await audit.close(SECONDS)


async def test_an_unwritable_directory_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, flags: int, mode: int = 0) -> int:
        raise PermissionError(13, "Permission denied")

    audit = AuditWriter(policy(tmp_path), AuditCounters())
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with pytest.raises(ConfigError, match="can't be written: Permission denied"):
            await audit.start()


async def test_a_full_disk_is_an_error_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    audit = AuditWriter(policy(tmp_path), AuditCounters())
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ConfigError, match="can't be written: No space left on device"):
        await audit.start()


async def test_two_writers_with_the_same_name_are_an_error_at_the_start(tmp_path: Path) -> None:
    async with writing(policy(tmp_path)):
        second = AuditWriter(policy(tmp_path), AuditCounters())
        with pytest.raises(ConfigError, match="another process is already writing to this directory as m"):
            await second.start()
    async with writing(policy(tmp_path)) as (audit, _):
        audit.append(line(1))
    assert numbers(tmp_path) == [1]


async def test_best_effort_drops_lines_beyond_the_buffer_and_counts_them(tmp_path: Path) -> None:
    disk = Disk()
    disk.open.clear()
    buffer_bytes = 100 * len(line(100))
    with capture_logs() as logs:
        async with writing(policy(tmp_path, buffer_bytes=buffer_bytes), disk) as (audit, counters):
            for number in range(100, 1000):
                audit.append(line(number))
                assert audit._handed_size + audit._pending.size <= buffer_bytes + buffer_bytes // 4 + 100
            audit.commit_point()
            assert not audit.full
            dropped = counters.dropped
            assert dropped >= 700
            disk.open.set()
            await until(lambda: audit._gaps.unreported is None)
    kept = numbers(tmp_path)
    assert len(kept) + dropped == 900
    (gap,) = [record for record in records(tmp_path) if record.get("kind") == "gap"]
    assert gap["dropped"] == dropped
    assert gap["from"] <= gap["to"] <= gap["ts"]
    assert gap["proxy"] == "m"
    assert counters.lines == len(kept) + 1
    assert {entry["event"] for entry in logs} == {"audit records dropped"}


async def test_best_effort_continues_when_the_disk_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.01)
    disk = Disk()
    with capture_logs() as logs:
        async with writing(policy(tmp_path), disk) as (audit, counters):
            disk.refusing.set()
            audit.append(b"".join(map(line, range(7))), 7)
            audit.append(b"".join(map(line, range(7, 10))), 3)
            audit.commit_point()
            await until(lambda: counters.dropped == 10)
            assert "No space left" in str(audit.failure)
            await until(lambda: audit._gaps.under_way is not None)
            await until(lambda: audit._gaps.under_way is None)
            disk.refusing.clear()
            await until(lambda: counters.lines == 1 and not audit.failure)
            audit.append(line(10))
    assert numbers(tmp_path) == [10]
    assert [record["dropped"] for record in records(tmp_path) if "dropped" in record] == [10]
    assert counters.dropped == 10
    events = [entry["event"] for entry in logs]
    assert events[0] == "audit log can't be written"
    assert "audit log can be written again" in events


async def test_a_disk_that_accepts_only_some_writes_does_not_fill_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    configure(stream=stream)
    monkeypatch.setattr(writer, "_log", structlog.get_logger())
    try:
        disk = Disk()
        async with writing(policy(tmp_path), disk) as (audit, counters):
            for number in range(5):
                disk.refusing.set()
                audit.append(line(number))
                audit.commit_point()
                await until(lambda: audit.failure is not None)
                disk.refusing.clear()
                audit.append(line(number))
                audit.commit_point()
                await until(lambda: audit.failure is None)
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
    assert counters.dropped == 5
    assert stream.getvalue().count("audit log can't be written") == 1
    assert stream.getvalue().count("audit log can be written again") == 1


@pytest.mark.parametrize("mode", [AuditMode.BACKPRESSURE, AuditMode.STRICT])
async def test_a_slow_disk_holds_producers_and_loses_no_line(tmp_path: Path, mode: AuditMode) -> None:
    disk = Disk()
    events: list[str] = []
    async with writing(policy(tmp_path, mode, buffer_bytes=4000), disk) as (audit, counters):
        audit.on_full = lambda full: events.append("full" if full else "drained")
        disk.open.clear()
        number = 0
        while not audit.full:
            audit.append(line(number))
            number += 1
        assert events == ["full"]
        assert number * len(line(100)) < 8000
        disk.open.set()
        await until(lambda: not audit.full)
        assert events == ["full", "drained"]
    assert numbers(tmp_path) == list(range(number))
    assert counters.dropped == 0


@pytest.mark.parametrize("mode", [AuditMode.BACKPRESSURE, AuditMode.STRICT])
async def test_lines_are_kept_and_written_after_a_disk_error(
    tmp_path: Path, mode: AuditMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "RETRY_SECONDS", 0.01)
    disk = Disk()
    async with writing(policy(tmp_path, mode), disk) as (audit, counters):
        disk.refusing.set()
        for number in range(10):
            audit.append(line(number))
        point = audit.commit_point()
        await until(lambda: audit.failure is not None)
        assert (audit.durable, counters.failing) == (0, True)
        disk.refusing.clear()
        await until(lambda: audit.durable == point)
        assert (audit.failure, counters.failing) == (None, False)
    assert numbers(tmp_path) == list(range(10))
    assert (counters.lines, counters.dropped) == (10, 0)


async def test_a_hung_disk_is_reported_as_failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "STALL_SECONDS", 0.05)
    disk = Disk()
    failures: list[str] = []
    with capture_logs() as logs:
        async with writing(policy(tmp_path, AuditMode.STRICT), disk) as (audit, counters):
            audit.on_failing = lambda: failures.append(str(audit.failure))
            disk.open.clear()
            audit.append(line(1))
            point = audit.commit_point()
            assert point == audit.appended
            await until(lambda: audit.failure is not None)
            assert (failures, counters.failing) == (["the disk has not responded for 0.05 s"], True)
            disk.open.set()
            await until(lambda: audit.durable == point)
            assert (audit.failure, counters.failing) == (None, False)
    assert [entry["event"] for entry in logs][:2] == ["audit log can't be written", "audit log can be written again"]
    assert numbers(tmp_path) == [1]


async def test_close_does_not_wait_for_a_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "RETRY_SECONDS", 60.0)
    disk = Disk()
    counters = AuditCounters()
    audit = AuditWriter(policy(tmp_path, AuditMode.STRICT), counters, make_log=disk.log)
    await audit.start()
    durable: list[int] = []
    audit.on_durable = durable.append
    disk.refusing.set()
    audit.append(line(1))
    with capture_logs() as logs:
        await audit.close(0.05)
    assert counters.dropped == 1
    assert durable == []
    assert "audit records lost at shutdown" in [entry["event"] for entry in logs]


async def test_strict_reports_lines_as_durable_only_after_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = 0
    real = os.fdatasync

    def counting(descriptor: int) -> None:
        nonlocal synced
        real(descriptor)
        synced = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fdatasync", counting)
    reports: list[tuple[int, int]] = []
    async with writing(policy(tmp_path, AuditMode.STRICT)) as (audit, _):
        audit.on_durable = lambda sequence: reports.append((sequence, synced))
        points = []
        for number in range(100, 200):
            audit.append(line(number))
            if number % 7 == 0:
                points.append(audit.commit_point())
                await asyncio.sleep(0)
        last = audit.commit_point()
        await until(lambda: audit.durable == last)
    assert last == 100
    assert points == sorted(points)
    assert all(on_disk >= sequence * len(line(100)) for sequence, on_disk in reports)
    assert [sequence for sequence, _ in reports] == sorted({sequence for sequence, _ in reports})


async def test_only_strict_syncs_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(descriptor: int) -> None:
        raise AssertionError("synced")

    monkeypatch.setattr(os, "fdatasync", never)
    async with writing(policy(tmp_path, AuditMode.BACKPRESSURE)) as (audit, _):
        audit.append(line(1))
        point = audit.commit_point()
        await until(lambda: audit.durable == point)
    assert numbers(tmp_path) == [1]


async def test_a_failed_thread_is_reported_and_holds_producers(tmp_path: Path) -> None:
    class Bug(RotatingLog):
        def write(self, lines: list[bytes], facts: Mapping[int, bytes] = NO_FACTS) -> None:
            raise ZeroDivisionError

    hook, threading.excepthook = threading.excepthook, lambda arguments: None
    try:
        audit = AuditWriter(policy(tmp_path, AuditMode.STRICT), AuditCounters(), make_log=Bug)
        await audit.start()
        audit.append(line(1))
        with capture_logs() as logs:
            audit.commit_point()
            await until(lambda: audit.full)
        assert audit.failure == "the writer thread has ended"
        assert audit.durable == 0
        assert [entry["log_level"] for entry in logs] == ["critical"]
        await audit.close(SECONDS)
    finally:
        threading.excepthook = hook


async def test_an_instance_name_with_special_characters_is_unchanged_in_records(tmp_path: Path) -> None:
    disk = Disk()
    disk.refusing.set()
    async with writing(policy(tmp_path, instance="a/b ü"), disk) as (audit, counters):
        audit.append(line(1))
        audit.commit_point()
        await until(lambda: counters.dropped == 1)
        disk.refusing.clear()
        audit._emit_gap()
        await until(lambda: counters.lines == 1)
    (path,) = matching_files(tmp_path, "*.gz")
    assert path.name.startswith("audit-a_b__-")
    assert records(tmp_path)[0]["proxy"] == "a/b ü"


async def test_a_concurrent_reader_sees_every_record_exactly_once(tmp_path: Path) -> None:
    stop = threading.Event()
    problems: list[str] = []
    looks = 0

    def read() -> None:
        nonlocal looks
        counts: Counter[int] = Counter()
        files: set[str] = set()
        while not stop.is_set():
            for path in tmp_path.rglob("[!_.]*"):
                if path.is_file() and path.name not in files:
                    files.add(path.name)
                    counts.update(json.loads(text)["n"] for text in gzip.open(path))
            looks += 1
            problems.extend(f"{number} twice" for number, count in counts.items() if count > 1)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        async with writing(policy(tmp_path, segment_bytes=2000, flush_seconds=0.002)) as (audit, _):
            for number in range(3000):
                audit.append(line(number))
                if number % 20 == 0:
                    audit.commit_point()
                    await asyncio.sleep(0)
    finally:
        stop.set()
        reader.join()
    assert looks > 1
    assert problems == []
    assert sorted(numbers(tmp_path)) == list(range(3000))


async def test_retention_keeps_the_open_segment(tmp_path: Path) -> None:
    keep_nothing = Retention(seconds=0, size_bytes=0)
    wanted = policy(tmp_path, retention=keep_nothing, segment_bytes=100, flush_seconds=0.001)
    async with writing(wanted) as (audit, counters):
        for number in range(20):
            audit.append(line(number))
        audit.commit_point()
        await until(lambda: counters.lines == 20)
        assert matching_files(tmp_path, "_audit-*.jsonl")
    assert numbers(tmp_path) == []


def left_open(directory: Path, instance: str = "m", number: int = 1) -> Path:
    """Create a segment with one line, as if an earlier process had not closed it; return its path."""
    name = f"audit-{instance}-20261121T070000000000Z-{number:06d}"
    segment = OpenSegment.create(directory, "2026-11-21T07", name, 0.0)
    segment.write(line(ord(instance)))
    segment.close()
    return segment.path


async def test_a_start_closes_segments_of_ended_processes_only(tmp_path: Path) -> None:
    own, dead, living = (left_open(tmp_path, name) for name in "mdl")
    claim = InstanceLock.acquire(tmp_path, "l")
    assert claim is not None
    async with writing(policy(tmp_path)):
        await until(lambda: not dead.exists())
    assert sorted(numbers(tmp_path)) == sorted(map(ord, "md"))
    assert [path.exists() for path in (own, dead, living)] == [False, False, True]
    claim.release()


async def test_closing_a_segment_is_retried_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compress, failures = segments.compress_segment, [OSError(28, "No space left on device")]

    def full_once(path: Path) -> None:
        if failures:
            raise failures.pop()
        compress(path)

    monkeypatch.setattr(closing, "compress_segment", full_once)
    left_open(tmp_path)
    with capture_logs() as logs:
        async with writing(policy(tmp_path)):
            pass
    assert numbers(tmp_path) == [ord("m")]
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("audit segment can't be closed", "error")]


async def test_segments_that_cannot_be_closed_are_logged_at_the_end_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(closing, "compress_segment", full)
    path = left_open(tmp_path)
    with capture_logs() as logs:
        async with writing(policy(tmp_path)):
            pass
    assert path.exists()
    assert logs[-1]["event"] == "audit segments remain open; they are closed at the next start"


async def test_a_removed_segment_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = left_open(tmp_path)
    monkeypatch.setattr(claiming, "open_segments", lambda _: {"m": [tmp_path / "gone", path]})
    async with writing(policy(tmp_path)):
        pass
    assert numbers(tmp_path) == [ord("m")]


@pytest.mark.parametrize("mode", [AuditMode.BEST_EFFORT, AuditMode.STRICT])
async def test_a_full_file_system(small_disk: Path, mode: AuditMode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "RETRY_SECONDS", 0.01)
    ballast = small_disk / "ballast"
    async with writing(policy(small_disk, mode)) as (audit, counters):
        ballast.write_bytes(bytes(100_000))
        for number in range(1000):
            audit.append(line(number))
            if number % 100 == 99:
                point = audit.commit_point()
        await until(lambda: audit.failure is not None)
        assert "No space left on device" in str(audit.failure)
        assert counters.lines < 1000
        ballast.unlink()
        if mode is AuditMode.STRICT:
            await until(lambda: audit.durable == point)
    kept = numbers(small_disk)
    assert len(kept) == len(set(kept)) == 1000 - counters.dropped
    assert (counters.dropped > 0) is (mode is AuditMode.BEST_EFFORT)


KILLED = """
import asyncio, sys
from pathlib import Path
from oxproxy.relay.counters import AuditCounters
from oxproxy.audit.policy import AuditPolicy, AuditMode
from oxproxy.audit.writer import AuditWriter
from oxproxy.observe.logs import configure

async def main():
    configure("error")
    policy = AuditPolicy(Path(sys.argv[1]), "m", AuditMode.STRICT, 8000, segment_bytes=4000)
    audit = AuditWriter(policy, AuditCounters())
    drained = asyncio.Event()
    audit.on_full = lambda full: None if full else drained.set()
    audit.on_durable = lambda sequence: print(sequence, flush=True)
    await audit.start()
    number = 0
    while True:
        for _ in range(10):
            number += 1
            audit.append(b'{"ts":"2196-11-21T07:59:59.000001Z","n":%d}\\n' % number)
        audit.commit_point()
        await asyncio.sleep(0)
        if audit.full:
            drained.clear()
            await drained.wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("after", [1, 40, 120])
async def test_after_sigkill_every_durable_line_exists_once(tmp_path: Path, after: int) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = [await asyncio.wait_for(process.stdout.readline(), SECONDS) for _ in range(after)]
    process.send_signal(signal.SIGKILL)
    output += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    durable = max(int(text) for text in output if text.endswith(b"\n"))
    async with writing(policy(tmp_path)):
        pass
    kept = numbers(tmp_path)
    assert sorted(kept) == list(range(1, len(kept) + 1)), "a line is missing or was written twice"
    assert len(kept) >= durable
    assert not matching_files(tmp_path, "_*")


async def test_a_gap_has_the_times_of_the_dropped_records_and_not_of_the_failure(tmp_path: Path) -> None:
    now = 1795247000.0
    disk, counters, text = Disk(), AuditCounters(), TimestampText()
    audit = AuditWriter(policy(tmp_path, flush_seconds=0.001), counters, lambda: now, disk.log)
    await audit.start()
    disk.open.clear()
    audit.append(f'{{"ts":"{text(now)}","n":1}}\n'.encode())
    await until(disk.waiting.is_set)
    disk.refusing.set()  # the disk hangs for a minute, and then reports an error
    now += 60.0
    disk.open.set()
    await until(lambda: counters.dropped == 1)
    disk.refusing.clear()
    await until(lambda: counters.lines == 1)
    await audit.close(SECONDS)
    [gap] = records(tmp_path)
    begin, end = (datetime.fromisoformat(gap[name]).timestamp() for name in ("from", "to"))
    assert (gap["dropped"], begin, end) == (1, now - 60.0, now - 60.0)
