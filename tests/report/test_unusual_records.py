"""Unusual records and names, records at midnight, and records on reused channels. Without Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import pytest

from oxproxy.cli.main import main
from oxproxy.report.job import Summary, report
from oxproxy.report.request import Request
from tests.report.lines import publish, segment, settle
from tests.report.test_partials import partial

Row = dict[str, object]


def at(second: int) -> str:
    return f"2026-11-20T07:30:{second:02d}.000000Z"


def made(folder: Path, day: date | None = None) -> Summary:
    return report(Request(str(folder / "in"), str(folder / "out"), day, day, now=datetime(2026, 11, 30, tzinfo=UTC)))


@pytest.mark.parametrize(
    "odd",
    [
        {"ts": "9999-12-31T23:59:59.000000Z"},
        {"ts": "0000-01-01T00:00:00.000000Z"},
        {"size": 2**63 - 1, "outcome": "unrouted"},
        {"decide_us": 5e-324},
    ],
)
def test_a_record_with_extreme_values_does_not_make_a_run_fail(tmp_path: Path, odd: Row) -> None:
    segment(tmp_path / "in", [publish(), publish(seq=2, size=2**63 - 1), publish(**odd)])
    assert made(tmp_path).publishes >= 2


def test_numbers_missing_at_midnight_are_a_gap(tmp_path: Path) -> None:
    segment(tmp_path / "in", [publish(seq=n, ts="2026-11-20T23:59:59.000000Z") for n in (1, 2)], hour=23)
    segment(
        tmp_path / "in", [publish(seq=n, ts="2026-11-21T00:00:01.000000Z") for n in (5, 6)], day="2026-11-21", hour=0
    )
    made(tmp_path)
    file = tmp_path / "out" / "anomalies" / "date=2026-11-21" / "part-0.parquet"
    with duckdb.connect() as duck:
        rows = duck.execute(f"SELECT hour, what, seen, expected, score, example FROM '{file}'").fetchall()
    assert rows == [(0, "seq gap", 2.0, 4.0, 2.0, "after number 2")]


def test_files_and_directories_that_no_sidecar_writes_do_not_make_a_run_fail(tmp_path: Path) -> None:
    segment(tmp_path / "in", [publish()])
    segment(tmp_path / "in", [publish()], name="\udcff")
    segment(tmp_path / "in", [publish()], day="0001-01-01")
    assert made(tmp_path, date(2026, 11, 20)).publishes == 1


def test_lines_of_any_white_space_are_blank(tmp_path: Path) -> None:
    content = "\n".join(["\v", " \f", "rubbish", publish()]).encode()
    tables = partial(tmp_path, ("audit-p-1-1.jsonl", content))
    assert [row["line"] for row in tables["rejected"]] == ["rubbish"]


def traced(capsys: pytest.CaptureFixture[str], log: Path, message_id: str, *more: str) -> list[str]:
    main(["trace", message_id, "--input", str(log), *more])
    records = map(json.loads, capsys.readouterr().out.splitlines())
    return [record.get("result") or record["kind"] for record in records]


def test_a_response_belongs_to_the_last_publish_on_a_reused_channel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(
        tmp_path,
        [
            publish(ts=at(1), message_id="first"),
            settle(ts=at(2), result="returned"),
            publish(ts=at(3), message_id="second"),
            settle(ts=at(4), result="nacked"),
        ],
    )
    assert traced(capsys, tmp_path, "first") == ["publish", "returned"]
    assert traced(capsys, tmp_path, "second") == ["publish", "nacked"]


def test_a_response_after_the_last_day_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late, early = "2026-11-20T23:59:59.900000Z", "2026-11-21T00:00:00.100000Z"
    segment(tmp_path, [publish(ts=late, message_id="m")], hour=23)
    segment(tmp_path, [settle(ts=early), publish(ts=early, seq=2, message_id="m")], "2026-11-21", 0, "p-1-2")
    assert traced(capsys, tmp_path, "m", "--until", "2026-11-20") == ["publish", "returned"]


def test_a_message_id_that_is_not_utf_8_is_found_as_the_log_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(tmp_path / "in", [publish(message_id="\\xff")])
    made(tmp_path)
    assert traced(capsys, tmp_path / "in", "\udcff", "--output", str(tmp_path / "out")) == ["publish"]


def test_a_deeply_nested_foreign_line_does_not_stop_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(tmp_path, ['{"message_id":"m","x":' + "[" * 100_000, publish(message_id="m")])
    assert traced(capsys, tmp_path, "m") == ["publish"]
