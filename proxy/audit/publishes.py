"""How do the relays' publishes become lines of the log? Records and writer joined to what the wire asks for.

Source: docs/audit.md (fields, modes); `proxy.relay.auditing` says what the wire gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from proxy.audit.record import LineRenderer, TimestampText, opening
from proxy.audit.writer import AuditWriter
from proxy.relay.auditing import LineTemplate


class PublishJournal:
    """The audit log as the wire sees it.

    Args:
        records: renders lines.
        writer: writes them.
        rules: gives the version of the rules in force.
        wall: gives seconds since 1970.
        ruled_only: whether publishes that no rule touches are left out.
    """

    def __init__(
        self,
        records: LineRenderer,
        writer: AuditWriter,
        rules: Callable[[], str],
        wall: Callable[[], float],
        *,
        ruled_only: bool,
    ) -> None:
        """Join them."""
        self._records = records
        self._rules = rules
        self._wall = wall
        self._text = TimestampText()
        self.ruled_only = ruled_only
        self.names = records.privacy.headers
        self.append = writer.append
        self.origin = records.origin
        self.headers = records.headers

    def opening(self) -> str:
        """How the lines of what is read now begin."""
        return opening(self._text(self._wall()))

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
        decide_us: float | None = None,
    ) -> LineTemplate:
        """What a decision fixes in its lines, the version of the rules included."""
        return self._records.template(
            exchange,
            outcome,
            queues,
            exchanges,
            remotes=remotes,
            bindings=bindings,
            rule=rule,
            rules=self._rules(),
            reason=reason,
            decide_us=decide_us,
        )

    def settle(self, conn: str, ch: int, seq: int, result: str, confirm_us: float | None = None) -> None:
        """Tell what the broker said of a publish."""
        self.append(self._records.settle(self._text(self._wall()), conn, ch, seq, result, confirm_us))
