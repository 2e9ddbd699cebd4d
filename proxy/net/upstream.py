"""How is RabbitMQ reached? Addresses in turn, names resolved at each connect, within one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.errors import Failure, UpstreamError


@dataclass(frozen=True, slots=True)
class Upstream:
    """The broker's addresses.

    Args:
        addresses: (host, port), tried in turn.
        connect_seconds: for each of them.
    """

    addresses: Sequence[tuple[str, int]]
    connect_seconds: float = 5.0

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
                    await loop.create_connection(protocol, host, port)
                return
            except TimeoutError:
                causes.append((Failure.TIMEOUT, f"{host}:{port}: no answer within {each:g} s"))
            except OSError as error:
                causes.append((Failure.UNAVAILABLE, f"{host}:{port}: {error.strerror or error}"))
        raise UpstreamError(causes[-1][0], "; ".join(text for _, text in causes))
