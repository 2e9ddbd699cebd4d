"""Is every publish in the log, and is each there once? Gaps in ``seq``, and message ids that come again.

Numbers of a channel are put into words of 64 bits, one bit a number: what a task has seen of a channel shrinks to a
sixty-fourth before it is shuffled, and a channel of a hundred million publishes ends in no single task as such.
A channel number that is used again on its connection begins at 1 again: what the later one shows of the numbers of
the earlier one can hide a gap, never invent one.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

#: Columns of what this module finds; `anomalies` adds its own findings.
FINDINGS = ("date", "hour", "what", "subject", "seen", "expected", "score", "example")
SEQ_GAP, DROPPED, DUPLICATE = "seq gap", "audit gap", "duplicate message_id"
_CHANNEL = ["date", "proxy", "conn", "ch"]
_WORD_BITS = 64


def seq_gaps(publishes: DataFrame) -> DataFrame:
    """Find publishes that a channel counted and the log does not have.

    Returns:
        A finding for each channel and hour: ``seen`` is the number of publishes around, ``score`` how many are
        missing, ``expected`` both together. What is missing before a day's first record or after its last one does
        not show.
    """
    place = F.col("seq") - 1
    words = publishes.groupBy(*_CHANNEL, F.floor(place / _WORD_BITS).alias("word")).agg(
        F.bit_or(F.call_function("shiftleft", F.lit(1).cast("bigint"), (place % _WORD_BITS).cast("int"))).alias("bits"),
        F.min("seq").alias("first"),
        F.max("seq").alias("last"),
        F.min("ts").alias("ts"),
    )
    words = words.withColumn("held", F.bit_count("bits").cast("bigint"))
    whole = words.groupBy(*_CHANNEL).agg(
        (F.max("last") - F.min("first") + 1 - F.sum("held")).alias("missing"), F.sum("held").alias("seen")
    )
    holed = whole.where(F.col("missing") > 0).select(*_CHANNEL, F.col("seen").alias("of_channel"))
    in_order = Window.partitionBy(*_CHANNEL).orderBy("word")
    before = F.lag("last").over(in_order)
    inside = F.col("last") - F.col("first") + 1 - F.col("held")
    steps = words.join(holed, _CHANNEL).withColumns(
        {"before": before, "missing": inside + F.coalesce(F.col("first") - before - 1, F.lit(0)), "hour": F.hour("ts")}
    )
    holes = (
        steps.where(F.col("missing") > 0)
        .groupBy(*_CHANNEL, "hour", "of_channel")
        .agg(F.sum("missing").alias("missing"), F.min(F.coalesce("before", "first")).alias("after"))
    )
    return holes.select(
        "date",
        "hour",
        F.lit(SEQ_GAP).alias("what"),
        F.format_string("%s connection %s channel %d", "proxy", "conn", "ch").alias("subject"),
        F.col("of_channel").cast("double").alias("seen"),
        (F.col("of_channel") + F.col("missing")).cast("double").alias("expected"),
        F.col("missing").cast("double").alias("score"),
        F.format_string("after number %d", "after").alias("example"),
    )


def dropped(gaps: DataFrame) -> DataFrame:
    """Find lines that a sidecar says it has dropped, by hour."""
    found = gaps.groupBy("date", F.hour("ts").alias("hour"), "proxy").agg(
        F.sum("dropped").alias("lines"), F.min("from").alias("from"), F.max("to").alias("to")
    )
    return found.select(
        "date",
        "hour",
        F.lit(DROPPED).alias("what"),
        F.col("proxy").alias("subject"),
        F.col("lines").cast("double").alias("seen"),
        F.lit(0.0).alias("expected"),
        F.col("lines").cast("double").alias("score"),
        F.concat_ws(" to ", "from", "to").alias("example"),
    )


def duplicates(publishes: DataFrame) -> DataFrame:
    """Find message ids that came more than once to the same exchange of the same sidecar on one day.

    The same id at another sidecar is the message on its way, which table ``trace`` shows.

    Returns:
        A finding for each hour and exchange, at the hour in which an id came last: ``seen`` publishes were one
        too many.
    """
    same = ["date", "proxy", "vhost", "exchange", "message_id"]
    again = (
        publishes.where(F.col("message_id").isNotNull())
        .groupBy(*same)
        .agg(F.count("*").alias("times"), F.max("ts").alias("last"))
    )
    again = again.where(F.col("times") > 1).withColumn("hour", F.hour("last"))
    found = again.groupBy("date", "hour", "proxy", "vhost", "exchange").agg(
        F.sum(F.col("times") - 1).alias("surplus"), F.min("message_id").alias("example")
    )
    return found.select(
        "date",
        "hour",
        F.lit(DUPLICATE).alias("what"),
        F.format_string("%s exchange %s in %s", "proxy", "exchange", "vhost").alias("subject"),
        F.col("surplus").cast("double").alias("seen"),
        F.lit(0.0).alias("expected"),
        F.col("surplus").cast("double").alias("score"),
        "example",
    )
