"""What goes to another broker, and what can become of it? The words that wire, links and drivers share.

Knows nothing of sockets, nor of how a link works.

Source: the messenger-addressing specification, 3.4 "Confirms"; RabbitMQ guide "Publisher confirms".
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from proxy.addressing.targets import Remote


class RemoteResult(Enum):
    """What became of one message."""

    ACKED = "acked"
    #: refused: by the broker, by a closed channel, or since it can't be sent
    NACKED = "nacked"
    #: no queue for it
    RETURNED = "returned"
    #: the link went, or the deadline passed; nobody knows whether the broker has it
    LOST = "lost"


class RemoteMessage:
    """One publish on its way to another broker; it is sent at most once.

    Args:
        exchange: where it goes.
        routing_key: under which key.
        mandatory: whether it comes back where no queue takes it.
        header: payload of its content header frame.
        body: all of its body.
        since: when it came, on the driver's monotonic clock.
    """

    __slots__ = ("body", "exchange", "header", "mandatory", "returned", "routing_key", "since")

    def __init__(
        self, exchange: bytes, routing_key: bytes, mandatory: bool, header: bytes, body: bytes, since: float
    ) -> None:
        """Start on its way."""
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.header = header
        self.body = body
        self.since = since
        #: it came back; its ack is still to come
        self.returned = False

    @property
    def weight(self) -> int:
        """Bytes that are held for it."""
        return len(self.header) + len(self.body)

    def settled(self, result: RemoteResult, reason: str) -> None:
        """Called once: what became of it.

        Args:
            result: see Result.
            reason: for logs, empty where there is nothing to say; no credentials in it.
        """


class Way(Protocol):
    """From one channel of a producer to one other broker, in order."""

    def send(self, message: RemoteMessage) -> None:
        """Take a message; `settled` is called once, sooner or later, perhaps before this returns."""

    def leave(self) -> None:
        """The producer's channel is gone: what was given is still sent."""


class Remotes(Protocol):
    """The other brokers as one producer's connection sees them."""

    def way(self, remote: Remote) -> Way | str:
        """A new way to a broker, or why there is none."""
