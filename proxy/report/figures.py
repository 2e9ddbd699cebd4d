"""Defines the data of a page as plain values. `pages` reads the data from the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, NamedTuple

from proxy.report.wording import day_range

#: A row of a list, by column name; see `sql/page.sql`.
Row = dict[str, Any]

#: Outcomes of publishes without a destination.
UNDELIVERED = ("unrouted", "filtered", "rejected")


class Step(NamedTuple):
    """The publishes in one column of the time-series chart."""

    begin: datetime
    outcomes: dict[str, int]
    bytes: int


def added(several: Iterable[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, several), Counter[str]()))


@dataclass(frozen=True)
class Figures:
    """All data of a page."""

    days: tuple[date, ...]  # requested days, in order
    made: datetime  # time of the run
    segments: int = 0  # number of segments read
    step_minutes: int = 1  # length of a column in the time-series chart
    steps: list[Step] = field(default_factory=list)
    exchanges: list[Row] = field(default_factory=list)
    proxies: list[Row] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)  # versions of the rules that made the decisions
    destinations: list[Row] = field(default_factory=list)
    hot: list[Row] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    bindings_known: bool = False  # whether rules files were given; otherwise `dead` is empty
    unroutable: list[Row] = field(default_factory=list)
    latency: list[Row] = field(default_factory=list)
    producers: list[Row] = field(default_factory=list)
    #: publishes by the upper bound of their size class; None for the last class
    sizes: list[tuple[int | None, int]] = field(default_factory=list)
    anomalies: list[Row] = field(default_factory=list)
    #: message id and steps (see `sql/tables.sql`) of each message that passed through several sidecars
    ways: list[tuple[str, list[Row]]] = field(default_factory=list)
    results: dict[str, int] = field(default_factory=dict)  # results other than a plain ack
    rejected: dict[str, int] = field(default_factory=dict)  # invalid lines, by reason
    late: int = 0  # records in the directory of another day
    unmatched: int = 0  # returns whose publish is not in the log, or is too far from the end of an earlier segment
    duplicates: list[str] = field(default_factory=list)  # names of segments with the same content as another segment
    #: number of rows found, by name of the list; if it is greater than the length of the list, there may be more rows
    found: dict[str, int] = field(default_factory=dict)

    @property
    def outcomes(self) -> dict[str, int]:
        return added(step.outcomes for step in self.steps)

    @property
    def range(self) -> str:
        return day_range(self.days)

    @property
    def publishes(self) -> int:
        return sum(self.outcomes.values())

    @property
    def undelivered(self) -> int:
        return sum(self.outcomes.get(outcome, 0) for outcome in UNDELIVERED)

    @property
    def bytes(self) -> int:
        return sum(step.bytes for step in self.steps)
