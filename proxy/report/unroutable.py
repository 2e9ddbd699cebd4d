"""Which publishes reached nobody: table ``unroutable``.

Those are publishes without a destination (outcome ``unrouted``) and those that the broker returned. Routing keys are
shown as patterns: words that look like identities (numbers, hexadecimal, UUIDs) become ``*``.

A settle record names connection, channel and number of its publish. A channel number may be used again on the same
connection, then the numbers are too: a settle belongs to the last publish before it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

UNROUTED, RETURNED = "unrouted", "returned"
_KEY = ["proxy", "conn", "ch", "seq"]
#: Words of a routing key that stand for one of many: numbers, also with letters around; long hexadecimal; UUIDs.
_IDENTITY = r"(?<![^.])(?:[^.]*\d[^.]*|[0-9a-fA-F-]{16,})(?![^.])"


def returns(settles: DataFrame) -> DataFrame:
    """Give the settles that say that the broker returned something."""
    return settles.where(F.col("result") == RETURNED).select(*_KEY, F.col("ts").alias("told")).distinct()


def returned(publishes: DataFrame, told: DataFrame) -> DataFrame:
    """Give the publishes that the broker returned, with all their columns, each once.

    Args:
        publishes: of the days.
        told: from `returns`.
    """
    pairs = publishes.join(told, _KEY).where(F.col("ts") <= F.col("told"))
    columns = publishes.columns
    latest = pairs.groupBy(*_KEY, "told").agg(F.max_by(F.struct(*columns), F.col("ts")).alias("publish"))
    once = latest.groupBy(*_KEY, F.col("publish.ts").alias("at")).agg(F.first("publish").alias("publish"))
    return once.select("publish.*")


def unroutable(publishes: DataFrame, back: DataFrame) -> DataFrame:
    """Count by exchange and pattern of routing key.

    Args:
        publishes: of the days.
        back: from `returned`.

    Returns:
        ``publishes`` that reached nobody, how many of them the broker ``returned``, and the earliest of them as an
        example.
    """
    one, none = F.lit(1), F.lit(0)
    columns = ("date", "vhost", "exchange", "rk", "message_id", "ts", "reason", "outcome")
    unrouted = publishes.where(F.col("outcome") == UNROUTED)
    parts = (
        (unrouted, one, none),
        (back.where(F.col("outcome") == UNROUTED), none, one),
        (back.where(F.col("outcome") != UNROUTED), one, one),
    )
    counted = [frame.select(*columns, n.alias("n"), came.alias("came_back")) for frame, n, came in parts]
    both = counted[0].unionByName(counted[1]).unionByName(counted[2])
    example = F.min(F.struct("ts", "message_id", "rk", "outcome", "reason"))
    table = both.groupBy("date", "vhost", "exchange", pattern(F.col("rk")).alias("rk_pattern")).agg(
        F.sum("n").alias("publishes"), F.sum("came_back").alias("returned"), example.alias("example")
    )
    return table.select(
        *("date", "vhost", "exchange", "rk_pattern", "publishes", "returned"),
        F.col("example.message_id").alias("example_message_id"),
        F.col("example.rk").alias("example_rk"),
        F.col("example.ts").alias("first_seen"),
        F.col("example.outcome").alias("outcome"),
        F.col("example.reason").alias("reason"),
    )


def pattern(key: Column) -> Column:
    """Put ``*`` for the words of a routing key that look like identities."""
    return F.regexp_replace(key, _IDENTITY, "*")
