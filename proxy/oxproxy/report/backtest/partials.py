"""Converts a group of segments to tables for back-tests. This module runs in Spark tasks, on any machine.

A publish refers to its facts by a number that is valid within its segment. In the tables, a hash of the content
replaces the number. The table ``segments`` lists the segments with digests of their text, so that copies count once.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedIOBase, BytesIO
from pathlib import Path
from string import Template

import duckdb

from oxproxy.report.files.storage import Entry, LocalFiles, unit_folder
from oxproxy.report.files.temporary import temporary
from oxproxy.report.partials import VERSION, digest, opened, statements

#: Directory of the tables in an output directory. The number identifies the format.
FOLDER = "_backtest/1"
TABLES = ("publishes", "facts", "segments")
#: Maximum number of segments, and of their stored bytes, in a group.
_SEGMENTS, _BYTES = 200, 8 << 20
SQL = statements("backtest.sql", version=VERSION, longest=64 << 20)


@dataclass(frozen=True, slots=True)
class Group:
    """Segments in the directories of one hour that are converted together."""

    unit: int
    segments: tuple[Entry, ...]

    @property
    def folder(self) -> str:
        """The directory of the tables, relative to the output directory. It depends on the segments."""
        rows = [[entry.path, entry.size, entry.modified] for entry in self.segments]
        name = hashlib.blake2b(json.dumps(rows).encode(), digest_size=12).hexdigest()
        return f"{FOLDER}/{unit_folder(self.unit)}/{name}"

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.segments)


def grouped(segments: Iterable[Entry]) -> list[Group]:
    """Divide segments, which are ordered by hour, into groups."""
    groups: list[Group] = []
    current: list[Entry] = []
    for segment in segments:
        full = len(current) >= _SEGMENTS or sum(entry.size for entry in current) + segment.size > _BYTES
        if current and (full or current[0].unit != segment.unit):
            groups.append(Group(current[0].unit, tuple(current)))
            current = []
        current.append(segment)
    return [*groups, Group(current[0].unit, tuple(current))] if current else groups


def convert(segments: Iterable[tuple[Entry, BufferedIOBase]], work: Path, target: Path) -> None:
    """Write the tables of a group of segments to a new directory."""
    target.mkdir(parents=True)
    ledger, files = [], []
    for number, (segment, content) in enumerate(segments):
        file = work / f"{number}.jsonl"
        with file.open("wb") as text:
            text_digest, damaged = digest(segment, content, text)
        ledger.append((number, segment.path, text_digest, damaged))
        files.append(str(file))
    with duckdb.connect(config={"temp_directory": str(work / "spill")}) as duck:
        duck.execute(SQL["setup"])
        columns = [list(column) for column in zip(*ledger, strict=True)] or [[], [], [], []]
        duck.execute(
            "COPY (SELECT unnest(?::INTEGER[]) AS segment, unnest(?::VARCHAR[]) AS path, "
            "unnest(?::VARCHAR[]) AS content, unnest(?::BOOLEAN[]) AS damaged) "
            f"TO '{target}/segments.parquet' (FORMAT parquet)",
            columns,
        )
        if not files:
            (work / "0.jsonl").touch()
            files = [str(work / "0.jsonl")]
        duck.execute(Template(SQL["parse"]).safe_substitute(files=files))
        duck.execute(SQL["facts"])
        for name in ("publishes", "facts"):
            duck.execute(
                f"COPY ({SQL[f'table {name}']}) TO '{target}/{name}.parquet' (FORMAT parquet, COMPRESSION zstd)"
            )
    for path in files:
        Path(path).unlink()


def convert_files(group: Group, paths: Sequence[Path], output: str) -> None:
    """Convert segments on this machine, and put the tables into their place in an output directory on this machine."""
    with temporary() as work:
        convert(opened(zip(group.segments, paths, strict=True)), work, work / "made")
        LocalFiles().put(work / "made", f"{output}/{group.folder}")


def convert_contents(
    rows: Iterable[tuple[int, Iterable[tuple[str, bytes]]]],
) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Convert groups, given as their numbers and the paths and contents of their segments; yield the tables' files."""
    for number, contents in rows:
        with temporary() as work:
            target = work / uuid.uuid4().hex
            ordered = sorted(contents)
            convert(((Entry(path, False, len(data), 0), BytesIO(data)) for path, data in ordered), work, target)
            yield number, {file.name: file.read_bytes() for file in target.iterdir()}
