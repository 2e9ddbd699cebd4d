"""Which processes must not outlive the one that started them: run as a script, it owns them and ends them.

Started with a folder, a JSON list of commands and a grace in seconds, it runs the commands in one process
group until its standard input is closed (by its starter, or by the starter's death of whatever kind), a
signal tells it to end, or one of the commands exits. Then it ends the group: with a grace, politely first.
The folder goes with them, but for two cases: standard input said ``keep``, or a command ended by itself, so
that the starter can read why. Exit status: 0 where every command ended with 0, else 1. Nothing is ended by
name. It imports nothing of the project, so that it can be started by path with ``python -I`` (see
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

#: Seconds between two looks at the commands and at the parent's process id.
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
        """Return whether every process ended well."""
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
    """Return, when there is reason to end, whether the folder shall go."""
    parent = os.getppid()
    said = b""
    while os.getppid() == parent:
        if not group.complete():
            return False
        if select.select([0], [], [], INTERVAL_SECONDS)[0]:
            data = os.read(0, 64)
            if not data:
                return said.strip() != b"keep"
            said += data
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
