"""How does the audit log come to be, as the configuration asks for it? Policy, privacy and writer from plain values.

How do the relays' publishes become lines of the log? Records and writer joined to what the wire asks for.

Source: docs/audit.md (fields, modes); `proxy.relay.auditing` says what the wire gives.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.audit.record import LineRenderer, Privacy, TimestampText, opening
from proxy.audit.retention import Retention
from proxy.audit.writer import AuditPolicy, AuditWriter, Mode
from proxy.relay.audit_sink import LineTemplate
from proxy.relay.counters import AuditCounters


class PublishLog:
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


_MIB = 1 << 20
_SECONDS_OF_A_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """What the operator asked for; sizes in MiB, as in the configuration.

    Args:
        directory: where the log lies.
        mode: ``best_effort``, ``backpressure`` or ``strict``.
        ruled_only: leave out publishes that no rule touches.
        instance: name of this sidecar; None: the host's name.
        buffer_mib: lines that may wait.
        segment_mib: text of a segment.
        segment_seconds: longest time a segment is open.
        keep_days: None: age does not matter.
        keep_mib: None: size does not matter.
        headers: names that may be shown.
        hashed: fields that are hashed.
        key: key of the hashes.
    """

    directory: Path
    mode: str
    ruled_only: bool
    instance: str | None
    buffer_mib: int
    segment_mib: int
    segment_seconds: float
    keep_days: int | None
    keep_mib: int | None
    headers: Sequence[str]
    hashed: Sequence[str]
    key: bytes


def open_audit(
    request: AuditRequest, counters: AuditCounters, rules: Callable[[], str], wall: Callable[[], float]
) -> tuple[AuditWriter, PublishLog]:
    """Make writer and journal; call the writer's `start` next.

    Args:
        request: what was asked for.
        counters: what is counted of it.
        rules: gives the version of the rules in force.
        wall: gives seconds since 1970.

    Raises:
        ConfigError: a field that can't be hashed, or no key for it.
    """
    instance = request.instance or socket.gethostname()
    retention = Retention(
        None if request.keep_days is None else request.keep_days * _SECONDS_OF_A_DAY,
        None if request.keep_mib is None else request.keep_mib * _MIB,
    )
    policy = AuditPolicy(
        request.directory,
        instance,
        Mode(request.mode),
        request.buffer_mib * _MIB,
        segment_bytes=request.segment_mib * _MIB,
        segment_seconds=request.segment_seconds,
        retention=retention,
    )
    privacy = Privacy(frozenset(name.encode() for name in request.headers), frozenset(request.hashed), request.key)
    writer = AuditWriter(policy, counters, wall)
    journal = PublishLog(LineRenderer(instance, privacy), writer, rules, wall, ruled_only=request.ruled_only)
    return writer, journal
