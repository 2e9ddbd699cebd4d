from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from proxy.report.latency import latency, rounded
from tests.report.lines import publish, publishes, settle, settles, table

COLUMNS = ("hour", "what", "samples")


def test_percentiles_are_those_of_the_samples_of_an_hour(spark: SparkSession) -> None:
    lines = [publish(decide_us=float(number)) for number in range(1, 101)]
    [row] = latency(publishes(spark, *lines, publish()), settles(spark)).collect()
    assert (row.hour, row.what, row.samples) == (7, "decide", 100)
    assert (row.p50_us, row.p95_us, row.p99_us) == pytest.approx((50.5, 95.05, 99.01), rel=0.001)


def test_decide_and_confirm_are_apart_and_so_are_hours(spark: SparkSession) -> None:
    sent = publishes(spark, publish(decide_us=5.0), publish(decide_us=7.0, ts="2026-11-20T08:00:00Z"))
    told = settles(spark, settle(result="acked", confirm_us=900.0), settle(), settle(result="lost"))
    found = latency(sent, told)
    assert table(found, *COLUMNS, "p50_us") == [(7, "confirm", 1, 900.0), (7, "decide", 1, 5.0), (8, "decide", 1, 7.0)]


def test_times_that_can_not_be_are_not_counted(spark: SparkSession) -> None:
    sent = publishes(spark, publish(decide_us=-1.0), publish(decide_us=None), publish(decide_us=0))
    assert table(latency(sent, settles(spark)), *COLUMNS, "p99_us") == [(7, "decide", 1, 0.0)]


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [(0.0, 4, 0.0), (12.3456, 4, 12.35), (123_456, 3, 123_000), (0.00123456, 3, 0.00123), (999, 3, 999)],
)
def test_rounding_keeps_the_digits_that_count(spark: SparkSession, value: float, digits: int, expected: float) -> None:
    frame = spark.createDataFrame([(float(value),)], "value DOUBLE").select(
        rounded(F.col("value"), digits).alias("value")
    )
    assert frame.collect()[0].value == pytest.approx(expected, rel=1e-9)
