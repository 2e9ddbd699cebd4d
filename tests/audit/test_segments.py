from __future__ import annotations

import gzip
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from errno import EIO, ENOSPC
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxproxy.audit import segments
from oxproxy.audit.policy import AuditMode, AuditPolicy
from oxproxy.audit.retention import Retention, expire
from oxproxy.audit.segments import (
    InstanceLock,
    OpenSegment,
    compress_segment,
    open_segments,
    orphaned_segments,
    safe_instance,
)
from oxproxy.audit.writer_thread import RotatingLog

HOUR = "2026-11-21T07"
NAME = "audit-main-20261121T075959000000Z-000001"


def make(directory: Path, text: bytes = b"one\ntwo\n", name: str = NAME) -> OpenSegment:
    segment = OpenSegment.create(directory, HOUR, name, 0.0)
    segment.write(text)
    return segment


def visible(directory: Path) -> list[str]:
    """Return the file names that Spark reads, which do not begin with an underscore or a dot."""
    return sorted(path.name for path in directory.rglob("[!_.]*") if path.is_file())


def test_an_open_segment_is_hidden_and_not_world_readable(tmp_path: Path) -> None:
    segment = make(tmp_path)
    assert segment.path == tmp_path / "date=2026-11-21" / "hour=07" / f"_{NAME}.jsonl"
    assert segment.path.read_bytes() == b"one\ntwo\n"
    assert visible(tmp_path) == []
    assert not segment.path.stat().st_mode & stat.S_IRWXO
    segment.close()


@pytest.mark.parametrize("isal", [True, False])
def test_closing_leaves_one_visible_compressed_file(
    tmp_path: Path, isal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert segments.ISAL is not None, "make setup installs isal"
    if not isal:
        monkeypatch.setattr(segments, "ISAL", None)
    segment = make(tmp_path)
    segment.close()
    compress_segment(segment.path)
    shown = segment.path.with_name(f"{NAME}.jsonl.gz")
    assert visible(tmp_path) == [f"{NAME}.jsonl.gz"]
    assert gzip.decompress(shown.read_bytes()) == b"one\ntwo\n"
    assert [path.name for path in shown.parent.iterdir()] == [shown.name]
    assert not shown.stat().st_mode & stat.S_IRWXO


def test_a_torn_last_line_is_kept_unchanged(tmp_path: Path) -> None:
    segment = make(tmp_path, b'{"ts":"2026"}\n{"ts":"20')
    segment.close()
    compress_segment(segment.path)
    assert gzip.decompress(segment.path.with_name(f"{NAME}.jsonl.gz").read_bytes()) == b'{"ts":"2026"}\n{"ts":"20'


def test_an_empty_segment_is_removed(tmp_path: Path) -> None:
    segment = make(tmp_path, b"")
    segment.close()
    compress_segment(segment.path)
    assert list(segment.path.parent.iterdir()) == []


@pytest.mark.parametrize("step", ["_gzip", "Path.rename", "sync_directory", "Path.unlink"])
def test_after_a_crash_at_any_step_a_retry_leaves_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Crash(BaseException):
        pass

    def crash(*args: object, **options: object) -> None:
        raise Crash

    segment = make(tmp_path)
    segment.close()
    with monkeypatch.context() as patch:
        patch.setattr(Path if step.startswith("Path") else segments, step.removeprefix("Path."), crash)
        with pytest.raises(Crash):
            compress_segment(segment.path)
    assert segment.path.exists()
    compress_segment(segment.path)
    assert visible(tmp_path) == [f"{NAME}.jsonl.gz"]
    assert len(list(segment.path.parent.iterdir())) == 1


def test_a_full_disk_during_compression_leaves_the_segment_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"partial")
        raise OSError(28, "No space left on device")

    segment = make(tmp_path)
    segment.close()
    monkeypatch.setattr(segments, "_gzip", full)
    with pytest.raises(OSError, match="No space"):
        compress_segment(segment.path)
    assert [path.name for path in segment.path.parent.iterdir()] == [segment.path.name]
    assert segment.path.read_bytes() == b"one\ntwo\n"


def test_a_write_to_a_removed_file_is_an_error(tmp_path: Path) -> None:
    segment = make(tmp_path)
    segment.path.unlink()
    with pytest.raises(FileNotFoundError, match="has been removed"):
        segment.write(b"three\n")
    segment.close()


def test_restore_truncates_a_partial_write(tmp_path: Path) -> None:
    segment = make(tmp_path)
    os.write(segment.descriptor, b"thr")
    assert segment.restore(segment.size)
    segment.write(b"four\n")
    assert segment.path.read_bytes() == b"one\ntwo\nfour\n"
    segment.close()
    assert not segment.restore(0), "a closed file can't be truncated"


def test_a_duplicate_segment_name_is_refused(tmp_path: Path) -> None:
    make(tmp_path).close()
    with pytest.raises(FileExistsError):
        make(tmp_path)


def test_a_directory_removed_by_retention_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open
    removed: list[Path] = []

    def removing(path: Path, flags: int, mode: int = 0o777) -> int:
        if not removed and str(path).endswith(".jsonl"):
            removed.append(path)
            Path(path).parent.rmdir()
            Path(path).parent.parent.rmdir()
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", removing)
    segment = make(tmp_path)
    assert removed
    assert segment.path.exists()
    segment.close()


def test_instance_names_are_safe_in_paths() -> None:
    assert safe_instance("pod-1.ns/ä b") == "pod-1.ns___b"
    assert safe_instance("") == "_"
    assert len(safe_instance("x" * 1000)) == 100


def test_open_segments_are_grouped_by_instance_with_dashes_in_its_name(tmp_path: Path) -> None:
    first = make(tmp_path, name="audit-pod-a-1-20261121T075959000000Z-000001")
    second = make(tmp_path, name="audit-pod-a-1-20261121T075959000000Z-000002")
    closed = make(tmp_path, name="audit-pod-a-1-20261121T075959000000Z-000003")
    of_other_instance = make(tmp_path, name="audit-b-20261121T075959000000Z-000001")
    for segment in (first, second, closed, of_other_instance):
        segment.close()
    compress_segment(closed.path)
    assert open_segments(tmp_path) == {"pod-a-1": [first.path, second.path], "b": [of_other_instance.path]}


def test_an_instance_lock_is_exclusive_until_its_release(tmp_path: Path) -> None:
    claim = InstanceLock.acquire(tmp_path, "main")
    assert claim is not None
    assert InstanceLock.acquire(tmp_path, "main") is None
    second = InstanceLock.acquire(tmp_path, "other")
    assert second is not None
    second.release()
    claim.release()
    again = InstanceLock.acquire(tmp_path, "main")
    assert again is not None
    again.release()
    assert list(tmp_path.iterdir()) == []


CLAIM_AND_WAIT = """
import sys
from pathlib import Path
from oxproxy.audit.segments import InstanceLock
claim = InstanceLock.acquire(Path(sys.argv[1]), "main")
print(claim is not None, flush=True)
sys.stdin.read()
"""


def test_an_instance_lock_ends_with_its_process(tmp_path: Path) -> None:
    make(tmp_path).close()
    command = [sys.executable, "-c", CLAIM_AND_WAIT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert list(orphaned_segments(tmp_path, "me")) == []
        holder.kill()
        holder.wait()
    assert [[path.name for path in paths] for paths in orphaned_segments(tmp_path, "me")] == [[f"_{NAME}.jsonl"]]
    assert list(orphaned_segments(tmp_path, "main")) == [], "an instance's own segments are not orphaned"


NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).timestamp()


def put(directory: Path, hour: str, name: str = "audit-a-s-1.jsonl.gz", size: int = 100, age: int = 0) -> Path:
    date, _, of_day = hour.partition("T")
    path = directory / f"date={date}" / f"hour={of_day}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (NOW - age, NOW - age))
    return path


def test_segments_of_expired_hours_are_removed(tmp_path: Path) -> None:
    old = put(tmp_path, "2026-11-21T09")
    just = put(tmp_path, "2026-11-21T10")
    kept = put(tmp_path, "2026-11-21T11")
    assert expire(tmp_path, Retention(seconds=3600), NOW) == [old, just]
    assert kept.exists()
    assert expire(tmp_path, Retention(seconds=3600.1), NOW) == []


def test_above_the_size_limit_the_oldest_segments_are_removed(tmp_path: Path) -> None:
    newest = put(tmp_path, "2026-11-21T11")
    second = put(tmp_path, "2026-11-20T23", "audit-a-s-2.jsonl.gz", age=10)
    first = put(tmp_path, "2026-11-20T23", "audit-z-s-1.jsonl.gz", age=20)
    assert expire(tmp_path, Retention(size_bytes=250), NOW) == [first]
    assert expire(tmp_path, Retention(size_bytes=199), NOW) == [second]
    assert newest.exists()


def test_open_segments_count_but_are_kept(tmp_path: Path) -> None:
    still_open = put(tmp_path, "2020-01-01T00", "_audit-a-s-1.jsonl", 1000)
    being_closed = put(tmp_path, "2020-01-01T00", "_audit-a-s-2.jsonl.gz", 1000)
    closed = put(tmp_path, "2026-11-21T11")
    assert expire(tmp_path, Retention(seconds=1, size_bytes=500), NOW) == [closed]
    assert still_open.exists()
    assert being_closed.exists()


def test_other_files_are_kept(tmp_path: Path) -> None:
    foreign = [
        put(tmp_path, "2020-01-01T00", "notes.txt"),
        put(tmp_path, "2020-01-01T00", "audit-a.parquet"),
        put(tmp_path, "2020-99-01T00"),
        put(tmp_path, "elsewhereT00"),
    ]
    assert expire(tmp_path, Retention(seconds=1, size_bytes=0), NOW) == []
    assert all(path.exists() for path in foreign)


def test_only_empty_directories_are_removed(tmp_path: Path) -> None:
    put(tmp_path, "2026-11-20T00")
    put(tmp_path, "2026-11-19T00")
    still_open = put(tmp_path, "2026-11-19T01", "_audit-a-s-1.jsonl")
    expire(tmp_path, Retention(seconds=1), NOW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["date=2026-11-19"]
    assert [path.name for path in still_open.parent.parent.iterdir()] == ["hour=01"]


def test_without_limits_nothing_is_removed(tmp_path: Path) -> None:
    path = put(tmp_path, "1999-01-01T00")
    assert expire(tmp_path, Retention(), NOW) == []
    assert path.exists()


START = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def wall(self) -> float:
        return START.timestamp() + self.seconds

    def timer(self) -> float:
        return self.seconds


def line(offset_seconds: float = 0, text: str = "x") -> bytes:
    moment = (START + timedelta(seconds=offset_seconds)).isoformat(timespec="microseconds")
    return f'{{"ts":"{moment.replace("+00:00", "Z")}","text":"{text}"}}\n'.encode()


class LogWithClock:
    """A rotating log with a clock that the test sets; `ended` contains the completed segments."""

    def __init__(
        self,
        directory: Path,
        make: Callable[[Path, str, str, float], OpenSegment] = OpenSegment.create,
        **options: object,
    ) -> None:
        self.clock = Clock()
        self.ended: list[Path] = []
        self.directory = directory
        wanted = replace(AuditPolicy(directory, "m"), **options)  # type: ignore[arg-type]  # by name
        self.log = RotatingLog(wanted, self.ended.append, self.clock.wall, self.clock.timer, make)

    def files(self) -> list[tuple[str, bytes]]:
        """Return hour and content of each segment, in the order of creation."""
        paths = sorted(self.directory.rglob("_*.jsonl"), key=lambda path: path.name)
        return [(path.parent.name, path.read_bytes()) for path in paths]


def test_lines_of_one_hour_share_a_segment(tmp_path: Path) -> None:
    desk = LogWithClock(tmp_path)
    for text in "abc":
        desk.log.write([line(0, text)])
    assert desk.files() == [("hour=07", line(0, "a") + line(0, "b") + line(0, "c"))]
    assert desk.ended == []


def test_a_line_is_written_to_the_directory_of_its_hour(tmp_path: Path) -> None:
    desk = LogWithClock(tmp_path)
    batch = [line(1799.999999), line(1800), line(1801), line(3600 * 17)]
    desk.log.write(batch)
    assert batch == []
    directories = sorted(str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("_*.jsonl"))
    assert directories == ["date=2026-11-21/hour=07", "date=2026-11-21/hour=08", "date=2026-11-22/hour=00"]
    assert len(desk.ended) == 2


def test_a_segment_ends_before_the_size_limit(tmp_path: Path) -> None:
    size = len(line())
    desk = LogWithClock(tmp_path, segment_bytes=2 * size)
    desk.log.write([line()])
    desk.log.write([line()])
    desk.log.write([line()])
    assert [len(content) // size for _, content in desk.files()] == [2, 1]


def test_a_batch_larger_than_a_segment_is_divided(tmp_path: Path) -> None:
    size = len(line())
    desk = LogWithClock(tmp_path, segment_bytes=2 * size)
    desk.log.write([5 * line()])
    assert [len(content) // size for _, content in desk.files()] == [2, 2, 1]


def test_a_segment_ends_after_its_maximum_age(tmp_path: Path) -> None:
    desk = LogWithClock(tmp_path, segment_seconds=60)
    assert desk.log.wait_seconds() is None
    desk.log.write([line()])
    desk.clock.seconds = 59
    desk.log.tick()
    assert desk.ended == []
    assert desk.log.wait_seconds() == 1
    desk.clock.seconds = 60
    desk.log.tick()
    assert len(desk.ended) == 1
    desk.log.write([line(60)])
    assert len(desk.files()) == 2


def test_a_segment_ends_with_its_hour_without_traffic(tmp_path: Path) -> None:
    desk = LogWithClock(tmp_path, segment_seconds=86400)
    desk.log.write([line()])
    assert desk.log.wait_seconds() == 1802
    desk.clock.seconds = 1802
    desk.log.tick()
    assert len(desk.ended) == 1


@pytest.mark.parametrize(
    "text", [b"not one of ours\n", b"", b'{"ts":"../../../../x"}\n', b'{"ts":"2026-11-21 07:00"}\n']
)
def test_a_line_without_a_time_is_written_to_the_current_hour(tmp_path: Path, text: bytes) -> None:
    desk = LogWithClock(tmp_path)
    desk.log.write([text])
    assert desk.files() == [("hour=07", text)]


class Faulty(OpenSegment):
    """A segment whose writes and syncs fail as `faults` specifies, after writing half of the data."""

    faults: list[tuple[str, int]]

    def write(self, data: bytes) -> None:
        if self.faults and self.faults[0][0] == "write":
            number = self.faults.pop(0)[1]
            super().write(data[: len(data) // 2])
            raise OSError(number, "broken")
        super().write(data)

    def sync(self) -> None:
        if self.faults and self.faults[0][0] == "sync":
            raise OSError(self.faults.pop(0)[1], "broken")


def faulty(faults: list[tuple[str, int]]) -> Callable[[Path, str, str, float], OpenSegment]:
    def make(directory: Path, hour: str, name: str, opened: float) -> OpenSegment:
        if faults and faults[0][0] == "make":
            raise OSError(faults.pop(0)[1], "broken")
        made = Faulty.create(directory, hour, name, opened)
        assert isinstance(made, Faulty)
        made.faults = faults
        return made

    return make


def test_a_removed_segment_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    desk = LogWithClock(tmp_path)
    desk.log.write([line(0, "a")])
    next(tmp_path.rglob("_*.jsonl")).unlink()
    batch = [line(0, "b")]
    with pytest.raises(FileNotFoundError):
        desk.log.write(batch)
    desk.log.write(batch)
    assert desk.files() == [("hour=07", line(0, "b"))]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.tuples(st.integers(-4000, 4000), st.integers(1, 3)), min_size=1, max_size=8), max_size=8),
    st.integers(1, 400),
    st.lists(st.sampled_from([("write", ENOSPC), ("write", EIO), ("sync", EIO), ("make", ENOSPC)]), max_size=6),
)
def test_every_line_is_written_exactly_once_despite_failures(
    batches: list[list[tuple[int, int]]], segment_bytes: int, faults: list[tuple[str, int]]
) -> None:
    with TemporaryDirectory() as folder, patch.object(segments, "sync_directory"):
        desk = LogWithClock(Path(folder), faulty(faults), segment_bytes=segment_bytes, mode=AuditMode.STRICT)
        number = 0
        sent = []
        for groups in batches:
            remaining = []
            for offset, count in sorted(groups):
                group = [line(offset, str(number + place)) for place in range(count)]
                number += count
                sent += group
                remaining.append(b"".join(group))
            while remaining:
                try:
                    desk.log.write(remaining)
                except OSError:
                    continue
        got = b"".join(content for _, content in desk.files()).splitlines(keepends=True)
        assert sorted(got) == sorted(sent)
        for hour, content in desk.files():
            assert {part[18:20] for part in content.splitlines()} <= {hour[5:].encode()}
