"""Interface of the audit log for the publish path, implemented by the audit package.

The interface is separate from `connection_audit` and imports nothing from relay, to avoid an import cycle:
`connection_audit` imports `channel`, which imports `outgoing`, which uses `AuditSink`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeAlias

#: What the line for a publish contains:
#: - the beginning of the line: opening and origin
#: - number of the publish on its channel
#: - routing key
#: - message id; None if there is none
#: - size of the body in bytes
#: - the decision's fields, from `AuditSink.decided`
#: - the allow-listed headers, from `AuditSink.headers`
#: - duration of the decision in microseconds; negative if the decision was cached
PublishRecord: TypeAlias = tuple[str, int, bytes, bytes | None, int, str, str, float]


class AuditSink(ABC):
    """The audit log as used by the relay.

    This is not a `Protocol`, since compiled code looks up a protocol's methods by name, which costs 0.14 us per line.

    Args:
        ruled_only: whether publishes to exchanges without rules are omitted.
        names: headers whose values are permitted in records.
    """

    def __init__(self, ruled_only: bool, names: frozenset[bytes]) -> None:
        self.ruled_only = ruled_only
        self.names = names

    @abstractmethod
    def opening(self) -> str:
        """Return the beginning of every line for the publishes in the current read."""

    @abstractmethod
    def origin(self, conn: str, user: str, vhost: str, ch: int) -> str:
        """Return a channel's fields, which follow the opening of a line and precede the number of the publish."""

    @abstractmethod
    def decided(
        self,
        exchange: bytes,
        outcome: str,
        queues: Iterable[bytes] = (),
        exchanges: Iterable[bytes] = (),
        bindings: Iterable[str] = (),
        reason: str | None = None,
        remotes: Iterable[str] = (),
        rule: int | None = None,
    ) -> str:
        """Return the rules version, and the fields that depend only on the decision.

        Args:
            outcome: one of `proxy.relay.counters.OUTCOMES`.
            bindings: ids of the bindings that matched.
            remotes: names of the destinations on other brokers, without credentials.
            rule: index of the address table's rule that was applied.
        """

    @abstractmethod
    def headers(self, entries: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the allow-listed headers as text for a line.

        Args:
            entries: (name, raw value), as returned by `proxy.amqp.tables.pick`.
        """

    @abstractmethod
    def append(self, publishes: list[PublishRecord]) -> None:
        """Append a line for each publish. All publishes have the same opening."""

    @abstractmethod
    def settle(self, conn: str, ch: int, seq: int, result: str, confirm_us: float | None = None) -> None:
        """Record the broker's response to a publish.

        Args:
            result: acked, nacked, returned or lost.
            confirm_us: microseconds from the publish to its confirm, if measured.
        """
