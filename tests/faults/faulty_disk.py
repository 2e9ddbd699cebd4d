"""A sidecar whose audit log is on a disk that a test can fill or block: ``oxproxy`` with one system call replaced.

Everything else of the process is unchanged. A full disk is ENOSPC from write(2); a blocked disk is a write(2) that does
not return, as on a network file system whose server is down.
"""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path

_PROGRAM = """#!{python}
import os, sys, threading, time

state, write = {state!r}, os.write

def faulty(descriptor, data):
    if threading.current_thread().name == "audit-writer":
        while (now := open(state).read()) == "hung":
            time.sleep(0.01)
        if now == "full":
            raise OSError(28, "No space left on device")
    return write(descriptor, data)

os.write = faulty
from oxproxy.cli.main import main
sys.exit(main())
"""


class State(Enum):
    """The state of the disk."""

    WELL = "well"
    FULL = "full"
    HUNG = "hung"


class FaultyDisk:
    """A program like ``oxproxy``, and the state of its disk.

    Args:
        folder: directory for both files.
    """

    def __init__(self, folder: Path) -> None:
        self.program = folder / "oxproxy-with-a-faulty-disk"
        self._state = folder / "disk"
        self.become(State.WELL)
        self.program.write_text(_PROGRAM.format(python=sys.executable, state=str(self._state)))
        self.program.chmod(0o755)

    def become(self, state: State) -> None:
        fresh = self._state.with_suffix(".next")
        fresh.write_text(state.value)
        fresh.rename(self._state)
