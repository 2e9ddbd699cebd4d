"""Tests a log and a report on a remote file system, with Hadoop's client for WebHDFS."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from oxproxy.report import session as report_session
from oxproxy.report.files.storage import HadoopFiles
from oxproxy.report.job import run
from oxproxy.report.progress import Progress
from oxproxy.report.request import Request
from oxproxy.report.session import LazySession
from tests.report.generator import Day
from tests.report.independent import Computed
from tests.report.lines import publish, segment
from tests.report.webhdfs import WebHdfs

NOW = datetime(2026, 11, 22, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(True, id="segments read by tasks"),
        pytest.param(False, id="segments copied to the driver", marks=pytest.mark.matrix),
    ],
)
def test_log_and_output_can_be_on_hdfs(
    session: LazySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    if not whole:
        monkeypatch.setattr(report_session, "_WHOLE_BYTES", 0)
    Day(2_000).write(tmp_path / "log")
    for hour in (tmp_path / "log").rglob("hour=*"):
        if hour.name != "hour=08":  # each file takes about ten requests
            shutil.rmtree(hour)
    segments = {f"/{path.relative_to(tmp_path)}": path.stat().st_size for path in (tmp_path / "log").rglob("audit-*")}
    with WebHdfs(tmp_path) as hdfs:
        request = Request(f"{hdfs.url}/log", f"{hdfs.url}/out", trace=True, now=NOW)
        assert run(session, request).segments == len(segments) == 3
        assert all(hdfs.read_bytes[path] >= size for path, size in segments.items())
        Computed(tmp_path / "log", tmp_path / "out").compare()
        hdfs.read_bytes.clear()
        assert run(session, request).read == 0
        assert not hdfs.read_bytes.keys() & segments
        assert (tmp_path / "out/pages/index.html").exists()


def test_large_segments_on_hdfs_are_copied_to_this_machine_one_at_a_time(
    session: LazySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_session, "_WHOLE_BYTES", 0)
    copies: list[Path] = []
    steps: list[str] = []
    fetch, step = HadoopFiles.fetch, Progress.step

    def begun(progress: Progress, name: str, total: int = 0) -> None:
        steps.append(f"{name}, {total}")
        step(progress, name, total)

    monkeypatch.setattr(Progress, "step", begun)

    def fetched(files: HadoopFiles, path: str, folder: Path) -> Path:
        if "/audit-" not in path:
            return fetch(files, path, folder)
        assert not any(copy.exists() for copy in copies)
        assert not list(folder.glob("*-*.parquet"))  # partials of earlier segments
        if not copies:
            removed.unlink()  # by retention
        copies.append(fetch(files, path, folder))
        return copies[-1]

    monkeypatch.setattr(HadoopFiles, "fetch", fetched)
    removed, *_ = [segment(tmp_path / "log", [publish(seq=number)], name=f"p-1-{number}") for number in (1, 2, 3)]
    with WebHdfs(tmp_path) as hdfs:
        assert run(session, Request(f"{hdfs.url}/log", f"{hdfs.url}/out", now=NOW)).publishes == 2
    assert len(copies) == 3
    assert steps[1:3] == ["reading segments, 3", "merging hours, 1"]


def test_a_file_on_hdfs_gets_its_name_when_it_is_complete(session: LazySession, tmp_path: Path) -> None:
    with WebHdfs(tmp_path) as hdfs:
        files = session.storage(hdfs.url)
        for content in ("old", "new"):
            (tmp_path / "local").write_text(content)
            files.put(tmp_path / "local", f"{hdfs.url}/out/file")
            assert (tmp_path / "out/file").read_text() == content
        assert hdfs.created == ["/out/_file", "/out/_file"]
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["file"]


def test_a_file_that_was_removed_on_hdfs_is_not_fetched(session: LazySession, tmp_path: Path) -> None:
    with WebHdfs(tmp_path) as hdfs:
        assert not session.storage(hdfs.url).fetch(f"{hdfs.url}/removed", tmp_path).exists()


def test_files_on_hdfs_are_copied_to_and_from_directories_of_any_name(session: LazySession, tmp_path: Path) -> None:
    local = tmp_path / "a b=%20"
    local.mkdir()
    with WebHdfs(tmp_path) as hdfs:
        files = session.storage(hdfs.url)
        (local / "content").write_text("text")
        files.put(local / "content", f"{hdfs.url}/out/file")
        assert files.fetch(f"{hdfs.url}/out/file", local).read_text() == "text"
