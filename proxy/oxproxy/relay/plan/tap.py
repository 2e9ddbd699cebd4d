"""Observers of the publish path: shadow mode (`Tap`) and the list of failed publishes (`FailureSink`).

If a tap observes the publishes for which a plan is used, the plan has a reference to the tap (`Plan.tap`). The tap
receives each of these publishes together with the decision, and does not change the outgoing publish. Methods that read
a message's header raise ProtocolError (502) if the header is malformed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from oxproxy.amqp.frames import U16, U64
from oxproxy.amqp.properties import decode_properties, header_table
from oxproxy.amqp.tables import decode_table, pick
from oxproxy.routing.decision import Decision, Facts

#: Offsets of the body size, the property flags and the properties in a content header frame.
_SIZE_AT, _FLAGS_AT, _PROPERTIES_AT = 11, 19, 21
_PROPERTIES = frozenset(
    (
        "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
        "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
    )
)  # fmt: skip


class ObservedDecision(NamedTuple):
    """One observed publish.

    Args:
        exchange: exchange named by the producer.
        routing_key: routing key given by the producer.
        header: content header frame of the publish.
        decision: the decision by the active rules; empty if no rules were evaluated.
        at: seconds since 1970.
    """

    vhost: str
    exchange: bytes
    routing_key: bytes
    header: bytes
    decision: Decision
    at: float

    def facts(self) -> Facts:
        """Return all facts of the message."""
        header = self.header
        flags = U16.unpack_from(header, _FLAGS_AT)[0]
        properties = decode_properties(header, _PROPERTIES_AT, len(header) - 1, flags, _PROPERTIES)
        size = U64.unpack_from(header, _SIZE_AT)[0]
        return Facts(self.routing_key, decode_table(header, *header_table(header)[1:]), properties, size)

    def raw_headers(self, names: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
        """Return (name, raw value) for the headers with the given names. A raw value begins with its type letter."""
        return pick(self.header, *header_table(self.header)[1:], names)


class Tap(Protocol):
    """Observes publishes."""

    def wants(self, vhost: str, exchange: bytes) -> bool:
        """Return True if publishes to the exchange are to be observed."""

    def observe(self, observed: ObservedDecision) -> None:
        """Handle a publish; called on the publish path."""


class FailedPublish(NamedTuple):
    """One publish that reached no queue or was refused, or a channel or connection that the broker closed.

    Args:
        at: seconds since 1970.
        user: the producer's user name.
        channel: number of the channel; 0 for a closed connection.
        result: ``unroutable``, ``violating`` (a contract that only observes), ``rejected``, ``nacked``, ``returned``
            or ``closed``.
        reason: the reason as text.
        exchange: exchange named by the producer; None if unknown, since a nack contains only a delivery tag.
        routing_key: routing key given by the producer; None if unknown.
        header: content header frame of the publish; empty if unknown.
    """

    at: float
    vhost: str
    user: str
    channel: int
    result: str
    reason: str
    exchange: bytes | None = None
    routing_key: bytes | None = None
    header: bytes = b""

    def size(self) -> int | None:
        """Return the size of the body; None if unknown."""
        if not self.header:
            return None
        size: int = U64.unpack_from(self.header, _SIZE_AT)[0]
        return size

    def header_names(self) -> list[bytes]:
        """Return the names of the headers, in order."""
        return [name for name, _ in decode_table(self.header, *header_table(self.header)[1:])] if self.header else []

    def raw_headers(self, names: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
        """Return (name, raw value) for the headers with the given names; empty if the header frame is unknown."""
        return pick(self.header, *header_table(self.header)[1:], names) if self.header else []


class FailureSink(Protocol):
    """Records failed publishes."""

    #: Whether publishes that reach no queue are also recorded. Cached plans depend on this setting, so
    #: `VhostState.changed` must be called when it changes.
    watched: bool

    def add(self, failed: FailedPublish) -> int:
        """Record a failed publish; return its number, which is 1 or more."""

    def returned(self, number: int, reason: str) -> None:
        """Record that a publish which is already recorded with this number was returned to its producer."""
