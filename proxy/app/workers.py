"""Supervises several workers, which are ``oxproxy serve`` processes that listen on the same addresses (SO_REUSEPORT).

The section "Workers" of docs/how-to/operations.md describes restarts, signals and invalid files.

The supervisor blocks its signals, and accepts them one at a time with sigtimedwait. Workers inherit the blocked signals
and unblock them once their handlers are installed, so that no signal reaches a worker that can't handle it yet. A
worker drains and exits when its standard input is closed, so it does not outlive the supervisor.

Sources: socket(7), SO_REUSEPORT; sigtimedwait(2); signal(7), "Execution of signal handlers".
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from proxy.config.settings import Settings
from proxy.yamlfile.hosts import HostPort

_log = structlog.get_logger(__name__)

#: Back-off before a worker is restarted, in seconds: initial and maximum.
RETRY_SECONDS, RETRY_MOST_SECONDS = 0.5, 30.0
#: Running time, in seconds, after which a worker is restarted with the initial back-off.
STEADY_SECONDS = 60.0
#: Timeout of the process that reads and checks all files, in seconds.
_CHECK_SECONDS = 120.0
#: Interval at which the supervisor polls the process that checks the files, in seconds.
_POLL_SECONDS = 0.05
#: Seconds that a worker has, in addition to `shutdown.deadline`, to wait for close-oks and to close the audit log.
_END_SECONDS = 15.0
#: Signals that a supervisor receives; workers unblock them.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
#: Signals to stop within this many seconds count as one, since a service manager and a shell may both send one.
ONE_SIGNAL_SECONDS = 1.0
#: Exit statuses of every process: drained; internal error; invalid configuration or rules, an address that can't be
#: bound, or a refusal by the broker.
EXIT_OK, EXIT_BROKEN, EXIT_FAULTY = 0, 1, 2


class WorkerSlot(NamedTuple):
    """Identifies one of several workers; the supervisor passes it on the command line."""

    number: int  # counting from 0
    restarts: int  # number of restarts so far

    def settings(self, settings: Settings) -> Settings:
        """Return the configuration of this worker, with its admin port and its own file names."""
        admin = settings.admin
        if admin.address is not None:
            # `admin_addresses` has no entry for this worker if `workers` was reduced while the supervisor was running.
            address = HostPort(admin.address.host, admin.address.port + self.number)
            admin = admin.model_copy(update={"address": address})
        instance = f"{settings.audit.instance or socket.gethostname()}-{self.number}"
        audit = settings.audit.model_copy(update={"instance": instance})
        return settings.model_copy(update={"admin": admin, "audit": audit})


@dataclass(slots=True)
class _Worker:
    """One worker, with its process or the time of its next start."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    started_at: float = 0.0
    start_at: float = 0.0
    back_off_seconds: float = RETRY_SECONDS

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def postpone(self, now: float) -> None:
        self.start_at = now + self.back_off_seconds
        self.back_off_seconds = min(2 * self.back_off_seconds, RETRY_MOST_SECONDS)


class Workers:
    """The supervisor of all workers."""

    def __init__(self, config: Path, settings: Settings) -> None:
        self._settings = settings
        self._command = [sys.executable, "-P", "-m", "proxy.cli.main", "serve", "--config", str(config)]
        self._workers = [_Worker(number) for number in range(settings.workers)]
        #: Time at which workers that are still running are killed; None before a stop is requested.
        self._kill_at: float | None = None
        self._status = EXIT_OK

    def serve(self) -> int:
        """Run until a signal arrives. Return the exit status.

        Raises:
            ConfigError: listening on an address failed.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        faults = self._check_files()
        if faults:
            sys.stderr.write("".join(f"{fault}\n" for fault in faults))
            return EXIT_FAULTY
        if self._kill_at is not None:
            return self._status
        with ExitStack() as stack:
            for index, listener in enumerate(self._settings.listen):
                try:
                    stack.enter_context(_reserve(listener.address))
                except OSError as error:
                    raise self._settings.cannot_listen(f"listen[{index}].address", listener.address, error) from error
            while self._supervise():
                received = signal.sigtimedwait(SIGNALS, self._pause_seconds())
                if received is not None:
                    self._receive(signal.Signals(received.si_signo))
        _log.info("stopped")
        return self._status

    def _supervise(self) -> bool:
        """Record workers that have exited, and start those that are due; return False if the supervisor can exit."""
        for worker in self._workers:
            now = time.monotonic()
            if worker.process is not None:
                self._reap(worker, now)
            elif self._kill_at is None and now >= worker.start_at:
                self._start(worker, now)
        running = [worker for worker in self._workers if worker.process is not None]
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            _log.warning("workers have not exited in time", workers=[worker.number for worker in running])
            for worker in running:
                worker.signal(signal.SIGKILL)
            self._kill_at += _END_SECONDS
        return self._kill_at is None or bool(running)

    def _pause_seconds(self) -> float:
        waiting = [worker.start_at for worker in self._workers if worker.process is None]
        times = waiting if self._kill_at is None else [self._kill_at]
        return max(0.0, min(times, default=time.monotonic() + RETRY_MOST_SECONDS) - time.monotonic())

    def _start(self, worker: _Worker, now: float) -> None:
        try:
            faults = self._check_files() if worker.restarts else []
            if faults:
                _log.error("worker can't be started: files are invalid", number=worker.number, errors=faults)
                worker.postpone(now)
                return
            if self._kill_at is not None:
                return
            place = ["--worker", str(worker.number), str(worker.restarts)]
            # Each worker has its own session. Otherwise, it would get the terminal's signals in addition to the
            # forwarded signals.
            worker.process = subprocess.Popen(  # noqa: S603 -- this program
                [*self._command, *place], stdin=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:  # for example, because of too many processes or too little memory
            _log.error("worker can't be started", number=worker.number, error=error.strerror or str(error))
            worker.postpone(now)
            return
        worker.started_at = now
        _log.info("worker started", number=worker.number, process=worker.process.pid)

    def _reap(self, worker: _Worker, now: float) -> None:
        process = worker.process
        status = None if process is None else process.poll()
        if process is None or status is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        worker.process = None
        if self._kill_at is not None:
            return
        if status == EXIT_FAULTY and not worker.restarts:
            # As in a single sidecar, an error that prevents the first start is not retried. A worker that has served
            # producers never exits with this status.
            self._status = EXIT_FAULTY
            self._stop(now)
            return
        worker.restarts += 1
        if now - worker.started_at >= STEADY_SECONDS:
            worker.back_off_seconds = RETRY_SECONDS
        again = worker.back_off_seconds
        _log.error("worker exited unexpectedly", number=worker.number, status=status, again_in_seconds=again)
        worker.postpone(now)

    def _receive(self, number: signal.Signals) -> None:
        if number is signal.SIGHUP and self._kill_at is None:
            self._reload()
        elif number in (signal.SIGTERM, signal.SIGINT):
            now = time.monotonic()
            if self._kill_at is not None:
                if now < self._kill_at - self._drain_seconds + ONE_SIGNAL_SECONDS:
                    return
                _log.warning("second signal: ending immediately")
                for worker in self._workers:
                    worker.signal(signal.SIGKILL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                signal.raise_signal(signal.SIGTERM)
            _log.info("draining", workers=len(self._workers))
            self._stop(now)

    @property
    def _drain_seconds(self) -> float:
        return self._settings.shutdown.deadline_seconds + _END_SECONDS

    def _stop(self, now: float) -> None:
        self._kill_at = now + self._drain_seconds
        for worker in self._workers:
            worker.signal(signal.SIGTERM)

    def _reload(self) -> None:
        """Forward SIGHUP, and immediately start workers that are in back-off. If the files are invalid, do neither."""
        try:
            faults = self._check_files()
        except OSError as error:
            faults = [error.strerror or str(error)]
        if faults:
            _log.error("reload failed", reason="signal", errors=faults)
            return
        if self._kill_at is not None:
            return
        for worker in self._workers:
            worker.start_at = 0.0
            worker.signal(signal.SIGHUP)

    def _check_files(self) -> list[str]:
        """Return the errors that another process finds in the configuration, rules and TLS files.

        If SIGTERM arrives, the check is ended, and the workers drain.

        Raises:
            OSError: no process can be started.
        """
        end = time.monotonic() + _CHECK_SECONDS
        # A container with a read-only file system has no directory for temporary files, so a pipe is used.
        check = subprocess.Popen(  # noqa: S603 -- this program
            [*self._command, "--dry-run"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        while True:
            try:
                _, output = check.communicate(timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:  # no output is lost
                stopping = signal.sigtimedwait((signal.SIGTERM, signal.SIGINT), 0)
                if stopping is not None or time.monotonic() >= end:
                    check.kill()
                    check.communicate()
                    if stopping is None:
                        return [f"not read within {_CHECK_SECONDS:g} s"]
                    self._receive(signal.Signals(stopping.si_signo))
                    return []
        if check.returncode == EXIT_OK:
            return []
        faults = output.decode(errors="replace").splitlines()
        return faults or [f"the check exited with status {check.returncode}"]


def _reserve(address: HostPort) -> socket.socket:
    """Bind an address that workers will listen on, to keep it reserved while no worker is running.

    Raises:
        OSError: the address is in use. Another sidecar on this address would get some of the connections.
    """
    family, *_, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind(place)
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        # SO_REUSEADDR is not set, since two sockets with this option don't conflict while neither of them is listening.
        held.bind(place)
    except OSError:  # earlier connections of a sidecar without workers are in the state TIME_WAIT
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(place)
        except OSError:
            held.close()
            raise
    return held
