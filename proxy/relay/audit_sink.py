"""Interface of the audit log for the publish path; the audit package implements it.

This is a separate module that imports nothing else from relay, since plans hold a `LineTemplate` and channels hold
plans.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class LineTemplate:
    """The constant part of the lines for one decision. It is a class because compiled code looks up methods of
    protocols by name.
    """

    __slots__ = ()

    def ending(self, routing_key: bytes, message_id: bytes | None, size: int, headers: str, decide_us: float) -> str:
        """Return the end of a line, after the publish's number; `decide_us` is negative if the decision was cached."""
        raise NotImplementedError


class AuditSink(Protocol):
    """The audit log as used by the relay."""

    #: whether publishes to exchanges without rules are omitted
    ruled_only: bool
    #: headers whose values may be written
    names: frozenset[bytes]

    def opening(self) -> str:
        """Return the beginning of the lines of the current read."""

    def origin(self, conn: str, user: str, vhost: str, ch: int) -> str:
        """Return the fields of a channel, which follow the opening and precede the publish's number and the ending."""

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
        """Return the allow-listed headers as text of an audit line."""

    def append(self, line: bytes) -> None: ...

    def settle(self, conn: str, ch: int, seq: int, result: str, confirm_us: float | None = None) -> None:
        """Record the broker's answer to a publish."""
