"""How do producers come in over TLS? A listening socket, handshakes within a deadline, what is said of those that fail.

Each connection gets the context that is in use when it comes, so that certificates can be replaced while the socket
listens on; a handshake that fails has no session, but is counted and logged. Plain TCP never comes here.

Source: asyncio "Event Loop", `connect_accepted_socket`; RFC 8446, 6.2 (alerts).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

import structlog

from proxy.amqp.counters import ConnectionCounters
from proxy.errors import ConfigError
from proxy.net.tasks import Tasks
from proxy.net.tls import Provider, words

_log = structlog.get_logger(__name__)
_BACKLOG = 1024
#: Seconds without accepting after the system could not give a socket, as asyncio has it.
_BREATH_SECONDS = 1.0


class SecureDoor:
    """One address where producers connect with TLS.

    Args:
        accept: gives the protocol of a new connection, plain or not; told `connection_lost` if it never is made.
        context: gives the context for a new connection.
        counters: of producers' connections.
        handshake_seconds: for each handshake.
        close_seconds: for the peer's answer to our close.
    """

    def __init__(
        self,
        accept: Callable[[], asyncio.Protocol],
        context: Provider,
        counters: ConnectionCounters,
        handshake_seconds: float,
        close_seconds: float,
    ) -> None:
        """Start closed."""
        self._accept = accept
        self._context = context
        self._counters = counters
        self._handshake_seconds = handshake_seconds
        self._close_seconds = close_seconds
        self._sockets: list[socket.socket] = []
        self._tasks = Tasks()

    async def open(self, host: str, port: int, *, shared: bool = False) -> list[tuple[str, int]]:
        """Listen.

        Args:
            host: name or address.
            port: 0 picks a free one.
            shared: whether other processes listen there, too (SO_REUSEPORT).

        Returns:
            The addresses listened on.

        Raises:
            OSError: it can't be listened on.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            made = socket.create_server(
                address[:2], family=family, backlog=_BACKLOG, reuse_port=shared, dualstack_ipv6=False
            )
            made.setblocking(False)
            self._sockets.append(made)
            self._tasks.start(self._listen(made), f"listen on {host}:{port}")
        return [made.getsockname()[:2] for made in self._sockets]

    async def close(self) -> None:
        """Accept nobody any more; handshakes that are not finished end, connections stay."""
        await self._tasks.ended()
        for one in self._sockets:
            one.close()

    async def _listen(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                _log.warning("no connection can be accepted", error=error.strerror or str(error))
                await asyncio.sleep(_BREATH_SECONDS)
                continue
            self._tasks.start(self._welcome(connection, f"{address[0]}:{address[1]}"), "TLS handshake")

    async def _welcome(self, connection: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        protocol = self._accept()
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._handshake_seconds):
                await loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=self._context(),
                    ssl_handshake_timeout=self._handshake_seconds,
                    ssl_shutdown_timeout=self._close_seconds,
                )
        except BaseException as error:
            protocol.connection_lost(None)  # whatever the cause: the session has to know that it is none
            connection.close()
            if not self._told(error, peer):
                raise

    def _told(self, error: BaseException, peer: str) -> bool:
        """Count and log a handshake that failed; False for an error that is no peer's."""
        if isinstance(error, (TimeoutError, ConnectionAbortedError)):  # the loop's own deadline gives the latter
            result, reason = "timeout", f"no TLS handshake within {self._handshake_seconds:g} s"
        elif isinstance(error, (ssl.SSLError, ConfigError)):
            result, reason = "tls_error", words(error)
        else:
            return isinstance(error, OSError)  # a probe that connects and leaves is no event
        self._counters.attempt(result)
        _log.info("producer not connected", peer=peer, result=result, reason=reason)
        return True
