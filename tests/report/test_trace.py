from __future__ import annotations

from itertools import pairwise

from pyspark.sql import SparkSession

from proxy.report.trace import longest_ways, repeated, repeated_ids, trace
from tests.report.lines import publish, publishes, table


def at(second: int) -> str:
    return f"2026-11-20T07:30:{second:02d}Z"


def test_each_publish_with_an_id_has_a_row_and_others_have_none(spark: SparkSession) -> None:
    sent = publishes(
        spark, publish(message_id="m", rk="x"), publish(message_id="m", proxy="p2"), publish(), publish(message_id="")
    )
    assert table(trace(sent), "message_id", "proxy", "rk", "outcome", "queues") == [
        ("", "p", "a.b", "routed", ["q"]),
        ("m", "p", "x", "routed", ["q"]),
        ("m", "p2", "a.b", "routed", ["q"]),
    ]


def test_rows_of_one_message_lie_side_by_side_in_the_order_of_time(spark: SparkSession) -> None:
    lines = [publish(message_id=f"m{number % 7}", ts=at(59 - number)) for number in range(50)]
    rows = [(row.message_id, row.ts) for row in trace(publishes(spark, *lines)).coalesce(1).collect()]
    changes = sum(one[0] != other[0] for one, other in pairwise(rows))
    assert changes == 6
    assert all(one[1] < other[1] for one, other in pairwise(rows) if one[0] == other[0])


def test_only_ids_that_came_more_than_once_on_a_day_are_compared(spark: SparkSession) -> None:
    lines = [publish(message_id="twice"), publish(message_id="twice"), publish(message_id="once"), publish()]
    sent = publishes(spark, *lines, publish(message_id="once", ts="2026-11-21T07:00:00Z"))
    assert table(repeated(sent, repeated_ids(sent)), "message_id") == [("twice",), ("twice",)]


def test_ways_are_those_through_several_sidecars_the_longest_first(spark: SparkSession) -> None:
    lines = [publish(message_id="same", proxy="p", ts=at(number)) for number in range(4)]
    lines += [publish(message_id="short", proxy=proxy, ts=at(1)) for proxy in ("p", "p2")]
    lines += [
        publish(message_id="long", proxy=proxy, ts=at(9 - number)) for number, proxy in enumerate(("c", "b", "a"))
    ]
    sent = publishes(spark, *lines)
    ways = longest_ways(repeated(sent, repeated_ids(sent)), 10).collect()
    assert [(way.message_id, [step.proxy for step in way.steps]) for way in ways] == [
        ("long", ["a", "b", "c"]),
        ("short", ["p", "p2"]),
    ]
    assert len(longest_ways(repeated(sent, repeated_ids(sent)), 1).collect()) == 1
