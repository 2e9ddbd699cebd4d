from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from proxy.report.storage import Storage
from proxy.report.tables import LATENCY, REJECTED, TRAFFIC, Tables

D19, D20, D21 = (date(2026, 11, number) for number in (19, 20, 21))


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    return Tables(spark, Storage(spark), str(tmp_path))


def frame(spark: SparkSession, *rows: tuple[date, int]) -> DataFrame:
    return spark.createDataFrame(list(rows), "date DATE, n INT")


def put(tables: Tables, spark: SparkSession, days: set[date], *rows: tuple[date, int]) -> list[date]:
    tables.begin()
    tables.write(TRAFFIC, frame(spark, *rows))
    gone = tables.replace(days)
    tables.end()
    return gone


def held(spark: SparkSession, folder: Path) -> list[tuple[date, int]]:
    read = spark.read.parquet(f"{folder}/{TRAFFIC}")
    return sorted((row.date, row.n) for row in read.select("date", "n").collect())


def files(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()
    }


def test_a_day_that_runs_again_is_replaced_and_nothing_else_is_touched(
    spark: SparkSession, tables: Tables, tmp_path: Path
) -> None:
    put(tables, spark, {D19, D20}, (D19, 1), (D20, 2), (D20, 3))
    before = files(tmp_path)
    assert put(tables, spark, {D20}, (D20, 4)) == []
    assert held(spark, tmp_path) == [(D19, 1), (D20, 4)]
    kept = {name: time for name, time in files(tmp_path).items() if "2026-11-19" in name}
    assert kept == {name: time for name, time in before.items() if "2026-11-19" in name}
    assert kept


def test_a_day_that_became_empty_goes(spark: SparkSession, tables: Tables, tmp_path: Path) -> None:
    put(tables, spark, {D19, D20}, (D19, 1), (D20, 2))
    assert put(tables, spark, {D20, D21}) == [D20]
    assert held(spark, tmp_path) == [(D19, 1)]
    assert [path.name for path in (tmp_path / TRAFFIC).iterdir()] == ["date=2026-11-19"]


def test_a_day_with_records_has_every_table_if_need_be_without_rows(
    spark: SparkSession, tables: Tables, tmp_path: Path
) -> None:
    tables.begin()
    tables.write(TRAFFIC, frame(spark, (D20, 1)))
    tables.write(LATENCY, frame(spark))
    tables.replace({D20})
    tables.end()
    empty = spark.read.parquet(f"{tmp_path}/{LATENCY}")
    assert (empty.count(), sorted(empty.columns)) == (0, ["date", "n"])


def test_what_a_killed_run_left_is_removed_and_leaves_the_tables_alone(
    spark: SparkSession, tables: Tables, tmp_path: Path
) -> None:
    put(tables, spark, {D20}, (D20, 1))
    tables.begin()
    tables.write(TRAFFIC, frame(spark, (D20, 9)))
    assert held(spark, tmp_path) == [(D20, 1)]
    put(tables, spark, {D19}, (D19, 2))
    assert held(spark, tmp_path) == [(D19, 2), (D20, 1)]
    assert not list(tmp_path.glob("_staging*"))


def test_what_is_written_can_be_read_at_once_and_earlier_days_beside_it(spark: SparkSession, tables: Tables) -> None:
    assert tables.days(TRAFFIC) == []
    put(tables, spark, {D19, D20}, (D19, 1), (D20, 2))
    tables.begin()
    written = tables.write(TRAFFIC, frame(spark, (D20, 7)))
    assert [(row.date, row.n) for row in written.collect()] == [(D20, 7)]
    earlier = tables.earlier(TRAFFIC, written, {D20})
    assert [(row.date, row.n) for row in earlier.collect()] == [(D19, 1)]
    assert tables.days(TRAFFIC) == [D19, D20]


def test_rejected_lines_lie_by_day_and_those_of_no_day_apart(
    spark: SparkSession, tables: Tables, tmp_path: Path
) -> None:
    columns = "date DATE, file STRING, why STRING, line STRING"
    for line in ("first", "again"):
        tables.begin()
        rows = [(D20, "f", "torn", line), (None, "g", "foreign", line)]
        tables.write_rejected(spark.createDataFrame(rows, columns))
        tables.replace({D20})
        tables.end()
    read = spark.read.json(f"{tmp_path}/{REJECTED}")
    assert sorted((row.why, row.line) for row in read.collect()) == [("foreign", "again"), ("torn", "again")]
    assert sorted(path.name for path in (tmp_path / REJECTED).iterdir()) == ["date=2026-11-20", "date=unknown"]
