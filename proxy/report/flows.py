"""How much went where: tables ``traffic``, ``destinations`` and ``bindings``.

All three come from *flows*: publishes of a minute that had the same exchange, outcome and destinations, counted. There
are few of them (a decision is shared by many messages), and each task counts its own before anything is shuffled, so
one hot exchange does not end in one task.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

#: What the publishes of one flow have in common.
_SHARED = (
    *("date", "hour", "minute", "vhost", "exchange", "outcome", "proxy", "rules"),
    *("queues", "exchanges", "remotes", "bindings"),
)
_KINDS = {"queues": "queue", "exchanges": "exchange", "remotes": "remote"}


def flows(publishes: DataFrame) -> DataFrame:
    """Count publishes that went the same way in the same minute."""
    timed = publishes.withColumns({"hour": F.hour("ts"), "minute": F.minute("ts")})
    return timed.groupBy(*_SHARED).agg(
        F.count("*").alias("publishes"),
        F.sum("size").alias("bytes"),
        F.min("ts").alias("first_seen"),
        F.max("ts").alias("last_seen"),
    )


def traffic(flowed: DataFrame) -> DataFrame:
    """Publishes and bytes per minute, by virtual host, exchange, outcome and sidecar."""
    keys = ("date", "hour", "minute", "vhost", "exchange", "outcome", "proxy")
    return flowed.groupBy(*keys).agg(F.sum("publishes").alias("publishes"), F.sum("bytes").alias("bytes"))


def destinations(flowed: DataFrame) -> DataFrame:
    """What each queue, exchange and destination of another broker was sent."""
    named = [_named(kind, F.col(column)) for column, kind in _KINDS.items()]
    each = flowed.select("*", F.explode(F.concat(*named)).alias("to")).where("to.destination IS NOT NULL")
    return each.groupBy(
        "date", "vhost", F.col("to.destination").alias("destination"), F.col("to.kind").alias("kind")
    ).agg(
        F.sum("publishes").alias("publishes"),
        F.sum("bytes").alias("bytes"),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
    )


def _named(kind: str, names: Column) -> Column:
    return F.transform(
        F.array_distinct(names), lambda name: F.struct(name.alias("destination"), F.lit(kind).alias("kind"))
    )


def matches(flowed: DataFrame) -> DataFrame:
    """How often each binding was true, for each version of the rules."""
    each = flowed.select("*", F.explode(F.array_distinct("bindings")).alias("binding")).where("binding IS NOT NULL")
    keys = ("date", "vhost", "exchange", "binding", "rules")
    return each.groupBy(*keys).agg(F.sum("publishes").alias("matches"), F.max("last_seen").alias("last_match"))


def bindings(matched: DataFrame, known: DataFrame | None, days: DataFrame) -> DataFrame:
    """Complete matches by what the rules files say.

    Args:
        matched: from `matches`.
        known: bindings of the rules files, columns of `KnownBinding`; None where no file was given.
        days: column ``date``, the days that have any publish.

    Returns:
        ``in_file`` says whether the files have the binding (null without files); those that no publish of a day
        matched come with no matches, a null ``last_match`` and the files' version.
    """
    if known is None:
        return matched.withColumn("in_file", F.lit(None).cast("boolean"))
    identity = ["vhost", "exchange", "binding"]
    marked = F.broadcast(known.select(*identity, F.lit(True).alias("in_file")).distinct())
    alive = matched.join(marked, identity, "left").withColumn("in_file", F.coalesce("in_file", F.lit(False)))
    expected = known.crossJoin(F.broadcast(days))
    dead = expected.join(matched.select("date", *identity).distinct(), ["date", *identity], "left_anti")
    silent = {"matches": F.lit(0).cast("bigint"), "last_match": F.lit(None).cast("timestamp"), "in_file": F.lit(True)}
    return alive.unionByName(dead.withColumns(silent).select(*alive.columns))
