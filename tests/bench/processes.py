"""What does a process cost, and how are the processes of the benchmark started and ended?

Reads CPU time and memory from the kernel; starts HAProxy, the sidecar and generators as children, and ends
just these. Must not know what is compared with what. Source: proc(5), clock_getcpuclockid(3).
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
START_SECONDS = 90.0
"""How long a child may take to get ready: the sidecar loads and binds 20,000 bindings in that time."""
STOP_SECONDS = 15.0
POLL_SECONDS = 0.05


class ChildError(Exception):
    """A child ended too early, did not get ready in time, or answered with nothing."""


def end_with_parent() -> None:
    """Runs in the child: let the kernel end it when the benchmark itself is killed. Source: prctl(2)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads, in nanosecond steps where /proc has ticks of 10 ms."""
    return time.clock_gettime((~pid << 3) | 2)


def memory_kib(pid: int, field: str = "VmRSS") -> int:
    """A line of /proc/PID/status in KiB: VmRSS is now, VmHWM the peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise ChildError(f"process {pid} has no {field}")


def reset_peak(pid: int) -> None:
    """Let VmHWM start again from what is in use now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Child:
    """A child process whose output goes to a file; ended with SIGTERM, then SIGKILL."""

    def __init__(self, name: str, command: list[str], folder: Path, **options: Any) -> None:  # Popen's own options
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
        """Ask `ready` until it says yes; its end or a deadline is an error with the log's tail."""
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if self.process.poll() is not None:
                raise ChildError(f"{self.name} ended with {self.process.returncode}: {self.tail()}")
            if time.monotonic() > deadline:
                raise ChildError(f"{self.name} was not ready after {START_SECONDS:.0f} s: {self.tail()}")
            time.sleep(POLL_SECONDS)

    def tail(self) -> str:
        return self._log.read_text(errors="replace").strip()[-600:]


class Producer(Child):
    """A generator process; `ask` sends one command and waits for its answer."""

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

    def ask(self, command: dict[str, object]) -> Any:  # JSON
        self.tell(command)
        return self.answer()

    def answer(self) -> Any:  # JSON
        """The answer to the command that was told; waits for it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(STOP_SECONDS)
            raise ChildError(f"{self.name} ended: {self.tail()}")
        return json.loads(line)


def answers(url: str) -> bool:
    """Whether a GET of this URL is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
