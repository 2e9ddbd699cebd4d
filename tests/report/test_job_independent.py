"""A whole day, computed twice: by the report and by DuckDB over the same files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from proxy.report.job import run
from proxy.report.request import Request
from tests.report.generator import Day
from tests.report.independent import Computed


def compared(spark: SparkSession, folder: Path, records: int) -> None:
    Day(records, packed=False).write(folder / "in")
    summary = run(spark, Request(str(folder / "in"), str(folder / "out")))
    assert summary.figures.publishes == records
    for name, of_log, of_report, percentiles in Computed(folder / "in", folder / "out").answers():
        assert of_log, name
        assert [exact(row, percentiles) for row in of_report] == [exact(row, percentiles) for row in of_log], name
        for ours, theirs in zip(of_report, of_log, strict=True):
            assert ours[len(ours) - percentiles :] == pytest.approx(theirs[len(theirs) - percentiles :], rel=0.01), name


def exact(row: tuple[object, ...], percentiles: int) -> tuple[object, ...]:
    return row[: len(row) - percentiles]


@pytest.mark.timeout(240)
def test_a_day_of_a_hundred_thousand_records_has_the_numbers_that_duckdb_finds(
    spark: SparkSession, tmp_path: Path
) -> None:
    compared(spark, tmp_path, 100_000)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_a_day_of_two_million_records_has_the_numbers_that_duckdb_finds(spark: SparkSession, tmp_path: Path) -> None:
    compared(spark, tmp_path, 2_000_000)
