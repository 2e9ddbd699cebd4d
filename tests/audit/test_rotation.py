from __future__ import annotations

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

from proxy.audit import segments
from proxy.audit.policy import AuditMode, AuditPolicy
from proxy.audit.segments import OpenSegment
from proxy.audit.writer_thread import RotatingLog

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


def test_a_line_without_a_time_is_written_to_the_current_hour(tmp_path: Path) -> None:
    desk = LogWithClock(tmp_path)
    desk.log.write([b"not one of ours\n"])
    assert desk.files() == [("hour=07", b"not one of ours\n")]


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
