"""Runs the report: finds segments, reads new segments, creates the tables for changed days, and writes the page.

`follow` repeats the run.
"""

from __future__ import annotations

import hashlib
import json
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

from proxy.errors import ConfigError
from proxy.report import tables as names
from proxy.report.figures import Figures, added
from proxy.report.merge import HISTORY_DAYS, Merge
from proxy.report.pages import PAGE, Pages
from proxy.report.request import Request
from proxy.report.selection import SHOWN, Selection, longest_ways
from proxy.report.session import session
from proxy.report.storage import Segment, Storage, StorageError, find_segments
from proxy.report.store import Partials
from proxy.report.tables import Tables
from proxy.report.wording import several

#: Seconds between two checks for new segments, and minimum pause after a run as a multiple of its duration.
LOOK_SECONDS, REST = 60, 3
#: Part of the fingerprint of a day's tables. It is increased with every change to `merge` that affects the tables.
_EDITION = 1
#: Part of the following day's directory that is also searched for returns.
_FIRST_HOUR = "/hour=00/"
_ONE_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run, and the data of its page."""

    figures: Figures
    output: str
    read: int = 0  # number of segments read
    made: tuple[date, ...] = ()  # days whose tables were created
    gone: tuple[date, ...] = ()  # days that had tables and no longer have records
    rebuilt: tuple[date, ...] = ()  # days whose tables from an earlier version were created again
    kept: tuple[date, ...] = ()  # days whose tables from an earlier version were kept, since their log was deleted
    is_first: bool = False  # whether this run replaced tables created by an earlier version

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def as_json(self) -> dict[str, object]:
        figures = self.figures
        return {
            "page": f"{self.output}/{PAGE}",
            "days": list(map(str, figures.days)),
            "publishes": figures.publishes,
            "segments": figures.segments,
            "read": self.read,
            "made": list(map(str, self.made)),
            "rebuilt": list(map(str, self.rebuilt)),
            "kept": list(map(str, self.kept)),
            "removed": list(map(str, self.gone)),
            "rejected": figures.rejected,
            "late": figures.late,
            "unmatched": figures.unmatched,
            "duplicates": list(figures.duplicates),
        }

    def _lines(self) -> Iterator[str]:
        figures = self.figures
        published = several(figures.publishes, "publish", "publishes")
        yield f"{published} in {several(figures.segments, 'segment')}, {figures.range}"
        yield f"read {several(self.read, 'new segment')}, created the tables of {several(len(self.made), 'day')}"
        if self.rebuilt:
            yield f"tables of earlier versions, rebuilt from the log (trace only with --trace): {_listed(self.rebuilt)}"
        if self.is_first and self.kept:
            yield f"tables of earlier versions, kept because their log was deleted: {_listed(self.kept)}"
        if figures.rejected:
            reasons = ", ".join(f"{count} {why}" for why, count in figures.rejected.items())
            yield f"invalid lines moved to {self.output}/{names.REJECTED}: {reasons}"
        if figures.late:
            late = several(figures.late, "record")
            yield f"{late} in the directory of a different day, counted on the day of their timestamp"
        if figures.unmatched:
            yield f"{several(figures.unmatched, 'return')} without a publish in the log"
        if figures.duplicates:
            yield f"segments with the same content, counted once: {', '.join(figures.duplicates)}"
        if self.gone:
            yield f"removed days that no longer have records: {_listed(self.gone)}"
        yield f"{self.output}/{PAGE}"


def _listed(days: Iterable[date]) -> str:
    return ", ".join(map(str, days))


def report(request: Request) -> Summary:
    """Create the report in a new Spark session."""
    with session(request) as spark:
        return run(spark, request)


def follow(request: Request, say: Callable[[Summary], None], once: bool = False) -> None:
    """Repeat the report with one Spark session until SIGTERM or SIGINT, or run it only once."""
    with session(request) as spark, _stop_requested() as stopped:
        while not stopped.is_set():
            began = time.monotonic()
            summary = run(spark, request.again())
            if once or summary.read or summary.made:
                say(summary)
            if once:
                return
            stopped.wait(max(LOOK_SECONDS, REST * (time.monotonic() - began)))


def run(spark: SparkSession, request: Request) -> Summary:
    """Create the report in a running session.

    Raises:
        ConfigError: the input does not exist, or a file operation failed.
    """
    storage = Storage(spark)
    try:
        if not storage.is_folder(request.input):
            raise ConfigError(request.input, 0, "--input", "no such directory")
        with tempfile.TemporaryDirectory(prefix="oxproxy-report-") as work, duckdb.connect() as duck:
            duck.execute(f"SET TimeZone = 'UTC'; SET memory_limit = '700MB'; SET temp_directory = '{work}/spill'")
            duck.execute("SET preserve_insertion_order = false")
            return _Run(spark, storage, request, Path(work), duck).make()
    except StorageError as error:
        raise ConfigError("oxproxy report", 0, "", str(error)) from error


@dataclass
class _Run:
    """Data shared by the steps of one run."""

    spark: SparkSession
    storage: Storage
    request: Request
    work: Path
    duck: duckdb.DuckDBPyConnection
    output: str = field(init=False)
    tables: Tables = field(init=False)
    partials: Partials = field(init=False)

    def make(self) -> Summary:
        request = self.request
        self.output = self.storage.whole(request.output)
        self.tables = Tables(self.storage, self.output, self.work)
        self.tables.begin()
        self.partials = Partials(self.spark, self.storage, self.output, self.work, self.duck)
        self.partials.load()
        segments = [
            segment for segment in find_segments(self.storage, request.input, self._is_read) if self._is_asked(segment)
        ]
        new = self.partials.unknown(segments, request.trace)
        if new:
            self.partials.make(new, request.trace)
            self.partials.load()
        if request.forget:
            self._forget(segments)
        self.partials.compact()
        days = self._days(segments)
        earlier = [day for day in self.tables.days(names.TRAFFIC) if not self.tables.state(day)]
        changed, gone = self._merge(days, earlier)
        figures = self._figures(days, segments)
        summary = Summary(
            figures,
            self.output,
            len(new),
            tuple(changed),
            tuple(gone),
            tuple(day for day in earlier if day in changed),
            tuple(day for day in earlier if day not in changed),
            bool(earlier and changed),
        )
        self._write_pages(summary, segments)
        return summary

    def _is_read(self, day: date) -> bool:
        return self.request.wants(day) or self.request.wants(day - _ONE_DAY)

    def _is_asked(self, segment: Segment) -> bool:
        """Return True if a segment belongs to a requested day, or may contain returns for the day's last publishes."""
        if segment.folder is None or self.request.wants(segment.folder):
            return True
        return _FIRST_HOUR in segment.path

    def _days(self, segments: Iterable[Segment]) -> list[date]:
        """Return the requested days or, if no days were requested, the days in the log."""
        self.duck.execute("CREATE OR REPLACE TEMP TABLE present (path VARCHAR)")
        paths = [segment.path for segment in segments]
        self.duck.execute("INSERT INTO present SELECT unnest(?::VARCHAR[])", [paths])
        named = self.request.named_days()
        if named is not None:
            return named
        rows = self.duck.execute(
            """SELECT DISTINCT day FROM (SELECT unnest(days) AS day, * FROM latest SEMI JOIN present USING (path))
            WHERE day = folder OR day BETWEEN first::DATE AND last::DATE ORDER BY day"""
        ).fetchall()
        return [day for (day,) in rows if self.request.wants(day)]

    def _forget(self, segments: Iterable[Segment]) -> None:
        present = {segment.path for segment in segments}
        root = f"{self.storage.whole(self.request.input).rstrip('/')}/"
        rows = self.duck.execute("SELECT path, folder FROM latest").fetchall()
        gone = [
            path
            for path, folder in rows
            if path.startswith(root) and path not in present and (folder is None or self.request.wants(folder))
        ]
        if gone:
            self.partials.forget(gone)

    def _merge(self, days: list[date], earlier: list[date]) -> tuple[list[date], list[date]]:
        """Create the tables for changed days. Return the changed days, and which of them no longer have records."""
        prints = {day: self._fingerprint(day) for day in days}
        changed = [day for day in days if self.tables.state(day).get("fingerprint") != prints[day]]
        near = {day + _ONE_DAY * step for day in changed for step in (-1, 0, 1)}
        self.partials.open(near)
        request = self.request
        merge = Merge(self.duck, self.tables, request.bindings, request.now, request.trace)
        gone = []
        for day in changed:
            state = {"fingerprint": prints[day], **merge.day(day)}
            if self.tables.exchange(day, state):
                gone.append(day)
        undated = self._contents("folder IS NULL")
        if self.tables.state(None).get("fingerprint") != undated:
            self.tables.exchange(None, {"fingerprint": undated, **merge.rejected(None)})
        return changed, gone

    def _fingerprint(self, day: date) -> str:
        """Return a fingerprint of the inputs of a day's tables."""
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        over = min(24, max(0, int((self.request.now - begin).total_seconds()) // 3600))
        compared = [str(other) for other in self.tables.days(names.TRAFFIC) if 0 < (day - other).days <= HISTORY_DAYS]
        known = None if self.request.bindings is None else sorted(map(repr, self.request.bindings))
        parts = [
            _EDITION,
            self._contents(f"list_contains(days, DATE '{day}')"),
            over,
            compared,
            known,
            self.request.trace,
        ]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

    def _contents(self, condition: str) -> str:
        rows = self.duck.execute(f"SELECT content FROM live WHERE {condition} ORDER BY content").fetchall()
        return hashlib.blake2b("".join(content for (content,) in rows).encode(), digest_size=16).hexdigest()

    def _figures(self, days: list[date], segments: list[Segment]) -> Figures:
        states = [self.tables.state(day) for day in (*days, None)]
        count = self.duck.execute(
            """SELECT count(*) FROM live WHERE list_has_any(days, ?::DATE[])
            OR (len(days) = 0 AND path IN (SELECT path FROM present))""",
            [days],
        ).fetchall()[0][0]
        copies = self.duck.execute(
            """SELECT list(parse_filename(path) ORDER BY path)[2:] FROM latest SEMI JOIN present USING (path)
            WHERE records > 0 AND list_has_any(days, ?::DATE[]) GROUP BY content HAVING count(*) > 1""",
            [days],
        ).fetchall()
        figures = Figures(
            tuple(days),
            self.request.now,
            count,
            bindings_known=self.request.bindings is not None,
            results=added(state.get("results", {}) for state in states),
            rejected=added(state.get("rejected", {}) for state in states),
            late=sum(state.get("late", 0) for state in states),
            unmatched=sum(state.get("unmatched", 0) for state in states),
            duplicates=sorted(name for (several,) in copies for name in several),
            ways=longest_ways(way for state in states for way in state.get("ways", ())),
        )
        files = {name: {day: self.tables.files(name, [day]) for day in days} for name in SHOWN}
        if not any(files[names.TRAFFIC].values()):
            return figures
        return Selection(self.duck, files).fill(figures)

    def _write_pages(self, summary: Summary, segments: list[Segment]) -> None:
        """Write the page for the whole run, and the pages for days that have changed or have no page."""
        pages = Pages(self.storage, self.output)
        days = summary.figures.days
        dated = set(self.tables.days(names.TRAFFIC))
        wanted = [
            day for day in days if (day in summary.made or not pages.has(day)) and (day in dated or pages.has(day))
        ]
        single = [self._figures([day], segments) for day in wanted] if len(days) > 1 else []
        pages.write(summary.figures, single)


@contextmanager
def _stop_requested() -> Iterator[threading.Event]:
    """Yield an event. Until the context ends, SIGTERM and SIGINT set this event instead of ending the process."""
    stopped = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stopped.set()) for number in numbers]
    try:
        yield stopped
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
