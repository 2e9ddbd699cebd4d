"""Detects changes to rules files and TLS files, for reload.

Files are first compared by name, link target, inode, size and time, so that a change of a ConfigMap's symbolic link is
detected. They are then compared by content, since a file with a new time may have the same content. No function waits
for changes; the caller polls.

Source: Kubernetes documentation, "ConfigMaps: mounted ConfigMaps are updated automatically" (not under `subPath`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from oxproxy.errors import ConfigErrors
from oxproxy.rules.loader import rules_version

#: On some file systems, writes that are at most this many seconds apart may have the same timestamp.
_RECENT_SECONDS = 2.0
#: Version of files that can't be read; the reason is reported when the files are loaded.
_UNREADABLE = "unreadable"

#: Name, link target, inode, size and time of each file.
_Stats = tuple[tuple[str, str, int, int, int], ...]


class FileWatch:
    """Compares files with their state at the last load.

    Args:
        files: returns the files in the order in which they are loaded.
        version: version of the rules loaded from the files.
        now: returns seconds since the epoch.
    """

    def __init__(self, files: Callable[[], Sequence[Path]], version: str, now: Callable[[], float] = time.time) -> None:
        self._files = files
        self._now = now
        self._taken = version
        self._stats: _Stats | None = None
        self._examined = False

    def check(self) -> bool:
        """Return True if the files have changed since the last load and are stable.

        Files are stable if two successive calls find the same state, so that a partially written file is not loaded.
        """
        stats = self._read_stats()
        if stats != self._stats:
            self._stats = stats
            self._examined = False
            return False
        if self._examined:
            return False
        # A file written a moment ago may change again without a change in its size or modification time, so the next
        # call reads it again.
        self._examined = all(self._now() - changed / 1e9 > _RECENT_SECONDS for *_, changed in stats)
        return self._version() != self._taken

    def take(self) -> None:
        """Record the current state as loaded, even if the load fails."""
        self._taken = self._version()

    def again(self) -> None:
        """Forget the recorded state, so that the next `check` reports a change."""
        self._taken = ""
        self._examined = False

    def _read_stats(self) -> _Stats:
        stats = []
        for path in self._paths():
            try:
                state = path.stat()
                stats.append((str(path), str(path.resolve()), state.st_ino, state.st_size, state.st_mtime_ns))
            except OSError:
                stats.append((str(path), "", 0, 0, 0))
        return tuple(stats)

    def _version(self) -> str:
        try:
            return rules_version([(str(path), path.read_bytes()) for path in self._paths()])
        except OSError:
            return _UNREADABLE

    def _paths(self) -> Sequence[Path]:
        try:
            return self._files()
        except ConfigErrors:
            return ()


def lone_mounts(paths: Iterable[Path], mountinfo: str) -> list[Path]:
    """Return files that are never updated because they are mounted individually (`subPath` in Kubernetes).

    Args:
        mountinfo: content of /proc/self/mountinfo (proc(5)).
    """
    points = {_unescaped(fields[4]) for line in mountinfo.splitlines() if len(fields := line.split(" ")) > 4}
    return [path for path in paths if str(path.resolve()) in points]


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), text)
