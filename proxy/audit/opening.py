"""How does the audit log come to be, as the configuration asks for it? Policy, privacy and writer from plain values."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.audit.policy import AuditPolicy, Mode
from proxy.audit.publishes import PublishJournal
from proxy.audit.record import LineRenderer, Privacy
from proxy.audit.retention import Retention
from proxy.audit.writer import AuditWriter
from proxy.relay.counters import AuditCounters

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
) -> tuple[AuditWriter, PublishJournal]:
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
    journal = PublishJournal(LineRenderer(instance, privacy), writer, rules, wall, ruled_only=request.ruled_only)
    return writer, journal
