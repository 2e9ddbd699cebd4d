from __future__ import annotations

import io

from oxproxy.report.progress import Progress
from tests.producer import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_with_the_step_and_its_progress() -> None:
    stream = io.StringIO()
    with Progress("oxproxy report", stream, 0.01) as progress:
        progress.step("reading segments", 1440)
        progress.done = 620
        until(lambda: stream.getvalue().count("\n") > 1)
    assert stream.getvalue().splitlines()[-1].startswith("oxproxy report: reading segments, 620 of 1,440, ")


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
