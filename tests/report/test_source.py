from __future__ import annotations

import gzip
from datetime import UTC, date, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from proxy.report.request import Request
from proxy.report.source import Source, Volume, find, lines, volume
from proxy.report.storage import Storage
from tests.report.lines import publish, segment

D19, D20, D21, D22 = (date(2026, 11, number) for number in (19, 20, 21, 22))
NOW = datetime(2026, 11, 22, 5, tzinfo=UTC)


def found(spark: SparkSession, folder: Path, since: date | None = None, until: date | None = None) -> Source:
    return find(Storage(spark), Request(str(folder), "out", since, until, now=NOW))


def names(folder: Path, paths: tuple[str, ...]) -> list[str]:
    return [path.removeprefix(f"file:{folder}/") for path in paths]


def test_without_a_range_all_days_with_a_folder_are_answered_for(spark: SparkSession, tmp_path: Path) -> None:
    for day in (D19, D21):
        segment(tmp_path, [publish()], str(day))
    source = found(spark, tmp_path)
    assert source.days == {D19, D21}
    assert names(tmp_path, source.folders) == ["date=2026-11-19", "date=2026-11-21"]
    assert not source.empty


def test_a_range_answers_for_each_of_its_days_and_reads_no_other(spark: SparkSession, tmp_path: Path) -> None:
    for day in (D19, D20, D22):
        segment(tmp_path, [publish()], str(day))
    source = found(spark, tmp_path, D20, D21)
    assert source.days == {D20, D21}
    assert names(tmp_path, source.folders) == ["date=2026-11-20"]
    assert found(spark, tmp_path, until=D20).days == {D19, D20}


def test_the_first_hour_of_the_next_day_is_read_for_its_settles(spark: SparkSession, tmp_path: Path) -> None:
    for hour in (0, 1):
        segment(tmp_path, [publish()], "2026-11-21", hour)
    segment(tmp_path, [publish()], "2026-11-20")
    assert names(tmp_path, found(spark, tmp_path, until=D20).tail) == ["date=2026-11-21/hour=00"]
    assert found(spark, tmp_path).tail == ()


def test_sidecars_may_have_folders_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path / "cluster/one", [publish()])
    segment(tmp_path / "cluster/two", [publish()])
    source = found(spark, tmp_path)
    assert names(tmp_path, source.folders) == [f"cluster/{name}/date=2026-11-20" for name in ("one", "two")]


def test_files_outside_of_day_folders_are_read_whatever_the_range(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl.gz", "_c.jsonl", ".d.jsonl", "readme.txt"):
        (tmp_path / name).write_bytes(b"")
    assert names(tmp_path, found(spark, tmp_path, D20, D20).loose) == ["a.jsonl", "b.jsonl.gz"]


def test_hidden_folders_and_days_that_do_not_exist_hold_no_days(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path / "_hidden", [publish()])
    segment(tmp_path, [publish()], "2026-02-31")
    assert found(spark, tmp_path).days == frozenset()


def test_an_empty_folder_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    assert found(spark, tmp_path).empty
    assert volume(spark, found(spark, tmp_path)) == Volume()


def test_lines_come_from_packed_and_plain_segments_and_say_where_they_lie(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, ["one", "two"], name="p-1-1")
    segment(tmp_path, ["three\r", "", "four"], name="p-1-2.jsonl")
    hidden = segment(tmp_path, ["open"], name="p-1-3.jsonl")
    hidden.rename(hidden.with_name("_audit-p-1-3.jsonl"))
    rows = lines(spark, [f"{tmp_path}/date=2026-11-20"]).collect()
    read = {(row.value, row.file.rpartition("/")[2]) for row in rows}
    assert read == {
        ("one", "audit-p-1-1.jsonl.gz"),
        ("two", "audit-p-1-1.jsonl.gz"),
        ("three\r", "audit-p-1-2.jsonl"),
        ("", "audit-p-1-2.jsonl"),
        ("four", "audit-p-1-2.jsonl"),
    }


def test_volume_counts_packed_and_plain_bytes_and_no_open_segment(spark: SparkSession, tmp_path: Path) -> None:
    packed = segment(tmp_path, ["x" * 1000], name="p-1-1")
    plain = segment(tmp_path, ["x" * 1000], name="p-1-2.jsonl")
    (plain.parent / "_audit-p-1-3.jsonl").write_bytes(b"x" * 9)
    (tmp_path / "loose.jsonl.gz").write_bytes(gzip.compress(b"x"))
    loose = (tmp_path / "loose.jsonl.gz").stat().st_size
    expected = Volume(3, packed.stat().st_size + loose, plain.stat().st_size)
    assert volume(spark, found(spark, tmp_path)) == expected
