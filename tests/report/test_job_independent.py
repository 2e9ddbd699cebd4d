"""Compares reports with numbers that DuckDB computes from the raw lines."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from oxproxy.report import session as report_session
from oxproxy.report.job import run
from oxproxy.report.request import Request
from oxproxy.report.session import LazySession
from tests.report.generator import Day
from tests.report.independent import QUESTIONS, Computed
from tests.report.lines import GAP, PUBLISH, SETTLE

#: Names with special characters.
NAMES = (
    "plain",
    "with space",
    'quote " and \\ backslash',
    "it's",
    "schön",
    "日本",
    "a\tb",
    "\u2028",
    "",
    "null",
    "{}",
    "😀",
)
#: Times around midnight, at the end of hours and at changes to and from daylight saving time, in UTC.
TIMES = tuple(
    datetime.fromisoformat(text)
    for text in (
        *("2026-03-29T00:59:58.5", "2026-03-29T01:00:00", "2026-03-29T23:59:59.999998", "2026-03-30T00:00:00"),
        *("2026-10-25T00:59:59.9", "2026-10-25T01:30:00", "2026-10-25T02:00:00", "2026-10-25T23:59:58"),
        *("2026-10-26T00:00:00", "2026-10-26T00:59:59"),
    )
)


def check_generated_day(session: LazySession, folder: Path, records: int) -> None:
    Day(records, packed=False).write(folder / "in")
    summary = run(session, Request(str(folder / "in"), str(folder / "out"), trace=True))
    assert summary.publishes == records
    assert len(Computed(folder / "in", folder / "out").compare()) >= len(QUESTIONS) - 1


def test_a_day_of_20000_records_equals_the_independent_numbers(session: LazySession, tmp_path: Path) -> None:
    check_generated_day(session, tmp_path, 20_000)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_a_day_of_two_million_records_equals_the_independent_numbers(session: LazySession, tmp_path: Path) -> None:
    check_generated_day(session, tmp_path, 2_000_000)


def random_records(rnd: random.Random, count: int, times: Sequence[datetime]) -> list[tuple[datetime, dict[str, Any]]]:
    """Return records of two sidecars with all kinds of names, soon after the given times."""
    made: list[tuple[datetime, dict[str, Any]]] = []
    numbers: dict[tuple[str, str, int], int] = {}
    for _ in range(count):
        at = rnd.choice(times) + timedelta(microseconds=rnd.choice((0, 1, 1500, 700_000)))
        proxy, conn, ch = rnd.choice(("edge-a", 'edge "b"')), rnd.choice(NAMES), rnd.randint(1, 3)
        seq = numbers[proxy, conn, ch] = numbers.get((proxy, conn, ch), 0) + rnd.choice((1, 1, 1, 1, 2, 5))
        place = {"proxy": proxy, "conn": conn, "ch": ch, "seq": seq}
        message_id = rnd.choice((None, "", rnd.choice(NAMES), f"id-{rnd.randint(1, count)}"))
        record = PUBLISH | place
        record |= {"user": rnd.choice(NAMES), "vhost": rnd.choice(NAMES), "exchange": rnd.choice(NAMES)}
        record |= {"rk": rnd.choice((*NAMES, "a.17.b", "deadbeefdeadbeef.x", "..", "x.a-1")), "message_id": message_id}
        record |= {
            "size": rnd.choice((0, 1, 99, 100, 101, 12_345, 99_999, 7_654_321)),
            "rules": rnd.choice((None, "r1", "r2")),
        }
        record |= {
            "outcome": rnd.choice(("routed", "unrouted", "filtered", "passed", "later")),
            "reason": rnd.choice((None, "x")),
        }
        for name in ("queues", "exchanges", "remotes", "bindings"):
            record[name] = rnd.choice(([], [rnd.choice(NAMES)], [rnd.choice(NAMES) for _ in range(3)]))
        if rnd.random() < 0.3:
            record["decide_us"] = rnd.choice((0.0, 0.1, 12.3456, 98_765.4))
        made.append((at, record))
        if rnd.random() < 0.4:
            settled_at = at + timedelta(seconds=rnd.choice((0.001, 2, 400)))
            settle = SETTLE | place | {"result": rnd.choice(("returned", "returned", "acked", "nacked", "lost"))}
            if settle["result"] == "acked":
                settle["confirm_us"] = rnd.uniform(0, 1e6)
            if settle["result"] == "returned":
                settle |= {name: record[name] for name in ("vhost", "exchange", "rk", "message_id", "outcome")}
            made += [(settled_at, settle)] * rnd.choice((1, 1, 2))
    made += [(rnd.choice(times), GAP | {"proxy": "edge-a", "dropped": number}) for number in range(5)]
    return made


def write_segments(rnd: random.Random, folder: Path, made: list[tuple[datetime, dict[str, Any]]]) -> int:
    """Write records to several segments per hour and sidecar. Return the number of invalid lines."""
    files: dict[Path, list[str]] = {}
    for at, record in made:
        line = json.dumps(record | {"ts": f"{at:%Y-%m-%dT%H:%M:%S.%f}Z"}, ensure_ascii=rnd.random() < 0.5)
        sidecar = "a" if record["proxy"] == "edge-a" else "b"
        name = f"audit-{sidecar}-start-{at:%m%d%H}{rnd.randint(1, 2)}.jsonl"
        files.setdefault(folder / sidecar / f"date={at:%Y-%m-%d}" / f"hour={at:%H}" / name, []).append(line)
    for number, (path, lines) in enumerate(sorted(files.items())):
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = lines[0][: len(lines[0]) // 2] if number % 3 == 0 else ""
        text = ("\n".join([*lines, "", "rubbish \ufffd", torn]) + ("" if torn else "\n")).encode()
        if number % 2:
            path.write_bytes(text)
        else:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(text, 1, mtime=0))
    return len(files) + -(-len(files) // 3)


@pytest.mark.parametrize(
    ("way", "times"),
    [
        ("opened by tasks", TIMES),
        # There are fewer hours, since Hadoop takes longer for each file. They include a midnight.
        ("whole from Hadoop", TIMES[2:4]),
        pytest.param("copied from Hadoop", TIMES[2:4], marks=pytest.mark.matrix),
    ],
)
def test_random_records_equal_the_independent_numbers(
    session: LazySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, times: Sequence[datetime]
) -> None:
    if way != "opened by tasks":
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    if way.startswith("copied"):
        monkeypatch.setattr(report_session, "_WHOLE_BYTES", 0)
    rnd = random.Random(way)
    made = random_records(rnd, 1500, times)
    bad = write_segments(rnd, tmp_path / "in", made)
    # Two runs; the first one reads only a part of the log.
    later = sorted((tmp_path / "in").rglob("audit-*"))[::3]
    for path in later:
        path.rename(path.with_name(f"_{path.name}"))
    request = Request(str(tmp_path / "in"), str(tmp_path / "out"), trace=True, now=datetime(2026, 12, 1, tzinfo=UTC))
    run(session, request)
    for path in later:
        path.with_name(f"_{path.name}").rename(path)
    summary = run(session, request)
    assert summary.read == len(later)
    assert run(session, request).read == 0
    assert summary.publishes == sum(record["kind"] == "publish" for _, record in made)
    assert sum(summary.rejected.values()) == bad
    assert Computed(tmp_path / "in", tmp_path / "out").compare() == {question[0] for question in QUESTIONS}
