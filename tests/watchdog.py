"""Runs commands in a process group, and stops the group when the process that started this script ends.

Arguments: a directory, a JSON list of commands, and a grace period in seconds. The commands run until standard input is
closed (also if the starter is killed), a signal arrives, or one of the commands exits. Then the group is stopped: with
SIGTERM first if there is a grace period, then with SIGKILL. The directory is removed, unless standard input contained
``keep`` or a command exited by itself, so that its output can be read. Exit status: 0 if every command exited with 0,
otherwise 1. The script imports nothing from the project, so that it can be run by its path with ``python -I`` (see
``watched``).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: Seconds between two checks of the commands and of the parent's process id.
INTERVAL_SECONDS = 0.25


class Group:
    """Processes that share one process group."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str]) -> None:
        leader = self.processes[0].pid if self.processes else 0
        self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=leader))

    def complete(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def end(self, grace_seconds: float) -> bool:
        """Stop all processes and return whether all exited with 0."""
        if grace_seconds:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in self.processes:
                    process.wait(grace_seconds)
        self._signal(signal.SIGKILL)
        statuses = [process.wait() for process in self.processes]
        return not any(statuses)

    def _signal(self, number: signal.Signals) -> None:
        if self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.processes[0].pid, number)


def wait(group: Group) -> bool:
    """Wait until the group has to be stopped, and return whether to remove the directory."""
    parent = os.getppid()
    received = b""
    while os.getppid() == parent:
        if not group.complete():
            return False
        if select.select([0], [], [], INTERVAL_SECONDS)[0]:
            data = os.read(0, 64)
            if not data:
                return received.strip() != b"keep"
            received += data
    return True


def main(folder: str, commands: list[list[str]], grace_seconds: float) -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    remove = True
    well = False
    group = Group()
    try:
        for command in commands:
            group.start(command)
        Path(folder, "pids").write_text(json.dumps([process.pid for process in group.processes]))
        remove = wait(group)
    finally:
        well = group.end(grace_seconds)
        if remove:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])))
