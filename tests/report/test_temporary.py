from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from oxproxy.report.files.temporary import remove_abandoned, temporary

#: Creates a temporary directory with a file, prints its path, and waits.
WAITING = """
import sys
from oxproxy.report.files.temporary import temporary
with temporary() as folder:
    (folder / "lines.jsonl").write_text("text of the log")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_the_directory_of_a_killed_process_is_removed_and_those_of_others_are_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        folder = Path(process.stdout.readline().strip())
        (tmp_path / "oxproxy-other").mkdir()
        (tmp_path / "oxproxy-report-link").symlink_to(tmp_path / "oxproxy-other")
        remove_abandoned()
        assert (folder / "lines.jsonl").exists()
        process.send_signal(signal.SIGKILL)
    with temporary() as own:
        assert own.exists()
        assert not folder.parent.exists()
    assert sorted(os.listdir(tmp_path)) == ["oxproxy-other", "oxproxy-report-link"]
