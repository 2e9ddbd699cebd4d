"""Which segments does a run read, and for which days does it answer?

The log's folders ``date=YYYY-MM-DD`` may lie in the input folder itself or deeper in it (a folder for each sidecar).
Names that begin with ``_`` or ``.`` are skipped, as Spark does: a segment that is still open has such a name. Files
outside of such folders (*loose* ones) are read whatever the range, since only their lines tell the day.

A run answers for the days of its range. Without a beginning it answers for every day that has a folder: a day before
the oldest one is left as it is, since retention has removed its log and the tables are what remains of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from proxy.report.request import Request
from proxy.report.storage import Entry, Storage, literal

#: What segments end with, as a pattern of Hadoop: closed ones, and those of whoever does not compress them.
SEGMENTS = "*.{jsonl,jsonl.gz}"
#: How deep folders of sidecars may lie: enough for input/cluster/sidecar/date=...
_DEPTH = 3
_DAY_FOLDER = re.compile(r"date=(\d{4}-\d\d-\d\d)")
#: What a settle record may come late: the first hour of the next day is read for the settles in it.
_FIRST_HOUR = "hour=00"


@dataclass(frozen=True, slots=True)
class Source:
    """What a run reads.

    Args:
        folders: of the days that it answers for.
        tail: the first hour of the day after each, where that day is not among them.
        loose: files and folders outside of day folders.
        days: what it answers for; the days of loose files' lines come to them where no range was asked for.
    """

    folders: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    days: frozenset[date] = frozenset()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.folders and not self.loose


@dataclass(frozen=True, slots=True)
class Volume:
    """How much there is to read.

    Args:
        segments: how many files.
        packed_bytes: bytes of those that are compressed.
        plain_bytes: bytes of the others.
    """

    segments: int = 0
    packed_bytes: int = 0
    plain_bytes: int = 0


def find(storage: Storage, request: Request) -> Source:
    """Find what a request reads."""
    days: dict[date, list[str]] = {}
    loose: list[str] = []
    for entry in _walk(storage, request.input, _DEPTH):
        day = _day_of(entry)
        if day is None:
            loose.append(entry.path)
        else:
            days.setdefault(day, []).append(entry.path)
    named = request.named_days()
    wanted = frozenset(filter(request.wants, days) if named is None else named)
    folders = [path for day in sorted(wanted & days.keys()) for path in days[day]]
    after = sorted({day + timedelta(days=1) for day in wanted} - wanted)
    tail = [f"{path}/{_FIRST_HOUR}" for day in after for path in days.get(day, ())]
    return Source(tuple(folders), tuple(filter(storage.is_folder, tail)), tuple(loose), wanted)


def _walk(storage: Storage, folder: str, depth: int) -> Iterator[Entry]:
    """Yield day folders and loose files."""
    for entry in storage.entries(folder):
        if entry.name.startswith(("_", ".")):
            continue
        if not entry.is_folder:
            if entry.name.endswith((".jsonl", ".jsonl.gz")):
                yield entry
        elif _day_of(entry) is not None:
            yield entry
        elif depth:
            yield from _walk(storage, entry.path, depth - 1)


def _day_of(entry: Entry) -> date | None:
    found = _DAY_FOLDER.fullmatch(entry.name)
    if not found or not entry.is_folder:
        return None
    try:
        return date.fromisoformat(found[1])
    except ValueError:
        return None


def lines(spark: SparkSession, paths: Iterable[str]) -> DataFrame:
    """Read text lines.

    Args:
        spark: the session.
        paths: files, and folders whose segments are read; at least one.

    Returns:
        Columns ``value`` and ``file``.
    """
    reader = spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", SEGMENTS)
    text = reader.option("lineSep", "\n").text([literal(path) for path in paths])
    return text.select("value", F.col("_metadata.file_path").alias("file"))


def volume(spark: SparkSession, source: Source) -> Volume:
    """Measure what there is to read, without reading it."""
    paths = [literal(path) for path in (*source.folders, *source.tail, *source.loose)]
    if not paths:
        return Volume()
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    files = reader.option("pathGlobFilter", SEGMENTS).load(paths).select("path", "length")
    packed = F.col("path").endswith(".gz")
    [row] = files.agg(
        F.count("*"),
        F.coalesce(F.sum(F.when(packed, F.col("length"))), F.lit(0)),
        F.coalesce(F.sum(F.when(~packed, F.col("length"))), F.lit(0)),
    ).collect()
    return Volume(*row)
