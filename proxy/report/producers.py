"""Who sends what: table ``producers``."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from proxy.report.latency import rounded

_KEY = ("date", "proxy", "vhost", "user", "conn")
#: Sizes up to 999 are exact, others to half a percent.
_DIGITS = 3
#: Upper bounds of size classes in bytes; what is larger than all of them has no bound (null).
CLASSES = (100, 1_000, 10_000, 100_000, 1_000_000, None)


def producers(publishes: DataFrame) -> DataFrame:
    """Publishes, sizes and peak rate of each connection.

    Returns:
        Sizes in bytes; ``sizes`` counts publishes by size class (`CLASSES`). ``peak_per_second`` is the most publishes
        of any one second.
    """
    second = F.unix_seconds("ts").alias("second")
    by_second = publishes.groupBy(*_KEY, second).agg(
        F.count("*").alias("publishes"),
        F.sum("size").alias("bytes"),
        F.min("ts").alias("first"),
        F.max("ts").alias("last"),
    )
    rates = by_second.groupBy(*_KEY).agg(
        F.sum("publishes").alias("publishes"),
        F.sum("bytes").alias("bytes"),
        F.max("publishes").alias("peak_per_second"),
        F.min("first").alias("first_seen"),
        F.max("last").alias("last_seen"),
    )
    rough = rounded(F.col("size").cast("double"), _DIGITS).alias("size")
    by_size = publishes.groupBy(*_KEY, rough).agg(F.count("*").alias("n"))
    shares = F.array(F.lit(0.5), F.lit(0.95), F.lit(1.0))
    sizes = by_size.groupBy(*_KEY).agg(
        F.percentile("size", shares, F.col("n")).alias("p"), F.array(*_classes()).alias("sizes")
    )
    both = rates.join(sizes, list(_KEY))
    return both.select(
        *("date", "proxy", "vhost", "user", "conn", "publishes", "bytes"),
        F.col("p")[0].alias("p50_size"),
        F.col("p")[1].alias("p95_size"),
        F.col("p")[2].alias("max_size"),
        *("peak_per_second", "sizes", "first_seen", "last_seen"),
    )


def _classes() -> Iterator[Column]:
    least = -1
    for bound in CLASSES:
        fits = F.col("size") > least
        if bound is not None:
            fits &= F.col("size") <= bound
            least = bound
        count = F.coalesce(F.sum(F.when(fits, F.col("n"))), F.lit(0))
        yield F.struct(F.lit(bound).cast("bigint").alias("up_to"), count.alias("publishes"))
