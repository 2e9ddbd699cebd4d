"""What was read, once and for all tables: records as Parquet in a folder of the run.

Lines are read and judged once; every table then reads just the columns that it needs. The folder lies in the output
folder, where executors can reach it, and is removed at the end of the run.

A damaged segment would end the run. Such a run begins anew and reads of each file what can be read; then what was
read of each is compared with what is in it, so that a damaged file is told apart from a file system that failed for
a moment: the first is kept aside, the second is an error, since the numbers would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from proxy.report.records import GAP, PUBLISH, REJECTED, SETTLE, records
from proxy.report.source import SEGMENTS, Source, lines
from proxy.report.storage import Storage, StorageError, literal

#: Why a line or file is kept aside, beside what `records` says.
MISPLACED, DAMAGED = "misplaced", "damaged file"
#: Characters of a rejected line that are kept: enough to see what it is.
LINE_CHARACTERS = 8192
_UNREADABLE = "FAILED_READ_FILE"
_IGNORE = "spark.sql.files.ignoreCorruptFiles"
#: gzip's last four bytes: octets of text modulo 2^32, least significant first (RFC 1952, 2.3.1).
_TRAILER = "CAST(conv(hex(reverse(substring(content, -4, 4))), 16, 10) AS BIGINT)"


@dataclass(frozen=True, slots=True)
class Staged:
    """Records of the days that a run answers for.

    Args:
        days: those days.
        publishes: records of publishes.
        settles: what the broker said, up to an hour after the day.
        gaps: where lines were dropped.
        rejected: what is no record of these days: ``date`` of its folder (null outside), ``file``, ``why``, ``line``.
    """

    days: frozenset[date]
    publishes: DataFrame
    settles: DataFrame
    gaps: DataFrame
    rejected: DataFrame


def stage(spark: SparkSession, storage: Storage, source: Source, folder: str, ranged: bool) -> Staged:
    """Read what a run asks for.

    Args:
        spark: the session.
        storage: its file systems.
        source: what to read; not empty.
        folder: where records are kept.
        ranged: whether the operator gave a range; else days of loose files come to those of the source.

    Raises:
        StorageError: a file could not be read though it is whole.
    """
    paths = (*source.folders, *source.tail, *source.loose)
    damaged = read_all(
        spark,
        lambda: _write(spark, source, folder),
        lambda: find_damaged(spark, storage, paths, _read(spark, folder)),
    )
    staged = _read(spark, folder)
    days = set(source.days)
    if source.loose and not ranged:
        found = staged.where((F.col("kind") == PUBLISH) & F.col("folder_date").isNull()).select("date").distinct()
        days |= {row.date for row in found.collect()}
    rejected = _rejected(staged, days)
    if damaged:
        rejected = rejected.unionByName(damage(spark, damaged))
    return Staged(
        frozenset(days),
        staged.where(_is_ours(PUBLISH, days)),
        staged.where(F.col("kind") == SETTLE),
        staged.where(_is_ours(GAP, days)),
        rejected,
    )


def _write(spark: SparkSession, source: Source, folder: str) -> None:
    read = records(lines(spark, (*source.folders, *source.loose))).withColumn("tail", F.lit(False))
    if source.tail:
        read = read.unionByName(records(lines(spark, source.tail)).withColumn("tail", F.lit(True)))
    read.write.mode("overwrite").partitionBy("kind").parquet(folder)


def _read(spark: SparkSession, folder: str) -> DataFrame:
    # Spark could not find out the columns where there is no record.
    nothing = records(spark.createDataFrame([], "value STRING, file STRING")).withColumn("tail", F.lit(False))
    return spark.read.schema(nothing.schema).parquet(literal(folder))


def read_all(spark: SparkSession, read: Callable[[], None], damaged: Callable[[], list[str]]) -> list[str]:
    """Read strictly, and where a file can't be read to its end, begin anew and take what can be read of each.

    Args:
        spark: the session.
        read: reads everything, and forgets what an earlier attempt has read.
        damaged: says which files were not read to their end; asked only after a second attempt.

    Returns:
        Those files.
    """
    try:
        read()
    except (Py4JJavaError, PySparkException) as error:
        if _UNREADABLE not in str(error):
            raise
    else:
        return []
    spark.conf.set(_IGNORE, "true")
    try:
        read()
        return damaged()
    finally:
        spark.conf.unset(_IGNORE)


def _is_ours(kind: str, days: set[date]) -> Column:
    return (F.col("kind") == kind) & F.col("date").isin(*days) & ~F.col("tail")


def no_records(read: DataFrame) -> DataFrame:
    """Give the lines that are no records: ``date`` of their folder, ``file``, ``why``, ``line``."""
    line = F.substring("line", 1, LINE_CHARACTERS)
    rejected = read.where(F.col("kind") == REJECTED)
    return rejected.select(F.col("folder_date").alias("date"), "file", "why", line.alias("line"))


def _rejected(staged: DataFrame, days: set[date]) -> DataFrame:
    """Lines that are no records, and records in a folder that was asked for, of a day that was not."""
    seen = staged.where(~F.col("tail"))
    is_astray = F.col("kind").isin(PUBLISH, GAP) & ~F.col("date").isin(*days) & F.col("folder_date").isNotNull()
    what = F.to_json(F.struct("kind", "ts", "proxy", "conn", "ch", "seq", "exchange", "rk", "message_id"))
    named = (F.col("folder_date").alias("date"), "file", F.lit(MISPLACED).alias("why"), what.alias("line"))
    return no_records(seen).unionByName(seen.where(is_astray).select(*named))


def damage(spark: SparkSession, files: list[str]) -> DataFrame:
    """Give damaged files as rejected lines are given; their line is null."""
    day = F.try_to_date(F.regexp_extract("file", r"/date=(\d{4}-\d\d-\d\d)/", 1), "yyyy-MM-dd")
    frame = spark.createDataFrame([(file,) for file in files], "file STRING")
    nothing = F.lit(None).cast("string")
    return frame.select(day.alias("date"), "file", F.lit(DAMAGED).alias("why"), nothing.alias("line"))


def find_damaged(spark: SparkSession, storage: Storage, paths: Iterable[str], read: DataFrame) -> list[str]:
    """Find the files of which not everything was read.

    Args:
        spark: the session.
        storage: its file systems.
        paths: files, and folders of segments.
        read: what was read of them, from `records`.

    Raises:
        StorageError: one of them is whole.
    """
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    files = reader.option("pathGlobFilter", SEGMENTS).load([literal(path) for path in paths])
    held = F.when(F.col("path").endswith(".gz"), F.expr(_TRAILER)).otherwise(F.col("length"))
    held_by_file = files.select("path", F.col("_metadata.file_path").alias("file"), held.alias("held"))
    read_of_file = read.groupBy("file").agg(F.sum(F.col("octets") + 1).alias("read"))
    both = held_by_file.join(read_of_file, "file", "left").na.fill({"read": 0})
    # The last line may have no end.
    doubtful = both.where(~((F.col("read") - F.col("held")) % (1 << 32)).isin(0, 1)).select("path", "file", "read")
    return [row.file for row in doubtful.collect() if not _is_whole(storage, row.path, row.read)]


def _is_whole(storage: Storage, path: str, read: int) -> bool:
    try:
        held = storage.text_bytes(path)
    except Py4JJavaError:
        return False
    if read - held not in (0, 1):
        raise StorageError(f"{path}: could not be read for a moment; run again")
    return True
