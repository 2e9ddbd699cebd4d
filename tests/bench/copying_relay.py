"""A relay of minimum cost in Python, which copies bytes between two sockets on uvloop without parsing them.

    python -m tests.bench.copying_relay PORT BROKER_PORT PAUSE_SECONDS

RabbitMQ sends each confirm in a separate segment. A relay that pauses after each read from the broker's socket reads
and forwards many confirms together, which saves the producer more CPU time than the relay uses.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import cast

import uvloop


class Side(asyncio.Protocol):
    """One of the two sockets of a connection.

    Args:
        rest_seconds: pause after each read; 0 for no pause.
    """

    def __init__(self, rest_seconds: float = 0.0) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None
        self.waiting: list[bytes] = []
        self._rest_seconds = rest_seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport has a different base class
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self.waiting.append(data)
            return
        self.other.transport.write(data)
        if self._rest_seconds and self.transport is not None:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(self._rest_seconds, self._go_on)

    def _go_on(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def serve(port: int, broker_port: int, rest_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def connect(producer: Side) -> None:
        broker = Side(rest_seconds)
        broker.other = producer
        await loop.create_connection(lambda: broker, "127.0.0.1", broker_port)
        producer.other = broker
        assert broker.transport is not None
        broker.transport.writelines(producer.waiting)

    def accept() -> Side:
        producer = Side()
        task = loop.create_task(connect(producer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return producer

    server = await loop.create_server(accept, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
