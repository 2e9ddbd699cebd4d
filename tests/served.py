"""Runs `oxproxy serve` as a process and checks its exit status; also provides fixtures."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.broker.observed import Outside
from tests.private_broker import free_port
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
        settings: the configuration, with `listen` only if the address is not chosen here.
        wrap: a command that replaces itself with the command given as its arguments (exec).
    """

    def __init__(self, folder: Path, settings: dict[str, Any], wrap: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.admin = free_port()
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

    def get(self, path: str) -> tuple[int, str]:
        """Return status and content of an admin page; (0, "") if the connection is refused."""
        try:
            return request_page(f"http://127.0.0.1:{self.admin}{path}")
        except OSError:
            return 0, ""

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return self.get("/readyz")[0] == 200

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

    def start(rules: str | None = RULES, wrap: Sequence[str] = (), folder: Path = tmp_path, **settings: Any) -> Running:
        configured: dict[str, Any] = {"upstream": outside.broker.upstream}
        if rules is not None:
            (folder / "rules.yaml").write_text(f"vhost: {outside.vhost}\n{rules}")
            configured["rules"] = ["rules.yaml"]
        started.append(Running(folder, merged(configured, settings), wrap))
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
