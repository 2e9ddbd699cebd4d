from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession

from proxy.report.anomalies import deviations
from proxy.report.continuity import dropped, duplicates, seq_gaps
from proxy.report.figures import Figures
from proxy.report.flows import bindings, destinations, flows, matches, traffic
from proxy.report.latency import latency
from proxy.report.producers import producers
from proxy.report.selection import MOST_ROWS, MOST_STEPS, counted, select, ways
from proxy.report.tables import ANOMALIES, BINDINGS, DESTINATIONS, LATENCY, PRODUCERS, TRAFFIC, UNROUTABLE
from proxy.report.trace import repeated, repeated_ids
from proxy.report.unroutable import returned, returns, unroutable
from tests.report.lines import gap, publish, publishes, read, settle, settles

NOW = datetime(2026, 11, 21, tzinfo=UTC)
BARE = Figures((date(2026, 11, 20),), NOW)
KNOWN = "vhost STRING, exchange STRING, binding STRING, rules STRING"


def at(clock: str, day: int = 20) -> str:
    return f"2026-11-{day}T{clock}Z"


def tables(spark: SparkSession, *lines: str) -> dict[str, DataFrame]:
    read_lines = read(spark, *lines).persist()
    sent, told = (read_lines.where(f"kind = '{kind}'") for kind in ("publish", "settle"))
    gaps = read_lines.where("kind = 'gap'")
    flowed = flows(sent)
    known = spark.createDataFrame([("/", "e", "b", "r9"), ("/", "e", "dead", "r9")], KNOWN)
    repeats = repeated(sent, repeated_ids(sent))
    return {
        TRAFFIC: traffic(flowed),
        DESTINATIONS: destinations(flowed),
        BINDINGS: bindings(matches(flowed), known, flowed.select("date").distinct()),
        UNROUTABLE: unroutable(sent, returned(sent, returns(told))),
        LATENCY: latency(sent, told),
        PRODUCERS: producers(sent),
        ANOMALIES: seq_gaps(sent).unionByName(dropped(gaps)).unionByName(duplicates(repeats)),
    }


@pytest.fixture(scope="module")
def figures(spark: SparkSession) -> Figures:
    lines = [
        publish(seq=1, ts=at("07:00:00"), decide_us=5.0, message_id="m"),
        publish(seq=2, ts=at("09:00:00"), decide_us=9.0, exchange="", bindings=[], message_id="m"),
        publish(seq=3, ts=at("09:30:00"), outcome="unrouted", rk="a.17", queues=[], bindings=[], size=500),
        publish(seq=7, ts=at("08:00:00", 21), proxy="p2", rules="r2", queues=["q", "r"]),
        settle(seq=1, ts=at("07:00:01")),
        settle(seq=2, result="acked", confirm_us=1000.0),
        gap(dropped=4),
    ]
    return select(BARE, tables(spark, *lines))


def test_totals_are_those_of_the_table(figures: Figures) -> None:
    assert (figures.publishes, figures.bytes) == (4, 530)
    assert figures.outcomes == {"routed": 3, "unrouted": 1}


def test_columns_over_time_are_few_enough_and_begin_on_the_clock(figures: Figures) -> None:
    assert figures.step_minutes == 10
    assert [step.begin for step in figures.steps] == [
        datetime(2026, 11, day, hour, minute, tzinfo=UTC)
        for day, hour, minute in ((20, 7, 0), (20, 9, 0), (20, 9, 30), (21, 8, 0))
    ]
    span = figures.steps[-1].begin - figures.steps[0].begin
    assert span.total_seconds() / 60 / figures.step_minutes <= MOST_STEPS


def test_names_come_by_volume_and_the_default_exchange_has_one(figures: Figures) -> None:
    assert [(named.name, named.publishes) for named in figures.exchanges] == [("e in /", 3), ("(default) in /", 1)]
    assert [(named.name, named.publishes) for named in figures.proxies] == [("p", 3), ("p2", 1)]
    assert figures.rules == ["r1", "r2", "r9"]


def test_destinations_of_all_days_are_joined(figures: Figures) -> None:
    first, second = figures.destinations
    assert (first.destination, first.kind, first.publishes) == ("q", "queue", 3)
    assert (first.first_seen, first.last_seen) == (
        datetime(2026, 11, 20, 7, tzinfo=UTC),
        datetime(2026, 11, 21, 8, tzinfo=UTC),
    )
    assert second.destination == "r"


def test_a_binding_is_dead_if_no_day_matched_it(figures: Figures) -> None:
    assert [(hot.binding, hot.matches, hot.in_file) for hot in figures.hot] == [("b", 2, True)]
    assert [dead.binding for dead in figures.dead] == ["dead"]


def test_unroutable_has_the_unrouted_and_the_returned(figures: Figures) -> None:
    lost = {(lost.rk_pattern, lost.publishes, lost.returned, lost.example_rk) for lost in figures.unroutable}
    assert lost == {("a.*", 1, 0, "a.17"), ("a.b", 1, 1, "a.b")}


def test_latency_comes_in_the_order_of_time(figures: Figures) -> None:
    assert [(timed.begin.hour, timed.what, timed.p50_us) for timed in figures.latency] == [
        (7, "confirm", 1000.0),
        (7, "decide", 5.0),
        (9, "decide", 9.0),
    ]


def test_producers_and_their_sizes(figures: Figures) -> None:
    assert [(sender.user, sender.conn, sender.proxy, sender.publishes) for sender in figures.producers] == [
        ("u", "c", "p", 3),
        ("u", "c", "p2", 1),
    ]
    assert figures.sizes == [(100, 3), (1000, 1), (10_000, 0), (100_000, 0), (1_000_000, 0), (None, 0)]


def test_anomalies_come_in_the_order_of_time(figures: Figures) -> None:
    assert [(finding.what, finding.score) for finding in figures.anomalies] == [("audit gap", 4.0)]
    assert figures.anomalies[0].begin == datetime(2026, 11, 20, 7, tzinfo=UTC)


def test_a_long_list_is_cut_and_says_so(spark: SparkSession) -> None:
    lines = [publish(seq=number + 1, queues=[f"q{number:03d}"]) for number in range(MOST_ROWS + 5)]
    figures = select(BARE, tables(spark, *lines))
    assert len(figures.destinations) == MOST_ROWS
    assert figures.found["destinations"] == MOST_ROWS + 1
    assert [sent.destination for sent in figures.destinations[:2]] == ["q000", "q001"]


def test_nothing_at_all_is_no_fault(spark: SparkSession) -> None:
    figures = select(BARE, tables(spark))
    assert (figures.publishes, figures.steps, figures.anomalies) == (0, [], [])


def test_findings_of_both_sources_fit_together(spark: SparkSession) -> None:
    made = tables(spark, publish(), gap())
    both = made[ANOMALIES].unionByName(deviations(spark, made[TRAFFIC], {date(2026, 11, 20)}, NOW))
    assert both.count() == 1


def test_ways_have_their_stops_in_order(spark: SparkSession) -> None:
    sent = publishes(
        spark, publish(message_id="m", proxy="b", ts=at("07:00:01")), publish(message_id="m", ts=at("07:00:02"))
    )
    [(message_id, stops)] = ways(repeated(sent, repeated_ids(sent)))
    assert (message_id, [stop.proxy for stop in stops]) == ("m", ["b", "p"])
    assert stops[0].ts == datetime(2026, 11, 20, 7, 0, 1, tzinfo=UTC)


def test_rows_are_counted_by_value(spark: SparkSession) -> None:
    told = settles(spark, settle(), settle(), settle(result="acked"))
    assert counted(told, "result") == {"acked": 1, "returned": 2}
