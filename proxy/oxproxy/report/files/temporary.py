"""Creates temporary directories, which contain text of the log.

They are locked by their process, and the next run removes those of killed processes, whose locks have ended.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Beginning of the names of temporary directories, and name of the file in them that is locked by their process.
_PREFIX, _OWNER = "oxproxy-report-", "lock"
#: A directory without a lock file is removed if it is older than this, since its process may be about to lock it.
_UNLOCKED_SECONDS = 600


@contextmanager
def temporary() -> Iterator[Path]:
    """Yield a new temporary directory, which is removed afterwards."""
    remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        unlocked = Path(folder, "unlocked")
        with unlocked.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            unlocked.rename(Path(folder, _OWNER))  # only after locking, or another process could lock and remove it
            files = Path(folder, "files")
            files.mkdir()
            yield files


def remove_abandoned() -> None:
    """Remove this user's directories whose process has ended."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):  # another process removes it, or it belongs to another user
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False) and status.st_uid == os.getuid():
                        _remove_if_abandoned(Path(entry.path), status.st_mtime)


def _remove_if_abandoned(folder: Path, modified: float) -> None:
    try:
        lock = (folder / _OWNER).open("r+")
    except FileNotFoundError:
        if time.time() - modified > _UNLOCKED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises an OSError if the process is alive
        shutil.rmtree(folder, ignore_errors=True)
