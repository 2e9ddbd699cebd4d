"""Interface of the audit log for the publish path, implemented by the audit package.

The interface is separate from `connection_audit` and imports nothing from relay, to avoid an import cycle:
`connection_audit` imports `channel`, which imports `outgoing`, which uses `LineTemplate`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class LineTemplate:
    """Renders the audit lines for one decision.

    This is not a protocol, since compiled code looks up a protocol's methods by name, which is slower.
    """

    __slots__ = ()

    def line(
        self,
        begin: str,
        seq: int,
        routing_key: bytes,
        message_id: bytes | None,
        size: int,
        headers: str,
        decide_us: float,
    ) -> str:
        """Return the line for a publish.

        Args:
            begin: `AuditSink.opening`, followed by `AuditSink.origin`.
            seq: number of the publish on its channel.
            routing_key: the producer's routing key.
            size: size of the body in bytes.
            headers: the allow-listed headers, from `AuditSink.headers`.
            decide_us: duration of the decision in microseconds; negative if the decision was cached.
        """
        raise NotImplementedError


class AuditSink(Protocol):
    """The audit log as used by the relay."""

    #: whether publishes to exchanges without rules are omitted
    ruled_only: bool
    #: headers whose values may be written
    names: frozenset[bytes]

    def opening(self) -> str:
        """Return the beginning of every line for the publishes in the current read."""

    def origin(self, conn: str, user: str, vhost: str, ch: int) -> str:
        """Return a channel's fields, which follow the opening of a line and precede the number of the publish."""

    def template(
        self,
        exchange: bytes,
        outcome: str,
        queues: Iterable[bytes],
        exchanges: Iterable[bytes],
        bindings: Iterable[str],
        reason: str | None,
        remotes: Iterable[str] = (),
        rule: int | None = None,
    ) -> LineTemplate:
        """Return the part of an audit line that depends only on the decision."""

    def headers(self, entries: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the allow-listed headers as text for an audit line."""

    def append(self, lines: bytes, count: int) -> None:
        """Append `count` whole lines with the same opening."""

    def settle(self, conn: str, ch: int, seq: int, result: str, confirm_us: float | None = None) -> None:
        """Record the broker's response to a publish."""
