"""Where do files lie? On every file system that Hadoop knows: local, hdfs://, s3a:// and so on.

All file work of the report that Spark does not do by itself goes through here: looking for folders, putting tables in
place, writing the page. Paths are what Hadoop makes of them: without a scheme they are on its default file system.
Source: Hadoop's FileSystem API, reached through Spark's gateway to the JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

#: Characters that have a meaning in Spark's and Hadoop's patterns.
_PATTERN = frozenset("\\*?[]{},")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder.

    Args:
        path: its whole path.
        name: its last part.
        is_folder: which of both it is.
    """

    path: str
    name: str
    is_folder: bool


class StorageError(OSError):
    """A file system that refuses, in its own words."""


@contextmanager
def _of_java() -> Iterator[None]:
    """Tell in a sentence what a file system refuses."""
    try:
        yield
    except Py4JJavaError as error:
        raise StorageError(str(error.java_exception.getMessage() or error.java_exception)) from error


class Storage:
    """The file systems of a Spark session.

    Args:
        spark: a session with a JVM beside it.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Take the session's gateway and Hadoop settings."""
        self._jvm: Any = spark._jvm  # made at run time from what the JVM has
        self._hadoop: Any = spark._jsc.hadoopConfiguration()  # likewise

    def whole(self, path: str) -> str:
        """Give a path with its scheme and from the root.

        Raises:
            StorageError: Hadoop knows no such file system, or can't reach it.
        """
        with _of_java():
            target = self._path(path)
            return str(self._of(target).makeQualified(target).toString())

    def exists(self, path: str) -> bool:
        """Say whether there is a file or folder."""
        target = self._path(path)
        return bool(self._of(target).exists(target))

    def is_folder(self, path: str) -> bool:
        """Say whether there is a folder."""
        target = self._path(path)
        files = self._of(target)
        return bool(files.exists(target) and files.getFileStatus(target).isDirectory())

    def entries(self, path: str) -> Iterator[Entry]:
        """Yield what a folder holds, in the order of names; nothing where there is no folder."""
        target = self._path(path)
        files = self._of(target)
        if not files.exists(target):
            return
        found = []
        for status in files.listStatus(target):
            at = status.getPath()
            found.append(Entry(str(at.toString()), str(at.getName()), bool(status.isDirectory())))
        yield from sorted(found, key=lambda entry: entry.name)

    def make(self, path: str) -> None:
        """Make a folder, and those above it.

        Raises:
            StorageError: it can't be made.
        """
        target = self._path(path)
        with _of_java():
            made = self._of(target).mkdirs(target)
        if not made:
            raise StorageError(f"{path}: the folder can't be made")

    def remove(self, path: str) -> bool:
        """Remove a file or a folder with all that is in it; whether there was one."""
        target = self._path(path)
        return bool(self._of(target).delete(target, True))

    def move(self, source: str, target: str) -> None:
        """Give a file or folder another path on the same file system, where nothing is yet.

        Raises:
            StorageError: it can't be moved.
        """
        old, new = self._path(source), self._path(target)
        files = self._of(new)
        # Hadoop would move a folder into one that exists already.
        if files.exists(new) or not files.rename(old, new):
            raise StorageError(f"{target}: {source} can't be moved there")

    def copy(self, source: str, target: str) -> None:
        """Copy a file or folder."""
        old, new = self._path(source), self._path(target)
        self._jvm.org.apache.hadoop.fs.FileUtil.copy(self._of(old), old, self._of(new), new, False, self._hadoop)

    def write(self, path: str, content: str) -> None:
        """Write a text file, in place of an earlier one; nobody sees half of it.

        Raises:
            StorageError: it can't be put in place.
        """
        target = self._path(path)
        files = self._of(target)
        if self._local(files):
            files.setWriteChecksum(False)  # no .crc beside what people open
        hidden = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), f"_{target.getName()}")
        out = files.create(hidden, True)
        try:
            out.write(bytearray(content.encode()))
        finally:
            out.close()
        files.delete(target, False)
        if not files.rename(hidden, target):
            raise StorageError(f"{path}: can't be written")

    def read(self, path: str) -> str:
        """Read a text file."""
        target = self._path(path)
        stream = self._of(target).open(target)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def text_bytes(self, path: str) -> int:
        """Read a file to its end, decompressed as its name says.

        Returns:
            Bytes of text in it.

        Raises:
            py4j.protocol.Py4JJavaError: it can't be read, or not to its end.
        """
        target = self._path(path)
        codec = self._jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(self._hadoop).getCodec(target)
        raw = self._of(target).open(target)
        try:
            stream = raw if codec is None else codec.createInputStream(raw)
            return int(stream.transferTo(self._jvm.java.io.OutputStream.nullOutputStream()))
        finally:
            raw.close()

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _of(self, path: Any) -> Any:
        return path.getFileSystem(self._hadoop)

    def _local(self, files: Any) -> bool:
        return bool(files.getUri().getScheme() == "file")


def literal(path: str) -> str:
    """Give a path for Spark's readers, which take paths as patterns, so that it means itself."""
    return "".join(f"\\{character}" if character in _PATTERN else character for character in path)
