"""Tap on the publish path: how shadow rules see live publishes and what was decided about them.

While a tap is set, the plans of the publishes that it wants carry it (`Plan.tap`), and it gets each of these publishes
with its decision, once it is on its way. What leaves does not change.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from proxy.amqp.frames import U16, U64
from proxy.amqp.properties import decode_properties, table_span
from proxy.amqp.tables import decode_table, pick
from proxy.routing.decision import Decision, Facts

#: Offsets in a content header frame: body size, property flags, properties.
_SIZE_AT, _FLAGS_AT, _PROPERTIES_AT = 11, 19, 21
_PROPERTIES = frozenset(
    (
        "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
        "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
    )
)  # fmt: skip


class ObservedDecision(NamedTuple):
    """One publish that was seen.

    Args:
        vhost: its virtual host.
        exchange: as the producer named it.
        routing_key: likewise.
        header: its content header frame.
        decision: what the rules in force made of it; where no exchange was evaluated here, one that says nothing.
        at: seconds since the epoch.
    """

    vhost: str
    exchange: bytes
    routing_key: bytes
    header: bytes
    decision: Decision
    at: float

    def facts(self) -> Facts:
        """Give all that rules may know of it.

        Raises:
            ProtocolError: 502, the header is malformed.
        """
        header = self.header
        flags = U16.unpack_from(header, _FLAGS_AT)[0]
        span = table_span(header, _PROPERTIES_AT, flags, len(header) - 1)
        properties = decode_properties(header, _PROPERTIES_AT, len(header) - 1, flags, _PROPERTIES)
        size = U64.unpack_from(header, _SIZE_AT)[0]
        return Facts(self.routing_key, () if span is None else decode_table(header, *span), properties, size)

    def raw_headers(self, names: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
        """Give some headers as letter and value bytes.

        Raises:
            ProtocolError: 502, the header is malformed.
        """
        header = self.header
        span = table_span(header, _PROPERTIES_AT, U16.unpack_from(header, _FLAGS_AT)[0], len(header) - 1)
        return [] if span is None else pick(header, *span, names)


class Tap(Protocol):
    """Who watches."""

    def wants(self, vhost: str, exchange: bytes) -> bool:
        """Whether publishes to the exchange are to be told of."""

    def observe(self, observed: ObservedDecision) -> None:
        """A publish is on its way; called on the publish path."""
