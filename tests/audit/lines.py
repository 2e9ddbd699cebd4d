"""Creates audit lines of publishes as the publish path does."""

from __future__ import annotations

from proxy.audit.record import RecordTemplate, opening


def line(
    template: RecordTemplate,
    ts: str,
    origin: str,
    seq: int,
    routing_key: bytes,
    message_id: bytes | None,
    size: int,
    headers: str = "{}",
    decide_us: float = -1.0,
) -> bytes:
    """Return the line of one publish; the fields are those of `RecordTemplate.line`."""
    return template.line(opening(ts) + origin, seq, routing_key, message_id, size, headers, decide_us).encode()
