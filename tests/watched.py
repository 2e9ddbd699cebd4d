"""How processes are started so that they end with us, whatever ends us: the near side of ``watchdog``."""

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
    """Commands that run until ``end``, until one of them exits, or until this process is gone.

    Args:
        folder: their working directory; removed with them.
        commands: each as a list of arguments; started in order.
        environment: all of their environment.
        output: file in ``folder`` that takes their standard output and error.
        grace_seconds: how long they may take to end after SIGTERM; 0 ends them by SIGKILL alone.
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
        """Whether all commands still run."""
        return self._watchdog.poll() is None

    @property
    def process_ids(self) -> list[int]:
        """One for each command; known once the first of them answers anything."""
        ids: list[int] = json.loads((self._folder / "pids").read_text())
        return ids

    def end(self, keep: bool = False) -> bool:
        """End them and return whether each exited with 0; ``keep`` leaves the folder. Once is enough."""
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
