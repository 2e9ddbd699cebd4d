"""Reads the CPU time and memory of processes, and starts and ends the benchmark's child processes.

The child processes are HAProxy, the sidecar and generators. This module does not depend on the cases. Source: proc(5),
clock_getcpuclockid(3).
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
START_SECONDS = 90.0
"""Time limit for a child process to become ready. The sidecar loads and binds 20,000 bindings in this time."""
STOP_SECONDS = 15.0
POLL_SECONDS = 0.05


class ChildError(Exception):
    """A child process ended too early, was not ready in time, or did not respond."""


def end_with_parent() -> None:
    """In the child process, request a signal from the kernel when the benchmark is killed. Source: prctl(2)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process, in nanosecond steps (/proc has ticks of 10 ms)."""
    return time.clock_gettime((~pid << 3) | 2)


def memory_kib(pid: int, field: str = "VmRSS") -> int:
    """Return the value of a field in /proc/PID/status, in KiB: VmRSS is the current memory, VmHWM the peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise ChildError(f"process {pid} has no {field}")


def reset_peak(pid: int) -> None:
    """Reset VmHWM to the memory that is currently in use."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Child:
    """A child process whose output is written to a file. It is ended with SIGTERM, then SIGKILL."""

    def __init__(self, name: str, command: list[str], folder: Path, **options: Any) -> None:  # Any: options of Popen
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stderr=log, cwd=ROOT, preexec_fn=end_with_parent, **{"stdout": log, **options}
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` returns True. If the process ends or the deadline expires, raise an error with the log."""
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if self.process.poll() is not None:
                raise ChildError(f"{self.name} ended with {self.process.returncode}: {self.tail()}")
            if time.monotonic() > deadline:
                raise ChildError(f"{self.name} was not ready after {START_SECONDS:.0f} s: {self.tail()}")
            time.sleep(POLL_SECONDS)

    def tail(self) -> str:
        return self._log.read_text(errors="replace").strip()[-600:]


class LoadProcess(Child):
    """A generator or consumer process; `ask` sends one command and waits for the reply."""

    def __init__(self, name: str, folder: Path, plan: dict[str, object], module: str = "generator") -> None:
        command = [sys.executable, "-m", f"tests.bench.{module}", json.dumps(plan)]
        pipe = subprocess.PIPE
        super().__init__(name, command, folder, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        try:
            self.answer()
        except BaseException:
            self.stop()
            raise

    def tell(self, command: dict[str, object]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
        except BrokenPipeError as error:
            raise ChildError(f"{self.name} is gone: {self.tail()}") from error

    def ask(self, command: dict[str, object]) -> Any:  # Any: JSON
        self.tell(command)
        return self.answer()

    def answer(self) -> Any:  # Any: JSON
        """Wait for the reply to the last command."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(STOP_SECONDS)
            raise ChildError(f"{self.name} ended: {self.tail()}")
        return json.loads(line)
