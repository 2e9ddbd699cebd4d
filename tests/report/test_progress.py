from __future__ import annotations

import io
from pathlib import Path

import pytest

from oxproxy.report import session as report_session
from oxproxy.report.job import run
from oxproxy.report.progress import Progress
from oxproxy.report.request import Request
from oxproxy.report.session import LazySession
from tests.producer import until
from tests.report.lines import publish, segment


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_with_the_step_and_its_progress() -> None:
    stream = io.StringIO()
    with Progress("oxproxy report", stream, 0.01) as progress:
        progress.step("reading segments", 1440)
        progress.done = 620
        progress.records = lambda: 12_345_678
        until(lambda: stream.getvalue().count("\n") > 1)
    last = stream.getvalue().splitlines()[-1]
    assert last.startswith("oxproxy report: reading segments, 620 of 1,440, 12,345,678 records, ")


def test_a_terminal_has_one_line_which_is_cleared_at_the_end() -> None:
    stream = Terminal()
    with Progress("oxproxy report", stream, 0.01) as progress:
        progress.step("merging hours", 24)
        progress.fraction = lambda: 0.5
        until(lambda: stream.getvalue().count("\r") > 1)
    text = stream.getvalue()
    assert "\n" not in text
    assert "\r\x1b[Kmerging hours, 12 of 24, " in text
    assert text.endswith("\r\x1b[K")


def test_a_short_run_shows_nothing() -> None:
    stream = Terminal()
    with Progress("oxproxy report", stream, 60) as progress:
        progress.step("listing segments")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("way", ["in this process", "in tasks", "through Hadoop"])
def test_records_are_counted_while_segments_are_read(
    session: LazySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    ended: list[str] = []

    class Kept(Progress):
        def step(self, step: str, total: int = 0) -> None:
            ended.append(str(self))
            super().step(step, total)

    monkeypatch.setattr(report_session, "Progress", Kept)
    if way == "through Hadoop":
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    for hour in range(3):
        segment(tmp_path / "in", [publish(seq=1), publish(seq=2), "rubbish"], hour=hour)
    request = Request(str(tmp_path / "in"), str(tmp_path / "out"))
    if way == "in this process":
        with LazySession(request) as own:
            run(own, request)
    else:
        run(session, request)
    [reading] = [text for text in ended if text.startswith("reading segments")]
    assert ", 6 records, " in reading
