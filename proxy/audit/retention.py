"""Which closed segments are too old, or too many?

Only files of our own names are counted or removed, oldest hour first; never one that is still open. Files of all
instances in the directory count: it is the disk that is limited. Blocking file work: for a thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_FOLDER = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)")
_SECONDS_OF_AN_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept.

    Args:
        seconds: hours that ended longer ago than this go; None: age does not matter.
        size_bytes: beyond this many bytes of files the oldest go; None: size does not matter.
    """

    seconds: float | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class _Closed:
    ended: float
    written_ns: int
    path: Path
    size: int


def expire(directory: Path, retention: Retention, now: float) -> list[Path]:
    """Remove what retention does not keep, and folders that became empty.

    Args:
        directory: the audit directory.
        retention: how much is kept.
        now: seconds since 1970.

    Returns:
        The files that were removed, oldest first.

    Raises:
        OSError: a file can't be removed.
    """
    if retention.seconds is None and retention.size_bytes is None:
        return []
    closed, total = _listed(directory)
    removed = []
    for segment in sorted(closed):
        too_old = retention.seconds is not None and segment.ended <= now - retention.seconds
        too_much = retention.size_bytes is not None and total > retention.size_bytes
        if not (too_old or too_much):
            break
        segment.path.unlink(missing_ok=True)
        total -= segment.size
        removed.append(segment.path)
    for folder in {path.parent for path in removed}:
        _remove_empty(folder)
    return removed


def _listed(directory: Path) -> tuple[list[_Closed], int]:
    """Give the closed segments, and the bytes of all segments, open ones too."""
    closed = []
    total = 0
    for path in directory.glob("date=*/hour=*/*audit-*.jsonl*"):
        try:
            status = path.stat()
        except FileNotFoundError:  # closed or expired by another process just now
            continue
        total += status.st_size
        ended = _end_of(path.parent)
        if ended is not None and path.name.startswith("audit-") and path.name.endswith(".jsonl.gz"):
            closed.append(_Closed(ended, status.st_mtime_ns, path, status.st_size))
    return closed, total


def _end_of(folder: Path) -> float | None:
    """Give the end of a folder's hour in seconds since 1970, None where its name is no hour."""
    found = _FOLDER.fullmatch(f"{folder.parent.name}/{folder.name}")
    if found is None:
        return None
    try:
        begin = datetime.fromisoformat(f"{found[1]}T{found[2]}:00:00").replace(tzinfo=UTC)
    except ValueError:
        return None
    return begin.timestamp() + _SECONDS_OF_AN_HOUR


def _remove_empty(folder: Path) -> None:
    for empty in (folder, folder.parent):
        try:
            empty.rmdir()
        except OSError:  # not empty, or somebody else was first
            return
