"""Which way did one message take through all sidecars? Table ``trace``.

One row a publish that has a message id, sorted by it within files: a reader that asks for one id opens a few pages.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it


def trace(publishes: DataFrame) -> DataFrame:
    """Give each publish that has a message id, the rows of one message side by side."""
    named = publishes.where(F.col("message_id").isNotNull()).select(
        *("date", "message_id", "ts", "proxy", "vhost", "exchange", "rk", "outcome"),
        *("queues", "exchanges", "remotes", "conn", "ch", "seq"),
    )
    return named.repartition("date", "message_id").sortWithinPartitions("date", "message_id", "ts")


def repeated_ids(publishes: DataFrame) -> DataFrame:
    """Find message ids that came more than once on a day.

    Returns:
        Columns ``date`` and ``hash``. Counting hashes takes a third of the bytes; two ids with one hash only mean that
        a few rows more are looked at.
    """
    hashed = publishes.where(F.col("message_id").isNotNull()).select("date", F.xxhash64("message_id").alias("hash"))
    return hashed.groupBy("date", "hash").agg(F.count("*").alias("times")).where(F.col("times") > 1).drop("times")


def repeated(publishes: DataFrame, ids: DataFrame) -> DataFrame:
    """Keep the publishes whose message id came more than once: few, and all that comparisons need.

    Args:
        publishes: of the days.
        ids: from `repeated_ids`.
    """
    hashed = publishes.where(F.col("message_id").isNotNull()).withColumn("hash", F.xxhash64("message_id"))
    return hashed.join(ids, ["date", "hash"], "left_semi").drop("hash")


def longest_ways(repeats: DataFrame, most: int) -> DataFrame:
    """Find messages that came through more than one sidecar.

    Args:
        repeats: from `repeated`.
        most: how many; those with most steps first.

    Returns:
        ``message_id`` and its ``steps`` in order, structs of ``ts``, ``proxy``, ``exchange``, ``rk``, ``outcome`` and
        ``queues``.
    """
    steps = F.array_sort(F.collect_list(F.struct("ts", "proxy", "exchange", "rk", "outcome", "queues")))
    several = F.min("proxy") != F.max("proxy")
    ways = repeats.groupBy("message_id").agg(steps.alias("steps"), several.alias("several"))
    found = ways.where("several").select("message_id", "steps")
    return found.orderBy(F.size("steps").desc(), "message_id").limit(most)
