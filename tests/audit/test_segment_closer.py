from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.audit import retention as closing
from proxy.audit.retention import Retention, SegmentCloser
from proxy.audit.segments import InstanceLock, OpenSegment, compress_segment

HOUR = "2026-11-21T07"


def left_open(directory: Path, instance: str, number: int) -> Path:
    segment = OpenSegment.create(directory, HOUR, f"audit-{instance}-20261121T070000000000Z-{number:06d}", 0.0)
    segment.write(b"%d\n" % number)
    segment.close()
    return segment.path


def shown(directory: Path) -> dict[str, bytes]:
    return {path.name[6]: gzip.decompress(path.read_bytes()) for path in directory.rglob("audit-*.gz")}


def closer(directory: Path, retention: Retention | None = None) -> SegmentCloser:
    return SegmentCloser(directory, "m", retention or Retention(), lambda: 0.0)


def test_segments_are_closed_before_the_closer_stops(tmp_path: Path) -> None:
    thread = closer(tmp_path)
    thread.start([])
    thread.close_segment(left_open(tmp_path, "m", 1))
    assert thread.stop(10)
    assert shown(tmp_path) == {"m": b"1\n"}


def test_a_start_closes_segments_of_ended_processes_only(tmp_path: Path) -> None:
    own, dead, living = (left_open(tmp_path, name, number) for number, name in enumerate("mdl"))
    claim = InstanceLock.acquire(tmp_path, "l")
    assert claim is not None
    thread = closer(tmp_path)
    thread.start([own])
    assert thread.stop(10)
    assert shown(tmp_path) == {"m": b"0\n", "d": b"1\n"}
    assert not dead.exists()
    assert living.exists()
    claim.release()


def test_closing_a_segment_is_retried_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Path] = []

    def full_once(path: Path) -> Path | None:
        tried.append(path)
        if len(tried) == 1:
            raise OSError(28, "No space left on device")
        return compress_segment(path)

    monkeypatch.setattr(closing, "compress_segment", full_once)
    thread = closer(tmp_path)
    with capture_logs() as logs:
        thread.start([left_open(tmp_path, "m", 1)])
        assert thread.stop(10)
    assert len(tried) == 2
    assert shown(tmp_path) == {"m": b"1\n"}
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("audit segment can't be closed", "error")]


def test_stop_returns_whether_segments_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(closing, "compress_segment", full)
    thread = closer(tmp_path)
    path = left_open(tmp_path, "m", 1)
    thread.start([path])
    assert not thread.stop(10)
    assert path.exists()


def test_a_removed_segment_is_skipped(tmp_path: Path) -> None:
    gone = left_open(tmp_path, "m", 1)
    gone.unlink()
    thread = closer(tmp_path)
    thread.start([gone, left_open(tmp_path, "m", 2)])
    assert thread.stop(10)
    assert shown(tmp_path) == {"m": b"2\n"}


def test_retention_is_applied_after_each_segment(tmp_path: Path) -> None:
    thread = closer(tmp_path, Retention(size_bytes=0))
    with capture_logs() as logs:
        thread.start([left_open(tmp_path, "m", 1)])
        assert thread.stop(10)
    assert shown(tmp_path) == {}
    assert [(entry["event"], entry["count"]) for entry in logs] == [("old audit segments removed", 1)]
