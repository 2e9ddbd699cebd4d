"""One exchange that has everything, over one connection: does its work end in one task?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from proxy.report.continuity import seq_gaps
from proxy.report.flows import bindings, destinations, flows, matches, traffic
from proxy.report.latency import latency
from proxy.report.producers import producers
from proxy.report.session import changed
from proxy.report.trace import repeated_ids, trace
from tests.report.lines import publish, publishes

SEGMENTS, LINES = 4, 2500
PARTITIONS = 16
ALL = SEGMENTS * LINES

TABLES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "traffic": lambda hot: traffic(flows(hot)),
    "destinations": lambda hot: destinations(flows(hot)),
    "bindings": lambda hot: bindings(matches(flows(hot)), None, flows(hot).select("date")),
    "latency": lambda hot: latency(hot, hot),
    "producers": producers,
    "seq gaps": seq_gaps,
    "trace": trace,
    "message ids that came again": repeated_ids,
}


@pytest.fixture(scope="module")
def hot(spark: SparkSession) -> Iterator[DataFrame]:
    lines = [
        publish(
            exchange="hot",
            seq=number + 1,
            ts=f"2026-11-20T07:{number // 3000:02d}:{number // 50 % 60:02d}.{number % 50:02d}Z",
            decide_us=float(number % 40),
            message_id=f"m{number}",
            size=number % 60,
        )
        for number in range(ALL)
    ]
    own = {"spark.sql.shuffle.partitions": str(PARTITIONS), "spark.sql.adaptive.enabled": "false"}
    with changed(spark, own):
        frame = publishes(spark, *lines).coalesce(SEGMENTS).persist()
        assert frame.count() == ALL
        yield frame
        frame.unpersist()


@pytest.mark.parametrize("name", TABLES)
def test_no_task_takes_in_most_of_a_hot_exchange(spark: SparkSession, hot: DataFrame, name: str) -> None:
    context = spark.sparkContext
    context.setJobGroup(f"skew {name}", name)
    TABLES[name](hot).write.format("noop").mode("overwrite").save()
    taken = list(records_taken_in(context, f"skew {name}"))
    assert taken
    # A fair share of everything is a sixteenth.
    assert max(taken) <= 2 * ALL / PARTITIONS


def records_taken_in(context: Any, group: str) -> Iterator[int]:  # Spark's own, untyped
    """Records that each task of a group of jobs had from a shuffle."""
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    context._jsc.sc().listenerBus().waitUntilEmpty()
    for job in tracker.getJobIdsForGroup(group):
        for stage in tracker.getJobInfo(job).stageIds:
            tasks = store.taskList(stage, 0, 1000)
            for place in range(tasks.size()):
                metrics = tasks.apply(place).taskMetrics()
                if metrics.isDefined():
                    yield int(metrics.get().shuffleReadMetrics().recordsRead())
