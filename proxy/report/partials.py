"""Converts each segment of the audit log to partial aggregates. This module runs in Spark tasks, on any machine.

A segment is read only once: its partial contains all the data that the tables and the page need later. DuckDB parses
and aggregates (see the measurements in tests/bench/README.md), while Spark only delivers the bytes and collects the
result. A partial is a set of small tables (`PARTIALS`). Sums, minima and maxima can be merged directly. Times and sizes
are stored as histograms of rounded values, which are merged by adding counts. Publish numbers are stored as ranges.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import re
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

import duckdb

from proxy.report.storage import Entry, Storage

#: Directory of partials in an output directory. The number identifies the format of the partials.
FOLDER = "_partials/1"
#: Supported version of records; new fields do not change the version.
VERSION = 1
#: Maximum numbers of characters kept per invalid line, and of invalid lines kept per segment. All lines are counted.
LINE_CHARACTERS, KEPT_LINES = 8192, 1000
#: Minimum number of bits per message id in a bloom filter, whose size is a power of two. With four hashes, the rate of
#: false positives is at most 2 %.
_BLOOM_BITS = 10

#: Number of bytes of text aggregated in one step, and number of bytes decompressed in one step.
_GROUP, _CHUNK = 96 << 20, 4 << 20
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
_SQL = statements("partials.sql", longest=_LONGEST_OBJECT, version=VERSION)
#: Name of the table of all publishes, which is created only on request. `PARTIALS` contains the statements of all
#: partial tables, by name.
TRACE = "trace"
PARTIALS = {name.removeprefix("table "): text for name, text in _SQL.items() if name.startswith("table ")}


class Piece(NamedTuple):
    """Rows of one partial table for a group of segments, as a Parquet file that a task outputs."""

    batch: str
    name: str
    data: bytes


class DamagedError(Exception):
    """Compressed data that can't be read to the end. It is raised after all readable text has been yielded."""


def texts(segment: Entry, file: io.BufferedIOBase) -> Iterator[str]:
    """Yield the text of a segment in chunks of bounded size. The file is decompressed if necessary.

    Each chunk ends at a line break, except within very long lines and at the end of the text. A line that is incomplete
    because of damage is not yielded.
    """
    stream = gzip.GzipFile(fileobj=file) if segment.path.endswith(".gz") else file
    rest = b""
    try:
        while piece := stream.read1(_CHUNK):  # read() would lose the text before the damage
            rest += piece
            if end := rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _LONGEST_LINE else 0):
                yield rest[:end].decode("utf-8", "replace")
                rest = rest[end:]
    except (EOFError, OSError, zlib.error) as error:
        raise DamagedError from error
    yield rest.decode("utf-8", "replace")


class Reader:
    """Reads segments in sequence; `pieces` yields the partials of a group of segments.

    The text of a segment is written to a file, since DuckDB's JSON reader is three times as fast as DuckDB's string
    functions, and does not hold the text in memory. A transaction per group halves the cost of inserting.

    Args:
        traced: whether the trace table is requested.
        directory: directory for temporary files.
    """

    def __init__(self, traced: bool, directory: Path) -> None:
        self._traced = traced
        self._file = directory / "lines.jsonl"
        self._piece = directory / "piece.parquet"
        self._file.touch()
        self._duck = duckdb.connect(config={"temp_directory": str(directory / "spill")})
        self._duck.execute(_SQL["setup"] + MACROS)
        self._begin()

    def _begin(self) -> None:
        self.bytes = 0  # number of bytes of text since the last call of `pieces`
        self._duck.execute(Template(_SQL["begin"]).substitute(parse=self._parse(0)))
        self._duck.begin()

    def _parse(self, sid: int) -> str:
        return Template(_SQL["parse"]).substitute(file=self._file, sid=sid)

    def add(self, segment: Entry, content: io.BufferedIOBase) -> None:
        digest = hashlib.file_digest(content, functools.partial(hashlib.blake2b, digest_size=16)).hexdigest()
        content.seek(0)
        damaged = False
        sid = uuid.uuid4().int >> 66
        with self._file.open("wb") as file:
            try:
                for text in texts(segment, content):
                    file.write(text.encode() + b"\n")
            except DamagedError:
                damaged = True
            self.bytes += file.tell()
        self._duck.execute(f"INSERT INTO lines {self._parse(sid)}")
        self._set_aside(sid)
        values = [sid, segment.path, segment.name, digest, segment.size, segment.modified, segment.day, damaged]
        self._duck.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)", [*values, self._traced])

    def _set_aside(self, sid: int) -> None:
        """Classify a segment's invalid lines, and separate them from the valid lines."""
        wrong = dict(self._duck.execute("SELECT nr, v FROM lines WHERE sid = ? AND NOT is_record", [sid]).fetchall())
        if not wrong:
            return
        reasons: list[str] = []
        kept: list[str | None] = []
        with self._file.open("rb") as file:
            for number, line in enumerate((line for line in file if line.strip(_BLANK)), 1):
                if number in wrong:
                    text = line.strip(_BLANK).decode()
                    truncated, newer = text[0] == "{" and text[-1] != "}", (wrong[number] or 0) > VERSION
                    reasons.append("torn" if truncated else "version" if newer else "foreign")
                    kept.append(text[:LINE_CHARACTERS] if len(kept) < KEPT_LINES else None)
        self._duck.execute(
            "INSERT INTO wrong SELECT ?, unnest(?::VARCHAR[]), unnest(?::VARCHAR[])", [sid, reasons, kept]
        )
        self._duck.execute("DELETE FROM lines WHERE sid = ? AND NOT is_record", [sid])

    def pieces(self) -> Iterator[Piece]:
        """Yield the partials of everything read since the last call."""
        self._duck.commit()
        self._duck.execute(_SQL["routes"])
        counts = self._duck.execute("SELECT sid, count(DISTINCT id) AS n FROM publishes GROUP BY sid HAVING n > 0")
        for sid, ids in counts.fetchall():
            size = 1 << max(6, (ids * _BLOOM_BITS - 1).bit_length())
            self._duck.execute(Template(_SQL["bloom"]).substitute(sid=sid, size=size))
        batch = uuid.uuid4().hex
        for name, statement in PARTIALS.items():
            if name != TRACE or self._traced:
                self._duck.execute(f"COPY ({statement}) TO '{self._piece}' (FORMAT parquet, COMPRESSION zstd)")
                yield Piece(batch, name, self._piece.read_bytes())
        self._begin()


def read(segments: Iterable[tuple[str, int, bytes]], traced: bool) -> Iterator[Piece]:
    """Read a task's segments, given as (path, modification time, content), and yield their partials."""
    entries = (
        (Entry(path, False, len(content), modified), io.BytesIO(content)) for path, modified, content in segments
    )
    yield from _read(entries, traced)


def read_files(files: Iterable[tuple[Entry, Path]], storage: Storage, folder: str, traced: bool) -> None:
    """Read segments from files on this machine, and write their partials to a new file in a directory."""

    def opened() -> Iterator[tuple[Entry, io.BufferedIOBase]]:
        for segment, path in files:
            with suppress(FileNotFoundError):  # retention may remove a segment between listing and reading
                with path.open("rb") as file:
                    yield segment, file

    name = f"part-{uuid.uuid4().hex}.parquet"
    with tempfile.TemporaryDirectory(prefix="oxproxy-") as work:
        save(_read(opened(), traced), Path(work, name))
        storage.put(Path(work, name), f"{folder}/{name}")


def save(pieces: Iterable[Piece], file: Path) -> None:
    """Write pieces to a new Parquet file with a row for each piece."""
    with duckdb.connect() as duck:
        duck.execute("CREATE TABLE pieces (batch VARCHAR, name VARCHAR, data BLOB)")
        for piece in pieces:
            duck.execute("INSERT INTO pieces VALUES (?, ?, ?)", piece)
        duck.execute(f"COPY pieces TO '{file}' (FORMAT parquet, COMPRESSION uncompressed)")


def _read(segments: Iterable[tuple[Entry, io.BufferedIOBase]], traced: bool) -> Iterator[Piece]:
    with tempfile.TemporaryDirectory(prefix="oxproxy-") as folder:
        reader = Reader(traced, Path(folder))
        for segment, content in segments:
            reader.add(segment, content)
            if reader.bytes >= _GROUP:
                yield from reader.pieces()
        yield from reader.pieces()


@functools.cache
def nothing() -> tuple[Piece, ...]:
    """Return an empty version of every table, so that readers always find the columns."""
    return tuple(_read((), traced=True))
