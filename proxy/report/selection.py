"""Which rows of the tables does the page show? The largest ones; the tables have the rest.

This is the last place that knows Spark: what comes out can be shown, and tested, without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from proxy.report import tables as names
from proxy.report.figures import Figures, Finding, Lost, Matched, Named, Sender, Sent, Step, Stop, Timed
from proxy.report.trace import longest_ways

#: Rows of a list; what is farther down is in the tables.
MOST_ROWS = 20
#: Rows of the lists where each one asks for something to be done.
MOST_FINDINGS = 60
#: Messages whose way through several sidecars is shown.
MOST_WAYS = 10
#: Columns of the chart over time: wide enough each to be seen and pointed at.
MOST_STEPS = 150
#: Minutes that a column may stand for.
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 10080)


def select(figures: Figures, tables: Mapping[str, DataFrame]) -> Figures:
    """Fill in what the tables have.

    Args:
        figures: what is known besides.
        tables: by name, of the days that were asked for.
    """
    traffic, found = tables[names.TRAFFIC], dict[str, int]()
    step, steps = _over_time(traffic)
    hot, dead = _bindings(tables[names.BINDINGS], found)
    return replace(
        figures,
        step_minutes=step,
        steps=steps,
        exchanges=_by_name(traffic, F.format_string("%s in %s", _shown("exchange"), "vhost"), found, "exchanges"),
        proxies=_by_name(traffic, F.col("proxy"), found, "proxies"),
        rules=sorted(row.rules for row in tables[names.BINDINGS].select("rules").distinct().collect() if row.rules),
        destinations=_destinations(tables[names.DESTINATIONS], found),
        hot=hot,
        dead=dead,
        unroutable=_unroutable(tables[names.UNROUTABLE], found),
        latency=_latency(tables[names.LATENCY]),
        producers=_producers(tables[names.PRODUCERS], found),
        sizes=_sizes(tables[names.PRODUCERS]),
        anomalies=_anomalies(tables[names.ANOMALIES], found),
        found=found,
    )


def ways(repeats: DataFrame) -> list[tuple[str, list[Stop]]]:
    """Give messages that came through several sidecars, from `proxy.report.trace.repeated`."""
    found = longest_ways(repeats, MOST_WAYS).collect()
    return [(row.message_id, [Stop(_utc(step[0]), *step[1:]) for step in row.steps]) for row in found]


def counted(frame: DataFrame, column: str) -> dict[str, int]:
    """Count rows by a column's value."""
    return {row[0]: row[1] for row in frame.groupBy(column).agg(F.count("*")).orderBy(column).collect()}


def _over_time(traffic: DataFrame) -> tuple[int, list[Step]]:
    minute = (F.unix_date("date") * 24 + F.col("hour")) * 60 + F.col("minute")
    by_minute = traffic.groupBy(minute.alias("at"), "outcome")
    rows = by_minute.agg(F.sum("publishes").alias("publishes"), F.sum("bytes").alias("bytes")).collect()
    if not rows:
        return 1, []
    span = max(row.at for row in rows) - min(row.at for row in rows)
    step = next((step for step in _STEPS if span / step <= MOST_STEPS), _STEPS[-1])
    steps: dict[int, Step] = {}
    for row in rows:
        begin = row.at - row.at % step
        known = steps.get(begin) or Step(datetime.fromtimestamp(begin * 60, UTC), {}, 0)
        known.outcomes[row.outcome] = known.outcomes.get(row.outcome, 0) + row.publishes
        steps[begin] = known._replace(bytes=known.bytes + row.bytes)
    return step, [steps[begin] for begin in sorted(steps)]


def _by_name(traffic: DataFrame, name: Column, found: dict[str, int], what: str) -> list[Named]:
    table = traffic.groupBy(name.alias("name")).agg(
        F.sum("publishes").alias("publishes"), F.sum("bytes").alias("bytes")
    )
    return [Named(*row) for row in _largest(table, "publishes", found, what)]


def _destinations(table: DataFrame, found: dict[str, int]) -> list[Sent]:
    whole = table.groupBy("vhost", "destination", "kind").agg(
        F.sum("publishes").alias("publishes"), F.min("first_seen"), F.max("last_seen")
    )
    rows = _largest(whole, "publishes", found, "destinations")
    return [Sent(row[0], row[1], row[2], row.publishes, _utc(row[4]), _utc(row[5])) for row in rows]


def _bindings(table: DataFrame, found: dict[str, int]) -> tuple[list[Matched], list[Matched]]:
    whole = table.groupBy("vhost", "exchange", "binding").agg(
        F.sum("matches").alias("matches"), F.max("last_match").alias("last"), F.max("in_file").alias("in_file")
    )
    hot = _largest(whole.where(F.col("matches") > 0), "matches", found, "hot")
    silent = _largest(whole.where(F.col("matches") == 0), "matches", found, "dead", MOST_FINDINGS)
    alive = [Matched(row[0], row[1], row[2], row.matches, _perhaps(row[4]), row.in_file) for row in hot]
    return alive, [Matched(*row) for row in silent]


def _unroutable(table: DataFrame, found: dict[str, int]) -> list[Lost]:
    example = F.min(F.struct("first_seen", "example_rk", "example_message_id"))
    whole = table.groupBy("vhost", "exchange", "rk_pattern").agg(
        F.sum("publishes").alias("publishes"), F.sum("returned").alias("returned"), example.alias("example")
    )
    rows = _largest(whole, "publishes", found, "unroutable")
    return [Lost(row[0], row[1], row[2], row.publishes, row.returned, *row.example[1:]) for row in rows]


def _latency(table: DataFrame) -> list[Timed]:
    columns = ("what", "p50_us", "p95_us", "p99_us", "samples")
    rows = table.select(_begin().alias("begin"), *columns).orderBy("begin", "what").collect()
    return [Timed(_utc(row[0]), *row[1:]) for row in rows]


def _producers(table: DataFrame, found: dict[str, int]) -> list[Sender]:
    whole = table.groupBy("user", "conn", "proxy").agg(
        F.sum("publishes").alias("publishes"),
        F.sum("bytes"),
        F.max("p95_size"),
        F.max("peak_per_second"),
    )
    return [Sender(*row) for row in _largest(whole, "publishes", found, "producers")]


def _sizes(table: DataFrame) -> list[tuple[int | None, int]]:
    each = table.select(F.inline("sizes"))
    rows = each.groupBy("up_to").agg(F.sum("publishes")).orderBy(F.col("up_to").asc_nulls_last()).collect()
    return [(row[0], row[1]) for row in rows]


def _anomalies(table: DataFrame, found: dict[str, int]) -> list[Finding]:
    timed = table.select(_begin().alias("begin"), "what", "subject", "seen", "expected", "score", "example")
    rows = _largest(timed, "score", found, "anomalies", MOST_FINDINGS)
    return sorted((Finding(_utc(row[0]), *row[1:]) for row in rows), key=lambda finding: finding.begin)


def _begin() -> Column:
    """The hour of a row, as a time."""
    return F.timestamp_seconds(F.unix_date("date") * 86400 + F.col("hour") * 3600)


def _shown(column: str) -> Column:
    return F.when(F.col(column) == "", "(default)").otherwise(F.col(column))


def _largest(
    frame: DataFrame, by: str, found: dict[str, int], what: str, most: int = MOST_ROWS
) -> list[Any]:  # rows have the columns of the frame
    """Give the rows with the greatest values, and note how many there are, or that there are more than these."""
    others = [column for column in frame.columns if column != by]
    rows: list[Any] = frame.orderBy(F.col(by).desc(), *others).limit(most + 1).collect()
    found[what] = len(rows)
    return rows[:most]


def _utc(moment: datetime) -> datetime:
    """Spark's times come in the zone of the process and do not say so."""
    return moment.astimezone(UTC)


def _perhaps(moment: datetime | None) -> datetime | None:
    return None if moment is None else _utc(moment)
