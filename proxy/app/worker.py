"""One worker process: its place among several, its start and its end, as the parent process sees it.

A worker is ``oxproxy serve`` with a `WorkerSlot`: its number, the ports that all workers share, and a socket for its
admin pages. It drains and ends when its standard input is closed, so it never outlives its parent.

Source: socket(7), SO_REUSEPORT; unix(7), abstract sockets.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from proxy.admin.client import ANSWER_SECONDS, JSON, request_page
from proxy.config.settings import Settings
from proxy.observe.merging import MetricsSnapshot
from proxy.yamlfile.kinds import HostPort

#: Connections that wait for a worker's admin pages: questions of one process.
_BACKLOG = 16


class WorkerSlot(NamedTuple):
    """The place of a worker among several, as its parent passes it on the command line.

    Args:
        number: its number, from 1.
        ports: of `listen`, in order.
        admin_descriptor: of the socket for its admin pages.
    """

    number: int
    ports: tuple[int, ...]
    admin_descriptor: int

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what `write` wrote."""
        number, ports, descriptor = json.loads(text)
        return cls(number, tuple(ports), descriptor)

    def write(self) -> str:
        """Return it as text for a command line."""
        return json.dumps(self)

    def settings(self, settings: Settings) -> Settings:
        """Return the configuration as it is for this worker: its ports, and names of its own where files have them."""
        listen = tuple(
            replace(entry, address=HostPort(entry.address.host, port))
            for entry, port in zip(settings.listen, self.ports, strict=True)
        )
        instance = f"{settings.audit.instance or socket.gethostname()}-{self.number}"
        declared = settings.declared
        if declared.snapshot is not None:
            declared = replace(declared, snapshot=f"{declared.snapshot}.{self.number}")
        return replace(settings, listen=listen, audit=replace(settings.audit, instance=instance), declared=declared)


class Worker:
    """One worker, started as often as it takes.

    Args:
        number: its number, from 1.
        config: the configuration file.
        ports: of `listen`, in order.
    """

    def __init__(self, number: int, config: Path, ports: Sequence[int]) -> None:
        """Make the socket for its admin pages; it lasts as long as this object."""
        self.number = number
        #: how often it was started again
        self.restarts = 0
        #: its numbers when it last answered
        self.last_metrics: MetricsSnapshot | None = None
        self._config = config
        self._ports = tuple(ports)
        self._path = f"\0oxproxy-{os.getpid()}-{secrets.token_hex(8)}-{number}"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self._path)
        self._socket.listen(_BACKLOG)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process_id(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process.

        Raises:
            OSError: the system does not let us.
        """
        descriptor = self._socket.fileno()
        place = WorkerSlot(self.number, self._ports, descriptor)
        command = ["-P", "-m", "proxy.cli.main", "serve", "--config", str(self._config), "--worker", place.write()]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=asyncio.subprocess.PIPE, pass_fds=(descriptor,)
        )

    async def ended(self) -> int:
        """Wait for its end and give its exit status, negative for a signal."""
        assert self._process is not None  # noqa: S101 -- it was started
        return await self._process.wait()

    def stop(self) -> None:
        """Let it drain and end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """End it at once."""
        if self.running and self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """It will not be started again."""
        self._socket.close()

    async def ask(
        self, method: str, page: str, body: bytes = b"", seconds: float = ANSWER_SECONDS, accept: str = JSON
    ) -> tuple[int, bytes] | None:
        """Request one of its admin pages; None if it does not answer."""
        return await request_page(self._path, method, page, body, seconds, accept) if self.running else None
