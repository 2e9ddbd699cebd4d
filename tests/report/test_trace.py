"""Tests `oxproxy trace`, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from oxproxy.audit.segments import compress_segment
from oxproxy.cli.main import main
from oxproxy.report.files.storage import LocalFiles
from oxproxy.report.job import run
from oxproxy.report.request import Request
from oxproxy.report.session import LazySession
from tests.report.lines import publish, segment, settle


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    ids = [publish(seq=number, message_id=f"m{number}") for number in range(10, 400)]
    segment(folder, [publish(message_id='a "quoted" ü', ts="2026-11-20T07:59:59.9Z"), *ids, "rubbish"])
    segment(
        folder, [settle(ts="2026-11-20T08:00:00Z"), settle(ts="2026-11-20T08:00:00Z", seq=11)], hour=8, name="p-1-2"
    )
    far = publish(message_id='a "quoted" ü', proxy="far", ts="2026-11-20T08:00:01Z", seq=1)
    segment(folder, [far], hour=8, name="far-1-1.jsonl")
    segment(folder, [publish(message_id="other", rk='a "quoted" ü', proxy="x")], hour=9, name="x-1-1")
    return folder


def traced(capsys: pytest.CaptureFixture[str], log: Path, message_id: str, *more: str) -> tuple[int, list[str], str]:
    status = main(["trace", message_id, "--input", str(log), *more])
    output = capsys.readouterr()
    records = [json.loads(line) for line in output.out.splitlines()]
    return status, [f"{record['kind']} {record['proxy']} {record['seq']}" for record in records], output.err


def test_all_records_of_a_message_are_printed_in_chronological_order(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert traced(capsys, log, 'a "quoted" ü') == (0, ["publish p 1", "settle p 1", "publish far 1"], "")


def test_records_of_a_copied_segment_are_printed_once(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for original in [*log.rglob("*p-1-?*")]:
        (log / f"copy-of-{original.name}").write_bytes(original.read_bytes())
    assert len([*log.glob("copy-of-*")]) == 2
    assert traced(capsys, log, 'a "quoted" ü') == (0, ["publish p 1", "settle p 1", "publish far 1"], "")


def test_an_unknown_message_is_status_1(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, records, errors = traced(capsys, log, "unknown")
    assert (status, records) == (1, [])
    assert "4 segments read, 0 skipped" in errors
    status, _, errors = traced(capsys, log, "m11", "--since", "2026-11-21", "--until", "2026-11-22")
    assert (status, "0 segments read" in errors) == (1, True)


def test_segments_without_the_message_in_their_partial_are_skipped(
    log: Path, session: LazySession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    run(session, Request(str(log), str(output)))
    for number in range(10, 400, 30):
        assert traced(capsys, log, f"m{number}", "--output", str(output))[0] == 0
    status, _, errors = traced(capsys, log, "unknown message", "--output", str(output))
    assert status == 1
    assert "4 skipped" in errors
    # Segments without a partial are read.
    segment(log, [publish(message_id="new")], hour=10)
    assert traced(capsys, log, "new", "--output", str(output))[1] == ["publish p 1"]


def test_a_search_of_a_day_reads_the_ledgers_of_its_hours_that_still_exist(
    log: Path, session: LazySession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(log, [publish(message_id="other", ts="2026-11-19T07:00:00Z")], "2026-11-19")
    output, fetch, fetched = tmp_path / "out", LocalFiles.fetch, list[str]()
    run(session, Request(str(log), str(output)))

    def removing(files: LocalFiles, path: str, folder: Path) -> Path:
        fetched.append(path.partition("/_partials/2/")[2])
        if "hour=08" in path and path.endswith("ledger.parquet"):  # replaced by a report that is running
            Path(path).unlink()
        return fetch(files, path, folder)

    monkeypatch.setattr(LocalFiles, "fetch", removing)
    status, _, errors = traced(capsys, log, "unknown", "--output", str(output), "--since", "2026-11-20")
    assert (status, "2 segments read, 2 skipped" in errors) == (1, True)
    hours = sorted(path.rpartition("/hour=")[0] for path in fetched if path.endswith("ledger.parquet"))
    assert hours == ["date=2026-11-20"] * 3


def test_segments_removed_during_the_search_are_skipped(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = LocalFiles.fetch

    def removing(files: LocalFiles, path: str, folder: Path) -> Path:
        for removed in log.rglob("*far-*"):
            removed.unlink()
        return fetch(files, path, folder)

    monkeypatch.setattr(LocalFiles, "fetch", removing)
    (log / "link.jsonl").symlink_to(log / "nowhere")
    assert traced(capsys, log, 'a "quoted" ü')[:2] == (0, ["publish p 1", "settle p 1"])


def test_open_segments_are_searched(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hour = log / "date=2026-11-20" / "hour=09"
    (hour / "_audit-p-1-3.jsonl").write_text(
        f"{publish(message_id='new', seq=7)}\n{settle(seq=7)}\n{publish(message_id='cut')[:-1]}"
    )
    # A segment that is being closed exists twice.
    segment(log, [publish(message_id="last", seq=5)], hour=9, name="p-1-2")
    (hour / "_audit-p-1-2.jsonl").write_text(f"{publish(message_id='last', seq=5)}\n")
    (hour / "_audit-p-1-2.jsonl.gz").write_bytes(b"incomplete")
    with (hour / "_audit-p-1-3.jsonl").open("a") as file:
        file.write(f"}}\n{settle(seq=5)}\n")
    assert traced(capsys, log, "new") == (0, ["publish p 7", "settle p 7"], "")
    assert traced(capsys, log, "last") == (0, ["publish p 5", "settle p 5"], "")
    assert traced(capsys, log, "cut")[:2] == (0, ["publish p 1"])


def test_an_incomplete_line_in_an_open_segment_is_not_a_record(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (log / "date=2026-11-20" / "hour=09" / "_audit-p-1-3.jsonl").write_text(publish(message_id="cut")[:-1])
    status, records, errors = traced(capsys, log, "cut")
    assert (status, records, errors) == (1, [], "no record found: 5 segments read, 0 skipped\n")


def test_a_segment_closed_during_the_search_is_read(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_segment = log / "date=2026-11-20" / "hour=09" / "_audit-p-1-3.jsonl"
    open_segment.write_text(f"{publish(message_id='new')}\n")
    fetch = LocalFiles.fetch

    def closing(files: LocalFiles, path: str, folder: Path) -> Path:
        if open_segment.exists():
            compress_segment(open_segment)
        return fetch(files, path, folder)

    monkeypatch.setattr(LocalFiles, "fetch", closing)
    assert traced(capsys, log, "new")[:2] == (0, ["publish p 1"])


@pytest.mark.parametrize("name", ["none", "x" * 300])
def test_a_missing_directory_is_an_error(name: str, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("oxproxy"))
    command = [program, "trace", "m", "--input", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"{tmp_path / name}: --input: no such directory\n"


def test_an_unreadable_directory_is_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = traced(capsys, log, "m11", "--output", str(log / ("x" * 300)))
    assert (status, errors) == (2, f"{log / ('x' * 300)}/_partials/2/index.json: File name too long\n")
