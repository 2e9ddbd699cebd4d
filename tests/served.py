"""Runs `oxproxy serve` as a process with one or two workers and checks its exit status; also provides fixtures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.broker.observed import Outside
from tests.private_broker import free_port, free_ports
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import PROGRAM, merged, request_page
from tests.tap import Tap

RULES = """
queues: [a]
exchanges:
  - name: letters
    bindings: [{queue: a, name: all letters}]
"""


#: Timeout for the end of a process in seconds.
END_SECONDS = 30


class Running:
    """A process that runs ``oxproxy serve``.

    Args:
        folder: directory for configuration, rules and log.
        settings: the configuration without `listen` and `admin`.
        wrap: a command that replaces itself with the command given as its arguments (exec).
    """

    def __init__(self, folder: Path, settings: dict[str, Any], wrap: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.admin = free_ports(settings.get("workers", 1), self.port)
        self.workers = settings.get("workers", 1)
        self.log = folder / "oxproxy.log"
        self.configuration = folder / "oxproxy.yaml"
        ports = {
            "listen": [{"address": f"127.0.0.1:{self.port}"}],
            "admin": {"address": f"127.0.0.1:{self.admin}"},
        }
        self.configuration.write_text(yaml.safe_dump(merged(ports, settings)))
        with self.log.open("wb") as log:
            command = [*wrap, str(PROGRAM), "serve", "--config", str(self.configuration)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def get(self, path: str, worker: int = 0) -> tuple[int, str]:
        """Return status and content of an admin page; (0, "") if the connection is refused."""
        try:
            return request_page(f"http://127.0.0.1:{self.admin + worker}{path}")
        except OSError:
            return 0, ""

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return all(self.get("/readyz", worker)[0] == 200 for worker in range(self.workers))

    def await_ready(self) -> None:
        until(self.ready, every=0.02)

    def await_log(self, text: str) -> None:
        until(lambda: text in self.log.read_text())

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(END_SECONDS)

    def listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False


@pytest.fixture
def outside(broker: Broker, vhost: str) -> Outside:
    return Outside(broker, vhost)


Serve = Callable[..., Running]


@pytest.fixture
def serve(outside: Outside, tmp_path: Path) -> Iterator[Serve]:
    """Start sidecars for the broker; keywords are merged into the settings."""
    started = []

    def start(rules: str | None = RULES, wrap: Sequence[str] = (), **settings: Any) -> Running:
        configured: dict[str, Any] = {"upstream": outside.broker.upstream}
        if rules is not None:
            (tmp_path / "rules.yaml").write_text(f"vhost: {outside.vhost}\n{rules}")
            configured["rules"] = ["rules.yaml"]
        started.append(Running(tmp_path, merged(configured, settings), wrap))
        return started[-1]

    yield start
    for sidecar in started:
        sidecar.process.kill()
        sidecar.process.wait()


Connect = Callable[[Running], Producer]


@pytest.fixture
def connect(outside: Outside) -> Iterator[Connect]:
    """Log producers in. Their sockets are closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda running: stack.enter_context(Producer(running.port, outside.vhost))


@pytest.fixture
def tap(broker: Broker) -> Iterator[Tap]:
    with Tap(broker.host, broker.port) as made:
        yield made


WORKERS = 2


class Pair(Outside):
    """Two workers and their supervisor.

    Args:
        broker: the broker.
        vhost: virtual host of the rules.
        running: the sidecar.
        rules: its rules file.
    """

    def __init__(self, broker: Broker, vhost: str, running: Running, rules: Path) -> None:
        super().__init__(broker, vhost)
        self.running = running
        self.rules = rules
        self.opened: list[Producer] = []

    def write_rules(self, text: str) -> None:
        self.rules.write_text(f"vhost: {self.vhost}\n{text}")

    def status(self, worker: int = 0) -> dict[str, Any]:  # Any: JSON
        """Return the status of a worker; empty if the worker does not respond."""
        text = self.running.get("/status", worker)[1]
        status: dict[str, Any] = json.loads(text) if text else {}
        return status

    def statuses(self) -> list[dict[str, Any]]:  # Any: JSON
        return [self.status(worker) for worker in range(WORKERS)]

    def processes(self) -> list[int]:
        """Return the process ids of the workers; 0 for a worker that does not respond."""
        return [status.get("process", 0) for status in self.statuses()]

    def rules_in_force(self) -> set[str]:
        return {status.get("rules", "") for status in self.statuses()}

    def metrics(self, name: str, **labels: str) -> list[float]:
        """Return the value of a series in each worker; 0 if the worker does not have the series."""
        return [self._metric(worker, name, labels) for worker in range(WORKERS)]

    def _metric(self, worker: int, name: str, labels: dict[str, str]) -> float:
        wanted = {f'{key}="{text}"' for key, text in {**labels, "worker": str(worker)}.items()}
        for line in self.running.get("/metrics", worker)[1].splitlines():
            start, _, number = line.rpartition(" ")
            family, _, rest = start.partition("{")
            if family == f"oxproxy_{name}" and wanted == set(filter(None, rest.rstrip("}").split(","))):
                return float(number)
        return 0.0

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a series over all workers."""
        return sum(self.metrics(name, **labels))

    def published(self) -> float:
        return self.metric("publishes_total", vhost=self.vhost, exchange="letters", outcome="routed")

    def connected(self) -> float:
        return self.metric("connections", side="downstream")

    def matches(self, binding: str) -> float:
        return self.metric("binding_matches_total", vhost=self.vhost, exchange="letters", binding=binding)

    def reload(self, worker: int = 0) -> tuple[int, dict[str, object]]:
        status, text = request_page(f"http://127.0.0.1:{self.running.admin + worker}/-/reload", b"")
        return status, json.loads(text)

    def producers(self, count: int) -> list[Producer]:
        made = [Producer(self.running.port, self.vhost).open(confirm=True) for _ in range(count)]
        self.opened += made
        return made


#: A module that the supervisor imports first. If the file `fork` exists, the next start of a worker fails with EAGAIN.
FAULTS = """
import os, pathlib, subprocess, sys

folder = pathlib.Path(os.environ["FAULTS"])
if "serve" in sys.orig_argv and "--worker" not in sys.orig_argv and "--dry-run" not in sys.orig_argv:
    class Failing(subprocess.Popen):
        def __init__(self, command, *arguments, **more):
            if "--worker" in command and (folder / "fork").exists():
                (folder / "fork").unlink()
                raise BlockingIOError(11, "Resource temporarily unavailable")
            super().__init__(command, *arguments, **more)
    subprocess.Popen = Failing
"""


@contextlib.contextmanager
def two_workers(broker: Broker, vhost: str, folder: Path, **settings: object) -> Iterator[Pair]:
    rules = folder / "rules.yaml"
    rules.write_text(f"vhost: {vhost}\n{RULES}")
    configured = {"workers": WORKERS, "upstream": broker.upstream, "rules": [rules.name], **settings}
    pair = Pair(broker, vhost, Running(folder, configured), rules)
    try:
        yield pair
    finally:
        for producer in pair.opened:
            producer.disconnect()
        if pair.running.process.poll() is None:
            pair.running.end()


@pytest.fixture
def faulty(broker: Broker, vhost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Two workers whose supervisor fails to start the first of them."""
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAULTS", str(tmp_path))
    (tmp_path / "fork").touch()
    with two_workers(broker, vhost, tmp_path) as pair:
        yield pair


@pytest.fixture
def pair(broker: Broker, vhost: str, tmp_path: Path) -> Iterator[Pair]:
    (tmp_path / "audit").mkdir()
    with two_workers(broker, vhost, tmp_path, audit={"directory": "audit", "instance": "pair"}) as pair:
        pair.running.await_ready()
        yield pair


def gone(producer: Producer) -> bool:
    """Return whether the peer has closed the socket; wait only briefly for data."""
    producer.socket.settimeout(0.2)
    try:
        return producer.socket.recv(65536) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    finally:
        producer.socket.settimeout(30)


def alive(process: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False
