from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession

from proxy.report.continuity import FINDINGS, dropped, duplicates, seq_gaps
from proxy.report.trace import repeated, repeated_ids
from tests.report.lines import gap, publish, publishes, read, table

COLUMNS = ("hour", "subject", "seen", "expected", "score", "example")


def channel(numbers: Iterable[int], **more: object) -> list[str]:
    return [publish(seq=number, **more) for number in numbers]


def again(spark: SparkSession, *lines: str) -> DataFrame:
    sent = publishes(spark, *lines)
    return duplicates(repeated(sent, repeated_ids(sent)))


def test_numbers_without_a_hole_are_no_finding_wherever_they_begin(spark: SparkSession) -> None:
    lines = [*channel(range(1, 200)), *channel(range(1000, 1100), ch=2), *channel([5], ch=3)]
    assert table(seq_gaps(publishes(spark, *lines)), *COLUMNS) == []


def test_missing_numbers_are_counted_and_the_last_before_them_named(spark: SparkSession) -> None:
    lines = [*channel(range(1, 65)), *channel(range(70, 80)), *channel([200])]
    name = "p connection c channel 1"
    assert table(seq_gaps(publishes(spark, *lines)), *COLUMNS) == [(7, name, 75.0, 200.0, 125.0, "after number 64")]


def test_holes_within_one_word_of_numbers_and_across_words_add_up(spark: SparkSession) -> None:
    missing = {2, 63, 64, 65, 128, 129, 300}
    numbers = [number for number in range(1, 401) if number not in missing]
    found = seq_gaps(publishes(spark, *channel(numbers)))
    assert [row[0] for row in table(found, "score")] == [float(len(missing))]


def test_a_hole_shows_in_the_hour_after_it(spark: SparkSession) -> None:
    later = channel([400], ts="2026-11-20T09:00:00Z")
    assert table(seq_gaps(publishes(spark, *channel([1, 2]), *later)), "hour", "score") == [(9, 397.0)]


def test_channels_connections_and_sidecars_count_by_themselves(spark: SparkSession) -> None:
    lines = [*channel([1, 3]), *channel([1, 4], ch=2), *channel([1, 5], conn="d"), *channel([1, 6], proxy="p2")]
    assert sorted(row[0] for row in table(seq_gaps(publishes(spark, *lines)), "score")) == [1.0, 2.0, 3.0, 4.0]


def test_a_record_that_is_there_twice_hides_no_hole(spark: SparkSession) -> None:
    assert table(seq_gaps(publishes(spark, *channel([1, 1, 3, 3]))), "seen", "score") == [(2.0, 1.0)]


def test_dropped_lines_are_told_by_sidecar_and_hour(spark: SparkSession) -> None:
    first = {"from": "2026-11-20T07:00:00Z", "to": "2026-11-20T07:10:00Z"}
    frame = read(spark, gap(dropped=2, **first), gap(dropped=3), gap(dropped=1, proxy="p2")).where("kind = 'gap'")
    assert [row[:5] for row in table(dropped(frame), *COLUMNS)] == [(7, "p", 5.0, 0.0, 5.0), (7, "p2", 1.0, 0.0, 1.0)]
    example = dropped(frame).where("subject = 'p'").collect()[0].example
    assert example == "2026-11-20T07:00:00Z to 2026-11-20T07:30:00.000001Z"


def test_an_id_that_came_again_is_a_surplus_at_the_same_sidecar_and_exchange_only(spark: SparkSession) -> None:
    lines = [
        *(publish(message_id="m") for _ in range(3)),
        publish(message_id="m", proxy="p2"),
        publish(message_id="m", exchange="other"),
        publish(message_id="n"),
        publish(message_id=None),
        publish(message_id=None),
    ]
    assert table(again(spark, *lines), *COLUMNS) == [(7, "p exchange e in /", 2.0, 0.0, 2.0, "m")]


def test_all_findings_have_the_same_columns(spark: SparkSession) -> None:
    frames = (seq_gaps(publishes(spark)), dropped(read(spark)), again(spark))
    assert {tuple(frame.columns) for frame in frames} == {FINDINGS}
    assert len({tuple(kind for _, kind in frame.dtypes) for frame in frames}) == 1
