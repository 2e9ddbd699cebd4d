"""Tests the conversion of segments and rules files to partials, without Spark."""

from __future__ import annotations

import gzip
import io
import time
import zlib
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pytest

from oxproxy.report import partials
from oxproxy.report.days import made_files, parts
from oxproxy.report.files.storage import Entry
from oxproxy.report.partials import KEPT_LINES, read
from oxproxy.report.request import KnownBinding
from tests.report.lines import TS, gap, publish, settle

RECORD, TORN, FOREIGN, NEWER, BLANK = "records", "torn", "foreign", "version", "blank"
#: The kind of each line.
JUDGED = {
    publish(): RECORD,
    settle(): RECORD,
    gap(): RECORD,
    publish(later_field={"a": 1}): RECORD,
    publish(queues=None, bindings=None): RECORD,
    publish(ts=TS[:19] + "Z"): RECORD,
    publish(ts=TS[:23] + "Z"): RECORD,
    f"  {publish()}\r": RECORD,
    "": BLANK,
    " \t\r": BLANK,
    publish()[:-2]: TORN,
    publish()[:40]: TORN,
    "{": TORN,
    f"{publish()} and more": TORN,
    "\0\0\0\0": FOREIGN,
    "this is not a record": FOREIGN,
    "\ufffd": FOREIGN,
    "42": FOREIGN,
    "null": FOREIGN,
    f"[{publish()}]": FOREIGN,
    "{}": FOREIGN,
    '{"segment":1}': FOREIGN,
    "]}": FOREIGN,
    f"{publish()}{publish()}": FOREIGN,
    f"{publish()},{publish()}": FOREIGN,
    publish().replace('"', "'"): FOREIGN,
    publish(kind="other"): FOREIGN,
    publish(kind=None): FOREIGN,
    publish(v=None): FOREIGN,
    publish(v=0): FOREIGN,
    publish(v=2): NEWER,
    publish(v=2, kind="other", ts=None): NEWER,
    publish(size=-1): FOREIGN,
    publish(size="large"): FOREIGN,
    publish(size=2**70): FOREIGN,
    publish(seq=0): FOREIGN,
    publish(proxy=None): FOREIGN,
    publish(exchange=None): FOREIGN,
    publish(ts="2026-11-20 07:30:00"): FOREIGN,
    publish(ts="2026-11-20T07:30:00"): FOREIGN,
    publish(ts="2026-11-20T07:30:00+01:00"): FOREIGN,
    publish(ts="2026-13-20T07:30:00Z"): FOREIGN,
    settle(result=None): FOREIGN,
    gap(dropped=None): FOREIGN,
}
FOLDER = "/in/date=2026-11-20/hour=07"

Row = dict[str, Any]  # values of any column


def partial(folder: Path, *segments: tuple[str, bytes]) -> dict[str, list[Row]]:
    """Return the tables of the partials of segments, given by name and content."""
    tables: dict[str, list[Row]] = {}
    opened = ((Entry(f"{FOLDER}/{name}", False, len(content), 1), io.BytesIO(content)) for name, content in segments)
    with duckdb.connect() as duck:
        for _, name, data in read(opened, True, folder, lambda _: None):
            file = folder / f"{name}.parquet"
            file.write_bytes(data)
            result = duck.execute(f"FROM '{file}'")
            columns = [column[0] for column in result.description]
            tables.setdefault(name, []).extend(dict(zip(columns, row, strict=True)) for row in result.fetchall())
    return tables


def text(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def test_every_line_is_a_record_or_rejected_with_a_reason(tmp_path: Path) -> None:
    lines = list(JUDGED)
    made = partial(tmp_path, *((f"{number}.jsonl", text(line)) for number, line in enumerate(lines)))
    kinds = (RECORD, TORN, FOREIGN, NEWER)
    judged = {}
    for row in made["ledger"]:
        matching = [kind for kind in kinds if row[kind]]
        judged[lines[int(row["path"].rpartition("/")[2].removesuffix(".jsonl"))]] = matching[0] if matching else BLANK
    assert judged == JUDGED
    kept = {row["line"] for row in made["rejected"]}
    assert kept == {line.strip() for line, kind in JUDGED.items() if kind not in (RECORD, BLANK)}


def test_a_line_of_invalid_utf_8_is_foreign(tmp_path: Path) -> None:
    made = partial(tmp_path, ("a.jsonl", b"\xff\xfe{}\n" + text(publish())))
    assert [(row["records"], row["foreign"]) for row in made["ledger"]] == [(1, 1)]


def test_a_missing_line_end_and_several_gzip_members_are_valid(tmp_path: Path) -> None:
    packed = gzip.compress(text(publish())) + gzip.compress(publish(seq=2).encode()) + b"\0" * 100
    made = partial(tmp_path, ("a.jsonl.gz", packed), ("b.jsonl", publish().encode()), ("c.jsonl.gz", b""))
    assert [(row["records"], row["damaged"]) for row in made["ledger"]] == [(2, False), (1, False), (0, False)]


@pytest.mark.parametrize("cut", [-3, -9, -3000])
@pytest.mark.parametrize("library", ["isal", "zlib"])
def test_records_before_the_damage_of_a_segment_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int, library: str
) -> None:
    if library == "isal":
        pytest.importorskip("isal")
    else:
        monkeypatch.setattr(partials, "_GZIP_FILE", gzip.GzipFile)
        monkeypatch.setattr(partials, "_DAMAGE", (EOFError, gzip.BadGzipFile, zlib.error))
    packed = gzip.compress(text(*(publish(seq=number, rk=f"k{number * 7919}") for number in range(1, 5001))))
    noise = b"\x1f\x8b\x08\x00 this is no gzip"
    made = partial(tmp_path, ("a.jsonl.gz", packed[:cut]), ("b.jsonl.gz", noise))
    first, second = made["ledger"]
    assert (first["damaged"], second["damaged"], second["records"]) == (True, True, 0)
    assert 1 < first["records"] <= 5000
    assert first["torn"] == 0


def test_all_rejected_lines_are_counted_and_a_bounded_number_is_kept(tmp_path: Path) -> None:
    made = partial(tmp_path, ("a.jsonl", text(*(f"rubbish {number}" for number in range(KEPT_LINES + 5)))))
    assert made["ledger"][0]["foreign"] == KEPT_LINES + 5
    assert len(made["rejected"]) == KEPT_LINES


def test_the_number_of_small_segments_is_not_limited_by_memory(tmp_path: Path) -> None:
    made = partial(tmp_path, *((f"{number}.jsonl", text(publish(seq=number + 1))) for number in range(2_500)))
    assert len(made["ledger"]) == 2_500
    assert sum(row["n"] for row in made["traffic"]) == 2_500


def test_routing_keys_are_grouped_by_pattern(tmp_path: Path) -> None:
    keys = {
        "orders.created": "orders.created",
        "orders.17.created": "orders.*.created",
        "orders.a17": "orders.*",
        "": "",
        "a.deadbeefdeadbeef.b": "a.*.b",
        "a.beef.b": "a.beef.b",
        "x.3f0a7c9e-1111-4222-8333-444455556666": "x.*",
        "..": "..",
    }
    lines = [publish(outcome="unrouted", rk=key, seq=number) for number, key in enumerate(keys, 1)]
    made = partial(tmp_path, ("a.jsonl", text(*lines)))
    assert {row["example"]["rk"]: row["rk_pattern"] for row in made["lost"]} == keys


def test_sequence_numbers_of_a_channel_are_stored_as_ranges(tmp_path: Path) -> None:
    lines = [publish(seq=number) for number in (3, 1, 2, 2, 7, 8, 20)]
    made = partial(tmp_path, ("a.jsonl", text(*lines)))
    assert sorted((row["first"], row["last"]) for row in made["ranges"]) == [(1, 3), (7, 8), (20, 20)]


def test_100000_bindings_of_rules_files_take_less_than_three_seconds_of_cpu(tmp_path: Path) -> None:
    known = tuple(KnownBinding("/", "orders", f"binding {number}", "r1") for number in range(100_000))
    [main, *_] = parts(date(2026, 11, 20), [], known, False)
    begin = time.process_time()
    made_files(main, {}, "", tmp_path)
    assert time.process_time() - begin < 3
