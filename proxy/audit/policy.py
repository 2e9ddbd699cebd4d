"""What is the log asked to be: where it lies, what it promises, how long it is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from proxy.audit.journal import MAX_SEGMENT_BYTES
from proxy.audit.retention import Retention


class Mode(Enum):
    """What happens when disk or thread can't keep up."""

    BEST_EFFORT = "best_effort"  # traffic first: lines are dropped and counted
    BACKPRESSURE = "backpressure"  # every line is written: producers wait
    STRICT = "strict"  # every line is on disk before its publish is confirmed


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """How the log is kept.

    Args:
        directory: the audit directory; made where its parent exists.
        instance: name of this sidecar; no two that write to one directory share it.
        mode: what is promised.
        buffer_bytes: lines that wait for the disk; beyond it the mode's answer.
        flush_seconds: longest time that a line waits to be handed to the thread.
        segment_bytes: most bytes of text in a segment, up to 128 MiB.
        segment_seconds: longest time that a segment is open.
        retention: how much is kept.
    """

    directory: Path
    instance: str
    mode: Mode = Mode.BEST_EFFORT
    buffer_bytes: int = 32 << 20
    flush_seconds: float = 0.1
    segment_bytes: int = MAX_SEGMENT_BYTES
    segment_seconds: float = 300.0
    retention: Retention = field(default_factory=Retention)
