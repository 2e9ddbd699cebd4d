"""The stream, and what a kill -9 in the middle of a batch leaves of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from proxy.errors import ConfigError
from proxy.report.request import Request
from proxy.report.session import changed
from proxy.report.stream import start
from tests.producer import until
from tests.report.lines import publish, segment, table

#: Counts segment by segment, so that there is a middle; ends when all are counted.
FOLLOW = """
import sys
from proxy.report.request import Request, setting
from proxy.report.stream import follow
settings = ["spark.driver.memory=1g", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"]
follow(Request(*sys.argv[1:3], master="local[1]", settings=tuple(map(setting, settings))), once=True, segments=1)
"""
SEGMENTS, LINES = 3, 40


def followed(spark: SparkSession, folder: Path, segments: int = 200) -> None:
    query = start(spark, Request(str(folder / "in"), str(folder / "out")), once=True, segments=segments)
    assert query.awaitTermination(100)


def read(spark: SparkSession, folder: Path, name: str, *columns: str) -> list[tuple[object, ...]]:
    return table(spark.read.parquet(f"{folder}/out/stream/{name}"), *columns)


def total(spark: SparkSession, folder: Path) -> dict[str, int]:
    found: Counter[str] = Counter()
    for proxy, publishes in read(spark, folder, "traffic", "proxy", "publishes"):
        found[str(proxy)] += int(str(publishes))
    return dict(found)


def test_new_segments_are_counted_and_those_of_before_are_not_again(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path / "in", [publish(), publish(seq=2, queues=["q", "r"]), "rubbish"], name="p-1-1")
    opened = segment(tmp_path / "in", [publish(proxy="open")], name="open.jsonl")
    hidden = opened.rename(opened.with_name("_audit-open.jsonl"))
    followed(spark, tmp_path)
    assert read(spark, tmp_path, "destinations", "destination", "publishes") == [("q", 2), ("r", 1)]
    hidden.rename(opened)
    segment(tmp_path / "in", [publish(ts="2026-11-21T07:00:00Z", proxy="p3")], "2026-11-21", name="p3-1-1.jsonl")
    followed(spark, tmp_path)
    followed(spark, tmp_path)
    assert total(spark, tmp_path) == {"p": 2, "open": 1, "p3": 1}
    assert read(spark, tmp_path, "bindings", "date", "binding", "matches", "batch") == [
        (date(2026, 11, 20), "b", 1, 1),
        (date(2026, 11, 20), "b", 2, 0),
        (date(2026, 11, 21), "b", 1, 1),
    ]
    rejected = spark.read.json(f"{tmp_path}/out/stream/_rejected")
    assert table(rejected, "why", "line") == [("foreign", "rubbish")]


def test_a_small_batch_is_counted_in_few_tasks(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path / "in", [publish()])
    with changed(spark, {"spark.sql.shuffle.partitions": "50", "spark.sql.adaptive.enabled": "false"}):
        query = start(spark, Request(str(tmp_path / "in"), str(tmp_path / "out")), once=True)
        assert query.awaitTermination(100)
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(query.runId))]
    stages = [tracker.getStageInfo(stage) for info in infos if info for stage in info.stageIds]
    tasks = [stage.numTasks for stage in stages if stage]
    assert len(tasks) > 3
    assert max(tasks) < 10


def test_a_damaged_segment_stops_nothing(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path / "in", [publish()], name="whole")
    broken = segment(tmp_path / "in", [publish(proxy="b")], name="broken")
    broken.write_bytes(b"\x1f\x8b\x08\x00 no gzip")
    followed(spark, tmp_path)
    assert total(spark, tmp_path) == {"p": 1}
    assert table(spark.read.json(f"{tmp_path}/out/stream/_rejected"), "why") == [("damaged file",)]


def test_days_that_the_log_has_passed_are_made_compact(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        segment(tmp_path / "in", [publish(seq=number + 1)], hour=7 + number, name=f"p-{number}")
    followed(spark, tmp_path, segments=1)
    for days in (2, 3):
        day = str(date(2026, 11, 20) + timedelta(days))
        segment(tmp_path / "in", [publish(ts=f"{day}T07:00:00Z")], day)
        followed(spark, tmp_path)
    folder = tmp_path / "out/stream/traffic/date=2026-11-20"
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["batch=2"]
    assert total(spark, tmp_path) == {"p": 5}


def test_an_input_that_is_not_there_is_a_fault(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        start(spark, Request(str(tmp_path / "in"), str(tmp_path / "out")), once=True)


@pytest.mark.timeout(300)
def test_killed_in_the_middle_of_a_batch_nothing_is_lost_and_nothing_counted_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in range(SEGMENTS):
        lines = [publish(seq=line + 1, queues=[f"q{number}"]) for line in range(LINES)]
        segment(tmp_path / "in", lines, name=f"p-1-{number}")
    streamed = tmp_path / "out/stream"
    command = [sys.executable, "-c", FOLLOW, str(tmp_path / "in"), str(tmp_path / "out")]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        # Traffic of the second batch is there, its bindings are not.
        until(lambda: process.poll() is not None or list(streamed.glob("traffic/date=*/batch=1")), 140)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with its Java virtual machine
        process.wait()
    assert not (streamed / "_checkpoint/commits/1").exists()
    assert subprocess.run(command, check=False, timeout=140, stderr=subprocess.DEVNULL).returncode == 0
    assert total(spark, tmp_path) == {"p": SEGMENTS * LINES}
    counts = read(spark, tmp_path, "destinations", "destination", "publishes")
    assert counts == [(f"q{number}", LINES) for number in range(SEGMENTS)]
    assert len(read(spark, tmp_path, "bindings", "matches")) == SEGMENTS
