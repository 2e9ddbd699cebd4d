"""Starts processes that end together with this process, even if it is killed; ``watchdog`` supervises them."""

from __future__ import annotations

import atexit
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

WATCHDOG = Path(__file__).with_name("watchdog.py")


class Watched:
    """Commands that run until ``end``, until one of them exits, or until this process ends.

    Args:
        folder: working directory, removed afterwards.
        commands: commands as lists of arguments, started in order.
        environment: the complete environment of the commands.
        output: file in ``folder`` for their standard output and error.
        grace_seconds: seconds between SIGTERM and SIGKILL; 0 sends only SIGKILL.
    """

    def __init__(
        self,
        folder: Path,
        commands: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        output: Path,
        grace_seconds: float = 0.0,
    ) -> None:
        self._folder = folder
        with output.open("wb") as file:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", str(WATCHDOG), str(folder), json.dumps(commands), str(grace_seconds)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        atexit.register(self.end)

    @property
    def running(self) -> bool:
        """Whether all commands are still running."""
        return self._watchdog.poll() is None

    @property
    def process_ids(self) -> list[int]:
        """One process id for each command, available once the first command responds."""
        ids: list[int] = json.loads((self._folder / "pids").read_text())
        return ids

    def end(self, keep: bool = False) -> bool:
        """Stop the commands and return whether all exited with 0. ``keep`` keeps the directory."""
        atexit.unregister(self.end)
        watchdog = self._watchdog
        if watchdog.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                if keep and not watchdog.stdin.closed:
                    watchdog.stdin.write(b"keep")
                watchdog.stdin.close()
        well = watchdog.wait() == 0
        if keep:
            (self._folder / "pids").unlink(missing_ok=True)
        else:
            shutil.rmtree(self._folder, ignore_errors=True)
        return well
