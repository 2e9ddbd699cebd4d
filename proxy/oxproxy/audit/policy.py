"""The settings of the audit log, and its modes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from oxproxy.audit.retention import Retention


class AuditMode(Enum):
    """Behaviour if the disk or the writer thread can't keep up."""

    BEST_EFFORT = "best_effort"  # lines are dropped and counted
    BACKPRESSURE = "backpressure"  # producers wait until their lines are written
    STRICT = "strict"  # every line is on disk before its publish is confirmed


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """Settings of the audit log.

    Args:
        directory: the audit directory, which is created if its parent exists.
        instance: name of this sidecar, unique among writers to one directory.
        buffer_bytes: size of buffered lines above which the mode applies.
        flush_seconds: longest time before a line is handed to the writer thread.
        segment_bytes: size limit for a segment's text. A gzip file can't be split, so the report reads each segment in
            a single task, regardless of the size of the cluster.
        segment_seconds: longest time for which a segment stays open.
    """

    directory: Path
    instance: str
    mode: AuditMode = AuditMode.BEST_EFFORT
    buffer_bytes: int = 32 << 20
    flush_seconds: float = 0.1
    segment_bytes: int = 128 << 20
    segment_seconds: float = 300.0
    retention: Retention = field(default_factory=Retention)
