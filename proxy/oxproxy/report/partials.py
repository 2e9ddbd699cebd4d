"""Converts segments of the audit log to partial aggregates. This module runs in Spark tasks, on any machine.

A segment is read only once: its partials contain all the data that the tables and the page need later. DuckDB parses
and aggregates (see the measurements in tests/bench/README.md), while Spark only starts the tasks and moves their
results. The partials of a group of segments are small tables (`PARTIALS`), one set for each hour to which the group
contributes; `oxproxy.report.hours` merges them. Sums, minima and maxima can be merged directly. Times and sizes are
stored as histograms of rounded values, which are merged by adding counts. Publish numbers are stored as ranges.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

import duckdb

from oxproxy.report.files.storage import Entry
from oxproxy.report.files.temporary import temporary

#: The extra `fast` decompresses three times as fast.
_ISAL = find_spec("isal") is not None
_GZIP_FILE = import_module("isal.igzip").IGzipFile if _ISAL else gzip.GzipFile
_DAMAGE = (EOFError, gzip.BadGzipFile, import_module("isal.isal_zlib").error if _ISAL else zlib.error)

#: Supported version of records; new fields do not change the version.
VERSION = 1
#: Maximum numbers of characters kept per invalid line, and of invalid lines kept per segment. All lines are counted.
LINE_CHARACTERS, KEPT_LINES = 8192, 1000
#: Minimum number of bits per message id in a bloom filter, whose size is a power of two. With four hashes, the rate of
#: false positives is at most 2 %.
_BLOOM_BITS = 10
#: Number of publishes per hour whose whole path through several sidecars is kept.
SAMPLED = 1000

#: Maximum number of bytes of text, and of segments, aggregated in one step. A segment costs DuckDB 0.25 MB.
_GROUP, _GROUP_SEGMENTS = 96 << 20, 200
#: Number of bytes of text from which a group contains only segments in the directories of one hour.
_ONE_HOUR = 4 << 20
#: Number of bytes decompressed in one step.
_CHUNK = 256 << 10
#: Longer lines are split into parts of at most this length plus a chunk. DuckDB must
#: accept three times this length, since each invalid byte is replaced by U+FFFD, which has three bytes.
_LONGEST_LINE, _LONGEST_OBJECT = 8 << 20, 3 * (8 << 20) + 3 * _CHUNK + 2
#: Lines that contain only these characters are blank, as in DuckDB.
_BLANK = b" \t\r\n\v\f"


def statements(name: str, **values: object) -> dict[str, str]:
    """Read the statements in an SQL file (``-- name: NAME`` begins a statement) and fill in values."""
    content = files(__package__).joinpath("sql", name).read_text("utf-8")
    parts = re.split(r"^-- name: (.+)\n", content, flags=re.MULTILINE)[1:]
    return {title: Template(text).safe_substitute(values) for title, text in zip(parts[::2], parts[1::2], strict=True)}


#: SQL functions that the tables and a search also need.
MACROS = statements("macros.sql")["macros"]
_SQL = statements("partials.sql", longest=_LONGEST_OBJECT, version=VERSION, bits=_BLOOM_BITS, sampled=SAMPLED)
#: Names of the table of all publishes, which is created only on request, and of all partial tables.
TRACE = "trace"
PARTIALS = [name.removeprefix("table ") for name in _SQL if name.startswith("table ")]


#: A partial table of a group of segments: the units of its rows (hours of records, or `storage.LOOSE`), its name, and
#: Parquet data.
Piece = tuple[tuple[int, ...], str, bytes]
#: The same with a file.
PieceFile = tuple[tuple[int, ...], str, Path]


class DamagedError(Exception):
    """Compressed data that can't be read to the end. It is raised after all readable text has been yielded."""


def texts(segment: Entry, file: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield the text of a segment in chunks of bounded size, in UTF-8. The file is decompressed if necessary.

    Each chunk ends at a line break, except within very long lines and at the end of the text. A line that is incomplete
    because of damage is not yielded. Invalid bytes are replaced by U+FFFD.
    """
    stream = _GZIP_FILE(fileobj=file) if segment.path.endswith(".gz") else file
    rest = b""
    try:
        while piece := stream.read1(_CHUNK):  # read() would lose the text before the damage
            rest += piece
            if end := rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _LONGEST_LINE else 0):
                yield _valid(rest[:end])
                rest = rest[end:]
    except _DAMAGE as error:  # other errors are not damage
        raise DamagedError from error
    yield _valid(rest)


def _valid(text: bytes) -> bytes:
    return text if text.isascii() else text.decode("utf-8", "replace").encode()


def digest(segment: Entry, file: io.BufferedIOBase, target: io.BufferedIOBase | None = None) -> tuple[str, bool]:
    """Return the digest of a segment's text, and whether the file is damaged; write the text to another file.

    The text identifies a segment, since a copy may be compressed differently.
    """
    content, damaged = hashlib.blake2b(digest_size=16), False
    try:
        for text in texts(segment, file):
            content.update(text)
            if target is not None:
                target.write(text if text.endswith(b"\n") else text + b"\n")
    except DamagedError:
        damaged = True
    return content.hexdigest(), damaged


class Reader:
    """Reads segments in sequence; `pieces` yields the partials of a group of segments.

    The text of a group is written to one file, since DuckDB's JSON reader is three times as fast as DuckDB's string
    functions, does not hold the text in memory, and takes a millisecond to open a file. In the file, a line with the
    number of a segment, which no log can know in advance, precedes its text.

    Args:
        traced: whether the trace table is requested.
        directory: directory for temporary files.
        count: called with the number of records of each group.
    """

    def __init__(self, traced: bool, directory: Path, count: Callable[[int], None]) -> None:
        self._traced = traced
        self._directory = directory
        self._count = count
        self._text = directory / "text.jsonl"
        self._bytes = 0  # size of the text
        self._segments: list[tuple[Any, ...]] = []
        self._first = 0  # number of the group's first segment
        self._duck = duckdb.connect(config={"temp_directory": str(directory / "spill")})
        self._duck.execute(_SQL["setup"] + MACROS)

    def is_full(self, unit: int) -> bool:
        """Return True if no segment in the directory of a unit should be added to the group."""
        other = bool(self._segments) and self._segments[-1][5] != unit
        return (other and self._bytes >= _ONE_HOUR) or self._bytes >= _GROUP or len(self._segments) >= _GROUP_SEGMENTS

    def add(self, segment: Entry, content: io.BufferedIOBase) -> None:
        if not self._segments:
            self._first = uuid.uuid4().int >> 66
        sid = self._first + len(self._segments)
        with self._text.open("ab") as text:
            text.write(b'{"segment":%d}\n' % sid)
            text_digest, damaged = digest(segment, content, text)
            self._bytes = text.tell()
        values = (sid, segment.path, text_digest, segment.size, segment.modified, segment.unit, damaged, self._traced)
        self._segments.append(values)

    def pieces(self) -> Iterator[Piece]:
        """Yield the partials of the segments added since the last call."""
        if not self._segments:
            return
        self._ask("tables", ())
        columns = [list(column) for column in zip(*self._segments, strict=True)]
        self._duck.execute(f"INSERT INTO files SELECT {', '.join(['unnest(?)'] * len(columns))}, NULL", columns)
        self._ask("parse", (), file=self._text, first=self._first, last=self._first + len(self._segments) - 1)
        self._set_aside()
        for size, filtered in self._ask("bloom sizes", ()):
            self._ask("bloom", (), size=size, sids=f"({', '.join(map(str, filtered))})")
        self._ask("segments", ())
        units = tuple(unit for (unit,) in self._ask("units", ()))
        self._count(self._ask("records", ())[0][0])
        self._ask("views", ())
        for name in PARTIALS:
            if name != TRACE or self._traced:
                yield units, name, self._copied(name)
        self._text.unlink()
        self._segments, self._bytes = [], 0

    def _copied(self, name: str) -> bytes:
        target = self._directory / "piece.parquet"
        self._duck.execute(f"COPY ({_SQL[f'table {name}']}) TO '{target}' (FORMAT parquet, COMPRESSION uncompressed)")
        return target.read_bytes()

    def _ask(self, statement: str, values: Iterable[object], **more: object) -> list[tuple[Any, ...]]:
        return self._duck.execute(Template(_SQL[statement]).safe_substitute(more), list(values)).fetchall()

    def _set_aside(self) -> None:
        """Classify the invalid lines, and separate them from the valid lines."""
        wrong = {number: (sid, version) for number, sid, version in self._ask("wrong lines", ())}
        if not wrong:
            return
        reasons: dict[int, list[str]] = {}
        kept: dict[int, list[str | None]] = {}
        with self._text.open("rb") as file:
            for number, line in enumerate((line for line in file if line.strip(_BLANK)), 1):
                if number in wrong:
                    sid, version = wrong[number]
                    text = line.strip(_BLANK).decode()
                    truncated, newer = text[0] == "{" and text[-1] != "}", (version or 0) > VERSION
                    reasons.setdefault(sid, []).append("torn" if truncated else "version" if newer else "foreign")
                    lines = kept.setdefault(sid, [])
                    lines.append(text[:LINE_CHARACTERS] if len(lines) < KEPT_LINES else None)
        for sid, names in reasons.items():
            self._duck.execute(
                "INSERT INTO wrong SELECT ?, unnest(?::VARCHAR[]), unnest(?::VARCHAR[])", [sid, names, kept[sid]]
            )
        self._duck.execute("DELETE FROM lines WHERE NOT is_record")


def read(
    segments: Iterable[tuple[Entry, io.BufferedIOBase]], traced: bool, folder: Path, count: Callable[[int], None]
) -> Iterator[Piece]:
    """Read segments, and yield their partials. Temporary files are created in a directory."""
    reader = Reader(traced, folder, count)
    for segment, content in segments:
        if reader.is_full(segment.unit):
            yield from reader.pieces()
        reader.add(segment, content)
    yield from reader.pieces()


def opened(segments: Iterable[tuple[Entry, Path]]) -> Iterator[tuple[Entry, io.BufferedIOBase]]:
    """Open the files of segments one after the other."""
    for segment, path in segments:
        with suppress(FileNotFoundError):  # retention may remove a segment between listing and reading
            with path.open("rb") as file:
                yield segment, file


def read_contents(
    rows: Iterable[tuple[str, int, bytes]], traced: bool, count: Callable[[int], None]
) -> Iterator[tuple[int, tuple[str, bytes]]]:
    """Read a task's segments, given as path, modification time and content, and yield unit, table name and rows."""
    segments = ((Entry(path, False, len(data), modified), io.BytesIO(data)) for path, modified, data in rows)
    with temporary() as folder:
        for units, name, data in read(segments, traced, folder, count):
            for unit in units:
                yield unit, (name, data)


def read_files(
    segments: Iterable[tuple[Entry, Path]], traced: bool, target: Path, count: Callable[[int], None]
) -> list[PieceFile]:
    """Read segments from files on this machine, and write their partials to files in a directory."""
    pieces = []
    with temporary() as folder:
        for units, name, data in read(opened(segments), traced, folder, count):
            path = target / f"{name}-{uuid.uuid4().hex}.parquet"
            path.write_bytes(data)
            pieces.append((units, name, path))
    return pieces
