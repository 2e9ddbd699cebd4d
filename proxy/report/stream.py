"""How do the tables keep up with the log? The same counts, by Structured Streaming over segments as they are closed.

Tables ``traffic``, ``destinations`` and ``bindings`` under ``stream/``, with one column more: ``batch``. Each batch of
segments is counted by itself and written into folders of its own, ``date=.../batch=N``; whoever sums over them has the
totals (of first and last times the least and the greatest). So nothing is ever too late to be counted, however long a
sidecar was down, and nothing waits for what may still come.

Neither lost nor twice: Spark's checkpoint says which segments a batch has, before it is begun, and whether it is
done. A batch that was killed is begun anew with the same segments and the same number; what it wrote before is removed
first.

The watermark says how far the log has come, less what segments may come late. A day that ended before it is made
`compact`, so that the number of files stays small.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from proxy.errors import ConfigError
from proxy.report.compaction import Compaction
from proxy.report.flows import bindings, destinations, flows, matches, traffic
from proxy.report.records import PUBLISH, records
from proxy.report.request import Request
from proxy.report.session import fitted, session
from proxy.report.source import SEGMENTS, Source, lines, volume
from proxy.report.staging import damage, find_damaged, no_records, read_all
from proxy.report.storage import Storage, StorageError, literal
from proxy.report.tables import BINDINGS, DESTINATIONS, REJECTED, TRAFFIC, UNDATED

#: Folder of the streamed tables in the output folder, and what is in it beside them.
STREAM, CHECKPOINT = "stream", "_checkpoint"
#: How long after its lines a segment may be shown before its day is compact: a sidecar that was down is started again.
LATE = "6 hours"
#: Seconds between two looks for new segments; each look lists the input folder.
LOOK_SECONDS = 60
#: Segments of one batch: what a few tasks read in a minute, so that a backlog does not become one batch.
BATCH_SEGMENTS = 200
#: Days after which a segment that is shown then is not noticed: Spark forgets the names of those before.
_FORGET = "90d"
#: What Spark knows of a file without opening it.
_FILE = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
_FOLDER = r"^.*/date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/.*$"
#: What is kept of a batch's records while its tables are made.
_NEEDED = (
    *("kind", "date", "folder_date", "ts", "file", "octets", "why", "line", "vhost", "exchange", "outcome", "proxy"),
    *("rules", "queues", "exchanges", "remotes", "bindings", "size"),
)
_POLL_SECONDS = 1


def follow(request: Request, once: bool = False, segments: int = BATCH_SEGMENTS) -> None:
    """Count new segments until SIGTERM or SIGINT, with a Spark of its own.

    Args:
        request: what is asked for; its range is not looked at.
        once: end when what is there has been counted.
        segments: at most this many in a batch.

    Raises:
        ConfigError: there is no such input, or Spark can't be started.
    """
    with session(request) as spark, _told_to_stop() as told:
        try:
            query = start(spark, request, once, segments)
        except StorageError as error:
            raise ConfigError("oxproxy report", 0, "", str(error)) from error
        while not query.awaitTermination(_POLL_SECONDS):
            if told.is_set():
                query.stop()


def start(spark: SparkSession, request: Request, once: bool, segments: int = BATCH_SEGMENTS) -> StreamingQuery:
    """Begin to count new segments.

    Args:
        spark: a running session.
        request: what is asked for.
        once: end when what is there has been counted.
        segments: at most this many in a batch.

    Raises:
        ConfigError: there is no such input.
    """
    storage = Storage(spark)
    if not storage.is_folder(request.input):
        raise ConfigError(request.input, 0, "--input", "no such folder")
    output = storage.whole(f"{request.output}/{STREAM}")
    # Only names travel in the stream: a batch reads its segments as the job does, damaged ones included.
    reader = spark.readStream.format("binaryFile").option("recursiveFileLookup", "true")
    reader = reader.schema(_FILE).option("pathGlobFilter", SEGMENTS)
    reader = reader.option("maxFilesPerTrigger", segments).option("maxFileAge", _FORGET)
    files = reader.load(literal(storage.whole(request.input)))
    hours = files.select("path", F.coalesce(_hour(), "modificationTime").alias("hour")).withWatermark("hour", LATE)
    writer = hours.writeStream.queryName("oxproxy report").option("checkpointLocation", f"{output}/{CHECKPOINT}")
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{LOOK_SECONDS} seconds")
    return writer.foreachBatch(_Counting(storage, output, request)).start()


def _hour() -> Column:
    """The hour that a segment's folder says, null outside of such folders."""
    text = F.regexp_replace(F.regexp_extract("path", _FOLDER, 0), _FOLDER, "$1 $2:00:00")
    return text.try_cast("timestamp")


class _Counting:
    """Counts one batch after the other."""

    def __init__(self, storage: Storage, output: str, request: Request) -> None:
        self._storage = storage
        self._output = output
        self._request = request
        self._compaction = Compaction(storage, output)
        self._compact_until: date | None = None
        self._recovered = self._begun = False

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Count a batch; Spark calls this with the names of its segments."""
        spark = batch.sparkSession
        paths = sorted(row.path for row in batch.collect())
        # Within a stream not every version of Spark adapts anything to its input by itself.
        with fitted(spark, self._request, volume(spark, Source(loose=tuple(paths)))):
            self._take(spark, paths, number)

    def _take(self, spark: SparkSession, paths: list[str], number: int) -> None:
        if not self._recovered:
            self._compaction.recover()
        self._make_compact(spark, number)
        # Only the first batch of a process can have been begun before.
        self._begun = not self._recovered
        self._recovered = True
        if not paths:
            return
        damaged = read_all(
            spark,
            lambda: self._count(spark, paths, number),
            lambda: find_damaged(spark, self._storage, paths, records(lines(spark, paths))),
        )
        if damaged:
            self._put(REJECTED, damage(spark, damaged), number)

    def _count(self, spark: SparkSession, paths: list[str], number: int) -> None:
        if self._begun:
            self._compaction.forget(number)
        self._begun = True
        read = records(lines(spark, paths)).select(*_NEEDED).persist()
        flowed = flows(read.where(F.col("kind") == PUBLISH)).persist()
        try:
            self._put(TRAFFIC, traffic(flowed), number)
            self._put(DESTINATIONS, destinations(flowed), number)
            self._put(BINDINGS, bindings(matches(flowed), None, flowed.select("date")), number)
            self._put(REJECTED, no_records(read), number)
        finally:
            flowed.unpersist()
            read.unpersist()

    def _put(self, name: str, frame: DataFrame, number: int) -> None:
        day = F.coalesce(F.col("date").cast("string"), F.lit(UNDATED))
        rows = frame.withColumns({"date": day, "batch": F.lit(number).cast("bigint")}).coalesce(1)
        writer = rows.write.mode("append").partitionBy("date", "batch")
        folder = f"{self._output}/{name}"
        if name == REJECTED:
            writer.option("compression", "gzip").json(folder)
        else:
            writer.parquet(folder)

    def _make_compact(self, spark: SparkSession, number: int) -> None:
        """Make the days compact that the watermark has passed, once a day."""
        reached = self._watermark(number)
        if reached != self._compact_until:
            self._compaction.make(spark, reached, number)
            self._compact_until = reached

    def _watermark(self, number: int) -> date:
        """The day that the log had reached when a batch was planned, as the checkpoint says."""
        # Version, what all sources have in common, then an offset for each source.
        plan = self._storage.read(f"{self._output}/{CHECKPOINT}/offsets/{number}").splitlines()
        return datetime.fromtimestamp(json.loads(plan[1])["batchWatermarkMs"] / 1000, UTC).date()


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Have SIGTERM and SIGINT noted instead of ending the process."""
    told = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: told.set()) for number in numbers]
    try:
        yield told
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
