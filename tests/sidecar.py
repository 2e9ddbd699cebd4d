"""Runs ``oxproxy serve`` as a separate process in front of a given broker.

This module writes the configuration, waits until /readyz returns 200 and stops the process with SIGTERM. It uses only
the sidecar's public interfaces: configuration keys, admin paths, exit status. It also runs other commands.
"""

from __future__ import annotations

import contextlib
import io
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

import pika
import yaml

from oxproxy.cli.main import main
from tests.private_broker import free_port
from tests.rabbitmq import Broker
from tests.watched import Watched

#: Timeout for /readyz in seconds; a start takes about 1 s, and a few seconds with ten thousand bindings.
READY_SECONDS = 40.0

#: Seconds for draining before the process is killed.
DRAIN_SECONDS = 15.0

PROGRAM = Path(sys.executable).with_name("oxproxy")


class SidecarFailed(Exception):  # noqa: N818 - reads as the fact it states
    """The sidecar did not become ready. The message contains the end of its log."""


class Sidecar:
    """A sidecar that runs while this context is active.

    Args:
        broker: the upstream broker.
        rules: rules files, absolute or relative to the working directory.
        settings: configuration keys to add or replace, merged at every level.
        folder: an empty directory for configuration and log, which is kept; by default a temporary directory.
        program: command to run as ``oxproxy``; by default the value of PROGRAM at the time of the call, since tests
            replace it.
        ready_seconds: timeout for /readyz.
        tls: context for connections to the admin address as ``localhost``; None if it is plain TCP.
    """

    def __init__(
        self,
        broker: Broker,
        rules: Sequence[Path] = (),
        settings: Mapping[str, object] | None = None,
        folder: Path | None = None,
        program: Sequence[str] | None = None,
        ready_seconds: float = READY_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._ready_seconds = ready_seconds
        self._program = program or (str(PROGRAM),)
        self.port = free_port()
        self.admin_port = free_port()
        self.admin = f"http://127.0.0.1:{self.admin_port}" if tls is None else f"https://localhost:{self.admin_port}"
        self.folder = (folder or Path(tempfile.mkdtemp(prefix="oxproxy-sidecar-"))).resolve()
        self._keep = folder is not None
        self._broker = broker
        self._rules = [str(path.resolve()) for path in rules]
        self._settings = settings or {}
        self._processes: Watched | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """``host:port`` for producers."""
        return f"127.0.0.1:{self.port}"

    @property
    def configuration(self) -> Path:
        """The configuration file."""
        return self.folder / "oxproxy.yaml"

    @property
    def log(self) -> Path:
        """File with standard output and error."""
        return self.folder / "oxproxy.log"

    @property
    def process_id(self) -> int:
        assert self._processes is not None
        return self._processes.process_ids[0]

    def start(self) -> None:
        """Start the sidecar and return when it is ready.

        Raises:
            SidecarFailed: the sidecar exited, or was not ready in time.
        """
        self.configuration.write_text(yaml.safe_dump(self._configured(), sort_keys=False))
        command = [*self._program, "serve", "--config", str(self.configuration)]
        self._processes = Watched(self.folder, [command], os.environ, self.log, DRAIN_SECONDS)
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> bool:
        """Send SIGTERM and return whether the exit status was 0. Removes a temporary directory."""
        processes, self._processes = self._processes, None
        return processes is None or processes.end(self._keep)

    def get(self, path: str) -> str:
        """Return an admin page, e.g. ``/metrics``.

        Raises:
            urllib.error.HTTPError: the status is 400 or higher.
        """
        with urllib.request.urlopen(self.admin + path, timeout=10) as answer:
            text: bytes = answer.read()
        return text.decode()

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of the series ``oxproxy_<name>`` with these labels; 0 if it does not exist."""
        wanted = {f'{key}="{text}"' for key, text in labels.items()}
        for line in self.get("/metrics").splitlines():
            start, _, number = line.rpartition(" ")
            series, _, rest = start.partition("{")
            if series == f"oxproxy_{name}" and wanted <= set(rest.rstrip("}").split(",")):
                return float(number)
        return 0.0

    def logged(self, event: str) -> list[str]:
        """Return the log lines that contain this string, e.g. the name of an event."""
        return [line for line in self.log.read_text().splitlines() if event in line]

    def _configured(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "listen": [{"address": self.address}],
            "upstream": self._broker.upstream,
            "rules": self._rules,
            "admin": {"address": f"127.0.0.1:{self.admin_port}"},
        }
        return merged(settings, self._settings)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + self._ready_seconds
        while not is_ready(f"{self.admin}/readyz", self._tls):
            if self._processes is None or not self._processes.running:
                raise SidecarFailed(f"oxproxy ended at its start:\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise SidecarFailed(f"oxproxy was not ready after {self._ready_seconds:g} s:\n{self.last_words()}")
            time.sleep(0.05)

    def last_words(self) -> str:
        """Return the end of the log."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
        return ""


def oxproxy(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:  # Any: as subprocess accepts it
    """Run a command to its end, and return status and output."""
    command = [str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **{"check": False, "timeout": 60, **more})


def oxproxy_here(*arguments: str | Path, input: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, to avoid the imports in a new process, and return status and output.

    Args:
        input: standard input.
        environment: variables to add or replace.
    """
    output, errors, status = io.StringIO(), io.StringIO(), 0
    with (
        patch.dict(os.environ, environment),
        patch("sys.stdin", io.TextIOWrapper(io.BytesIO(input.encode()))),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        try:
            status = main([*map(str, arguments)])
        except SystemExit as ended:  # help, and errors in arguments
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


def request_page(url: str, body: bytes | None = None, method: str | None = None, **headers: str) -> tuple[int, str]:
    """Request a page; return status and content, including those of error responses."""
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def is_ready(url: str, tls: ssl.SSLContext | None = None) -> bool:
    """Return whether a page returns status 200."""
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=30, context=tls) as answer:
        return bool(answer.status == 200)
    return False


#: Maps path and headers of a request to status, content type and content of the response.
Answer = Callable[[str, Mapping[str, str]], tuple[int, str, bytes]]


@contextlib.contextmanager
def answering(answer: Answer, port: int = 0) -> Iterator[int]:
    """Serve HTTP requests in place of a sidecar, and yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, kind, content = answer(self.path, dict(self.headers.items()))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - as the library calls it

        def log_message(self, *arguments: object) -> None:
            """Disable the log."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def pika_channel(port: int, vhost: str = "/") -> Iterator[Any]:  # Any: pika has no types
    """Yield a channel with confirms, on a pika connection to a sidecar."""
    address = Broker("127.0.0.1", port, "").url(vhost)
    with pika.BlockingConnection(pika.URLParameters(address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def merged(settings: Mapping[str, object], more: Mapping[str, object]) -> dict[str, object]:
    """Return ``settings`` with ``more`` merged into it, mapping by mapping."""
    result = dict(settings)
    for key, value in more.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merged(old, value)
        result[key] = value
    return result
