"""Tests the end of watched processes, and the removal of their directory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.watched import Watched

POLITE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
FOREVER = "; signal.pause()\nwhile True: signal.pause()"

Start = Callable[[str, float], Watched]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def start(folder: Path) -> Start:
    def started(code: str, grace_seconds: float) -> Watched:
        output = folder / "output"
        watched = Watched(folder, [[sys.executable, "-c", code]], os.environ, output, grace_seconds)
        deadline = time.monotonic() + 20
        while "up" not in output.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        return watched

    return started


def exists(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_that_handles_sigterm_exits_and_its_directory_is_removed(start: Start, folder: Path) -> None:
    watched = start(POLITE + FOREVER, 20)
    assert watched.running
    assert watched.end()
    assert not folder.exists()


def test_a_process_is_killed_after_the_grace_period(start: Start) -> None:
    watched = start(STUBBORN + FOREVER, 0.1)
    (process_id,) = watched.process_ids
    assert not watched.end()
    assert not exists(process_id)


def test_a_directory_is_kept_on_request(start: Start, folder: Path) -> None:
    watched = start(POLITE + FOREVER, 20)
    assert watched.end(keep=True)
    assert (folder / "output").read_text() == "up\n"


def test_the_output_of_a_process_that_exited_can_be_read(start: Start, folder: Path) -> None:
    watched = start("print('up'); raise SystemExit(3)", 0)
    deadline = time.monotonic() + 20
    while watched.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (folder / "output").read_text() == "up\n"
    assert not watched.end()
    assert not folder.exists()
