from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from proxy.report.unroutable import pattern, returned, returns, unroutable
from tests.report.lines import publish, publishes, settle, settles, table


def at(clock: str) -> str:
    return f"2026-11-20T{clock}Z"


def back(spark: SparkSession, sent: DataFrame, *told: str) -> DataFrame:
    return returned(sent, returns(settles(spark, *told)))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("orders.created", "orders.created"),
        ("orders.17.created", "orders.*.created"),
        ("orders.a17", "orders.*"),
        ("17", "*"),
        ("", ""),
        ("a.deadbeefdeadbeef.b", "a.*.b"),
        ("a.beef.b", "a.beef.b"),
        ("x.3f0a7c9e-1111-4222-8333-444455556666", "x.*"),
        ("1.2.3", "*.*.*"),
        ("..", ".."),
    ],
)
def test_words_that_look_like_identities_become_a_star(spark: SparkSession, key: str, expected: str) -> None:
    assert table(spark.createDataFrame([(key,)], "key STRING").select(pattern(F.col("key")).alias("p")), "p") == [
        (expected,)
    ]


def test_a_return_finds_its_publish(spark: SparkSession) -> None:
    sent = publishes(spark, *(publish(seq=number, rk=f"k{number}") for number in (1, 2, 3)))
    told = [settle(seq=2), settle(seq=3, result="nacked"), settle(seq=1, conn="other"), settle(seq=1, ch=2)]
    assert table(back(spark, sent, *told), "rk") == [("k2",)]


def test_a_return_told_twice_is_one(spark: SparkSession) -> None:
    sent = publishes(spark, publish())
    assert table(back(spark, sent, settle(), settle(), settle(ts=at("07:31:00"))), "seq") == [(1,)]


def test_a_number_that_came_again_belongs_to_the_last_publish_before_the_return(spark: SparkSession) -> None:
    sent = publishes(spark, publish(ts=at("07:00:00"), rk="first"), publish(ts=at("08:00:00"), rk="second"))
    assert table(back(spark, sent, settle(ts=at("08:00:01"))), "rk") == [("second",)]
    assert table(back(spark, sent, settle(ts=at("07:00:01"))), "rk") == [("first",)]
    assert table(back(spark, sent, settle(ts=at("06:00:00"))), "rk") == []


def test_unroutable_is_what_had_no_destination_or_came_back_each_once(spark: SparkSession) -> None:
    lines = [
        publish(seq=1, outcome="unrouted", rk="a.1", message_id="m1", ts=at("07:00:01"), reason="why"),
        publish(seq=2, outcome="unrouted", rk="a.2", message_id="m2", ts=at("07:00:00")),
        publish(seq=3, outcome="routed", rk="a.3"),
        publish(seq=4, outcome="routed", rk="b"),
        publish(seq=5, outcome="passed", rk="b", exchange="amq.direct"),
        publish(seq=6, outcome="filtered", rk="b"),
        publish(seq=7, outcome="rejected", rk="b"),
    ]
    sent = publishes(spark, *lines)
    came_back = back(spark, sent, settle(seq=2), settle(seq=3), settle(seq=5))
    found = unroutable(sent, came_back)
    columns = ("exchange", "rk_pattern", "publishes", "returned", "example_message_id", "example_rk")
    assert table(found.fillna("", ["example_message_id"]), *columns) == [
        ("amq.direct", "b", 1, 1, "", "b"),
        ("e", "a.*", 3, 2, "m2", "a.2"),
    ]


def test_nothing_unroutable_is_an_empty_table(spark: SparkSession) -> None:
    sent = publishes(spark, publish())
    assert table(unroutable(sent, back(spark, sent)), "publishes") == []
