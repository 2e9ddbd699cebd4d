from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from pyspark.sql import SparkSession

from proxy.report.records import FIELDS, records
from tests.report.lines import TS, gap, publish, read, settle, table

#: What each line is, and why it is no record.
JUDGED = {
    publish(): ("publish", None),
    settle(): ("settle", None),
    gap(): ("gap", None),
    publish(later_field={"a": 1}): ("publish", None),
    publish(queues=None, bindings=None): ("publish", None),
    f"  {publish()}\r": ("publish", None),
    "": ("blank", None),
    " \t\r": ("blank", None),
    publish()[:-2]: ("rejected", "torn"),
    publish()[:40]: ("rejected", "torn"),
    "{": ("rejected", "torn"),
    "this is not a record": ("rejected", "foreign"),
    "42": ("rejected", "foreign"),
    "null": ("rejected", "foreign"),
    f"[{publish()}]": ("rejected", "foreign"),
    "{}": ("rejected", "foreign"),
    "]}": ("rejected", "foreign"),
    f"{publish()}{publish()}": ("rejected", "foreign"),
    f"{publish()},{publish()}": ("rejected", "foreign"),
    f"{publish()} and more": ("rejected", "torn"),
    publish().replace('"', "'"): ("rejected", "foreign"),
    publish(kind="other"): ("rejected", "foreign"),
    publish(kind=None): ("rejected", "foreign"),
    publish(v=None): ("rejected", "foreign"),
    publish(v=0): ("rejected", "foreign"),
    publish(v=2): ("rejected", "version"),
    publish(v=2, kind="other", ts=None): ("rejected", "version"),
    publish(size=-1): ("rejected", "foreign"),
    publish(size="large"): ("rejected", "foreign"),
    publish(seq=0): ("rejected", "foreign"),
    publish(queues="q"): ("rejected", "foreign"),
    publish(proxy=None): ("rejected", "foreign"),
    publish(exchange=None): ("rejected", "foreign"),
    publish(ts="2026-11-20 07:30:00"): ("rejected", "foreign"),
    publish(ts="2026-11-20T07:30:00"): ("rejected", "foreign"),
    publish(ts="2026-13-20T07:30:00Z"): ("rejected", "foreign"),
    settle(result=None): ("rejected", "foreign"),
    gap(dropped=None): ("rejected", "foreign"),
}


def test_every_line_is_a_record_or_says_why_it_is_none(spark: SparkSession) -> None:
    lines = [(line, str(number)) for number, line in enumerate(JUDGED)]
    rows = records(spark.createDataFrame(lines, "value STRING, file STRING")).collect()
    assert sorted(int(row.file) for row in rows) == list(range(len(lines)))
    assert {lines[int(row.file)][0]: (row.kind, row.why) for row in rows} == JUDGED


def test_a_record_has_its_fields_with_their_types(spark: SparkSession) -> None:
    [row] = read(spark, publish(ch=7, seq=2**40, decide_us=1.5, message_id="m", remotes=["far"])).collect()
    found = row.asDict()
    assert found.keys() >= FIELDS.keys() - {"v"}
    assert row.ts.astimezone(UTC) == datetime(2026, 11, 20, 7, 30, 0, 1, UTC)
    assert (row.date, row.folder_date) == (date(2026, 11, 20), date(2026, 11, 20))
    expected = (7, 2**40, 1.5, "m", ["far"], ["q"], 10)
    assert (row.ch, row.seq, row.decide_us, row.message_id, row.remotes, row.queues, row.size) == expected
    assert (row.why, row.line) == (None, None)


def test_lists_of_names_are_never_null(spark: SparkSession) -> None:
    frame = read(spark, settle(), publish(queues=None, exchanges=None, remotes=None, bindings=None))
    assert table(frame, "queues", "exchanges", "remotes", "bindings") == [([], [], [], [])] * 2


def test_the_day_is_that_of_the_record_in_utc_and_the_folder_tells_its_own(spark: SparkSession) -> None:
    late = publish(ts="2026-11-20T23:59:59.999999Z")
    early = publish(ts="2026-11-21T00:00:00Z")
    folders = {"/in/date=2026-11-20/hour=23/a.jsonl": date(2026, 11, 20), "/in/a.jsonl": None}
    folders["/in/date=2026-02-31/a.jsonl"] = None
    for file, folder in folders.items():
        rows = read(spark, late, early, file=file).select("date", "folder_date").collect()
        assert [tuple(row) for row in rows] == [(date(2026, 11, 20), folder), (date(2026, 11, 21), folder)]


def test_octets_are_those_of_the_line_as_it_lies_in_the_file(spark: SparkSession) -> None:
    line = publish(rk="ü" * 10).replace("\\u00fc", "ü")
    assert table(read(spark, line, ""), "octets") == [(0,), (len(line.encode()),)]


@pytest.mark.parametrize("line", [publish(ts=TS[:19] + "Z"), publish(ts=TS[:-1][:23] + "Z")])
def test_times_need_no_microseconds(spark: SparkSession, line: str) -> None:
    assert table(read(spark, line), "kind") == [("publish",)]


def test_a_rejected_line_is_kept_and_a_record_is_not(spark: SparkSession) -> None:
    assert table(read(spark, "nonsense", publish()), "kind", "line") == [("publish", None), ("rejected", "nonsense")]
