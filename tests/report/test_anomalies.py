from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

from proxy.report.anomalies import deviations, hourly
from proxy.report.continuity import FINDINGS
from tests.report.lines import table

DAY = date(2026, 11, 20)
#: After the day.
NOW = datetime(2026, 11, 21, tzinfo=UTC)
SCHEMA = "date DATE, hour INT, vhost STRING, exchange STRING, outcome STRING, publishes BIGINT"
COLUMNS = ("date", "hour", "what", "subject", "seen", "expected", "example")

Row = tuple[date, int, str, str, str, int]


def row(days_before: int, publishes: int, hour: int = 7, exchange: str = "e", outcome: str = "routed") -> Row:
    return DAY - timedelta(days=days_before), hour, "/", exchange, outcome, publishes


def found(spark: SparkSession, *rows: Row, now: datetime = NOW) -> DataFrame:
    return deviations(spark, spark.createDataFrame(list(rows), SCHEMA), {DAY}, now)


def steady(publishes: int, days: int = 7, **more: str | int) -> list[Row]:
    return [row(number, publishes + number % 3, **more) for number in range(1, days + 1)]  # type: ignore[arg-type]


def test_all_publishes_and_those_of_each_exchange_and_without_destination_are_compared(spark: SparkSession) -> None:
    frame = spark.createDataFrame([row(0, 5), row(0, 2, outcome="unrouted"), row(0, 1, exchange=""), row(1, 4)], SCHEMA)
    assert table(hourly(frame).where("date = '2026-11-20'"), "what", "subject", "n") == [
        ("publishes", "all", 8.0),
        ("publishes", "exchange  in /", 1.0),
        ("publishes", "exchange e in /", 7.0),
        ("unrouted publishes", "all", 2.0),
    ]


def test_an_hour_like_those_before_is_no_finding(spark: SparkSession) -> None:
    assert table(found(spark, *steady(1000), row(0, 1010)), *COLUMNS) == []


def test_an_hour_with_much_more_or_less_is_one(spark: SparkSession) -> None:
    rows = [*steady(1000), *steady(500, hour=9), row(0, 3000), row(0, 100, hour=9)]
    assert table(found(spark, *rows), *COLUMNS) == [
        (DAY, 7, "publishes", "all", 3000.0, 1001.0, "more than usual"),
        (DAY, 7, "publishes", "exchange e in /", 3000.0, 1001.0, "more than usual"),
        (DAY, 9, "publishes", "all", 100.0, 501.0, "less than usual"),
        (DAY, 9, "publishes", "exchange e in /", 100.0, 501.0, "less than usual"),
    ]


def test_an_hour_without_any_publish_is_seen_too(spark: SparkSession) -> None:
    rows = [*steady(1000), *steady(1000, hour=8), row(0, 1000, hour=8)]
    assert table(found(spark, *rows), *COLUMNS)[0] == (DAY, 7, "publishes", "all", 0.0, 1001.0, "less than usual")


def test_one_odd_day_before_moves_nothing(spark: SparkSession) -> None:
    rows = [*steady(1000), row(8, 50_000), row(0, 1005)]
    assert table(found(spark, *rows), *COLUMNS) == []


def test_the_score_is_the_distance_from_the_median_in_spreads(spark: SparkSession) -> None:
    before = [900, 950, 1000, 1050, 1100]
    rows = [row(number, publishes) for number, publishes in enumerate(before, 1)]
    [score] = {line[0] for line in table(found(spark, *rows, row(0, 2000)), "score")}
    # Median 1000; deviations 100, 50, 0, 50, 100: their median is 50.
    assert round(score, 6) == round(1000 / (50 * 1.4826), 6)


def test_less_than_three_days_before_say_nothing(spark: SparkSession) -> None:
    assert table(found(spark, *steady(1000, days=2), row(0, 9000)), *COLUMNS) == []
    assert table(found(spark, *steady(1000, days=3), row(0, 9000)), *COLUMNS) != []


def test_days_long_ago_say_nothing(spark: SparkSession) -> None:
    rows = [row(number, 1000) for number in range(29, 40)]
    assert table(found(spark, *rows, row(0, 9000)), *COLUMNS) == []


def test_hours_that_are_not_over_have_no_say(spark: SparkSession) -> None:
    during = datetime(2026, 11, 20, 7, 59, 59, tzinfo=UTC)
    rows = [*steady(1000), row(0, 10)]
    assert table(found(spark, *rows, now=during), *COLUMNS) == []
    assert table(found(spark, *rows, now=during + timedelta(seconds=1)), *COLUMNS) != []


def test_more_without_destination_is_a_finding_of_its_own(spark: SparkSession) -> None:
    rows = [*steady(1000), row(0, 1001), row(0, 40, outcome="unrouted")]
    assert [line[2] for line in table(found(spark, *rows), *COLUMNS)] == ["unrouted publishes"]


def test_findings_have_their_columns(spark: SparkSession) -> None:
    assert tuple(found(spark, row(0, 1)).columns) == FINDINGS
