"""TLS handshakes of producers: each within a deadline, with the context that is in use when the connection comes.

A handshake that fails has no session, but is counted and logged. Who listens and who may come in is `listener`'s to
say; plain TCP never comes here.

Source: asyncio "Event Loop", `connect_accepted_socket`; RFC 8446, 6.2 (alerts).
"""

from __future__ import annotations

import asyncio
import socket
import ssl

import structlog

from proxy.errors import ConfigError
from proxy.net.tls import Provider, words
from proxy.relay.counters import ConnectionCounters

_log = structlog.get_logger(__name__)


class TlsListener:
    """TLS of one address where producers connect.

    Args:
        context: gives the context for a new connection.
        counters: of producers' connections.
        handshake_seconds: for each handshake.
        close_seconds: for the peer's answer to our close.
    """

    def __init__(
        self,
        context: Provider,
        counters: ConnectionCounters,
        handshake_seconds: float,
        close_seconds: float,
    ) -> None:
        """Take what all handshakes share."""
        self._context = context
        self._counters = counters
        self._handshake_seconds = handshake_seconds
        self._close_seconds = close_seconds

    async def shake_hands(self, connection: socket.socket, protocol: asyncio.Protocol, peer: str) -> None:
        """Do the handshake and give the protocol its transport.

        Args:
            connection: accepted, not blocking; the caller closes it where this raises.
            protocol: of the connection.
            peer: its name in logs.

        Raises:
            OSError: it failed; that has been counted and logged.
        """
        try:
            async with asyncio.timeout(self._handshake_seconds):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=self._context(),
                    ssl_handshake_timeout=self._handshake_seconds,
                    ssl_shutdown_timeout=self._close_seconds,
                )
        except Exception as error:
            if not self._told(error, peer):
                raise
            raise ConnectionAbortedError(str(error)) from error

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
