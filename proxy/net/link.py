"""One socket of a session: bytes received, bytes to send, back-pressure. Nothing of AMQP.

Back-pressure: while a link can't be written, the other side's link is not read; it is read again once less than the low
water mark waits. Source: asyncio "Transports and Protocols", flow control.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import cast

#: Bytes waiting for a socket before the other side is no longer read, and before it is again. A few reads' worth:
#: enough for full speed on loopback, little enough for thousands of connections.
WRITE_HIGH_BYTES = 1 << 20
WRITE_LOW_BYTES = 1 << 18
#: How long a socket rests between reads where messages stream. What comes in many small segments, as RabbitMQ's
#: confirms do, costs a fraction when it is read at once.
REST_SECONDS = 0.003
#: A read of so many bytes costs more for its bytes than for itself: no rest after it.
_LARGE_READ_BYTES = 1 << 16
_REST = frozenset(("rest",))


def peer_address(name: object) -> tuple[str, str]:
    """Return address, and address with port, of a peer as the socket names it (`getpeername`).

    An IPv4 address in IPv6 form is shown as what it is.
    """
    if not isinstance(name, tuple) or len(name) < 2:
        return "unknown", "unknown"
    host = str(name[0]).removeprefix("::ffff:")
    if ":" in host:
        host = f"[{host}]"
    return host, f"{host}:{name[1]}"


class Rests:
    """Lets the sockets of one connection rest between reads, and be read again together: that is one wake-up."""

    __slots__ = ("_links", "_loop", "_timer")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._links: list[Link] = []
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, link: Link, read_bytes: int) -> None:
        """Let a socket rest after a read of so many bytes."""
        if read_bytes < _LARGE_READ_BYTES and not link.paused_for("rest"):
            link.pause("rest", True)
            self._links.append(link)
            if self._timer is None:
                self._timer = self._loop.call_later(REST_SECONDS, self.end)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for link in self._links:
            link.pause("rest", False)
        self._links.clear()


class Link(asyncio.Protocol):
    """One side of a session.

    Args:
        received: called with every piece of bytes.
        lost: called once when the socket is gone, with the cause if there is one.
        writable: called with False when too much waits to be sent, with True when it has left.
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
        #: called by the transport itself, without a method in between
        self.data_received = received  # type: ignore[method-assign, assignment]
        self._lost = lost
        self._writable = writable
        self._made = made
        self._paused_for: set[str] = set()
        self.transport: asyncio.Transport | None = None
        self.connected = False
        #: when the socket came or was asked for, before TLS; monotonic seconds
        self.begun = monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        self.connected = True
        self._made()

    def eof_received(self) -> bool:
        """A peer that only shuts its sending side down is gone to us: close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.connected = False
        self._lost(exc)

    def pause_writing(self) -> None:
        self._writable(False)

    def resume_writing(self) -> None:
        self._writable(True)

    def send(self, pieces: list[bytes]) -> None:
        """Send all pieces as one write, and clear the list."""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self.connected and self.transport is not None:
            self.transport.write(data)

    def pause(self, reason: str, paused: bool) -> None:
        """Stop or go on reading; it goes on when no reason is left."""
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
        """Whether the socket is not being read, apart from a rest."""
        return bool(self._paused_for - _REST)

    @property
    def peer_name(self) -> str:
        return peer_address(self.transport.get_extra_info("peername") if self.transport is not None else None)[1]

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes that wait for the socket."""
        return self.transport.get_write_buffer_size() if self.connected and self.transport is not None else 0

    def release(self) -> asyncio.Transport | None:
        """Give the socket away, if it stands; what comes on it is not for this side any more."""
        transport, standing = self.transport, self.connected
        self.connected = False
        return transport if standing and transport is not None and not transport.is_closing() else None

    def close(self) -> None:
        """Send what waits, then close."""
        if self.connected and self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.connected and self.transport is not None:
            self.transport.abort()
