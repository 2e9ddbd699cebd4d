from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from oxproxy.audit import claim as claiming
from oxproxy.audit import retention as closing
from oxproxy.audit import segments
from oxproxy.audit.policy import AuditMode
from oxproxy.audit.retention import Retention, expire
from oxproxy.audit.segments import open_segments
from oxproxy.audit.writer_thread import RotatingLog
from oxproxy.errors import ConfigError
from tests.audit.test_writer import SECONDS, Disk, left_open, line, matching_files, numbers, policy, until, writing


async def test_an_instance_starts_while_another_closes_its_old_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_open(tmp_path, "b")
    began, go_on = threading.Event(), threading.Event()
    compress = segments.compress_segment

    def slow(path: Path) -> None:
        began.set()
        assert go_on.wait(SECONDS)
        compress(path)

    monkeypatch.setattr(closing, "compress_segment", slow)
    async with writing(policy(tmp_path)):
        await until(began.is_set)
        asyncio.get_running_loop().call_later(1.0, go_on.set)
        async with writing(replace(policy(tmp_path), instance="b")) as (audit, _):
            audit.append(line(7))
    assert sorted(numbers(tmp_path)) == [7, ord("b")]


async def test_a_process_that_does_not_finish_closing_old_segments_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = segments.InstanceLock.acquire(tmp_path, "b", closing=True)
    assert claim is not None
    monkeypatch.setattr(claiming, "_OTHER_CLOSES_SECONDS", 1.0)
    with capture_logs() as logs, pytest.raises(ConfigError, match="another process has been closing old segments"):
        async with asyncio.timeout(SECONDS), writing(replace(policy(tmp_path), instance="b")):
            pass
    assert [event["event"] for event in logs] == ["waiting for another process to close old audit segments"]
    claim.release()


async def test_a_stop_leaves_further_segments_of_dead_instances_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = [left_open(tmp_path, "b", number) for number in (1, 2, 3)]
    began, go_on = threading.Event(), threading.Event()
    compress = segments.compress_segment

    def slow(path: Path) -> None:
        began.set()
        assert go_on.wait(SECONDS)
        compress(path)

    monkeypatch.setattr(closing, "compress_segment", slow)
    with capture_logs() as logs:
        async with writing(policy(tmp_path)):
            await until(began.is_set)
            asyncio.get_running_loop().call_later(1.0, go_on.set)
    assert [path.exists() for path in dead] == [False, True, True]
    assert matching_files(tmp_path, "*.lock") == []
    assert logs == []


async def test_lock_files_of_killed_instances_are_removed_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "_audit-killed.lock").write_text("1 \n")
    running = segments.InstanceLock.acquire(tmp_path, "running")
    assert running is not None
    async with writing(policy(tmp_path)):
        await until(lambda: not (tmp_path / "_audit-killed.lock").exists())
        assert (tmp_path / "_audit-running.lock").exists()
    running.release()


async def test_a_segment_that_cannot_be_closed_is_no_lasting_failure(tmp_path: Path) -> None:
    class Faulty(Disk):
        def log(self, *arguments: Any) -> RotatingLog:  # Any: passed on unchanged
            class Log(RotatingLog):
                def end_segment(self) -> None:
                    had_segment = self.wait_seconds() is not None
                    super().end_segment()
                    if had_segment:
                        raise OSError(5, "Input/output error")  # as close() on NFS may

            return Log(*arguments)

    short = policy(tmp_path, AuditMode.STRICT, segment_seconds=0.05)
    with capture_logs() as logs:
        async with writing(short, Faulty()) as (audit, counters):
            audit.append(line(1))
            point = audit.commit_point()
            await until(lambda: audit.durable == point)
            await until(lambda: bool(logs))
            await until(lambda: (audit.failure, counters.failing) == (None, False))
    assert numbers(tmp_path) == [1]


@pytest.mark.parametrize("look", [open_segments, lambda directory: expire(directory, Retention(seconds=0), 0.0)])
def test_a_directory_may_vanish_while_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[Path], object]
) -> None:
    hour = tmp_path / "date=2026-11-20" / "hour=07"
    hour.mkdir(parents=True)
    scandir = os.scandir

    def vanishing(path: Any) -> Any:  # Any: the types of os.scandir
        if str(path) == str(hour) and hour.exists():
            hour.rmdir()  # as another instance may do when it deletes old files
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    look(tmp_path)
