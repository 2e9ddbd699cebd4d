from __future__ import annotations

from pyspark.sql import SparkSession

from proxy.report.producers import producers
from tests.report.lines import publish, publishes, table


def test_a_connection_has_its_volume_and_its_fastest_second(spark: SparkSession) -> None:
    times = ["07:30:00.1", "07:30:00.9", "07:30:01", "07:30:02.5", "07:30:02.6", "07:30:02.7"]
    lines = [publish(ts=f"2026-11-20T{time}Z", size=100 * number) for number, time in enumerate(times)]
    [row] = producers(publishes(spark, *lines)).collect()
    assert (row.user, row.conn, row.publishes, row.bytes, row.peak_per_second) == ("u", "c", 6, 1500, 3)
    assert (row.p50_size, row.max_size) == (250, 500)
    assert row.first_seen < row.last_seen


def test_connections_of_other_sidecars_are_others(spark: SparkSession) -> None:
    lines = [publish(), publish(proxy="p2"), publish(user="u2"), publish(vhost="v"), publish(conn="c2"), publish(ch=2)]
    found = table(producers(publishes(spark, *lines)), "proxy", "vhost", "user", "conn", "publishes")
    assert found == [
        ("p", "/", "u", "c", 2),
        ("p", "/", "u", "c2", 1),
        ("p", "/", "u2", "c", 1),
        ("p", "v", "u", "c", 1),
        ("p2", "/", "u", "c", 1),
    ]


def test_sizes_fall_into_classes_the_bounds_included(spark: SparkSession) -> None:
    sizes = [0, 100, 101, 1000, 1_000_000, 1_010_000, 10**12]
    [row] = producers(publishes(spark, *(publish(size=size) for size in sizes))).collect()
    assert [tuple(entry) for entry in row.sizes] == [
        *((100, 2), (1_000, 2), (10_000, 0), (100_000, 0), (1_000_000, 1), (None, 2))
    ]
