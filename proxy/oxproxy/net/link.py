"""Reads and writes one socket, with back-pressure. This module is independent of AMQP.

While the write buffer of a link is full, the sidecar does not read from the other side. Reading resumes when the buffer
is below the low-water mark. Source: asyncio "Transports and Protocols", flow control.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import cast

#: Size of the write buffer above which reading from the other side is paused. It is large enough for full throughput
#: on loopback, and small enough for thousands of connections.
WRITE_HIGH_BYTES = 1 << 20
#: Size of the write buffer below which reading from the other side resumes.
WRITE_LOW_BYTES = 1 << 18
#: Pause between reads during continuous traffic. Reading many small segments at once, such as confirms from RabbitMQ,
#: takes a fraction of the time needed to read them separately.
PAUSE_SECONDS = 0.008
#: A read of at least this size is not followed by a pause.
_LARGE_READ_BYTES = 1 << 16
_BETWEEN_READS = frozenset(("between reads",))


def peer_address(name: object) -> tuple[str, str]:
    """Return a peer's address, and the address with the port, from the result of `getpeername`.

    An IPv4-mapped IPv6 address is shown as IPv4.
    """
    if not isinstance(name, tuple) or len(name) < 2:
        return "unknown", "unknown"
    host = str(name[0]).removeprefix("::ffff:")
    if ":" in host:
        host = f"[{host}]"
    return host, f"{host}:{name[1]}"


class ReadPauses:
    """Pauses related sockets between reads, such as both sockets of a session, and resumes them with one timer."""

    __slots__ = ("_links", "_loop", "_timer")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._links: list[Link] = []
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, link: Link, read_bytes: int) -> None:
        """Pause a socket after a read, unless the read was large."""
        if read_bytes < _LARGE_READ_BYTES and not link.paused_for("between reads"):
            link.pause("between reads", True)
            self._links.append(link)
            if self._timer is None:
                self._timer = self._loop.call_later(PAUSE_SECONDS, self.end)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for link in self._links:
            link.pause("between reads", False)
        self._links.clear()


class Link(asyncio.Protocol):
    """The socket on one side of a session, or the socket of a link to another broker.

    Args:
        received: called with received bytes.
        lost: called once when the socket is lost, with the error if there is one.
        writable: called with False when the write buffer is full, and with True when it has drained.
        made: called when the socket is connected.
    """

    __slots__ = (
        "_lost", "_made", "_paused_for", "_writable", "begun", "connected", "data_received", "transport",
    )  # fmt: skip

    def __init__(
        self,
        received: Callable[[bytes], None],
        lost: Callable[[Exception | None], None],
        writable: Callable[[bool], None],
        made: Callable[[], None],
    ) -> None:
        #: called directly by the transport
        self.data_received = received  # type: ignore[method-assign, assignment]
        self._lost = lost
        self._writable = writable
        self._made = made
        self._paused_for: set[str] = set()
        self.transport: asyncio.Transport | None = None
        self.connected = False
        #: monotonic time at which this object was created; for an accepted connection, this is before the TLS handshake
        self.begun = monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        self.connected = True
        self._made()

    def end(self) -> None:
        """Invoke no further callbacks, and abort a connection that is established later.

        The callbacks refer to the session. Removing them breaks this reference cycle, so that the session is freed
        immediately.
        """
        self.data_received = self._lost = self._writable = _ignore  # type: ignore[method-assign, assignment]
        self._made = self.abort if self.transport is None else _ignore

    def eof_received(self) -> bool:
        """Treat a half-closed connection as closed."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.connected = False
        self._lost(exc)

    def pause_writing(self) -> None:
        self._writable(False)

    def resume_writing(self) -> None:
        self._writable(True)

    def send(self, pieces: list[bytes]) -> None:
        """Send all pieces in one write, and clear the list."""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self.connected and self.transport is not None:
            self.transport.write(data)

    def pause(self, reason: str, paused: bool) -> None:
        """Pause or resume reading. Reading resumes only when there is no other reason to pause."""
        before = bool(self._paused_for)
        if paused:
            self._paused_for.add(reason)
        else:
            self._paused_for.discard(reason)
        now = bool(self._paused_for)
        if before == now or not self.connected or self.transport is None or self.transport.is_closing():
            return
        if now:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def paused_for(self, reason: str) -> bool:
        return reason in self._paused_for

    @property
    def paused(self) -> bool:
        """True if reading is paused. The brief pauses between reads do not count."""
        return bool(self._paused_for - _BETWEEN_READS)

    @property
    def peer_name(self) -> str:
        return peer_address(self.transport.get_extra_info("peername") if self.transport is not None else None)[1]

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes in the write buffer."""
        return self.transport.get_write_buffer_size() if self.connected and self.transport is not None else 0

    def release(self) -> asyncio.Transport | None:
        """Give up the socket, and return it if it is open. The caller must set another protocol for it."""
        transport, was_connected = self.transport, self.connected
        self.connected = False
        return transport if was_connected and transport is not None and not transport.is_closing() else None

    def close(self) -> None:
        """Send buffered bytes, then close."""
        if self.connected and self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.connected and self.transport is not None:
            self.transport.abort()


def _ignore(*_: object) -> None:
    pass
