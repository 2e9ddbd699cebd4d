"""A network between sidecar and broker that can reset and delay connections: a process that copies bytes.

SIGUSR1 resets (RST) about half of the connections, SIGUSR2 all of them. SIGSTOP delays everything until SIGCONT.

    python -m tests.campaign.network PORT BROKER_PORT
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import struct
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import uvloop

from tests.private_broker import free_port
from tests.producer import until
from tests.watched import Watched

#: SO_LINGER with a timeout of zero: close sends RST instead of FIN.
_RESET = struct.pack("ii", 1, 0)


class Network:
    """The process, while this context is active.

    Args:
        target: port to forward to.
    """

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="oxproxy-network-"))
        command = [sys.executable, "-m", "tests.campaign.network", str(self.port), str(target)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        self._process = Watched(self._folder, [command], environment, self._folder / "log")

    def __enter__(self) -> Self:
        until(self._listens)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.end()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.process_ids[0], number)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except OSError:
            assert self._process.running, (self._folder / "log").read_text()
            return False
        return True


class Side(asyncio.Protocol):
    """One of the two sockets of a connection."""

    def __init__(self, sides: set[Side]) -> None:
        self._sides = sides
        self.other: Side | None = None
        self.transport: asyncio.Transport | None = None
        self.waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport has a different base class
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sides.add(self)

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self.waiting.append(data)
        else:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._sides.discard(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def reset(self) -> None:
        for side in (self, self.other):
            if side is not None and side.transport is not None:
                side.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                side.transport.abort()


async def serve(port: int, target: int) -> None:
    loop = asyncio.get_running_loop()
    sides: set[Side] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def connect(near: Side) -> None:
        far = Side(sides)
        far.other = near
        try:
            await loop.create_connection(lambda: far, "127.0.0.1", target)
        except OSError:
            if near.transport is not None:
                near.transport.close()
            return
        near.other = far
        if far.transport is not None:
            far.transport.writelines(near.waiting)

    def accept() -> Side:
        near = Side(sides)
        task = loop.create_task(connect(near))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return near

    def reset(probability: float) -> None:
        for side in list(sides):
            if random.random() < probability:
                side.reset()

    loop.add_signal_handler(signal.SIGUSR1, reset, 0.3)  # each connection has two sides
    loop.add_signal_handler(signal.SIGUSR2, reset, 1.0)
    server = await loop.create_server(accept, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
