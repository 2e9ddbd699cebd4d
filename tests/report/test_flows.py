from __future__ import annotations

from datetime import UTC, date, datetime

from pyspark.sql import DataFrame, SparkSession

from proxy.report.flows import bindings, destinations, flows, matches, traffic
from tests.report.lines import publish, publishes, table

DAY = date(2026, 11, 20)
KNOWN = "vhost STRING, exchange STRING, binding STRING, rules STRING"


def at(clock: str) -> str:
    return f"2026-11-20T{clock}Z"


def flowed(spark: SparkSession, *lines: str) -> DataFrame:
    return flows(publishes(spark, *lines))


def test_publishes_of_a_minute_that_went_the_same_way_are_one_flow(spark: SparkSession) -> None:
    same = [publish(ts=at(f"07:30:{second:02d}"), size=second, rk=f"k{second}") for second in (1, 2, 59)]
    other = [publish(ts=at("07:31:00")), publish(queues=["q", "r"]), publish(rules="r2"), publish(vhost="v")]
    found = table(flowed(spark, *same, *other), "hour", "minute", "vhost", "rules", "queues", "publishes", "bytes")
    assert found == [
        (7, 30, "/", "r1", ["q"], 3, 62),
        (7, 30, "/", "r1", ["q", "r"], 1, 10),
        (7, 30, "/", "r2", ["q"], 1, 10),
        (7, 30, "v", "r1", ["q"], 1, 10),
        (7, 31, "/", "r1", ["q"], 1, 10),
    ]


def test_traffic_has_each_publish_once_whatever_its_destinations(spark: SparkSession) -> None:
    lines = [publish(queues=["q", "r"], bindings=["a", "b"]), publish(queues=[]), publish(rules=None)]
    lines += [publish(outcome="unrouted", queues=[]), publish(proxy="p2"), publish(exchange="")]
    columns = ("date", "hour", "minute", "vhost", "exchange", "outcome", "proxy", "publishes", "bytes")
    assert table(traffic(flowed(spark, *lines)), *columns) == [
        (DAY, 7, 30, "/", "", "routed", "p", 1, 10),
        (DAY, 7, 30, "/", "e", "routed", "p", 3, 30),
        (DAY, 7, 30, "/", "e", "routed", "p2", 1, 10),
        (DAY, 7, 30, "/", "e", "unrouted", "p", 1, 10),
    ]


def test_a_publish_counts_once_for_each_of_its_destinations(spark: SparkSession) -> None:
    first = publish(ts=at("07:00:00"), queues=["q", "q", None], exchanges=["q"], remotes=["far"])
    last = publish(ts=at("09:00:00"), queues=["q"])
    found = destinations(flowed(spark, last, first, publish(outcome="unrouted", queues=[])))
    assert table(found, "vhost", "destination", "kind", "publishes", "bytes") == [
        ("/", "far", "remote", 1, 10),
        ("/", "q", "exchange", 1, 10),
        ("/", "q", "queue", 2, 20),
    ]
    [seen] = found.where("kind = 'queue'").select("first_seen", "last_seen").collect()
    assert [time.astimezone(UTC).hour for time in seen] == [7, 9]


def test_a_queue_of_another_virtual_host_is_another_queue(spark: SparkSession) -> None:
    found = destinations(flowed(spark, publish(), publish(vhost="v"), publish(vhost="v")))
    assert table(found, "vhost", "publishes") == [("/", 1), ("v", 2)]


def test_matches_are_counted_by_binding_and_version_of_the_rules(spark: SparkSession) -> None:
    lines = [
        publish(bindings=["a", "b", "a"]),
        publish(bindings=["a"], ts=at("08:00:00")),
        publish(bindings=["a"], rules="r2"),
    ]
    found = matches(flowed(spark, *lines, publish(bindings=[None]), publish(bindings=None)))
    assert table(found, "exchange", "binding", "rules", "matches") == [
        ("e", "a", "r1", 2),
        ("e", "a", "r2", 1),
        ("e", "b", "r1", 1),
    ]
    [last] = found.where("binding = 'a' AND rules = 'r1'").collect()
    assert last.last_match.astimezone(UTC) == datetime(2026, 11, 20, 8, tzinfo=UTC)


def test_without_rules_files_nobody_knows_what_is_in_them(spark: SparkSession) -> None:
    way = flowed(spark, publish())
    found = bindings(matches(way), None, way.select("date").distinct())
    assert table(found, "binding", "matches", "in_file") == [("b", 1, None)]


def test_a_binding_of_the_files_that_nothing_matched_is_there_with_no_matches_each_day(spark: SparkSession) -> None:
    way = flowed(spark, publish(), publish(bindings=["old"]), publish(ts="2026-11-21T00:00:00Z", bindings=[]))
    known = spark.createDataFrame([("/", "e", "b", "r9"), ("/", "e", "dead", "r9"), ("v", "e", "b", "r9")], KNOWN)
    found = bindings(matches(way), known, way.select("date").distinct())
    assert table(found.fillna("", ["rules"]), "date", "vhost", "binding", "rules", "matches", "in_file") == [
        (DAY, "/", "b", "r1", 1, True),
        (DAY, "/", "dead", "r9", 0, True),
        (DAY, "/", "old", "r1", 1, False),
        (DAY, "v", "b", "r9", 0, True),
        (date(2026, 11, 21), "/", "b", "r9", 0, True),
        (date(2026, 11, 21), "/", "dead", "r9", 0, True),
        (date(2026, 11, 21), "v", "b", "r9", 0, True),
    ]
