"""Manages the partials in an output directory: determines which segments are new, and creates and reads partials.

Partials are stored in Parquet files with the columns ``batch``, ``name`` and ``data``. A batch contains the partials of
a group of segments. Each row of the file contains one table of a batch, as an embedded Parquet file. Each Spark task
writes one file, which becomes visible when it is complete. A partial is therefore either complete or missing, and a
later run never counts the results of a killed run twice. Within a batch, ``sid`` is the number of the segment; the
table ``segments`` identifies the segment's file by path and content hash.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from proxy.report import partials
from proxy.report.storage import Segment, Storage, StorageError, literal

#: Compression ratio of text in a segment (gzip, level 3).
PACKING = 12
#: Approximate limit, in bytes, of the text read by one Spark job. A killed run loses at most the results of one job.
_JOB_TEXT = 8 << 30
#: Each core runs one task, or up to three tasks if each of them reads at least this number of stored bytes. Starting a
#: task takes as long as reading 1 MiB, but with several tasks per core, all cores finish at about the same time.
_TASK_BYTES, _TASKS_PER_CORE = 12 << 20, 3
#: Stored segments up to this size are held in memory, one per core; larger segments are read line by line. A sidecar's
#: segment contains at most 128 MiB of text, which compression reduces to about a tenth.
_WHOLE_BYTES = 24 << 20
#: Maximum size of files that are joined, and number of such files above which the files are joined.
_SMALL_FILE, _MOST_FILES = 8 << 20, 60
#: Cost of opening a file, as a number of bytes.
_OPEN_BYTES = 64 << 10
_ROW = "batch STRING, name STRING, data BINARY"
_EMPTY = "nothing"


class Partials:
    """The partials of one output directory; ``work`` is a temporary directory on this machine."""

    def __init__(
        self, spark: SparkSession, storage: Storage, output: str, work: Path, duck: duckdb.DuckDBPyConnection
    ) -> None:
        self._spark = spark
        self._storage = storage
        self._folder = f"{output}/{partials.FOLDER}"
        self._work = work / "partials"
        self._work.mkdir()
        self._duck = duck
        self._files: dict[str, Path] = {}  # by path on the storage
        self._batches: dict[str, Path] = {}
        self._put(partials.nothing(), _EMPTY)

    def load(self) -> None:
        """Load the tables ``segments`` (all partials) and ``live`` (the effective partial for each content hash)."""
        for entry in self._storage.entries(self._folder):
            if entry.name.endswith(".parquet") and entry.path not in self._files:
                self._files[entry.path] = self._storage.fetch(entry.path, self._work)
                self._take(self._files[entry.path])
        self._duck.execute(
            f"""CREATE OR REPLACE TEMP TABLE segments AS SELECT * EXCLUDE (bloom, filename),
                parse_filename(filename, true) AS batch
                FROM read_parquet('{self._work}/segments/*.parquet', filename = true);
            CREATE OR REPLACE TEMP TABLE latest AS FROM segments
                QUALIFY row_number() OVER (PARTITION BY path ORDER BY made DESC, sid) = 1;
            CREATE OR REPLACE TEMP TABLE live AS FROM latest
                QUALIFY row_number() OVER (PARTITION BY content ORDER BY traced DESC, path) = 1;"""
        )

    def _take(self, file: Path) -> None:
        rows = self._duck.execute(f"SELECT batch, data FROM '{file}' WHERE name = 'segments'").fetchall()
        for batch, data in rows:
            self._batches[batch] = file
            self._put([partials.Piece(batch, "segments", data)], batch)

    def _put(self, pieces: Iterable[tuple[str, str, bytes]], batch: str) -> None:
        for _, name, data in pieces:
            place = self._work / name
            place.mkdir(exist_ok=True)
            (place / f"{batch}.parquet").write_bytes(data)

    def unknown(self, segments: Sequence[Segment], traced: bool) -> list[Segment]:
        """Return the segments that are new or have changed."""
        rows = self._duck.execute("SELECT path, size, modified, traced FROM latest").fetchall()
        known = {(path, size, modified) for path, size, modified, with_trace in rows if with_trace or not traced}
        return [segment for segment in segments if (segment.path, segment.size, segment.modified) not in known]

    def make(self, segments: Sequence[Segment], traced: bool) -> None:
        """Read segments and store their partials.

        Raises:
            StorageError: a segment can't be read, or partials can't be written.
        """
        small = [segment for segment in segments if segment.size <= _WHOLE_BYTES]
        large = [segment for segment in segments if segment.size > _WHOLE_BYTES]
        for job in (*_jobs(small), *_jobs(large)):
            try:
                self._run(job, traced)
            except (Py4JJavaError, PySparkException) as error:
                raise StorageError(_sentence(error)) from error

    def _run(self, job: Sequence[Segment], traced: bool) -> None:
        spark = self._spark
        cores = spark.sparkContext.defaultParallelism
        size = sum(segment.size + _OPEN_BYTES for segment in job) // cores
        tasks = min(_TASKS_PER_CORE, 1 + size // _TASK_BYTES)
        largest = max(segment.size + _OPEN_BYTES for segment in job)
        # A task always reads whole files, whose sizes rarely add up to exactly the size of a task.
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(max(largest, size // tasks + largest // 2)))
        spark.conf.set("spark.sql.files.openCostInBytes", str(_OPEN_BYTES))
        if max(at.size for at in job) <= _WHOLE_BYTES:
            files = spark.read.format("binaryFile").load([literal(at.path) for at in job])
            rows = files.select("path", F.unix_millis("modificationTime"), "content").rdd
            pieces = rows.mapPartitions(functools.partial(partials.read, traced=traced))
        else:
            # Paths in Spark's rows and listed paths have different forms, so each path is added as a constant.
            several = [
                spark.read.option("lineSep", "\n")
                .text(literal(at.path))
                .select(F.lit(at.path), F.lit(at.modified), F.lit(at.size), F.col("value").cast("binary"))
                for at in job
            ]
            lines = functools.reduce(DataFrame.unionAll, several)
            pieces = lines.rdd.mapPartitions(functools.partial(partials.read_lines, traced=traced))
        frame = spark.createDataFrame(pieces, _ROW, verifySchema=False)
        frame.write.mode("append").parquet(self._folder)

    def open(self, days: Iterable[date]) -> None:
        """Create the views ``p_NAME`` over the effective partials of the given days."""
        wanted = self._duck.execute(
            "SELECT DISTINCT batch FROM live WHERE list_has_any(days, ?::DATE[]) OR len(days) = 0", [list(days)]
        )
        batches = [batch for (batch,) in wanted.fetchall()]
        for batch in batches:
            if not (self._work / "traffic" / f"{batch}.parquet").exists():
                self._put(self._pieces(batch), batch)
        # This table is usually empty, so joining with it costs nothing. A join with `live` would copy all rows.
        self._duck.execute(
            "CREATE OR REPLACE TEMP TABLE superseded AS SELECT sid FROM segments ANTI JOIN live USING (sid)"
        )
        for name in partials.PARTIALS:
            files = [self._work / name / f"{batch}.parquet" for batch in (_EMPTY, *batches)]
            listed = ", ".join(f"'{file}'" for file in files if file.exists())
            self._duck.execute(
                f"""CREATE OR REPLACE TEMP VIEW p_{name} AS
                    FROM read_parquet([{listed}]) ANTI JOIN superseded USING (sid)"""
            )

    def _pieces(self, batch: str) -> list[tuple[str, str, bytes]]:
        question = f"SELECT batch, name, data FROM '{self._batches[batch]}' WHERE batch = ?"
        return self._duck.execute(question, [batch]).fetchall()

    def forget(self, gone: Sequence[str]) -> None:
        self._duck.execute("CREATE OR REPLACE TEMP TABLE forgotten AS SELECT unnest(?::VARCHAR[]) AS path", [gone])
        rows = self._duck.execute("SELECT DISTINCT batch FROM segments SEMI JOIN forgotten USING (path)").fetchall()
        files = {self._batches[batch] for (batch,) in rows}
        self._rewrite(
            [path for path, local in self._files.items() if local in files], "ANTI JOIN forgotten USING (path)"
        )

    def compact(self) -> None:
        """Join small files if there are many, since following the log creates a new file every minute."""
        small = [path for path, local in self._files.items() if local.stat().st_size <= _SMALL_FILE]
        if len(small) > _MOST_FILES:
            self._rewrite(small, "")

    def _rewrite(self, paths: Sequence[str], condition: str) -> None:
        """Write the effective partials that meet a condition to one new file, which replaces the given files.

        The partials get new numbers, so that `load` uses only one version even if a killed run left the old files.
        """
        batches = [batch for batch, local in self._batches.items() if local in {self._files[path] for path in paths}]
        if not batches:
            return
        for batch in batches:
            self._put(self._pieces(batch), batch)
        shift, new = uuid.uuid4().int >> 66, uuid.uuid4().hex
        kept = f"(SELECT sid FROM latest {condition} WHERE batch IN ({', '.join(map(repr, batches))}))"
        target, piece = self._work / f"{new}.parquet", self._work / "piece"
        self._duck.execute("CREATE OR REPLACE TEMP TABLE rewritten (batch VARCHAR, name VARCHAR, data BLOB)")
        for name in partials.PARTIALS:
            files = [self._work / name / f"{batch}.parquet" for batch in batches]
            listed = ", ".join(f"'{file}'" for file in files if file.exists())
            if not listed:
                continue
            self._duck.execute(
                f"""COPY (SELECT * REPLACE ((sid + {shift}) % 4611686018427387904 AS sid) FROM read_parquet([{listed}])
                    WHERE sid IN {kept}) TO '{piece}' (FORMAT parquet, COMPRESSION zstd)"""
            )
            self._duck.execute("INSERT INTO rewritten VALUES (?, ?, ?)", [new, name, piece.read_bytes()])
        self._duck.execute(f"COPY rewritten TO '{target}' (FORMAT parquet, COMPRESSION uncompressed)")
        self._storage.put(target, f"{self._folder}/joined-{new}.parquet")
        for path in paths:
            self._storage.remove(path)
            del self._files[path]
        for batch in batches:
            del self._batches[batch]
            (self._work / "segments" / f"{batch}.parquet").unlink()
        self.load()


def _jobs(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    job: list[Segment] = []
    text = 0
    for segment in segments:
        job.append(segment)
        text += segment.size * (PACKING if segment.path.endswith(".gz") else 1)
        if text >= _JOB_TEXT:
            yield job
            job, text = [], 0
    if job:
        yield job


def _sentence(error: Any) -> str:  # an exception from one of two libraries
    text = str(getattr(error, "java_exception", None) or error)
    if "No module named" in text:
        module = text.partition("No module named")[2].split("\n")[0].strip(" '\"")
        return f"the Python of Spark's executors has no module {module} (docs/reference/audit.md, On a cluster)"
    reasons = [line.strip() for line in text.splitlines() if line.startswith("Caused by: ")]
    reason = reasons[-1].removeprefix("Caused by: ") if reasons else text.splitlines()[0]
    return f"reading the log failed: {reason}"
