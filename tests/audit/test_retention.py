from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from proxy.audit.retention import Retention, expire

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
