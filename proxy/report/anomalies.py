"""Which hours are not as the same hour of other days? Table ``anomalies``, with what `continuity` finds.

An hour's publishes are compared with the median of the same hour on the days before, in units of their spread (the
median absolute deviation, which single odd days do not move). Days before are taken from table ``traffic``, so they
count even where their log has been removed. Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993
(the factor and the limit of modified z-scores).
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from proxy.report.continuity import FINDINGS

#: Days before that are looked at, and the least that say anything.
HISTORY_DAYS, LEAST_DAYS = 28, 3
#: A modified z-score above it is an outlier.
LIMIT = 3.5
PUBLISHES, UNROUTED = "publishes", "unrouted publishes"
#: Makes the median absolute deviation comparable to a standard deviation.
_FACTOR = 1.4826
#: Less than this share of the median is no deviation, however regular the days before were.
_LEAST_SHARE = 0.05
_HOUR_SECONDS = 3600


def hourly(traffic: DataFrame) -> DataFrame:
    """Count what is compared: all publishes, those of each exchange, those without a destination."""
    hours = traffic.groupBy("date", "hour", "vhost", "exchange", "outcome").agg(F.sum("publishes").alias("n"))
    name = F.format_string("exchange %s in %s", "exchange", "vhost")
    parts = (
        hours.select("date", "hour", F.lit(PUBLISHES).alias("what"), F.lit("all").alias("subject"), "n"),
        hours.select("date", "hour", F.lit(PUBLISHES).alias("what"), name.alias("subject"), "n"),
        hours.where(F.col("outcome") == "unrouted").select(
            "date", "hour", F.lit(UNROUTED).alias("what"), F.lit("all").alias("subject"), "n"
        ),
    )
    all_of_it = parts[0].unionByName(parts[1]).unionByName(parts[2])
    return all_of_it.groupBy("date", "hour", "what", "subject").agg(F.sum("n").cast("double").alias("n"))


def deviations(spark: SparkSession, traffic: DataFrame, days: Collection[date], now: datetime) -> DataFrame:
    """Find hours that deviate.

    Args:
        spark: the session.
        traffic: of the days and of those before them.
        days: those that are asked about.
        now: the time of the run: hours that are not over have no say.

    Returns:
        Findings; an hour without any publish counts as 0 on every day that has a log.
    """
    counted = hourly(traffic)
    asked = spark.createDataFrame([(day,) for day in days], "date DATE")
    known = traffic.select("date").distinct()
    hours = spark.range(24).select(F.col("id").cast("int").alias("hour"))
    things = counted.select("what", "subject").distinct()
    ours = known.join(asked, "date").crossJoin(hours)
    ends = F.unix_date("date") * 24 + F.col("hour") + 1
    over = ours.where(ends * _HOUR_SECONDS <= int(now.timestamp()))
    key = ["date", "hour", "what", "subject"]
    seen = over.crossJoin(things).join(counted, key, "left").na.fill({"n": 0.0})

    before = known.select(F.col("date").alias("then"))
    apart = F.date_diff("date", "then")
    history = ours.join(before, (apart >= 1) & (apart <= HISTORY_DAYS)).crossJoin(things)
    then = counted.withColumnsRenamed({"date": "then", "n": "was"})
    was = history.join(then, ["then", "hour", "what", "subject"], "left").na.fill({"was": 0.0})
    medians = was.groupBy(*key).agg(F.median("was").alias("expected"), F.count("*").alias("days"))
    spread = was.join(medians, key).groupBy(*key).agg(F.median(F.abs(F.col("was") - F.col("expected"))).alias("mad"))
    known_hours = medians.where(F.col("days") >= LEAST_DAYS).join(spread, key)

    # Counts spread by about their root even where nothing changes.
    least = F.greatest(F.lit(1.0), F.sqrt("expected"), F.col("expected") * _LEAST_SHARE)
    score = F.abs(F.col("n") - F.col("expected")) / F.greatest(F.col("mad") * _FACTOR, least)
    judged = seen.join(known_hours, key).withColumn("score", score).where(F.col("score") > LIMIT)
    found = judged.withColumns(
        {
            "seen": F.col("n"),
            "example": F.when(F.col("n") > F.col("expected"), "more than usual").otherwise("less than usual"),
        }
    )
    return found.select(*FINDINGS)
