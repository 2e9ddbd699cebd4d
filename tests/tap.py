"""A TCP connection between a sidecar and its broker that a test can read, hold and cut; runs in threads on loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from tests.client import Frame, split

_PIECE_BYTES = 1 << 16


class Connection:
    """One connection through the tap.

    Attributes:
        sent: bytes from the side that connected.
        answered: bytes from the other side.
    """

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.sent = bytearray()
        self.answered = bytearray()
        self.near = near
        self.far = far
        #: While cleared, bytes from the side that connected are not forwarded.
        self.reading = threading.Event()
        self.reading.set()
        #: While cleared, bytes from the other side are not forwarded.
        self.answering = threading.Event()
        self.answering.set()
        self._threads = [
            threading.Thread(target=self._forward, args=(near, far, self.sent), daemon=True),
            threading.Thread(target=self._forward, args=(far, near, self.answered), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def frames(self) -> list[Frame]:
        """Complete frames from the side that connected, without protocol header and heartbeats."""
        data = bytes(self.sent[8:])
        return [frame for frame in split(data[: _complete(data)]) if frame.kind != 8]

    def named(self, name: str) -> list[Frame]:
        """Return the frames of a method, e.g. ``Basic.Publish``, from the side that connected, except on channel 0."""
        return [frame for frame in self.frames if frame.channel and frame.name == name]

    def cut(self) -> None:
        """Close both sockets."""
        for side in (self.near, self.far):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Close both sockets and wait for the threads."""
        self.reading.set()
        self.answering.set()
        self.cut()
        for thread in self._threads:
            thread.join()
        self.near.close()
        self.far.close()

    def _forward(self, source: socket.socket, target: socket.socket, record: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                record += data
                (self.reading if source is self.near else self.answering).wait()
                target.sendall(data)
        self.cut()


class Tap:
    """Listens on a loopback port and forwards each connection.

    Args:
        host: host to forward to.
        port: port to forward to.
        listen: port to listen on; 0 for a free port.
    """

    def __init__(self, host: str, port: int, listen: int = 0) -> None:
        self.connections: list[Connection] = []
        self._target = (host, port)
        self._server = socket.create_server(("127.0.0.1", listen))
        self._refusing = False
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def refuse(self) -> None:
        """Close all connections, and each new one, as if the other side were down."""
        self._refusing = True
        for connection in self.connections:
            connection.cut()

    def accept(self) -> None:
        """Forward connections again."""
        self._refusing = False

    @property
    def address(self) -> str:
        """``host:port``."""
        return "{}:{}".format(*self._server.getsockname())

    @property
    def last(self) -> Connection:
        """The most recent connection."""
        return self.connections[-1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        for connection in self.connections:
            connection.end()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                if self._refusing:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                for side in (near, far):
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections.append(Connection(near, far))


def _complete(data: bytes) -> int:
    """Return the length of the complete frames at the beginning."""
    at = 0
    while at + 7 <= len(data):
        stop = at + 8 + int.from_bytes(data[at + 3 : at + 7], "big")
        if stop > len(data):
            break
        at = stop
    return at
