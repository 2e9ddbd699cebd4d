"""Runs the report: finds segments, reads new segments, creates the tables for changed days, and writes the pages."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date

from oxproxy.report.days import REJECTED
from oxproxy.report.figures import read_figures
from oxproxy.report.files.storage import find_segments
from oxproxy.report.pages import PAGE, write_pages
from oxproxy.report.request import Request
from oxproxy.report.session import LazySession, opened
from oxproxy.report.store import Partials
from oxproxy.report.tables import Tables
from oxproxy.report.wording import day_range, several

#: Minimum pause after a run of `follow`, in seconds, and as a multiple of the duration of the run.
CHECK_SECONDS, PAUSE_FACTOR = 60, 3


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run. Its fields are those of the output of ``--json``, in order."""

    page: str
    days: list[str]
    publishes: int
    segments: int
    read: int  # number of segments read
    made: list[str]  # days whose tables were created
    removed: list[str]  # days that had tables and no longer have records
    rejected: dict[str, int]
    late: int
    duplicates: list[str]
    ignored: list[str]  # changed segments that can't replace their earlier content

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        published = several(self.publishes, "publish", "publishes")
        yield f"{published} in {several(self.segments, 'segment')}, {day_range(self.days)}"
        yield f"read {several(self.read, 'new segment')}, created the tables of {several(len(self.made), 'day')}"
        if self.rejected:
            reasons = ", ".join(f"{count} {why}" for why, count in self.rejected.items())
            yield f"invalid lines moved to {self.page.removesuffix(PAGE)}{REJECTED}: {reasons}"
        if self.late:
            late = several(self.late, "record")
            yield f"{late} in the directory of a different day, counted under the day of the timestamp"
        if self.duplicates:
            yield f"segments with the same content, counted once: {', '.join(self.duplicates)}"
        if self.ignored:
            ignored = ", ".join(self.ignored)
            yield f"changed segments, ignored because other segments of their hour were deleted: {ignored}"
        if self.removed:
            yield f"removed days that no longer have records: {', '.join(self.removed)}"
        yield self.page


def report(request: Request) -> Summary:
    with LazySession(request) as session:
        return run(session, request)


def follow(request: Callable[[], Request], say: Callable[[Summary], None]) -> None:
    """Repeat the report with one Spark session until SIGTERM or SIGINT.

    Args:
        request: returns the request for a run that begins now.
    """
    with LazySession(request()) as session, ExitStack() as stack:
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: stopped.set()))
        while not stopped.is_set():
            began = time.monotonic()
            summary = run(session, request())
            if summary.read or summary.made:
                say(summary)
            stopped.wait(max(CHECK_SECONDS, PAUSE_FACTOR * (time.monotonic() - began)))


def run(session: LazySession, request: Request) -> Summary:
    """Create the report in a running session.

    Raises:
        ConfigError: the input does not exist, or a file operation failed.
    """
    with opened(session, request) as shared, shared.storage.locked(request.output):
        shared = replace(shared, output=shared.storage.whole(request.output))
        shared.progress.step("listing segments")
        tables = Tables(shared)
        partials = Partials(shared)
        listed = find_segments(shared.storage, request.input, request.wants)
        everything = find_segments(shared.storage, request.input) if request.forget else []
        update = partials.update(listed, {at.path: at for at in everything} if request.forget else None)
        days = request.named_days() or [day for day in partials.days(listed) if request.wants(day)]
        before = tables.days()
        made = _create(partials, tables, days)
        left = tables.days()
        shared.progress.step("writing pages")
        figures = read_figures(shared, tables, days, {at.path for at in listed})
        write_pages(shared, tables, figures, made)
        return Summary(
            page=f"{shared.output}/{PAGE}",
            days=[str(day) for day in days],
            publishes=figures.publishes,
            segments=figures.segments,
            read=update.read,
            ignored=list(update.ignored),
            made=[str(day) for day in made],
            removed=[str(day) for day in made if day in before and day not in left],
            rejected=figures.rejected,
            late=figures.late,
            duplicates=figures.duplicates,
        )


def _create(partials: Partials, tables: Tables, days: Iterable[date]) -> list[date]:
    """Create the tables for changed days, and return these days."""
    made = []
    for day in (*days, None):
        # The inputs include the tables of earlier days, which are already up to date, since the days are in order.
        hours = partials.hours(day)
        fingerprint = tables.fingerprint(day, hours)
        if tables.state(day).get("fingerprint") != fingerprint:
            tables.make(day, fingerprint, hours)
            made.append(day)
    return [day for day in made if day is not None]
