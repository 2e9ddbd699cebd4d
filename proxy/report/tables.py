"""How do tables get in place? Day by day, in place of what a day had before.

Everything is written beside the tables first; only when all of it is there, days are exchanged, each folder by one
rename. A run that is killed leaves the tables as they were, or, in the short time of the exchange, some days old and
some new: running again makes it right. Two runs at once on one output are not provided for.

A day that has any record has a folder in each table, if need be with an empty file in it, so that readers always find
the columns. A day that has none has no folder.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructType

from proxy.report.storage import Storage, literal

#: The tables of a report.
TRAFFIC, DESTINATIONS, BINDINGS, UNROUTABLE = "traffic", "destinations", "bindings", "unroutable"
LATENCY, PRODUCERS, ANOMALIES, TRACE = "latency", "producers", "anomalies", "trace"
TABLES = (TRAFFIC, DESTINATIONS, BINDINGS, UNROUTABLE, LATENCY, PRODUCERS, ANOMALIES, TRACE)
#: Lines that are no records, as JSON lines.
REJECTED = "_rejected"
#: Where a run writes before it puts things in place. Readers skip names that begin with ``_``.
STAGING = "_staging"
#: Folder of rejected lines that lay outside of day folders.
UNDATED = "unknown"


class Tables:
    """The tables of one output folder.

    Args:
        spark: the session.
        storage: its file systems.
        output: the folder.
    """

    def __init__(self, spark: SparkSession, storage: Storage, output: str) -> None:
        """Take the place; nothing is touched."""
        self._spark = spark
        self._storage = storage
        self._output = storage.whole(output)
        self._schemas: dict[str, StructType] = {}

    def begin(self) -> None:
        """Remove what a killed run left, and make room.

        Raises:
            StorageError: the output folder can't be written.
        """
        self._storage.remove(self._at(STAGING))
        self._storage.make(self._at(STAGING))

    def staging(self, name: str) -> str:
        """Give the folder in which a run keeps something until its end."""
        return self._at(STAGING, name)

    def write(self, name: str, frame: DataFrame) -> DataFrame:
        """Write a table of all days of the run beside the tables.

        Returns:
            What was written, to be read from there.
        """
        self._schemas[name] = frame.schema
        frame.write.mode("overwrite").partitionBy("date").parquet(self.staging(name))
        return self._read(self.staging(name), frame.schema)

    def write_rejected(self, rejected: DataFrame) -> None:
        """Write what is no record beside the tables."""
        text = rejected.withColumn("date", F.coalesce(F.col("date").cast("string"), F.lit(UNDATED)))
        packed = text.write.mode("overwrite").partitionBy("date").option("compression", "gzip")
        packed.json(self.staging(REJECTED))

    def earlier(self, name: str, like: DataFrame, days: Collection[date]) -> DataFrame:
        """Read what a table has of days that are not those of the run."""
        return self._read(self._at(name), like.schema).where(~F.col("date").isin(*days))

    def days(self, name: str) -> list[date]:
        """Give the days that a table has."""
        names = [entry.name for entry in self._storage.entries(self._at(name)) if entry.is_folder]
        return [date.fromisoformat(name.removeprefix("date=")) for name in names if name.startswith("date=")]

    def replace(self, days: Collection[date]) -> list[date]:
        """Put everything that was written in place of what the days had.

        Args:
            days: the days of the run.

        Returns:
            Days that had tables and have no record any more.
        """
        full = {day for day in days if any(self._is_written(name, day) for name in self._schemas)}
        gone = sorted({day for name in TABLES for day in self.days(name)} & set(days) - full)
        for name, schema in self._schemas.items():
            self._complete(name, schema, full)
        for name in TABLES:
            for day in sorted(days):
                self._exchange(name, _folder(day))
        for folder in (*sorted(map(_folder, days)), f"date={UNDATED}"):
            self._exchange(REJECTED, folder)
        return gone

    def end(self) -> None:
        """Remove what the run kept for itself."""
        self._storage.remove(self._at(STAGING))

    def _is_written(self, name: str, day: date) -> bool:
        return self._storage.exists(f"{self.staging(name)}/{_folder(day)}")

    def _complete(self, name: str, schema: StructType, days: Collection[date]) -> None:
        """Give each day that has records a file of this table, if need be without rows."""
        missing = [day for day in sorted(days) if not self._is_written(name, day)]
        if not missing:
            return
        empty = self.staging(f"empty-{name}")
        columns = self._spark.createDataFrame([], schema).drop("date")
        columns.coalesce(1).write.mode("overwrite").parquet(empty)
        self._storage.make(self.staging(name))
        for day in missing:
            self._storage.copy(empty, f"{self.staging(name)}/{_folder(day)}")

    def _exchange(self, name: str, folder: str) -> None:
        written, placed = f"{self.staging(name)}/{folder}", self._at(name, folder)
        self._storage.remove(placed)
        if self._storage.exists(written):
            self._storage.make(self._at(name))
            self._storage.move(written, placed)

    def _read(self, folder: str, schema: StructType) -> DataFrame:
        if not self._storage.exists(folder):
            return self._spark.createDataFrame([], schema)
        return self._spark.read.schema(schema).parquet(literal(folder))

    def _at(self, *parts: str) -> str:
        return "/".join((self._output, *parts))


def _folder(day: date) -> str:
    return f"date={day}"
