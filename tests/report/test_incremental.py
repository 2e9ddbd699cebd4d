"""Tests incremental reports: new, copied and removed segments, killed runs, and output of version 0.1."""

from __future__ import annotations

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

from proxy.cli.main import main
from proxy.report import job, store
from proxy.report.job import Summary, follow, report, run
from proxy.report.request import Request
from proxy.report.session import LazySession
from proxy.report.storage import LocalFiles
from proxy.report.tables import TABLES
from tests.producer import until
from tests.report.lines import PUBLISH, publish, segment, settle

NOW = datetime(2026, 11, 22, 5, tzinfo=UTC)
#: Kills its process group before the change of the output that is named by the first argument.
KILLED = """
import os, signal, sys
from proxy.cli.main import main
from proxy.report import store
from tests.report.test_incremental import before_changes
def kill(step):
    if step == sys.argv[1]:
        os.killpg(0, signal.SIGKILL)
before_changes(setattr, kill)
store._MOST_FILES = 3
sys.exit(main(["report", "--input", sys.argv[2], "--output", sys.argv[3], "--stream", "--once", "--forget"]))
"""
#: Changes of the output by name, in the order of a run.
STEPS = (
    *("make output", "read segments", "put _partials", "remove _partials", "remove _days", "put _staging"),
    *("remove traffic", "move traffic", "move _rejected", "put _days", "put pages", "put report.html"),
)
#: Runs a command with a task for each core, even for small segments.
STREAM = """
import sys
from proxy.cli.main import main
from proxy.report import store
store._LEAST_BYTES = 1
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
def place(session: LazySession, tmp_path: Path) -> Place:
    return Place(session, tmp_path)


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


def test_a_return_is_matched_with_a_publish_in_another_segment_or_day(place: Place) -> None:
    segment(
        place.input, [publish(ts="2026-11-20T07:59:59.9Z", rk="k1"), publish(ts="2026-11-20T07:00:00Z", seq=5, rk="k5")]
    )
    segment(place.input, [publish(ts="2026-11-20T23:59:59.9Z", seq=2, rk="k2")], hour=23)
    place.run()
    assert place.ask("SELECT * FROM {unroutable}") == []
    segment(place.input, [settle(ts="2026-11-20T08:00:00Z"), settle(ts="2026-11-20T08:10:00Z", seq=5)], hour=8)
    segment(
        place.input,
        [settle(ts="2026-11-21T00:00:00.1Z", seq=2), settle(ts="2026-11-21T00:00:01Z", seq=77)],
        "2026-11-21",
        0,
    )
    summary = place.run()
    assert place.ask("SELECT date::VARCHAR, example_rk, publishes, returned FROM {unroutable}") == [
        ("2026-11-20", "k5", 3, 3)
    ]
    assert summary.unmatched == 1
    assert "1 return without a publish in the log" in str(summary)


def test_a_late_segment_of_the_previous_day_contains_the_publish_of_a_return(place: Place) -> None:
    segment(place.input, [publish(ts="2026-11-20T07:00:00Z", ch=2)])
    segment(place.input, [settle(ts="2026-11-21T00:00:00.1Z")], "2026-11-21", 0)
    assert place.run().unmatched == 1
    segment(place.input, [publish(ts="2026-11-20T23:59:59.9Z")], hour=23)
    summary = place.run()
    assert (summary.unmatched, summary.made) == (0, ["2026-11-20", "2026-11-21"])


def test_a_late_segment_of_the_next_day_contains_the_last_publish_before_a_return(place: Place) -> None:
    segment(place.input, [publish(ts="2026-11-20T23:59:59.9Z")], hour=23)
    segment(place.input, [settle(ts="2026-11-21T00:00:02Z")], "2026-11-21", 0)
    place.run()
    assert place.ask("SELECT date::VARCHAR, returned FROM {unroutable}") == [("2026-11-20", 1)]
    segment(place.input, [publish(ts="2026-11-21T00:00:01Z")], "2026-11-21", 0, "p-1-2")
    place.run()
    assert place.ask("SELECT date::VARCHAR, returned FROM {unroutable}") == [("2026-11-21", 1)]


def test_the_day_after_a_range_is_read_for_returns(place: Place) -> None:
    segment(place.input, [publish(ts="2026-11-20T23:59:59.9Z")], hour=23)
    segment(place.input, [settle(ts="2026-11-21T00:00:00.1Z")], "2026-11-21", 0)
    segment(place.input, [publish(ts="2026-11-21T01:00:00.1Z")], "2026-11-21", 1)
    day = datetime(2026, 11, 20, tzinfo=UTC).date()
    summary = place.run(since=day, until=day)
    assert summary.read == 2
    assert place.ask("SELECT returned FROM {unroutable}") == [(1,)]


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


def test_small_segments_are_read_by_one_task(place: Place) -> None:
    for number in range(4):
        segment(place.input, [publish(seq=number + 1)], name=f"p-1-{number}")
    assert place.run().read == 4
    assert len([*(place.output / "_partials/1").iterdir()]) == 1  # each task writes a file


def test_small_files_of_partials_are_joined(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MOST_FILES", 2)
    for number in range(4):
        segment(place.input, [publish(seq=number + 1), settle(seq=number + 1)], name=f"p-1-{number}")
        place.run()
    files = sorted(path.name for path in (place.output / "_partials/1").glob("*.parquet"))
    assert [name.partition("-")[0] for name in files] == ["joined", "part"]
    # As if the process had been killed before the old files were removed.
    shutil.copy(place.output / "_partials/1" / files[0], place.output / "_partials/1/again.parquet")
    segment(place.input, [publish(seq=9)], name="p-1-9")
    assert place.run().read == 1
    assert place.publishes() == {"2026-11-20": 5}
    assert place.ask("SELECT publishes, returned FROM {unroutable}") == [(4, 4)]


def test_output_of_version_0_1_is_kept_or_rebuilt_and_reported(place: Place) -> None:
    for day in ("2026-11-18", "2026-11-20"):
        for name in ("traffic", "trace"):
            folder = place.output / name / f"date={day}"
            folder.mkdir(parents=True)
            with duckdb.connect() as duck:
                duck.execute(
                    f"""COPY (SELECT 7::INTEGER AS hour, 1::INTEGER AS minute, '/' AS vhost, 'e' AS exchange,
                    'routed' AS outcome, 'p' AS proxy, 11::BIGINT AS publishes, 1::BIGINT AS bytes)
                    TO '{folder}/part-0.parquet'"""
                )
    segment(place.input, [publish()])
    summary = str(place.run())
    assert "tables of earlier versions, rebuilt from the log (trace only with --trace): 2026-11-20\n" in summary
    assert "kept because their log was deleted: 2026-11-18\n" in summary
    assert place.publishes() == {"2026-11-18": 11, "2026-11-20": 1}
    assert [path.name for path in (place.output / "trace").iterdir()] == ["date=2026-11-18"]
    assert "earlier version" not in str(place.run())


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
    """Create a report whose next run reads, joins and forgets segments, and creates the tables of one or two days.

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
BETWEEN_DAYS = ("remove _days", "put _staging", "remove traffic", "move traffic")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("last", "fewest"), [("2026-11-20", 30), ("2026-11-21", len(BETWEEN_DAYS))], ids=["one day", "between two days"]
)
def test_a_run_killed_before_any_change_loses_nothing_and_counts_nothing_twice(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, fewest: int
) -> None:
    expected = prepare_changes(place, last)
    monkeypatch.setattr(store, "_MOST_FILES", 3)
    # A killed process leaves the state before the next change, so one run provides the states for all kills.
    states: dict[frozenset[tuple[str, bytes]], tuple[str, Path]] = {}
    times: Counter[str] = Counter()

    def keep(name: str) -> None:
        times[name] += 1
        if len(expected) > 1 and not (name in BETWEEN_DAYS and times["put _days"]):
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


def test_a_run_killed_during_tasks_loses_nothing_and_counts_nothing_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        lines = [publish(seq=line + 1, queues=[f"q{number}"], proxy=f"p{number}") for line in range(40)]
        segment(place.input, lines, name=f"p{number}-1-1")
    arguments = ["report", "--input", str(place.input), "--output", str(place.output), "--stream", "--once"]
    command = [sys.executable, "-c", STREAM, *arguments]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    partials = place.output / "_partials/1"
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
    assert PUBLISH["proxy"] in str(place.ask("SELECT proxy FROM {producers}"))
