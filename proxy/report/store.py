"""Manages the partials in an output directory: determines which segments are new, and creates and reads partials.

Partials are stored in Parquet files with the columns ``batch``, ``name`` and ``data``. A batch contains the partials of
a group of segments. Each row of the file contains one table of a batch, as an embedded Parquet file. Each Spark task
writes one file, which becomes visible when it is complete. A partial is therefore either complete or missing, and a
later run never counts the results of a killed run twice. Within a batch, ``sid`` identifies the segment of each row;
the table ``segments`` contains the path and the content hash of the segment's file.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from proxy.errors import ConfigError
from proxy.report import partials
from proxy.report.session import Run
from proxy.report.storage import Entry, LocalFiles, literal, local_path

#: Approximate limit, in stored bytes, of the segments read by one Spark job. A killed run loses at most the results of
#: one job.
_JOB_BYTES = 1 << 30
#: Starting a task takes as long as reading this number of stored bytes, so a smaller job runs as one task.
_LEAST_BYTES = 2 << 20
#: Each core runs one task, or up to three tasks if each of them reads at least this number of stored bytes. With
#: several tasks per core, all cores finish at about the same time.
_TASK_BYTES, _TASKS_PER_CORE = 24 << 20, 3
#: Remote segments up to this stored size are held in memory, one per core; larger segments are copied to the driver. A
#: sidecar's segment contains at most 128 MiB of text, which compression reduces to about a tenth.
_WHOLE_BYTES = 24 << 20
#: Maximum size of a small file in bytes, and maximum number of small files. If there are more, they are merged into one
#: file. Following the log creates a new file every minute.
_SMALL_FILE, _MOST_FILES = 8 << 20, 60
#: Cost of opening a file, expressed as the number of bytes that could be read in the same time.
_OPEN_BYTES = 64 << 10
_EMPTY = "nothing"


def inputs(day: date | None) -> str:
    """Return the SQL condition for the segments on which the tables of a day depend.

    If the day is None, they are the segments outside date directories.
    """
    return "folder IS NULL" if day is None else f"concerns(days, first, DATE '{day}')"


class Partials:
    """The partials of one output directory."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._folder = f"{run.output}/{partials.FOLDER}"
        self._work = run.work / "partials"
        self._work.mkdir()
        self._sql = partials.statements("store.sql", files=f"{self._work}/segments/*.parquet")
        self._files: dict[str, tuple[Path, set[str]]] = {}  # for each stored file, its local copy and its batches
        for piece in partials.nothing():
            self._put(_EMPTY, piece.name, piece.data)

    def update(self, segments: Sequence[Entry]) -> int:
        """Read the segments that are new or have changed, and return their number.

        Raises:
            ConfigError: a segment can't be read, or partials can't be written.
        """
        self._load()
        paths = [segment.path for segment in segments]
        self._ask("CREATE OR REPLACE TEMP TABLE present AS SELECT unnest(?::VARCHAR[]) AS path", [paths])
        known = set(self._ask(self._sql["known"], [self._run.request.trace]))
        new = [segment for segment in segments if (segment.path, segment.size, segment.modified) not in known]
        if new:
            try:
                for job in _parts(new, 1 + _cost(new) // _JOB_BYTES):
                    self._read_job(job)
            except (Py4JJavaError, PySparkException) as error:
                raise ConfigError("oxproxy report", 0, "", _sentence(error)) from error
            self._load()
        if self._run.request.forget:
            self._forget()
        small = [path for path, (file, _) in self._files.items() if file.stat().st_size <= _SMALL_FILE]
        if len(small) > _MOST_FILES:
            self._rewrite(small)
        return len(new)

    def _read_job(self, job: Sequence[Entry]) -> None:
        if isinstance(self._run.storage, LocalFiles):
            self._read_local(job)
            return
        if small := [segment for segment in job if segment.size <= _WHOLE_BYTES]:
            self._read_whole(small)
        for segment in job:
            if segment.size > _WHOLE_BYTES:
                self._read_copy(segment)

    def known_without(self, message_id: str) -> set[tuple[str, int, int]]:
        """Return path, size and modification time of the segments whose bloom filters rule out the given message."""
        self._load()
        self._ask(partials.MACROS)
        return set(self._ask(self._sql["without"], [message_id]))

    def days(self) -> list[date]:
        """Return the days for which segments in the log contain records, in order."""
        return [day for (day,) in self._ask(self._sql["days"])]

    def _load(self) -> None:
        """Load the list of segments from new partials."""
        for entry in self._run.storage.entries(self._folder):
            if entry.name.endswith(".parquet") and entry.path not in self._files:
                file = self._run.storage.fetch(entry.path, self._work)
                rows = self._ask(f"SELECT batch, data FROM '{file}' WHERE name = 'segments'")
                self._files[entry.path] = file, {batch for batch, _ in rows}
                for batch, data in rows:
                    self._put(batch, "segments", data)
        self._ask(self._sql["load"])

    def _put(self, batch: str, name: str, data: bytes) -> None:
        file = self._local(name, batch)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)

    def _local(self, name: str, batch: str) -> Path:
        return self._work / name / f"{batch}.parquet"

    def _unpack(self, batches: Iterable[str]) -> None:
        """Write all tables of batches to files on this machine. `_load` has already written `segments`."""
        missing = {batch for batch in batches if not self._local("traffic", batch).exists()}
        for file in [file for file, contained in self._files.values() if contained & missing]:
            for batch, name, data in self._ask(f"SELECT batch, name, data FROM '{file}' WHERE name <> 'segments'"):
                if batch in missing:
                    self._put(batch, name, data)

    def _source(self, name: str, batches: Iterable[str]) -> str:
        """Return the SQL for one table of several batches, not all of which have the table."""
        files = [self._local(name, batch) for batch in (_EMPTY, *batches)]
        return f"read_parquet({[str(file) for file in files if file.exists()]})"

    def _ask(self, question: str, values: Sequence[object] = ()) -> list[Any]:  # rows with values of any column
        return self._run.duck.execute(question, values).fetchall()

    def _read_local(self, job: Sequence[Entry]) -> None:
        """Read segments on this machine. The tasks open the files, since a Spark query would take seconds to plan."""
        cores, cost = self._run.session.context.defaultParallelism, _cost(job)
        count = min(1 + cost // _LEAST_BYTES, cores * min(_TASKS_PER_CORE, 1 + cost // cores // _TASK_BYTES))
        parts = [[(segment, local_path(segment.path)) for segment in part] for part in _parts(job, count)]
        reader = functools.partial(
            partials.read_files, storage=self._run.storage, folder=self._folder, traced=self._run.request.trace
        )
        self._run.session.context.parallelize(parts, len(parts)).foreach(reader)

    def _read_whole(self, job: Sequence[Entry]) -> None:
        spark = self._run.session.spark
        files = spark.read.format("binaryFile").load([literal(at.path) for at in job])
        rows = files.selectExpr("path", "unix_millis(modificationTime)", "content").rdd
        pieces = rows.mapPartitions(functools.partial(partials.read, traced=self._run.request.trace))
        frame = spark.createDataFrame(pieces, "batch STRING, name STRING, data BINARY", verifySchema=False)
        frame.write.mode("append").parquet(self._folder)

    def _read_copy(self, segment: Entry) -> None:
        """Read a copy of a segment on this machine, since the segment may be too large for the memory of a task."""
        copy = self._run.storage.fetch(segment.path, self._run.work)
        partials.read_files([(segment, copy)], self._run.storage, self._folder, self._run.request.trace)
        copy.unlink(missing_ok=True)

    def open(self, day: date | None) -> None:
        """Create the views ``p_NAME``: partials of a day's segments (`inputs`) that have not been superseded."""
        batches = [batch for (batch,) in self._ask(f"SELECT DISTINCT batch FROM live WHERE {inputs(day)}")]
        self._unpack(batches)
        for name in partials.PARTIALS:
            source = self._source(name, batches)
            self._ask(f"CREATE OR REPLACE TEMP VIEW p_{name} AS FROM {source} ANTI JOIN superseded USING (sid)")

    def _forget(self) -> None:
        """Remove the partials of deleted segments for the requested days."""
        request = self._run.request
        root = f"{self._run.storage.whole(request.input).rstrip('/')}/"
        self._ask(self._sql["forget"], [root, request.since or date.min, request.until or date.max])
        batches = {batch for (batch,) in self._ask("SELECT batch FROM segments SEMI JOIN forgotten USING (path)")}
        paths = [path for path, (_, contained) in self._files.items() if contained & batches]
        self._rewrite(paths, "ANTI JOIN forgotten USING (path)")

    def _rewrite(self, paths: Sequence[str], condition: str = "") -> None:
        """Replace files with a new file that contains their latest partials. `condition` is SQL that filters them.

        The partials get new values of ``sid``, so that `_load` uses only one version even if a killed run left the old
        files.
        """
        batches = {batch for path in paths for batch in self._files[path][1]}
        if not batches:
            return
        self._unpack(batches)
        shift, new = uuid.uuid4().int >> 66, uuid.uuid4().hex
        kept = f"(SELECT sid FROM latest {condition} WHERE batch IN ({', '.join(map(repr, batches))}))"
        target, piece = self._work / f"{new}.parquet", self._work / "piece"

        def pieces() -> Iterator[partials.Piece]:
            for name in partials.PARTIALS:
                self._run.duck.execute(
                    f"""COPY (SELECT * REPLACE ((sid + {shift}) % 4611686018427387904 AS sid)
                        FROM {self._source(name, batches)} WHERE sid IN {kept})
                        TO '{piece}' (FORMAT parquet, COMPRESSION zstd)"""
                )
                yield partials.Piece(new, name, piece.read_bytes())

        partials.save(pieces(), target)
        self._run.storage.put(target, f"{self._folder}/joined-{new}.parquet")
        for path in paths:
            self._run.storage.remove(path)
            del self._files[path]
        for batch in batches:
            self._local("segments", batch).unlink()
        self._load()


def _cost(segments: Sequence[Entry]) -> int:
    """Return the cost of opening and reading segments, as a number of stored bytes."""
    return sum(segment.size + _OPEN_BYTES for segment in segments)


def _parts(segments: Sequence[Entry], count: int) -> list[list[Entry]]:
    """Divide segments into up to the given number of parts of about the same cost, each with successive segments."""
    parts: list[list[Entry]] = [[] for _ in range(count)]
    whole, done = _cost(segments), 0
    for segment in segments:
        parts[done * count // whole].append(segment)
        done += _cost([segment])
    return [part for part in parts if part]


def _sentence(error: Any) -> str:  # an exception from one of two libraries
    text = str(getattr(error, "java_exception", None) or error)
    if "No module named" in text:
        module = text.partition("No module named")[2].split("\n")[0].strip(" '\"")
        return f"Spark's executors have no Python module {module} (docs/reference/audit.md, On a cluster)"
    reasons = [line.strip() for line in text.splitlines() if line.startswith("Caused by: ")]
    if "Python worker" in text:
        # The last unindented line of a traceback is the error.
        reasons = [line for line in text.splitlines() if line and not line[0].isspace()]
    reason = reasons[-1].removeprefix("Caused by: ") if reasons else text.splitlines()[0]
    return f"reading the log failed: {reason}"
