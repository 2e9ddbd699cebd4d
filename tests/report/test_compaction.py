from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from proxy.report.compaction import Compaction, joined
from proxy.report.flows import bindings, destinations, flows, matches, traffic
from proxy.report.storage import Storage
from proxy.report.tables import BINDINGS, DESTINATIONS, REJECTED, TRAFFIC
from tests.report.lines import publish, publishes, table

UNTIL = date(2026, 11, 21)


def batch(spark: SparkSession, number: int, *lines: str) -> dict[str, Any]:  # frames by table
    flowed = flows(publishes(spark, *lines))
    made = {
        TRAFFIC: traffic(flowed),
        DESTINATIONS: destinations(flowed),
        BINDINGS: bindings(matches(flowed), None, flowed.select("date")),
    }
    return {name: frame.selectExpr("*", f"{number}L AS batch") for name, frame in made.items()}


class Streamed:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.compaction = Compaction(Storage(spark), str(folder))

    def put(self, number: int, *lines: str) -> None:
        frame = batch(self.spark, number, *lines)[TRAFFIC]
        frame.coalesce(1).write.mode("append").partitionBy("date", "batch").parquet(f"{self.folder}/{TRAFFIC}")

    def batches(self) -> list[str]:
        return sorted("/".join(path.parts[-2:]) for path in (self.folder / TRAFFIC).glob("date=*/batch=*"))

    def total(self) -> int:
        frame = self.spark.read.parquet(f"{self.folder}/{TRAFFIC}")
        return int(frame.groupBy().sum("publishes").collect()[0][0])


@pytest.fixture
def streamed(spark: SparkSession, tmp_path: Path) -> Streamed:
    return Streamed(spark, tmp_path)


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        (TRAFFIC, "publishes bytes", [(2, 20)]),
        (DESTINATIONS, "destination publishes", [("q", 2)]),
        (BINDINGS, "binding matches", [("b", 2)]),
    ],
)
def test_rows_of_several_batches_become_what_one_batch_would_have(
    spark: SparkSession, name: str, columns: str, expected: list[tuple[object, ...]]
) -> None:
    early, late = publish(ts="2026-11-20T07:30:05Z"), publish(ts="2026-11-20T07:30:50Z", seq=2)
    parts = batch(spark, 1, late)[name].unionByName(batch(spark, 2, early)[name])
    once = batch(spark, 1, early, late)[name].drop("batch")
    found = joined(name, parts)
    assert table(found, *columns.split()) == expected
    assert sorted(map(str, found.select(*once.columns).collect())) == sorted(map(str, once.collect()))


def test_batches_of_a_day_that_is_over_become_one(streamed: Streamed) -> None:
    for number in range(3):
        streamed.put(number, publish())
    streamed.compaction.make(streamed.spark, UNTIL, 3)
    assert (streamed.batches(), streamed.total()) == (["date=2026-11-20/batch=2"], 3)
    assert not (streamed.folder / "_compact" / TRAFFIC / "date=2026-11-20").exists()


def test_a_day_that_is_not_over_and_one_with_the_batch_that_begins_stay(streamed: Streamed) -> None:
    for number in range(2):
        streamed.put(number, publish())
    streamed.compaction.make(streamed.spark, date(2026, 11, 20), 2)
    streamed.compaction.make(streamed.spark, UNTIL, 1)
    assert len(streamed.batches()) == 2


def test_a_batch_that_begins_anew_forgets_what_it_wrote(streamed: Streamed) -> None:
    for number in range(2):
        streamed.put(number, publish(), publish(ts="2026-11-21T07:00:00Z"))
    (streamed.folder / REJECTED / "date=unknown" / "batch=1").mkdir(parents=True)
    (streamed.folder / TRAFFIC / "_temporary").mkdir()
    streamed.compaction.forget(1)
    assert streamed.batches() == ["date=2026-11-20/batch=0", "date=2026-11-21/batch=0"]
    assert not (streamed.folder / REJECTED / "date=unknown" / "batch=1").exists()
    assert not (streamed.folder / TRAFFIC / "_temporary").exists()


def test_a_compaction_killed_before_it_was_ready_leaves_the_batches(streamed: Streamed) -> None:
    for number in range(2):
        streamed.put(number, publish())
    half = streamed.folder / "_compact" / TRAFFIC / "date=2026-11-20" / "batch=1"
    half.mkdir(parents=True)
    streamed.compaction.recover()
    assert (len(streamed.batches()), streamed.total()) == (2, 2)
    assert not (streamed.folder / "_compact").exists()


@pytest.mark.parametrize("removed", [False, True])
def test_a_compaction_killed_when_it_was_ready_is_finished(streamed: Streamed, removed: bool) -> None:
    for number in range(2):
        streamed.put(number, publish())
    rows = streamed.spark.read.parquet(f"{streamed.folder}/{TRAFFIC}/date=2026-11-20")
    ready = f"{streamed.folder}/_compact/{TRAFFIC}/ready-date=2026-11-20/batch=1"
    joined(TRAFFIC, rows).coalesce(1).write.parquet(ready)
    if removed:
        Storage(streamed.spark).remove(f"{streamed.folder}/{TRAFFIC}/date=2026-11-20")
    streamed.compaction.recover()
    assert (streamed.batches(), streamed.total()) == (["date=2026-11-20/batch=1"], 2)
