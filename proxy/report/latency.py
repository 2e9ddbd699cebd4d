"""How long did things take: table ``latency``.

Times are rounded to four digits and counted, so that any number of samples becomes a few thousand rows an hour before
percentiles are taken: exact to 0.05 %, and the same whatever the number of tasks.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

DECIDE, CONFIRM = "decide", "confirm"
_DIGITS = 4
_SHARES = {"p50_us": 0.5, "p95_us": 0.95, "p99_us": 0.99}


def latency(publishes: DataFrame, settles: DataFrame) -> DataFrame:
    """Percentiles of decide and confirm times, in microseconds, per hour.

    Args:
        publishes: of the days.
        settles: of the same days: a confirm counts in the hour in which it came.
    """
    decided = _samples(publishes, DECIDE, "decide_us")
    confirmed = _samples(settles, CONFIRM, "confirm_us")
    counted = decided.unionByName(confirmed).groupBy("date", "hour", "what", "us").agg(F.count("*").alias("samples"))
    shares = F.array(*map(F.lit, _SHARES.values()))
    table = counted.groupBy("date", "hour", "what").agg(
        F.percentile("us", shares, F.col("samples")).alias("p"), F.sum("samples").alias("samples")
    )
    found = [F.col("p")[place].alias(name) for place, name in enumerate(_SHARES)]
    return table.select("date", "hour", "what", *found, "samples")


def _samples(frame: DataFrame, what: str, column: str) -> DataFrame:
    sane = frame.where(F.col(column).isNotNull() & (F.col(column) >= 0))
    return sane.select(
        "date", F.hour("ts").alias("hour"), F.lit(what).alias("what"), rounded(F.col(column)).alias("us")
    )


def rounded(value: Column, digits: int = _DIGITS) -> Column:
    """Round to a number of digits that count; 0 stays 0.

    Args:
        value: at least 0.
        digits: as many as are kept.
    """
    step = F.pow(F.lit(10.0), F.floor(F.log10(value)) - (digits - 1))
    return F.when(value == 0, F.lit(0.0)).otherwise(F.round(value / step) * step)
