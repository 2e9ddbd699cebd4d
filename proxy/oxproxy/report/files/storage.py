"""Accesses files on all file systems that Hadoop supports (local, hdfs://, s3a:// and others), and finds log segments.

`LocalFiles` works without Spark, which takes seconds to start. For `HadoopFiles`, a path without a scheme is on
Hadoop's default file system.

`find_segments` finds segments of the audit log. The log's directories ``date=YYYY-MM-DD`` may be in the input directory
itself or in subdirectories, such as one for each sidecar. Names that begin with ``_`` or ``.`` are skipped, since a
segment that is being written has such a name; a search for one message includes these open segments. Files outside the
date directories are *loose*.

Source: Hadoop's FileSystem API, used through Spark's gateway to the JVM.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from oxproxy.errors import ConfigError
from oxproxy.report.request import parsed_day

#: File name suffixes of segments.
_SUFFIXES = (".jsonl", ".jsonl.gz")
#: Names of segments that are being written, as in `oxproxy.audit.segments`.
_OPEN = re.compile(r"_(audit-.+\.jsonl)")
#: File that locks an output directory, and the time after which the lock of a killed run on a remote file system ends.
_LOCK, _LEASE_SECONDS = "_lock", 300
#: Unit of segments outside date directories. Other units are hours since 1970.
LOOSE = -1
_EPOCH = date(1970, 1, 1)
#: Maximum depth at which date directories, and files within them, are searched. It is enough for
#: input/cluster/sidecar/date=...
_DEPTH = 3
#: Characters that have a special meaning in the path patterns of Spark and Hadoop.
_PATTERN = re.compile(r"([\\*?\[\]{},])")
#: Names with such characters are not UTF-8. DuckDB can't store them, and no segment has one.
_NOT_TEXT = re.compile("[\ud800-\udfff]")
_JAR = (
    "add the jar, for s3a with --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, where VERSION is the "
    "version of Spark's hadoop-client-api (docs/reference/audit.md, On a cluster)"
)


class LockedError(ConfigError):
    """Another process has locked a directory."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory; ``modified`` is in milliseconds since 1970."""

    path: str
    is_folder: bool
    size: int
    modified: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def day(self) -> date | None:
        return None if self.unit == LOOSE else unit_day(self.unit)

    @property
    def unit(self) -> int:
        """The hour of the segment's directories, counted since 1970; `LOOSE` outside date directories."""
        return _folder_unit(self.path[: len(self.path) - len(self.name)])

    @property
    def closed_path(self) -> str:
        """The path of an open segment after it has been closed; the path of any other file."""
        open_segment = _OPEN.fullmatch(self.name)
        if open_segment is None:
            return self.path
        return f"{self.path.removesuffix(self.name)}{open_segment.group(1)}.gz"


class LocalFiles:
    """The file system of this machine, used without the JVM. Paths and methods are those of `HadoopFiles`."""

    def whole(self, path: str) -> str:
        return f"file:{local_path(path)}"

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(local_path(path))  # Path.is_dir raises if a name is too long

    @contextmanager
    def locked(self, folder: str) -> Iterator[None]:
        """Ensure that only one process changes a directory. The lock of a killed process ends with the process.

        Raises:
            LockedError: another process has locked the directory.
        """
        with translated(folder) as local:
            local.mkdir(parents=True, exist_ok=True)
            file = (local / _LOCK).open("a")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedError(folder, 0, "--output", "another report with this directory is running") from None
            yield

    def exists(self, path: str) -> bool:
        return os.path.exists(local_path(path))

    def entries(self, path: str) -> list[Entry]:
        entries = []
        with translated(path) as local, suppress(FileNotFoundError, NotADirectoryError), os.scandir(local) as listing:
            for entry in listing:
                with suppress(FileNotFoundError):  # the file was removed, or is a link without a target
                    status = entry.stat()
                    modified = status.st_mtime_ns // 1_000_000
                    entries.append(Entry(f"file:{entry.path}", entry.is_dir(), status.st_size, modified))
        return sorted(entries, key=lambda entry: entry.name)

    def make(self, path: str) -> None:
        with translated(path) as local:
            local.mkdir(parents=True, exist_ok=True)

    def remove(self, path: str) -> None:
        with translated(path) as local:
            if local.is_dir() and not local.is_symlink():
                shutil.rmtree(local)
            else:
                local.unlink(missing_ok=True)

    def move(self, source: str, target: str) -> None:
        with translated(target) as new:
            local_path(source).rename(new)

    def put(self, local: Path, target: str) -> None:
        hidden = local_path(target).with_name(f"_{local_path(target).name}")
        self.remove(str(hidden))
        with translated(target) as new:
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(local, hidden)
            hidden.rename(new)

    def fetch(self, path: str, folder: Path) -> Path:
        local = folder / f"{uuid.uuid4().hex}.parquet"
        local.symlink_to(local_path(path))
        return local


def local_path(path: str) -> Path:
    """Return the absolute path on this machine for a path or a URI."""
    return Path(os.path.abspath(re.sub("^file:(//)?(?=/)", "", path)))


@contextmanager
def translated(path: str) -> Iterator[Path]:
    """Yield the absolute path on this machine. An `OSError` becomes a `ConfigError`."""
    try:
        yield local_path(path)
    except OSError as error:
        raise ConfigError(path, 0, "", error.strerror or str(error)) from error


class HadoopFiles:
    """The file systems that Spark can access."""

    def __init__(self, spark: SparkContext) -> None:
        self._jvm: Any = spark._jvm  # attributes are created at run time from the JVM's classes
        self._hadoop: Any = spark._jsc.hadoopConfiguration()  # likewise

    def whole(self, path: str) -> str:
        """Return an absolute path with its scheme."""
        with self._at(path) as (files, target):
            return str(files.makeQualified(target).toString())

    def is_folder(self, path: str) -> bool:
        with self._at(path) as (files, target):
            return bool(files.exists(target) and files.getFileStatus(target).isDirectory())

    @contextmanager
    def locked(self, folder: str) -> Iterator[None]:
        """Ensure that only one process changes a directory, with a file that is written again every minute.

        Raises:
            LockedError: another process has locked the directory.
        """
        path, ended = f"{folder}/{_LOCK}", threading.Event()
        with self._at(path) as (files, target):
            if files.exists(target):
                age = time.time() - files.getFileStatus(target).getModificationTime() / 1000
                if age < _LEASE_SECONDS:
                    reason = f"another report with this directory is running, or was killed {age:.0f} s ago"
                    raise LockedError(folder, 0, "--output", f"{reason}; the lock lasts {_LEASE_SECONDS} s")
                files.delete(target, False)
            files.create(target, False).close()

        def renew() -> None:
            while not ended.wait(_LEASE_SECONDS / 5):
                with suppress(ConfigError), self._at(path) as (files, target):
                    files.create(target, True).close()

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.remove(path)

    def exists(self, path: str) -> bool:
        with self._at(path) as (files, target):
            return bool(files.exists(target))

    def entries(self, path: str) -> list[Entry]:
        """List a directory, ordered by name. The list is empty if the directory does not exist."""
        entries = []
        with self._at(path) as (files, target):
            for status in files.listStatus(target) if files.exists(target) else ():
                place, size, modified = status.getPath().toString(), status.getLen(), status.getModificationTime()
                entries.append(Entry(str(place), bool(status.isDirectory()), int(size), int(modified)))
        return sorted(entries, key=lambda entry: entry.name)

    def make(self, path: str) -> None:
        with self._at(path) as (files, target):
            if not files.mkdirs(target):
                raise ConfigError(path, 0, "", "the directory cannot be created")

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its contents, if it exists."""
        with self._at(path) as (files, target):
            files.delete(target, True)

    def move(self, source: str, target: str) -> None:
        """Rename a file or directory to a new path on the same file system."""
        with self._at(target) as (files, new):
            # Hadoop would move a directory into an existing directory.
            if files.exists(new) or not files.rename(self._path(source), new):
                raise ConfigError(target, 0, "", f"{source} can't be moved there")

    def put(self, local: Path, target: str) -> None:
        """Move a file or directory on this machine to a path, where it becomes visible when it is complete.

        An existing file is replaced. Missing directories are created.
        """
        with self._at(target) as (files, new):
            files.setWriteChecksum(False)  # no .crc file next to files that people open
            hidden = self._path(f"{new.getParent()}/_{new.getName()}")
            files.delete(hidden, True)
            files.copyFromLocalFile(True, True, self._path(f"file:{local}"), hidden)
            files.delete(new, False)
            if not files.rename(hidden, new):
                raise ConfigError(target, 0, "", "can't be written")

    def fetch(self, path: str, folder: Path) -> Path:
        """Provide a file under a new path in a directory on this machine; return the new path.

        If the file does not exist, the new path does not exist either.
        """
        local = folder / f"{uuid.uuid4().hex}.parquet"
        with self._at(path) as (files, target):
            if files.exists(target):
                files.copyToLocalFile(False, target, self._path(f"file:{local}"), True)
        return local

    @contextmanager
    def _at(self, path: str) -> Iterator[tuple[Any, Any]]:  # JVM objects
        """Yield the file system of a path, and the path as a Java object. A Java error becomes a `ConfigError`."""
        try:
            target = self._path(path)
            yield target.getFileSystem(self._hadoop), target
        except Py4JJavaError as error:
            text = str(error.java_exception.getMessage() or error.java_exception)
            reason = text.splitlines()[0].removeprefix(f"{path}: ")
            if "No FileSystem for scheme" in text or "ClassNotFoundException" in text:
                reason = f"Spark has no file system for {path.partition(':')[0]}://; {_JAR}"
            raise ConfigError(path, 0, "", reason) from error

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)


#: The file systems of a run.
Storage = LocalFiles | HadoopFiles


def literal(path: str) -> str:
    """Escape a path for Spark's readers, which treat paths as patterns."""
    return _PATTERN.sub(r"\\\1", path)


def find_segments(
    files: Storage,
    folder: str,
    wanted: Callable[[date], bool] = lambda _: True,
    *,
    with_open: bool = False,
) -> list[Entry]:
    """List the segments for the wanted days and the loose segments, ordered by hour and path.

    Args:
        with_open: whether segments that are being written are included. They are ordered by their later path.
    """
    found = _searched(files, folder, wanted, _DEPTH, with_open=with_open)
    return sorted(found, key=lambda segment: (segment.unit, segment.closed_path))


def _searched(
    files: Storage, folder: str, wanted: Callable[[date], bool], depth: int, *, with_open: bool
) -> Iterator[Entry]:
    """Yield the segments, in any order."""
    listed = files.entries(folder)
    paths = {entry.path for entry in listed} if with_open else set()
    for entry in listed:
        name = entry.name
        # While a segment is being closed, both of its files may exist.
        opened = with_open and entry.closed_path != entry.path and entry.closed_path not in paths
        if (name.startswith(("_", ".")) and not opened) or _NOT_TEXT.search(name):
            continue
        if not entry.is_folder:
            if name.endswith(_SUFFIXES):
                yield entry
        elif (day := folder_day(f"{name}/")) is not None:
            if wanted(day):
                yield from _searched(files, entry.path, lambda _: True, _DEPTH, with_open=with_open)
        elif depth:
            yield from _searched(files, entry.path, wanted, depth - 1, with_open=with_open)


@functools.lru_cache(4096)
def _folder_unit(folder: str) -> int:
    day = folder_day(folder)
    if day is None or day < _EPOCH:
        return LOOSE
    hours = re.findall(r"(?<![^/])hour=(\d\d?)/", folder)
    return (day - _EPOCH).days * 24 + min(23, int(hours[-1]) if hours else 0)


def unit_day(unit: int) -> date:
    return _EPOCH + timedelta(days=unit // 24)


def unit_folder(unit: int) -> str:
    """Return the directories for data of a unit."""
    return "date=unknown/hour=unknown" if unit == LOOSE else f"date={unit_day(unit)}/hour={unit % 24:02d}"


def folder_day(path: str) -> date | None:
    """Return the day of the date directory in a segment's path; None if there is no such directory."""
    named = re.findall("(?<![^/])date=([^/]*)/", path)
    return parsed_day(named[-1]) if named else None
