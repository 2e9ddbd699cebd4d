"""Connects to RabbitMQ: addresses in turn, names resolved at each connect, TLS where configured, one deadline each."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.errors import ConfigError, UpstreamError, UpstreamFailure
from proxy.net.tls import ClientTls, TlsContexts

#: A close over TLS waits so long for what is still to be sent and for the peer's answer; sessions end it sooner.
LONGEST_CLOSE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Upstream:
    """The broker's addresses.

    Args:
        addresses: (host, port), tried in turn.
        connect_seconds: for each of them, TLS included.
        tls: None for plain TCP.
        contexts: the contexts of TLS in use.
    """

    addresses: Sequence[tuple[str, int]]
    connect_seconds: float = 5.0
    tls: ClientTls | None = None
    contexts: TlsContexts | None = None

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Connect the first address that answers.

        Args:
            protocol: gives the protocol of the socket.

        Raises:
            UpstreamError: none answered; says which and why.
        """
        loop = asyncio.get_running_loop()
        causes = []
        each = self.connect_seconds
        for host, port in self.addresses:
            try:
                async with asyncio.timeout(each):
                    await loop.create_connection(protocol, host, port, **self._tls(host))
                return
            except TimeoutError:
                causes.append((UpstreamFailure.TIMEOUT, f"{host}:{port}: no answer within {each:g} s"))
            except (ssl.SSLError, ConfigError) as error:
                causes.append((UpstreamFailure.TLS, f"{host}:{port}: {self.tls.words(error) if self.tls else error}"))
            except OSError as error:
                causes.append((UpstreamFailure.UNAVAILABLE, f"{host}:{port}: {error.strerror or error}"))
        raise UpstreamError(causes[-1][0], "; ".join(text for _, text in causes))

    def _tls(self, host: str) -> dict[str, Any]:  # Any: arguments of several types
        if self.tls is None or self.contexts is None:
            return {}
        return {
            "ssl": self.contexts.of(self.tls),
            "server_hostname": self.tls.server_name or host,
            "ssl_handshake_timeout": self.connect_seconds,
            "ssl_shutdown_timeout": LONGEST_CLOSE_SECONDS,
        }
