"""What does one run do, and in which order?

Find the segments, read them once, make the tables beside those of earlier runs, exchange the days, write the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, timedelta

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from proxy.errors import ConfigError
from proxy.report import tables as names
from proxy.report.anomalies import HISTORY_DAYS, LEAST_DAYS, deviations
from proxy.report.continuity import dropped, duplicates, seq_gaps
from proxy.report.figures import Figures
from proxy.report.flows import bindings, destinations, flows, matches, traffic
from proxy.report.latency import latency
from proxy.report.page import render
from proxy.report.producers import producers
from proxy.report.request import KnownBinding, Request
from proxy.report.selection import counted, select, ways
from proxy.report.session import fitted, session
from proxy.report.source import Source, find, volume
from proxy.report.staging import Staged, stage
from proxy.report.storage import Storage, StorageError
from proxy.report.tables import Tables
from proxy.report.trace import repeated, repeated_ids, trace
from proxy.report.unroutable import returned, returns, unroutable
from proxy.report.wording import several

#: The page of the newest run, and the folder of all pages, one for each range of days.
PAGE, PAGES = "report.html", "pages"
_RECORDS = "records"


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did.

    Args:
        figures: what the page shows.
        gone: days that had tables and have no record any more.
        output: where tables and page are.
    """

    figures: Figures
    gone: tuple[date, ...]
    output: str

    def __str__(self) -> str:
        """A few lines for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        figures = self.figures
        published = several(figures.publishes, "publish", "publishes")
        yield f"{published} in {several(figures.segments, 'segment')}, {figures.range}"
        if figures.rejected:
            reasons = ", ".join(f"{count} {why}" for why, count in figures.rejected.items())
            yield f"kept aside in {self.output}/{names.REJECTED}: {reasons}"
        if self.gone:
            yield f"days without any record any more, removed: {', '.join(map(str, self.gone))}"
        yield f"{self.output}/{PAGE}"


def report(request: Request) -> Summary:
    """Make the report with a Spark of its own.

    Raises:
        ConfigError: there is no such input, or Spark can't be started.
    """
    with session(request) as spark:
        try:
            return run(spark, request)
        except StorageError as error:
            raise ConfigError("oxproxy report", 0, "", str(error)) from error


def run(spark: SparkSession, request: Request) -> Summary:
    """Make the report.

    Args:
        spark: a running session; meanwhile its settings are those that fit the input.
        request: what is asked for.

    Raises:
        ConfigError: there is no such input.
    """
    storage = Storage(spark)
    if not storage.is_folder(request.input):
        raise ConfigError(request.input, 0, "--input", "no such folder")
    tables = Tables(spark, storage, request.output)
    source = find(storage, request)
    size = volume(spark, source)
    figures = Figures(tuple(sorted(source.days)), request.now, size.segments)
    tables.begin()
    try:
        with fitted(spark, request, size):
            figures, gone = _replace(spark, request, tables, source, figures)
    finally:
        tables.end()
    summary = Summary(figures, tuple(gone), storage.whole(request.output))
    _write_page(storage, summary)
    return summary


def _replace(
    spark: SparkSession, request: Request, tables: Tables, source: Source, figures: Figures
) -> tuple[Figures, list[date]]:
    """Put new tables in place; what the page shows, and the days that have none any more."""
    if source.empty:
        return figures, tables.replace(source.days)
    ranged = request.since is not None or request.until is not None
    staged = stage(spark, Storage(spark), source, tables.staging(_RECORDS), ranged)
    figures = replace(figures, days=tuple(sorted(staged.days)))
    figures = _write(spark, request, tables, staged, figures)
    return figures, tables.replace(staged.days)


def _write(spark: SparkSession, request: Request, tables: Tables, staged: Staged, figures: Figures) -> Figures:
    """Write all tables beside those in place, and pick what the page shows."""
    publishes, settles = staged.publishes, staged.settles
    with _kept(flows(publishes), repeated_ids(publishes), returns(settles)) as (flowed, ids, told):
        repeats = repeated(publishes, ids)
        in_days = settles.where(F.col("date").isin(*staged.days) & ~F.col("tail"))
        written = {names.TRAFFIC: tables.write(names.TRAFFIC, _few(traffic(flowed)))}
        frames = {
            names.DESTINATIONS: _few(destinations(flowed)),
            names.BINDINGS: _few(_bindings(spark, request, flowed)),
            names.UNROUTABLE: _few(unroutable(publishes, returned(publishes, told))),
            names.LATENCY: _few(latency(publishes, in_days)),
            names.PRODUCERS: _few(producers(publishes)),
            names.ANOMALIES: _few(_anomalies(spark, request, tables, staged, written[names.TRAFFIC], repeats)),
            names.TRACE: trace(publishes),
        }
        written |= {name: tables.write(name, frame) for name, frame in frames.items()}
        tables.write_rejected(staged.rejected)
        known = replace(
            figures,
            bindings_known=request.bindings is not None,
            ways=ways(repeats),
            results=counted(in_days, "result"),
            rejected=counted(staged.rejected, "why"),
        )
        return select(known, written)


@contextmanager
def _kept(*frames: DataFrame) -> Iterator[tuple[DataFrame, ...]]:
    """Keep what is used more than once, for a while.

    Counting fills them now: what joins with them is then planned by what is in them, not by what might be.
    """
    for frame in frames:
        frame.persist(StorageLevel.MEMORY_AND_DISK).count()
    try:
        yield frames
    finally:
        for frame in frames:
            frame.unpersist()


def _few(frame: DataFrame) -> DataFrame:
    """Have a day's rows written into one file, or a few where they are many."""
    return frame.hint("rebalance", "date")


def _bindings(spark: SparkSession, request: Request, flowed: DataFrame) -> DataFrame:
    known = None
    if request.bindings is not None:
        columns = "vhost STRING, exchange STRING, binding STRING, rules STRING"
        known = spark.createDataFrame([_row(binding) for binding in request.bindings], columns)
    return bindings(matches(flowed), known, flowed.select("date").distinct())


def _row(binding: KnownBinding) -> tuple[str, str, str, str]:
    return binding.vhost, binding.exchange, binding.binding, binding.rules


def _anomalies(
    spark: SparkSession, request: Request, tables: Tables, staged: Staged, made: DataFrame, repeats: DataFrame
) -> DataFrame:
    found = seq_gaps(staged.publishes).unionByName(dropped(staged.gaps)).unionByName(duplicates(repeats))
    known = {*tables.days(names.TRAFFIC), *staged.days}
    if not staged.days or len(known) <= LEAST_DAYS:
        return found
    oldest = min(staged.days) - timedelta(days=HISTORY_DAYS)
    before = tables.earlier(names.TRAFFIC, made, staged.days)
    before = before.where((F.col("date") >= oldest) & (F.col("date") < max(staged.days)))
    return found.unionByName(deviations(spark, made.unionByName(before), staged.days, request.now))


def _write_page(storage: Storage, summary: Summary) -> None:
    page = render(summary.figures)
    days = summary.figures.days
    storage.make(summary.output)
    storage.write(f"{summary.output}/{PAGE}", page)
    if days:
        storage.make(f"{summary.output}/{PAGES}")
        until = f"_{days[-1]}" if len(days) > 1 else ""
        storage.write(f"{summary.output}/{PAGES}/{days[0]}{until}.html", page)
