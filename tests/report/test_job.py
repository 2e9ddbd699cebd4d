from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from oxproxy.errors import ConfigError
from oxproxy.report import session as report_session
from oxproxy.report.files.storage import literal
from oxproxy.report.job import run
from oxproxy.report.request import KnownBinding, Request
from oxproxy.report.session import LazySession
from oxproxy.report.tables import TABLES
from tests.report.lines import gap, publish, segment, settle

D19, D20, D21 = (date(2026, 11, number) for number in (19, 20, 21))
NOW = datetime(2026, 11, 22, 5, tzinfo=UTC)
KNOWN = (KnownBinding("/", "e", "b", "r9"), KnownBinding("/", "e", "dead", "r9"))

#: Documented tables and columns; further columns may be added.
PROMISED = {
    "traffic": "hour minute vhost exchange outcome proxy publishes bytes",
    "destinations": "vhost destination kind publishes first_seen last_seen",
    "bindings": "vhost exchange binding rules matches last_match in_file",
    "flows": "hour vhost user exchange destination kind outcome reason rules publishes bytes messages message_bytes",
    "unroutable": "vhost exchange rk_pattern outcome reason publishes returned example_message_id example_rk",
    "confirms": "hour result records",
    "latency": "hour what p50_us p95_us p99_us samples",
    "producers": "vhost user publishes bytes p95_size peak_per_second sizes connections",
    "anomalies": "hour what subject seen expected score deviation",
    "trace": "message_id ts proxy exchange rk outcome queues",
}

#: Files and directories that readers of the tables skip.
INTERNAL = ("_rejected", "_partials", "_days.json", "_last", "_lock")


class Place:
    """A log and its report."""

    def __init__(self, session: LazySession, folder: Path) -> None:
        self.session, self.spark = session, session.spark
        self.input, self.output = folder / "in", folder / "out"
        self.input.mkdir()

    def run(self, **more: Any) -> str:  # fields of a request
        return str(run(self.session, Request(str(self.input), str(self.output), now=NOW, **more)))

    def rows(self, name: str, columns: str) -> list[tuple[Any, ...]]:  # values of any column
        frame = self.spark.read.parquet(f"{self.output}/{name}").select(*columns.split())
        return sorted(tuple(row) for row in frame.collect())

    def publishes(self) -> dict[date, int]:
        traffic = f"read_parquet('{self.output}/traffic/*/*.parquet')"
        with duckdb.connect() as duck:
            return dict(duck.execute(f"SELECT date, sum(publishes)::BIGINT FROM {traffic} GROUP BY ALL").fetchall())

    def files(self) -> dict[str, int]:
        return {
            path.relative_to(self.output).as_posix(): path.stat().st_mtime_ns
            for path in self.output.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def place(session: LazySession, tmp_path: Path) -> Place:
    return Place(session, tmp_path)


@pytest.fixture(scope="module")
def done(session: LazySession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, str]:
    """A report on a log with records of every kind, and its summary."""
    place = Place(session, tmp_path_factory.mktemp("job"))
    lines = [
        publish(seq=1, message_id="m1", decide_us=5.0),
        publish(seq=2, message_id="m1", remotes=["far"]),
        publish(seq=3, outcome="unrouted", rk="a.17", queues=[], bindings=[], message_id="m3"),
        publish(seq=9, ts="2026-11-20T08:00:00Z"),
        settle(seq=1),
        settle(seq=2, result="acked", confirm_us=800.0),
        "rubbish",
        publish()[:50],
        gap(),
    ]
    segment(place.input, lines)
    segment(place.input, [publish(proxy="p2", message_id="m1")], name="p2-1-1.jsonl")
    segment(
        place.input,
        [publish(ts="2026-11-21T00:00:00Z", seq=10), settle(seq=9, ts="2026-11-21T00:00:00.5Z", rk="late")],
        "2026-11-21",
        0,
    )
    return place, place.run(bindings=KNOWN, trace=True)


def test_the_tables_have_the_documented_columns(done: tuple[Place, str]) -> None:
    place, _ = done
    assert PROMISED.keys() == set(TABLES)
    for name, columns in PROMISED.items():
        assert {*columns.split(), "date"} <= set(place.spark.read.parquet(f"{place.output}/{name}").columns)


def test_matches_are_counted_for_the_exchange_that_has_the_binding(place: Place) -> None:
    segment(place.input, [publish(bindings=["b", "to x", "of x"]), publish(seq=2, bindings=["of a client", "twice"])])
    owners = {"e": ("b", "to x"), "x": ("of x", "dead", "twice"), "y": ("twice",)}
    place.run(bindings=[KnownBinding("/", exchange, name, "r9") for exchange in owners for name in owners[exchange]])
    assert place.rows("bindings", "exchange binding matches in_file") == [
        ("e", "b", 1, True),
        ("e", "of a client", 1, False),
        ("e", "to x", 1, True),
        ("e", "twice", 1, False),
        ("x", "dead", 0, True),
        ("x", "of x", 1, True),
        ("x", "twice", 0, True),
        ("y", "twice", 0, True),
    ]


def test_every_publish_is_counted_once(done: tuple[Place, str]) -> None:
    assert done[0].publishes() == {D20: 5, D21: 1}


def test_each_table_has_the_expected_rows(done: tuple[Place, str]) -> None:
    place, _ = done
    assert place.rows("destinations", "date destination kind publishes") == [
        (D20, "far", "remote", 1),
        (D20, "q", "queue", 4),
        (D21, "q", "queue", 1),
    ]
    assert (D20, "dead", 0, True) in place.rows("bindings", "date binding matches in_file")
    assert place.rows("unroutable", "date rk_pattern outcome publishes returned") == [
        (D20, "a.*", "unrouted", 1, 0),
        (D20, "a.b", "returned", 1, 1),
        (D21, "late", "returned", 1, 1),
    ]
    assert place.rows("confirms", "date hour result records") == [
        (D20, 7, "acked", 1),
        (D20, 7, "returned", 1),
        (D21, 0, "returned", 1),
    ]
    assert place.rows("latency", "hour what p50_us samples") == [(7, "confirm", 800.0, 1), (7, "decide", 5.0, 1)]
    assert place.rows("producers", "date user publishes") == [(D20, "u", 5), (D21, "u", 1)]
    assert [row[0] for row in place.rows("anomalies", "what")] == ["audit gap", "duplicate message_id", "seq gap"]
    assert place.rows("trace", "message_id proxy") == [("m1", "p"), ("m1", "p"), ("m1", "p2"), ("m3", "p")]


def test_invalid_lines_are_kept_and_counted(done: tuple[Place, str]) -> None:
    place, summary = done
    kept = [json.loads(row.value) for row in place.spark.read.text(f"{place.output}/_rejected").collect()]
    assert sorted((line["why"], line["line"]) for line in kept) == [("foreign", "rubbish"), ("torn", publish()[:50])]
    assert "1 foreign, 1 torn" in summary


def test_the_summary_names_publishes_and_page(done: tuple[Place, str]) -> None:
    place, summary = done
    assert summary.splitlines()[0] == "6 publishes in 3 segments, 2026-11-20 to 2026-11-21"
    assert summary.splitlines()[-1] == f"file:{place.output}/report.html"


def test_the_page_shows_the_tables(done: tuple[Place, str]) -> None:
    place, _ = done
    page = (place.output / "report.html").read_text()
    same = (place.output / "pages/2026-11-20_2026-11-21.html").read_text()
    backtest = ' <a href="backtest.html" hidden>Latest back-test</a>'
    assert page.replace('href="pages/', 'href="').replace(backtest, "") == same
    for text in ("a.*", "dead", "far", "duplicate message_id", "m1"):
        assert text in page


def test_each_day_has_a_page_with_links_to_adjacent_days_and_in_the_index(done: tuple[Place, str]) -> None:
    pages = done[0].output / "pages"
    days = ["2026-11-20", "2026-11-21"]
    assert sorted(path.name for path in pages.glob("*.html")) == sorted(
        [*(f"{day}.html" for day in days), "_".join(days) + ".html", "index.html"]
    )
    first, second, index = ((pages / f"{name}.html").read_text() for name in (*days, "index"))
    assert 'rel="next" href="2026-11-21.html"' in first
    assert 'rel="prev" href="2026-11-20.html"' in second
    assert re.findall(r'href="([^"]+)"', index) == [
        *("../report.html", "2026-11-21.html", "2026-11-20.html", "2026-11-20_2026-11-21.html")
    ]
    assert re.findall(r'<td data-head="publishes" class="n">(\d*)</td>', index)[1] == "5"


def test_no_temporary_files_are_left(done: tuple[Place, str]) -> None:
    names = {path.name for path in done[0].output.iterdir()}
    assert names == {*TABLES, *INTERNAL, "report.html", "pages"}
    assert not [path for path in done[0].output.rglob("*") if path.suffix == ".crc" and "html" in path.name]


def test_a_day_is_replaced_or_removed_without_changing_other_days(place: Place) -> None:
    for day in (D19, D20):
        segment(place.input, [publish(ts=f"{day}T07:00:00Z"), "rubbish"], str(day))
    place.run()

    def of_the_other_day() -> dict[str, int]:
        return {name: time for name, time in place.files().items() if "date=2026-11-19" in name}

    before = of_the_other_day()
    assert len(before) >= len(TABLES)
    assert "2026-11-20.html" in (place.output / "pages/2026-11-19.html").read_text()
    more = segment(place.input, [publish(seq=2)], hour=8)
    summary = place.run(since=D20, until=D20)
    assert place.publishes() == {D19: 1, D20: 2}
    again = place.run(since=D20, until=D20)
    assert again.splitlines()[:2] == [summary.splitlines()[0], "read 0 new segments, created the tables of 0 days"]
    assert place.publishes() == {D19: 1, D20: 2}

    for path in more.parents[1].rglob("*.gz"):
        path.unlink()
    assert place.run(since=D20, until=D20).startswith("2 publishes")
    assert "removed days that no longer have records: 2026-11-20" in place.run(since=D20, until=D20, forget=True)
    assert place.publishes() == {D19: 1}
    assert [name for name in place.files() if "date=2026-11-20/" in name] == []
    assert of_the_other_day() == before


def test_days_with_a_removed_log_keep_their_tables(place: Place) -> None:
    paths = [segment(place.input, [publish(ts=f"{day}T07:00:00Z")], str(day)) for day in (D19, D20)]
    place.run()
    for path in (paths[0], *list(paths[0].parents)[:2]):
        path.unlink() if path.is_file() else path.rmdir()
    place.run()
    assert place.publishes() == {D19: 1, D20: 1}


def test_anomalies_are_computed_from_tables_of_removed_logs(place: Place) -> None:
    for number in range(14, 20):
        day = f"2026-11-{number}"
        segment(
            place.input,
            [publish(ts=f"{day}T07:{number // 60:02d}:{number % 60:02d}Z", seq=number + 1) for number in range(120)],
            day,
        )
    segment(place.input, [publish(ts="2026-11-13T09:00:00Z")], "2026-11-13")  # a stray record makes no day
    place.run()
    segment(place.input, [publish(seq=number + 1) for number in range(1000)])
    place.run(since=D20, until=D20)
    assert 'rel="next" href="2026-11-20.html"' in (place.output / "pages/2026-11-19.html").read_text()
    assert place.rows("anomalies", "date hour what subject seen expected score") == [
        (D20, 7, "publishes", "all", 1000.0, 120.0, 880.0),
        (D20, 7, "publishes", "exchange e in /", 1000.0, 120.0, 880.0),
    ]


def test_stray_records_of_earlier_days_are_no_baseline(place: Place) -> None:
    for number in range(14, 20):
        segment(place.input, [publish(ts=f"2026-11-{number}T07:00:00Z")], f"2026-11-{number}")
    segment(place.input, [publish(seq=number + 1) for number in range(1000)])
    place.run()
    assert place.rows("anomalies", "what") == []


def test_an_empty_log_creates_a_page(place: Place) -> None:
    summary = place.run()
    assert "0 publishes in 0 segments, no day" in summary
    assert "Nothing was published" in (place.output / "report.html").read_text()


def test_a_log_without_valid_lines_creates_a_page(place: Place) -> None:
    segment(place.input, ["rubbish", ""])
    assert "1 foreign" in place.run()
    assert "Nothing was published" in (place.output / "report.html").read_text()


@pytest.mark.parametrize("whole", [True, False], ids=["segments read by tasks", "segments copied to the driver"])
def test_records_before_the_damage_of_a_segment_count(
    place: Place, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    if not whole:
        monkeypatch.setattr(report_session, "_WHOLE_BYTES", 0)
        monkeypatch.setenv("HADOOP_CONF_DIR", str(place.input))  # so that Hadoop accesses the files
    segment(place.input, [publish()])
    broken = segment(
        place.input, [publish(proxy="b", seq=seq, rk=f"k{seq * 7919}") for seq in range(1, 9001)], name="b"
    )
    broken.write_bytes(broken.read_bytes()[:-3000])
    segment(place.input, [], name="c").write_bytes(b"\x1f\x8b\x08\x00 this is no gzip")
    assert "2 damaged file" in place.run()
    assert 1000 < place.publishes()[D20] < 9000
    assert "read 0 new segments" in place.run()


@pytest.mark.parametrize("whole", [True, False], ids=["segments read by tasks", "segments copied to the driver"])
def test_segments_without_compression_are_read_through_hadoop(
    place: Place, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    if not whole:
        monkeypatch.setattr(report_session, "_WHOLE_BYTES", 0)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(place.input))  # so that Hadoop accesses the files
    for name, count in (("a.jsonl", 9000), ("b.jsonl", 30), ("c.jsonl", 2000)):
        segment(place.input, [publish(proxy=name, seq=seq) for seq in range(1, count + 1)], name=name)
    assert "11,030 publishes in 3 segments" in place.run()
    assert "read 0 new segments" in place.run()


def test_a_missing_input_directory_is_an_error(place: Place) -> None:
    place.input.rmdir()
    with pytest.raises(ConfigError, match="no such directory"):
        place.run()


def test_an_unreadable_segment_is_an_error_with_the_reason(place: Place) -> None:
    segment(place.input, [publish()]).with_name("audit-x.jsonl").symlink_to("/proc/self/mem")
    with pytest.raises(ConfigError, match=r"reading the log failed: .*\[Errno 5\] Input/output error"):
        place.run()


def test_an_unreadable_table_of_an_hour_is_an_error_with_the_step_and_the_reason(place: Place) -> None:
    segment(place.input, [publish()])
    place.run()
    next((place.output / "_partials").rglob("traffic.parquet")).write_text("rubbish")
    (place.output / "_days.json").unlink()
    with pytest.raises(
        ConfigError,
        match=r"^oxproxy report: creating the tables of 2026-11-20 failed: .* too small to be a Parquet file$",
    ):
        place.run()


def test_glob_characters_in_paths_are_literal(session: LazySession, tmp_path: Path) -> None:
    folder = tmp_path / "a {b} [c]*"
    folder.mkdir()
    place = Place(session, folder)
    segment(place.input, [publish()])
    place.run()
    assert session.spark.read.parquet(literal(str(folder / "out/traffic"))).count() == 1


def test_all_files_are_accessed_through_hadoop(place: Place) -> None:
    """``viewfs:`` paths, like those of a cluster, can only be resolved by Hadoop."""
    place.output.mkdir()
    hadoop = place.spark._jsc.hadoopConfiguration()
    for folder in (place.input, place.output):
        hadoop.set(f"fs.viewfs.mounttable.logs.link./{folder.name}", folder.as_uri())
    request = Request("viewfs://logs/in", "viewfs://logs/out", since=D20, until=D20, now=NOW)
    broken = segment(place.input, [publish(proxy="b")], name="broken")
    broken.write_bytes(broken.read_bytes()[:-9])
    segment(place.input, [publish(), "rubbish"])
    for _ in range(2):
        summary = str(run(place.session, request))
    assert summary.splitlines()[-1] == "viewfs://logs/out/report.html"
    assert "1 damaged file, 1 foreign" in summary
    assert "read 0 new segments" in summary
    assert place.publishes()[D20] in (1, 2)
    shown = {path.name for path in place.output.iterdir() if not path.name.startswith(".")}
    assert shown == {*TABLES, *INTERNAL, "report.html", "pages"} - {"trace", "_lock"}
