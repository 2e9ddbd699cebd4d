"""Opens connections to RabbitMQ, and keeps idle connections for reuse.

`Upstream` tries the addresses in turn, each with a timeout, and resolves names for each connection.

`UpstreamPool` keeps connections that are in their initial state when their producer disconnects. The next producer with
the same login, virtual host and limits leases one of them, selected by `relay.handshake.lease`. Until then,
heartbeats are exchanged. If the broker sends any other frame, the connection is unusable and is closed without a log
line. Connections are kept only if `upstream.reuse` is set.

Sources: AMQP 0-9-1 spec, 4.2.7; architecture, "One publish in, one publish out".
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from secrets import token_bytes
from time import monotonic
from typing import Any

from oxproxy.amqp.frames import HEARTBEAT_FRAME
from oxproxy.amqp.method_frames import connection_close, connection_close_ok
from oxproxy.errors import ConfigError, UpstreamError, UpstreamFailure
from oxproxy.net.link import Link
from oxproxy.net.tls import ClientTls, TlsContexts
from oxproxy.relay.counters import Counters
from oxproxy.relay.handshake.lease import Lease, LeaseNegotiation

#: Timeout for closing a TLS connection, including sending buffered bytes. Sessions abort the connection earlier unless
#: bytes are still being sent.
LONGEST_CLOSE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Upstream:
    """Connects to the broker at one of its addresses.

    Args:
        addresses: (host, port), tried in turn.
        connect_seconds: timeout for each address, including TLS.
        tls: None for plain TCP.
    """

    addresses: Sequence[tuple[str, int]]
    connect_seconds: float = 5.0
    tls: ClientTls | None = None
    contexts: TlsContexts = field(default_factory=TlsContexts)

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Connect the protocol to the first address that accepts the connection.

        Raises:
            UpstreamError: no address accepted the connection. The error contains the reason for each address.
        """
        loop = asyncio.get_running_loop()
        causes = []
        seconds = self.connect_seconds
        for host, port in self.addresses:
            try:
                async with asyncio.timeout(seconds):
                    await loop.create_connection(protocol, host, port, **self._tls(host))
                return
            except TimeoutError:
                causes.append((UpstreamFailure.TIMEOUT, f"{host}:{port}: no response within {seconds:g} s"))
            except (ssl.SSLError, ConfigError) as error:
                causes.append((UpstreamFailure.TLS, f"{host}:{port}: {self.tls.words(error) if self.tls else error}"))
            except OSError as error:
                causes.append((UpstreamFailure.UNAVAILABLE, f"{host}:{port}: {error.strerror or error}"))
        raise UpstreamError(causes[-1][0], "; ".join(text for _, text in causes))

    def _tls(self, host: str) -> dict[str, Any]:  # Any: arguments of several types
        if self.tls is None:
            return {}
        return {
            "ssl": self.contexts.of(self.tls),
            "server_hostname": self.tls.server_name or host,
            "ssl_handshake_timeout": self.connect_seconds,
            "ssl_shutdown_timeout": LONGEST_CLOSE_SECONDS,
        }


#: Maximum number of kept connections. Once it is reached, a new connection replaces the oldest. Each connection uses a
#: socket here and about 100 kB on the broker.
MOST_KEPT = 256
#: Timeout for the broker's reply to our Connection.Close.
_CLOSE_OK_SECONDS = 5.0
#: Class and method ids of Connection.Close, which follow the frame header.
_CLOSE = b"\x00\x0a\x00\x32"


class UpstreamPool:
    """The connections that are kept for reuse, each for a limited time."""

    def __init__(self, seconds: float, counters: Counters) -> None:
        self._seconds = seconds
        self._counters = counters
        self._key = token_bytes(32)
        self._kept: dict[Lease, _Kept] = {}
        self._leaving: set[_Kept] = set()
        self._gone = asyncio.Event()
        self._stopped = False

    def negotiation(self) -> LeaseNegotiation:
        return LeaseNegotiation(self._leases, self._key)

    def _leases(self) -> Iterator[Lease]:
        """Yield the available leases, newest first, since the newest connections will be kept longest."""
        return (lease for lease in reversed(self._kept) if self._kept[lease].quiet)

    def lease_to(self, lease: Lease, link: Link) -> None:
        """Hand a kept connection over to the next producer, whose link becomes the connection's protocol."""
        kept = self._kept.pop(lease)
        self._counters.kept_connections -= 1
        self._counters.reused_connections += 1
        kept.end()
        kept.transport.set_protocol(link)
        link.connection_made(kept.transport)

    def keep(self, link: Link, lease: Lease, heartbeat_seconds: int) -> None:
        """Keep a connection whose producer has disconnected, or close it if it can't be kept.

        Args:
            link: the session's link, from which the socket is detached.
            heartbeat_seconds: interval negotiated with the broker; 0: no heartbeats.
        """
        transport = link.release()
        if transport is None:
            return
        kept = _Kept(transport, heartbeat_seconds, self._drop)
        if self._stopped or transport.get_write_buffer_size():
            self._close_connection(kept)
            return
        if len(self._kept) >= MOST_KEPT:
            self._drop(next(iter(self._kept.values())))
        self._kept[lease] = kept
        self._counters.kept_connections += 1
        kept.wait(self._seconds)

    async def stop(self) -> None:
        """Close all kept connections, and keep no further connections."""
        self._stopped = True
        for kept in tuple(self._kept.values()):
            self._drop(kept)
        while self._leaving:
            self._gone.clear()
            await self._gone.wait()

    def _drop(self, kept: _Kept) -> None:
        """Close a kept connection that has expired, is unusable, or must be replaced by a new one."""
        for lease, candidate in self._kept.items():
            if candidate is kept:
                del self._kept[lease]
                self._counters.kept_connections -= 1
                self._close_connection(kept)
                break

    def _close_connection(self, kept: _Kept) -> None:
        self._leaving.add(kept)
        kept.leave(self._left)

    def _left(self, kept: _Kept) -> None:
        self._leaving.discard(kept)
        self._gone.set()


class _Kept(asyncio.Protocol):
    """One connection without a producer.

    Args:
        heartbeat_seconds: interval negotiated with the broker; 0: no heartbeats.
        over: called when the connection can't be kept any longer.
    """

    def __init__(self, transport: asyncio.Transport, heartbeat_seconds: int, over: Callable[[_Kept], None]) -> None:
        self.transport = transport
        self._heartbeat = heartbeat_seconds
        self._over = over
        self._left: Callable[[_Kept], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []
        self._input = b""
        self._heard = monotonic()
        transport.set_protocol(self)
        transport.resume_reading()

    @property
    def quiet(self) -> bool:
        """True if the connection is open and the broker has sent only complete heartbeats."""
        return not self._input and not self.transport.is_closing()

    def wait(self, seconds: float) -> None:
        self._timers.append(self._loop.call_later(seconds, self._over, self))
        if self._heartbeat:
            self._timers.append(self._loop.call_later(self._heartbeat / 4, self._beat))

    def end(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def leave(self, left: Callable[[_Kept], None]) -> None:
        """Close the AMQP connection, or answer the broker's close; `left` is called when the socket is closed."""
        self.end()
        self._left = left
        if self.transport.is_closing():
            self._loop.call_soon(left, self)
            return
        if self._input[7:11] == _CLOSE:
            self.transport.write(connection_close_ok())
            self.transport.close()
        else:
            self.transport.write(connection_close(200, b"Goodbye", 0, 0))
        self._timers.append(self._loop.call_later(_CLOSE_OK_SECONDS, self.transport.abort))

    def _beat(self) -> None:
        if monotonic() - self._heard > 2 * self._heartbeat:
            self.transport.abort()
            return
        self.transport.write(HEARTBEAT_FRAME)
        self._timers[1:] = [self._loop.call_later(self._heartbeat / 4, self._beat)]

    def data_received(self, data: bytes) -> None:
        """Accept heartbeats; any other frame makes the connection unusable."""
        if self._left is not None:
            self.transport.close()  # this is the reply to our Connection.Close
            return
        self._heard = monotonic()
        self._input += data
        while self._input.startswith(HEARTBEAT_FRAME):
            self._input = self._input[len(HEARTBEAT_FRAME) :]
        if not HEARTBEAT_FRAME.startswith(self._input):
            self._over(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._left is None:
            self._over(self)
        else:
            self.end()
            self._left(self)
