"""How does a day of streamed tables stay small? Its batches become one, once the log has passed it.

Only batches that are done are joined: those before the one that is about to begin. The joined rows are written
beside the table; the day's folder is exchanged by a rename. A process that is killed in between leaves what `recover`
finishes: rows that are ready take the place of the day, rows that are not are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from proxy.report.storage import Entry, Storage, literal
from proxy.report.tables import BINDINGS, DESTINATIONS, REJECTED, TRAFFIC

#: How the rows of several batches become one row, by table: what they have in common is all else.
_SUMS: dict[str, dict[str, Callable[[str], Column]]] = {
    TRAFFIC: {"publishes": F.sum, "bytes": F.sum},
    DESTINATIONS: {"publishes": F.sum, "bytes": F.sum, "first_seen": F.min, "last_seen": F.max},
    BINDINGS: {"matches": F.sum, "last_match": F.max},
}
#: Where joined rows wait: folders of days that are being written, and of those that are ready.
_WAITING, _READY = "_compact", "ready-"
#: Spark writes here what a job has not finished.
_UNFINISHED = "_temporary"


class Compaction:
    """The batches of the streamed tables.

    Args:
        storage: the file systems.
        output: folder of the streamed tables.
    """

    def __init__(self, storage: Storage, output: str) -> None:
        """Take the place; nothing is touched."""
        self._storage = storage
        self._output = output

    def recover(self) -> None:
        """Finish what a killed process left of a compaction."""
        for name in _SUMS:
            for waiting in self._storage.entries(f"{self._output}/{_WAITING}/{name}"):
                if waiting.name.startswith(_READY):
                    self._exchange(name, waiting)
        self._storage.remove(f"{self._output}/{_WAITING}")

    def forget(self, number: int) -> None:
        """Remove what a batch has written, if it was begun before."""
        for name in (*_SUMS, REJECTED):
            self._storage.remove(f"{self._output}/{name}/{_UNFINISHED}")
            for day in self._storage.entries(f"{self._output}/{name}"):
                self._storage.remove(f"{day.path}/batch={number}")

    def make(self, spark: SparkSession, until: date, number: int) -> None:
        """Join the batches of each day.

        Args:
            spark: the session.
            until: the first day that is not over.
            number: of the batch that is about to begin.
        """
        for name in _SUMS:
            for day, batches in self._days(name):
                done = [batch for batch in batches if batch < number]
                if day.name < f"date={until}" and len(done) == len(batches) > 1:
                    self._join(spark, name, day, max(done))

    def _days(self, name: str) -> Iterator[tuple[Entry, list[int]]]:
        for day in self._storage.entries(f"{self._output}/{name}"):
            if day.is_folder and day.name.startswith("date="):
                batches = [entry.name.partition("=") for entry in self._storage.entries(day.path)]
                yield day, [int(batch) for key, _, batch in batches if key == "batch"]

    def _join(self, spark: SparkSession, name: str, day: Entry, batch: int) -> None:
        folder = f"{self._output}/{_WAITING}/{name}"
        joined(name, spark.read.parquet(literal(day.path))).coalesce(1).write.mode("overwrite").parquet(
            f"{folder}/{day.name}/batch={batch}"
        )
        ready = f"{folder}/{_READY}{day.name}"
        self._storage.move(f"{folder}/{day.name}", ready)
        self._exchange(name, Entry(ready, f"{_READY}{day.name}", is_folder=True))

    def _exchange(self, name: str, waiting: Entry) -> None:
        place = f"{self._output}/{name}/{waiting.name.removeprefix(_READY)}"
        self._storage.remove(place)
        self._storage.move(waiting.path, place)


def joined(name: str, rows: DataFrame) -> DataFrame:
    """Join the rows of several batches of a table.

    Args:
        name: of the table.
        rows: of one day, with the column ``batch``.
    """
    sums = _SUMS[name]
    shared = [column for column in rows.columns if column not in sums and column != "batch"]
    return rows.groupBy(*shared).agg(*(join(column).alias(column) for column, join in sums.items()))
