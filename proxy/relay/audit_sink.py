"""Interface of the audit log that the publish path writes to; the audit package implements it.

A module of its own, without other imports of relay: plans hold a `LineTemplate`, and channels hold plans.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class LineTemplate(Protocol):
    """The constant part of the lines of one decision."""

    def ending(self, routing_key: bytes, message_id: bytes | None, size: int, headers: str, decide_us: float) -> str:
        """What a line ends with, after its number; `decide_us` is negative where the decision was known."""


class AuditSink(Protocol):
    """The audit log as the wire sees it."""

    #: whether publishes that no rule touches are left out
    ruled_only: bool
    #: headers whose values may be shown
    names: frozenset[bytes]

    def opening(self) -> str:
        """How the lines of what is read now begin."""

    def origin(self, conn: str, user: str, vhost: str, ch: int) -> str:
        """What a channel fixes, after the opening; the publish's number and the ending follow."""

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
        """The part of an audit line that the decision determines."""

    def headers(self, entries: Iterable[tuple[bytes, bytes]]) -> str:
        """The allow-listed headers."""

    def append(self, line: bytes) -> None: ...

    def settle(self, conn: str, ch: int, seq: int, result: str, confirm_us: float | None = None) -> None:
        """Tell what the broker said of a publish."""
