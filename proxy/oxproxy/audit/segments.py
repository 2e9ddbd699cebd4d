"""Files of the audit log: open and closed segments, their names, and the lock on an instance name.

An open segment is named ``date=YYYY-MM-DD/hour=HH/_audit-<instance>-<start>-<n>.jsonl``. Spark ignores such names. A
closed segment is compressed in the same directory, and a single rename makes it visible as
``audit-<instance>-<start>-<n>.jsonl.gz``. A record is therefore never visible in two files. After a crash, either the
complete open file or the closed file exists. Segments that dead processes left open are closed by the next process that
starts; an `InstanceLock` distinguishes such segments from the open segments of running processes.

File operations block, so they must not be called from the event loop's thread. The content of lines is not parsed.
"""

from __future__ import annotations

import fcntl
import os
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOENT
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

#: None if the extra `fast` is not installed; some platforms have no wheel for it.
ISAL = import_module("isal.isal_zlib") if find_spec("isal") else None

#: Number of bytes read at once during compression. Other threads can run between two reads.
_CHUNK_BYTES = 1 << 20
#: zlib's level 3 compresses by a factor of 10 at 300 MB/s, level 6 by a factor of 12 at half that speed, and isal's
#: level 1 by a factor of 11 at 1.7 GB/s.
_GZIP_LEVEL, _ISAL_LEVEL = 3, 1
#: Selects the gzip format.
_GZIP_BITS = 16 + zlib.MAX_WBITS
#: Audit lines are confidential, so only the owner and the group of a file can read it.
_FILE_MODE, DIRECTORY_MODE = 0o640, 0o750
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
#: Maximum number of attempts to create a directory. More than one may be necessary, since the retention thread of
#: another instance may remove the directory while it is still empty.
_ATTEMPTS = 5
#: Last word in the lock file of a dead instance while another process closes its segments.
_CLOSING = b"closing"


def safe_instance(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:100] or "_"


@dataclass(slots=True, eq=False)
class OpenSegment:
    """An open segment.

    Args:
        hour: hour of the lines in the segment, such as ``2026-11-21T07``.
        opened: time when the segment was opened, in monotonic seconds.
        size: size of the segment in bytes, without partially written lines.
    """

    path: Path
    hour: str
    opened: float
    descriptor: int
    size: int = 0

    @classmethod
    def create(cls, directory: Path, hour: str, name: str, opened: float) -> OpenSegment:
        """Create the file, and flush its directories, so that its name survives a crash.

        Raises:
            OSError: the file can't be created, or exists.
        """
        folder = directory / f"date={hour[:10]}" / f"hour={hour[11:]}"
        path = folder / f"_{name}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        for attempt in range(_ATTEMPTS):
            folder.parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            try:
                folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
                descriptor = os.open(path, flags, _FILE_MODE)
                break
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise
        for changed in (folder, folder.parent, directory):
            sync_directory(changed)
        return cls(path, hour, opened, descriptor)

    def write(self, data: bytes) -> None:
        """Append data. After an error, `restore` must be called.

        Raises:
            OSError: the disk is full or broken, or the file has been removed.
        """
        if not os.fstat(self.descriptor).st_nlink:
            raise FileNotFoundError(ENOENT, "the segment has been removed", str(self.path))
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]
        self.size += len(data)

    def restore(self, size: int) -> bool:
        """Truncate the segment to an earlier size; return True on success."""
        try:
            os.ftruncate(self.descriptor, size)
        except OSError:
            return False
        self.size = size
        return True

    def sync(self) -> None:
        """Flush everything to disk.

        Raises:
            OSError: the data may be lost, even if a retry succeeds, since the kernel reports a failed write only once.
        """
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        """Close the file. `compress_segment` must be called next."""
        os.close(self.descriptor)


def compress_segment(path: Path) -> None:
    """Compress a closed segment and make it visible, or remove an empty one. Can be repeated after a crash.

    Args:
        path: path of the segment's uncompressed file, to which nothing more is written.

    Raises:
        OSError: the disk is full or broken; the segment is unchanged.
    """
    visible = path.with_name(path.name.removeprefix("_") + ".gz")
    if not visible.exists():
        if not path.stat().st_size:
            path.unlink()
            return
        hidden = path.with_name(path.name + ".gz")
        try:
            _gzip(path, hidden)
        except OSError:
            with suppress(OSError):
                hidden.unlink()
            raise
        hidden.rename(visible)
        sync_directory(path.parent)
    path.unlink()


def _gzip(source: Path, target: Path) -> None:
    compressor, level = (zlib, _GZIP_LEVEL) if ISAL is None else (ISAL, _ISAL_LEVEL)
    packer = compressor.compressobj(level, zlib.DEFLATED, _GZIP_BITS)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE)
    with source.open("rb", buffering=0) as text, os.fdopen(descriptor, "wb") as packed:
        while chunk := text.read(_CHUNK_BYTES):
            packed.write(packer.compress(chunk))
        packed.write(packer.flush())
        packed.flush()
        os.fsync(packed.fileno())


def sync_directory(folder: Path) -> None:
    """Flush a directory so that the names in it survive a power failure, if the file system supports this."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class InstanceLock:
    """Lock for writing and closing an instance's segments. The kernel releases the lock when the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, directory: Path, instance: str, *, closing: bool = False) -> InstanceLock | None:
        """Lock an instance's name in a directory; return None if a running process holds the lock.

        Args:
            closing: whether the lock serves only to close the segments of a dead instance.

        Raises:
            OSError: the directory is missing or not writable, or the disk is full.
        """
        path = _lock_file(directory, instance)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _FILE_MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The last holder of the lock may have removed the file between `os.open` and `flock`.
                if _same_file(path, descriptor):
                    # Writing also checks whether there is space, so that a full disk is reported at startup.
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, b"%d %s\n" % (os.getpid(), _CLOSING if closing else b""), 0)
                    os.fsync(descriptor)
                    return cls(path, descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)

    @staticmethod
    def is_for_closing(directory: Path, instance: str) -> bool:
        """Return True if the process that holds the lock only closes the segments of this instance."""
        try:
            return _CLOSING in _lock_file(directory, instance).read_bytes()
        except FileNotFoundError:  # just released
            return True

    def release(self) -> None:
        with suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)


def _lock_file(directory: Path, instance: str) -> Path:
    return directory / f"_audit-{instance}.lock"


def _same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def hour_files(directory: Path, pattern: str) -> Iterator[Path]:
    """Yield the matching files in hour directories. Another process may remove emptied directories at any time."""
    for day in directory.glob("date=*"):
        with suppress(FileNotFoundError):
            for hour in day.glob("hour=*"):
                with suppress(FileNotFoundError):
                    yield from hour.glob(pattern)


def open_segments(directory: Path) -> dict[str, list[Path]]:
    """Return the segments that are not closed, by instance, oldest first."""
    segments: dict[str, list[Path]] = {}
    for path in sorted(hour_files(directory, "_audit-*-*-*.jsonl")):
        instance = path.name.removeprefix("_audit-").rsplit("-", 2)[0]
        segments.setdefault(instance, []).append(path)
    return segments


def orphaned_segments(directory: Path, own: str) -> Generator[list[Path]]:
    """Yield the open segments of each dead instance. The instance stays locked until the next item is requested.

    The lock files of dead instances are removed, even if these instances have no open segments.

    Args:
        own: this instance, whose segments are skipped.
    """
    locked = {path.name.removeprefix("_audit-").removesuffix(".lock") for path in directory.glob("_audit-*.lock")}
    segments = open_segments(directory)
    for instance in sorted((segments.keys() | locked) - {own}):
        claim = InstanceLock.acquire(directory, instance, closing=True)
        if claim is not None:
            try:
                yield [path for path in segments.get(instance, []) if path.exists()]
            finally:
                claim.release()
