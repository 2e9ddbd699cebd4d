"""Finds the closed segments of the audit log.

The log's folders ``date=YYYY-MM-DD`` may lie in the input folder itself or deeper in it (a folder for each sidecar).
Names that begin with ``_`` or ``.`` are skipped: a segment that is being written has such a name. Files outside of such
folders are *loose*: only their lines tell the day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from proxy.report.partials import folder_day
from proxy.report.storage import Entry

SUFFIXES = (".jsonl", ".jsonl.gz")
#: How deep folders of sidecars may lie: enough for input/cluster/sidecar/date=...
_DEPTH = 3
#: Folders within that of a day: hours.
_DEPTH_OF_DAY = 2


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A file of the log.

    Args:
        folder: the day that its folder names; None outside of such folders.
        path: its whole path.
        size: bytes.
        modified: when it was last written, in milliseconds since 1970.
    """

    folder: date | None
    path: str
    size: int
    modified: int


class Lister(Protocol):
    """What lists folders: a file system."""

    def entries(self, path: str) -> list[Entry]:
        """List what a folder holds, in the order of names; nothing if there is no folder."""


def find(storage: Lister, folder: str, wanted: Callable[[date], bool] = lambda _: True) -> list[Segment]:
    """List the segments of the days that are wanted, and the loose ones, in order."""
    return sorted(_walk(storage, folder, _DEPTH, wanted), key=lambda found: (found.folder or date.min, found.path))


def _walk(storage: Lister, folder: str, depth: int, wanted: Callable[[date], bool]) -> Iterator[Segment]:
    for entry in storage.entries(folder):
        if entry.name.startswith(("_", ".")):
            continue
        day = folder_day(f"{entry.path}/")
        if not entry.is_folder:
            if entry.name.endswith(SUFFIXES):
                yield Segment(day, entry.path, entry.size, entry.modified)
        elif entry.name.startswith("date=") and day is not None:
            if wanted(day):
                yield from _walk(storage, entry.path, _DEPTH_OF_DAY, lambda _: True)
        elif depth:
            yield from _walk(storage, entry.path, depth - 1, wanted)
