from __future__ import annotations

import gzip
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from proxy.report.request import Request
from proxy.report.source import find
from proxy.report.staging import LINE_CHARACTERS, Staged, stage
from proxy.report.storage import Storage, StorageError
from tests.report.lines import gap, publish, segment, settle, table

D20, D21 = date(2026, 11, 20), date(2026, 11, 21)
NEXT = "2026-11-21T00:10:00Z"


def staged(spark: SparkSession, folder: Path, since: date | None = None, until: date | None = None) -> Staged:
    storage = Storage(spark)
    request = Request(str(folder), "out", since, until, now=datetime(2026, 11, 22, tzinfo=UTC))
    source = find(storage, request)
    return stage(spark, storage, source, f"{folder}/_staging", ranged=since is not None or until is not None)


def why(made: Staged) -> list[tuple[object, ...]]:
    return table(made.rejected.fillna("", ["line"]), "why", "line")


def test_records_are_sorted_by_kind_and_the_rest_is_kept_aside(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, [publish(), settle(), gap(), "", "rubbish", "{"])
    made = staged(spark, tmp_path)
    assert made.days == {D20}
    assert [frame.count() for frame in (made.publishes, made.settles, made.gaps)] == [1, 1, 1]
    assert why(made) == [("foreign", "rubbish"), ("torn", "{")]


def test_several_sidecars_packed_and_plain_are_read_together(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, [publish(proxy="a")] * 3, name="a-1-1")
    segment(tmp_path, [publish(proxy="b")] * 2, hour=8, name="b-1-1.jsonl")
    segment(tmp_path / "c", [publish(proxy="c")])
    counts = table(staged(spark, tmp_path).publishes.groupBy("proxy").count(), "proxy", "count")
    assert counts == [("a", 3), ("b", 2), ("c", 1)]


def test_a_record_in_the_folder_of_a_day_that_was_not_asked_for_is_misplaced(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment(tmp_path, [publish(), publish(ts=NEXT, seq=2), gap(ts=NEXT)])
    made = staged(spark, tmp_path, until=D20)
    assert table(made.publishes, "seq") == [(1,)]
    assert made.gaps.count() == 0
    assert [row[0] for row in why(made)] == ["misplaced", "misplaced"]


def test_a_record_in_the_folder_of_another_day_that_was_asked_for_counts(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, [publish(ts=NEXT)])
    segment(tmp_path, [publish(ts=NEXT)], "2026-11-21")
    made = staged(spark, tmp_path)
    assert (made.publishes.count(), why(made)) == (2, [])


def test_settles_of_the_hour_after_the_day_are_there_and_its_publishes_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment(tmp_path, [publish()])
    segment(tmp_path, [publish(ts=NEXT), settle(ts=NEXT), "rubbish"], "2026-11-21", 0)
    made = staged(spark, tmp_path, until=D20)
    assert (made.publishes.count(), made.settles.count(), why(made)) == (1, 1, [])


def test_loose_files_tell_the_days_where_no_range_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "loose.jsonl").write_text(f"{publish()}\n{publish(ts=NEXT)}\nrubbish\n")
    made = staged(spark, tmp_path)
    assert (set(made.days), made.publishes.count()) == ({D20, D21}, 2)
    ranged = staged(spark, tmp_path, D20, D20)
    assert (set(ranged.days), ranged.publishes.count(), why(ranged)) == ({D20}, 1, [("foreign", "rubbish")])


def test_a_long_line_is_cut(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, ["x" * 100_000])
    assert why(staged(spark, tmp_path)) == [("foreign", "x" * LINE_CHARACTERS)]


def test_a_damaged_file_ends_no_run_and_what_can_be_read_of_it_counts(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, [publish()], name="whole")
    broken = segment(tmp_path, [publish(seq=number, rk=str(number)) for number in range(1, 5000)], name="broken")
    broken.write_bytes(broken.read_bytes()[:-3000])
    noise = broken.with_name("audit-noise.jsonl.gz")
    noise.write_bytes(b"\x1f\x8b\x08\x00 this is no gzip")
    made = staged(spark, tmp_path)
    files = [row[1].rpartition("/")[2] for row in table(made.rejected, "why", "file") if row[0] == "damaged file"]
    assert files == ["audit-broken.jsonl.gz", "audit-noise.jsonl.gz"]
    assert 1 < made.publishes.count() < 5000
    assert spark.conf.get("spark.sql.files.ignoreCorruptFiles") == "false"


def test_whole_files_are_not_suspected_beside_a_damaged_one(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, [publish()], name="plain.jsonl")
    segment(tmp_path, [], name="nothing")
    open_end = segment(tmp_path, [publish()], name="open-end")
    open_end.write_bytes(gzip.compress(publish().encode()))
    two = segment(tmp_path, [publish()], name="two-members")
    two.write_bytes(two.read_bytes() * 2)
    broken = segment(tmp_path, [publish()], name="broken")
    broken.write_bytes(broken.read_bytes()[:-12])
    made = staged(spark, tmp_path)
    assert [row[1].rpartition("/")[2] for row in table(made.rejected, "why", "file") if row[0] == "damaged file"] == [
        "audit-broken.jsonl.gz"
    ]


def test_a_file_that_is_whole_and_was_not_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    from proxy.report.records import records
    from proxy.report.source import lines
    from proxy.report.staging import find_damaged

    path = str(segment(tmp_path, [publish(), publish()]))
    read = records(lines(spark, [path]))
    storage = Storage(spark)
    assert find_damaged(spark, storage, [path], read) == []
    with pytest.raises(StorageError, match="run again"):
        find_damaged(spark, storage, [path], read.limit(1))
