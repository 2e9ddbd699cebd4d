"""Tests incremental reports: new, copied and removed segments, and killed runs."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from oxproxy.cli.main import main
from oxproxy.report import job, store
from oxproxy.report.files.storage import Entry, LocalFiles
from oxproxy.report.job import Summary, follow, report, run
from oxproxy.report.request import Request
from oxproxy.report.session import LazySession
from oxproxy.report.tables import TABLES
from tests.producer import until
from tests.report.lines import PUBLISH, publish, segment, settle

NOW = datetime(2026, 11, 22, 5, tzinfo=UTC)
#: Kills its process group before the change of the output that is named by the first argument.
KILLED = """
import os, signal, sys
from oxproxy.cli.main import main
from oxproxy.report import store
from tests.report.test_incremental import before_changes
def kill(step):
    if step == sys.argv[1]:
        os.killpg(0, signal.SIGKILL)
before_changes(setattr, kill)
sys.exit(main(["report", "--input", sys.argv[2], "--output", sys.argv[3], "--stream", "--once", "--forget"]))
"""
#: Changes of the output by name, in the order of a run.
STEPS = (
    *("make output", "read segments", "put _partials", "remove _partials", "put _days.json", "put _staging"),
    *("remove traffic", "move traffic", "move _rejected", "put pages", "put report.html"),
)
#: Runs a command in Spark with a task for each core, even for small segments.
STREAM = """
import sys
from oxproxy.cli.main import main
from oxproxy.report import session, store
store._LEAST_BYTES = session._SMALL_BYTES = 1
sys.exit(main(sys.argv[1:]))
"""


class Place:
    """A log and its report."""

    def __init__(self, session: LazySession, folder: Path) -> None:
        self.session, self.input, self.output = session, folder / "in", folder / "out"
        self.input.mkdir()

    def run(self, **more: Any) -> Summary:  # fields of a request
        return run(self.session, Request(str(self.input), str(self.output), now=NOW, **more))

    def ask(self, question: str) -> list[tuple[Any, ...]]:  # values of any column
        names = {name: f"read_parquet('{self.output}/{name}/*/*.parquet')" for name in TABLES}
        with duckdb.connect() as duck:
            return sorted(duck.execute(question.format_map(names)).fetchall())

    def publishes(self) -> dict[str, int]:
        return dict(self.ask("SELECT date::VARCHAR, sum(publishes)::BIGINT FROM {traffic} GROUP BY ALL"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A log that is read without Spark, since it is small; test_job.py runs the same steps in Spark."""
    return Place(LazySession(Request("", "", master="local[2]")), tmp_path)


def test_only_new_segments_of_a_day_are_read(place: Place) -> None:
    segment(place.input, [publish(), publish(seq=2)])
    segment(place.input, [publish(ts="2026-11-19T07:00:00Z")], "2026-11-19")
    first = place.run()
    assert (first.read, len(first.made)) == (2, 2)
    opened = segment(place.input, [publish(seq=3)], hour=8)
    hidden = opened.rename(opened.with_name(f"_{opened.name}"))
    nothing = place.run()
    assert (nothing.read, nothing.made) == (0, [])
    hidden.rename(opened)
    grown = place.run()
    assert (grown.read, grown.made) == (1, ["2026-11-20"])
    assert place.publishes() == {"2026-11-19": 1, "2026-11-20": 3}


def test_tables_of_compared_days_are_created_once(place: Place) -> None:
    for day in ("2026-11-19", "2026-11-20"):
        segment(place.input, [publish(ts=f"{day}T07:00:00Z")], day)
    assert place.run().made == ["2026-11-19", "2026-11-20"]
    assert place.run().made == []


def test_invalid_lines_of_a_segment_without_date_are_kept_for_any_range(place: Place) -> None:
    segment(place.input, [publish()])
    (place.input / "loose.jsonl").write_text(f"{publish(ts='2026-11-18T01:00:00Z')}\nrubbish\n")
    day = datetime(2026, 11, 20, tzinfo=UTC).date()
    assert place.run(since=day, until=day).rejected == {"foreign": 1}
    assert [path.name for path in (place.output / "_rejected").iterdir()] == ["date=unknown"]


def test_a_changed_segment_is_read_again_and_replaces_its_previous_content(place: Place) -> None:
    path = segment(place.input, [publish(), publish(seq=2)], name="p-1-1.jsonl")
    place.run()
    path.write_text(publish(seq=9) + "\n")
    assert place.run().read == 1
    assert place.publishes() == {"2026-11-20": 1}


def test_a_rebuilt_hour_lists_its_directory_as_often_with_more_segments(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    entries = LocalFiles.entries

    def counted(files: LocalFiles, path: str) -> list[Entry]:
        listed.append(path)
        return entries(files, path)

    monkeypatch.setattr(LocalFiles, "entries", counted)
    times = []
    for number in (2, 20):
        for other in range(number):
            changed = segment(place.input, [publish(seq=number), publish(seq=other + 1)], name=f"p-1-{other}.jsonl")
        place.run()
        listed.clear()
        changed.write_text(publish(seq=number + 1) + "\n")
        assert place.run().read == 1
        times.append(sum(path.endswith("/hour=07") and "/in/" in path for path in listed))
    assert times[0] == times[1]


def test_a_copied_segment_counts_once_and_is_reported(place: Place) -> None:
    path = segment(place.input, [publish(), publish(seq=2)])
    assert place.run().duplicates == []
    shutil.copy(path, path.with_name("audit-copy.jsonl.gz"))
    (place.input / "other/date=2026-11-20/hour=09").mkdir(parents=True)
    shutil.copy(path, place.input / "other/date=2026-11-20/hour=09/audit-moved.jsonl.gz")
    summary = place.run()
    assert place.publishes() == {"2026-11-20": 2}
    assert summary.duplicates == ["audit-moved.jsonl.gz", "audit-p-1-1.jsonl.gz"]
    assert "counted once: audit-moved.jsonl.gz, audit-p-1-1.jsonl.gz" in str(summary)
    assert "audit-moved.jsonl.gz" in (place.output / "report.html").read_text()


def test_a_renamed_segment_is_not_a_copy(place: Place) -> None:
    path = segment(place.input, [publish()])
    place.run()
    path.rename(path.with_name("audit-p-1-2.jsonl.gz"))
    assert place.run().duplicates == []
    assert place.publishes() == {"2026-11-20": 1}


def test_partials_of_removed_segments_are_kept_until_forget(place: Place) -> None:
    gone = segment(place.input, [publish(), publish(seq=2)])
    segment(place.input, [publish(seq=3)], hour=8)
    old = segment(place.input, [publish(ts="2026-11-19T07:00:00Z")], "2026-11-19")
    place.run()
    gone.unlink()
    old.unlink()
    place.run(since=None)
    assert place.publishes() == {"2026-11-19": 1, "2026-11-20": 3}
    place.run(forget=True)
    # The older day has no segments left, so it is not rebuilt and keeps its tables.
    assert place.publishes() == {"2026-11-19": 1, "2026-11-20": 1}
    place.run()
    assert place.publishes() == {"2026-11-19": 1, "2026-11-20": 1}


def test_a_return_counts_in_its_own_hour_even_if_its_publish_is_in_another_segment(place: Place) -> None:
    segment(place.input, [publish(ts="2026-11-20T23:59:59.9Z", rk="k2")], hour=23)
    segment(place.input, [settle(ts="2026-11-21T00:00:00.1Z", rk="k2")], "2026-11-21", 0)
    place.run()
    columns = "date::VARCHAR, rk_pattern, outcome, reason, publishes, returned"
    assert place.ask(f"SELECT {columns} FROM {{unroutable}}") == [("2026-11-21", "*", "returned", "312", 1, 1)]


def test_a_publish_without_destination_that_is_returned_counts_once(place: Place) -> None:
    segment(place.input, [publish(outcome="unrouted", reason="unmatched"), settle(outcome="unrouted")])
    place.run()
    assert place.ask("SELECT outcome, reason, publishes, returned FROM {unroutable}") == [
        ("returned", "312", 0, 1),
        ("unrouted", "unmatched", 1, 0),
    ]


def test_filtered_and_rejected_publishes_are_listed_with_their_reason(place: Place) -> None:
    lines = [publish(seq=n, outcome=outcome, reason="max-size") for n, outcome in ((1, "filtered"), (2, "rejected"))]
    segment(place.input, lines)
    place.run()
    assert place.ask("SELECT exchange, rk_pattern, outcome, reason, publishes FROM {unroutable}") == [
        ("e", "a.b", "filtered", "max-size", 1),
        ("e", "a.b", "rejected", "max-size", 1),
    ]


def test_an_unpacked_or_recompressed_copy_of_a_segment_counts_once(place: Place) -> None:
    packed = segment(place.input, [publish(), publish(seq=2)])
    text = gzip.decompress(packed.read_bytes())
    packed.with_name("audit-p-1-1.jsonl").write_bytes(text)
    other = place.input / "copy/date=2026-11-20/hour=08"
    other.mkdir(parents=True)
    (other / packed.name).write_bytes(gzip.compress(text, 9))
    summary = place.run()
    assert (place.publishes(), len(summary.duplicates)) == ({"2026-11-20": 2}, 2)


def test_a_late_segment_rebuilds_one_hour_and_one_day(place: Place) -> None:
    for day in ("2026-11-19", "2026-11-20"):
        for hour in (7, 8):
            segment(place.input, [publish(ts=f"{day}T{hour:02d}:00:00Z", seq=hour)], day, hour)
    place.run()
    hours = place.output / "_partials/2"
    before = {path.parent: path.name for path in hours.glob("date=*/hour=*/*")}
    assert len(before) == 4
    segment(place.input, [publish(ts="2026-11-19T07:30:00Z", seq=5)], "2026-11-19", name="late")
    assert place.run().made == ["2026-11-19"]
    after = {path.parent: path.name for path in hours.glob("date=*/hour=*/*")}
    changed = {str(folder.relative_to(hours)) for folder in after if after[folder] != before[folder]}
    assert (len(after), changed) == (4, {"date=2026-11-19/hour=07"})
    assert place.publishes() == {"2026-11-19": 3, "2026-11-20": 2}


def test_more_hours_than_are_merged_together_have_their_own_records(place: Place) -> None:
    days = [f"2026-11-{day:02d}" for day in range(17, 22)]
    for number, day in enumerate(days):
        for hour in range(24):
            lines = [publish(ts=f"{day}T{hour:02d}:00:00Z", seq=seq + 1, conn=f"{hour}") for seq in range(number + 1)]
            segment(place.input, lines, day, hour)
    place.run()
    assert place.publishes() == {day: 24 * (number + 1) for number, day in enumerate(days)}


def test_a_touched_segment_does_not_count_again(place: Place) -> None:
    path = segment(place.input, [publish()])
    place.run()
    os.utime(path, (1, 1))
    assert [place.run().read, place.run().read] == [1, 0]
    assert place.publishes() == {"2026-11-20": 1}


def test_a_changed_segment_is_ignored_if_others_of_its_hour_were_deleted(place: Place) -> None:
    deleted = segment(place.input, [publish(seq=7)], name="p-1-2")
    path = segment(place.input, [publish(), publish(seq=2)])
    place.run()
    deleted.unlink()
    segment(place.input, [publish(seq=9)])
    summary = place.run()
    assert (summary.ignored, place.publishes()) == ([f"file:{path}"], {"2026-11-20": 3})
    assert "ignored because other segments of their hour were deleted" in str(summary)


def test_a_second_report_with_the_same_output_is_an_error(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with LocalFiles().locked(str(place.output)):
        assert main(["report", "--input", str(place.input), "--output", str(place.output)]) == 2
    expected = f"{place.output}: --output: another report with this directory is running\n"
    assert capsys.readouterr().err == expected
    assert [path.name for path in place.output.iterdir()] == ["_lock"]


def test_a_record_in_the_directory_of_another_day_counts_for_its_own_day(place: Place) -> None:
    segment(place.input, [publish(), publish(ts="2026-11-19T07:00:00Z", seq=2)])
    summary = place.run()
    assert place.publishes() == {"2026-11-19": 1, "2026-11-20": 1}
    assert "1 record in the directory of a different day" in str(summary)
    assert "1 record in the directory of a different day" in (place.output / "report.html").read_text()


def test_the_peak_per_second_is_summed_over_segments(place: Place) -> None:
    segment(place.input, [publish(seq=number, ts=f"2026-11-20T07:30:0{number // 4}.0Z") for number in range(1, 8)])
    segment(place.input, [publish(seq=number, ts="2026-11-20T07:30:01.5Z") for number in range(8, 11)], name="p-1-2")
    place.run()
    assert place.ask("SELECT peak_per_second FROM {producers}") == [(7,)]


def test_the_trace_table_is_created_only_on_request(place: Place) -> None:
    segment(place.input, [publish(message_id="m")])
    place.run()
    assert not (place.output / "trace").exists()
    summary = place.run(trace=True)
    assert (summary.read, place.ask("SELECT message_id FROM {trace}")) == (1, [("m",)])
    assert place.run(trace=True).read == 0
    assert place.publishes() == {"2026-11-20": 1}


def test_a_segment_that_is_read_again_without_a_trace_is_traced_once(place: Place) -> None:
    path = segment(place.input, [publish(message_id="m")])
    place.run(trace=True)
    for number, trace in enumerate((False, True), 1):
        os.utime(path, (number, number))
        assert place.run(trace=trace).read == 1
    place.run(trace=True)
    assert place.ask("SELECT message_id FROM {trace}") == [("m",)]


#: Methods that change the output, by class.
CHANGES: dict[type, tuple[str, ...]] = {
    LocalFiles: ("remove", "make", "put", "move"),
    store.Partials: ("_read_local",),
}


def before_changes(patch: Callable[[type, str, Any], None], look: Callable[[str], None]) -> None:
    """Call a function before each change of the output, with the name of the change."""

    def looked_at(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **more: Any) -> Any:
            look(step(name, arguments))
            return method(*arguments, **more)

        return change

    for owner, names in CHANGES.items():
        for name in names:
            patch(owner, name, looked_at(name, getattr(owner, name)))


def step(method: str, arguments: Sequence[Any]) -> str:
    """Return the name of a change: the operation and the affected part of the output."""
    if method == "_read_local":
        return "read segments"
    path = arguments[2 if method in ("put", "move") else 1]
    return f"{method} {path.partition('/out/')[2].partition('/')[0] or 'output'}"


def content(folder: Path) -> frozenset[tuple[str, bytes]]:
    """Return the names and contents of all files in a directory."""
    paths = ((str(path.relative_to(folder)), path) for path in folder.rglob("*"))
    return frozenset((name, path.read_bytes() if path.is_file() else b"") for name, path in paths)


def prepare_changes(place: Place, last: str) -> dict[str, int]:
    """Create a report whose next run reads and forgets segments, and creates the tables of one or two days.

    Args:
        last: the last of these days. The first is 2026-11-20.

    Returns:
        The number of publishes by day after the next run.
    """
    for number in range(2):
        segment(place.input, [publish(seq=number + 1), settle(seq=number + 1)], name=f"p-1-{number}")
        place.run()
    forgotten = segment(place.input, [publish(ts=f"{last}T08:00:00Z", seq=8)], last, 8)
    place.run()
    forgotten.unlink()
    segment(place.input, [publish(seq=3), "rubbish"], name="p-1-2")
    segment(place.input, [publish(ts=f"{last}T07:00:00Z", seq=4)], last, name="p-1-3")
    return {"2026-11-20": 4} if last == "2026-11-20" else {"2026-11-20": 3, last: 1}


def check_after_another_run(place: Place, expected: dict[str, int], killed_at: str) -> None:
    place.run(forget=True)
    assert place.publishes() == expected, killed_at
    assert place.ask("SELECT returned FROM {unroutable}") == [(2,)], killed_at
    assert (place.output / "_rejected/date=2026-11-20").exists(), killed_at
    assert not (place.output / "_staging").exists(), killed_at


#: Changes to the second day's tables, which follow the last change to the first day's tables.
BETWEEN_DAYS = ("put _days.json", "put _staging", "remove traffic", "move traffic")

IN_SPARK = (pytest.mark.matrix, pytest.mark.spark)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("last", "fewest", "in_spark"),
    [
        pytest.param("2026-11-20", 30, False, id="one day"),
        pytest.param("2026-11-20", 30, True, id="one day, in Spark", marks=IN_SPARK),
        pytest.param("2026-11-21", len(BETWEEN_DAYS), True, id="between two days", marks=IN_SPARK),
    ],
)
def test_a_run_killed_before_any_change_loses_nothing_and_counts_nothing_twice(
    request: pytest.FixtureRequest,
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: str,
    fewest: int,
    in_spark: bool,
) -> None:
    if in_spark:
        place.session = request.getfixturevalue("session")
    expected = prepare_changes(place, last)
    # A killed process leaves the state before the next change, so one run provides the states for all kills.
    states: dict[frozenset[tuple[str, bytes]], tuple[str, Path]] = {}
    times: Counter[str] = Counter()

    def keep(name: str) -> None:
        times[name] += 1
        if len(expected) > 1 and not (name in BETWEEN_DAYS and times["put _days.json"]):
            return
        _, state = states.setdefault(content(place.output), (name, tmp_path / f"state-{len(states)}"))
        if not state.exists():
            shutil.copytree(place.output, state)

    with monkeypatch.context() as patch:
        before_changes(patch.setattr, keep)
        place.run(forget=True)
    assert len(states) >= fewest
    for name, state in states.values():
        shutil.rmtree(place.output)
        state.rename(place.output)
        check_after_another_run(place, expected, f"{name}, {state.name}")


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_a_process_killed_at_each_step_loses_nothing_and_counts_nothing_twice(place: Place) -> None:
    expected = prepare_changes(place, "2026-11-21")
    started = place.output.rename(place.output.with_name("started"))
    for name in STEPS:
        shutil.rmtree(place.output, ignore_errors=True)
        shutil.copytree(started, place.output)
        command = [sys.executable, "-c", KILLED, name, str(place.input), str(place.output)]
        done = subprocess.run(command, start_new_session=True, check=False, timeout=300, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, (name, done.stdout, done.stderr)
        check_after_another_run(place, expected, name)


@pytest.mark.usefixtures("java")
def test_a_run_killed_during_tasks_loses_nothing_and_counts_nothing_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        lines = [publish(seq=line + 1, queues=[f"q{number}"], proxy=f"p{number}") for line in range(40)]
        segment(place.input, lines, name=f"p{number}-1-1")
    arguments = ["report", "--input", str(place.input), "--output", str(place.output), "--stream", "--once"]
    command = [sys.executable, "-c", STREAM, *arguments]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    partials = place.output / "_partials/2"
    try:
        until(lambda: process.poll() is not None or partials.exists(), 140)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # includes its Java virtual machine
        process.wait()
    monkeypatch.setattr(job, "LazySession", lambda _: nullcontext(place.session))
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("240 publishes in 6 segments")
    counted = Counter(dict(place.ask("SELECT destination, publishes FROM {destinations}")))
    assert counted == {f"q{number}": 40 for number in range(6)}


def test_stream_reports_new_segments(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "LazySession", lambda _: nullcontext(place.session))
    segment(place.input, [publish()])
    summaries: list[Summary] = []

    def say(summary: Summary) -> None:
        summaries.append(summary)
        signal.raise_signal(signal.SIGTERM)

    follow(lambda: Request(str(place.input), str(place.output)), say)
    summaries.append(report(Request(str(place.input), str(place.output))))
    assert ["read 1 new segment" in str(summary) for summary in summaries] == [True, False]
    assert [summary.read for summary in summaries] == [1, 0]
    assert (summaries[0].publishes, summaries[0].page) == (1, f"file:{place.output}/report.html")
    assert PUBLISH["proxy"] in str(place.ask("SELECT connections[1].proxy FROM {producers}"))
