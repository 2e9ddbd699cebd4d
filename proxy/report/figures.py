"""What does the page show? Plain values, the few that fit on it; `selection` picks them from the tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from typing import NamedTuple

#: Outcomes of publishes that went to no destination.
UNDELIVERED = ("unrouted", "filtered", "rejected")


class Step(NamedTuple):
    """Publishes of one column of the chart over time."""

    begin: datetime
    outcomes: dict[str, int]
    bytes: int


class Named(NamedTuple):
    """Something with publishes: an exchange, a sidecar."""

    name: str
    publishes: int
    bytes: int


class Sent(NamedTuple):
    """A destination."""

    vhost: str
    destination: str
    kind: str
    publishes: int
    first_seen: datetime
    last_seen: datetime


class Matched(NamedTuple):
    """A binding; dead where it has no matches."""

    vhost: str
    exchange: str
    binding: str
    matches: int
    last_match: datetime | None
    in_file: bool | None


class Lost(NamedTuple):
    """Publishes that reached no queue; the example is the first of them."""

    vhost: str
    exchange: str
    rk_pattern: str
    publishes: int
    returned: int
    example_rk: str
    example_message_id: str | None
    first_seen: datetime


class Timed(NamedTuple):
    """Percentiles of an hour, in microseconds."""

    begin: datetime
    what: str
    p50_us: float
    p95_us: float
    p99_us: float
    samples: int


class Sender(NamedTuple):
    """A producer's connection."""

    user: str
    conn: str
    proxy: str
    publishes: int
    bytes: int
    p95_size: float
    peak_per_second: int


class Finding(NamedTuple):
    """An hour that deviates, or something that is missing or twice there."""

    begin: datetime
    what: str
    subject: str
    seen: float
    expected: float
    score: float
    example: str | None


class Stop(NamedTuple):
    """One sidecar on a message's way."""

    ts: datetime
    proxy: str
    exchange: str
    rk: str
    outcome: str
    queues: list[str]


@dataclass(frozen=True)
class Figures:
    """Everything that the page shows.

    Args:
        days: the days that were asked for, in order.
        made: when.
        segments: files that were read.
        step_minutes: how long a column of the chart over time is.
        rules: versions of the rules that made the decisions.
        bindings_known: whether rules files were given; only then `dead` says anything.
        sizes: publishes by upper bound of their size class, None for the last one.
        ways: message id and stops of messages that came through several sidecars.
        results: what the broker said, where it said more than a plain ack.
        rejected: lines that are no records, by reason.
        late: records that lie in the folder of another day.
        unmatched: returns whose publish is not in the log, or too far from the end of another segment.
        duplicates: names of segments whose content another segment has.
        found: how many rows there were for a list, by its name here; one more than it has means more than it has.
    """

    days: tuple[date, ...]
    made: datetime
    segments: int = 0
    step_minutes: int = 1
    steps: list[Step] = field(default_factory=list)
    exchanges: list[Named] = field(default_factory=list)
    proxies: list[Named] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    destinations: list[Sent] = field(default_factory=list)
    hot: list[Matched] = field(default_factory=list)
    dead: list[Matched] = field(default_factory=list)
    bindings_known: bool = False
    unroutable: list[Lost] = field(default_factory=list)
    latency: list[Timed] = field(default_factory=list)
    producers: list[Sender] = field(default_factory=list)
    sizes: list[tuple[int | None, int]] = field(default_factory=list)
    anomalies: list[Finding] = field(default_factory=list)
    ways: list[tuple[str, list[Stop]]] = field(default_factory=list)
    results: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    late: int = 0
    unmatched: int = 0
    duplicates: list[str] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)

    @property
    def outcomes(self) -> dict[str, int]:
        """Publishes by outcome."""
        found: dict[str, int] = {}
        for step in self.steps:
            for outcome, publishes in step.outcomes.items():
                found[outcome] = found.get(outcome, 0) + publishes
        return found

    @property
    def range(self) -> str:
        """The days in words."""
        if not self.days:
            return "no day"
        first, last = self.days[0], self.days[-1]
        return str(first) if first == last else f"{first} to {last}"

    @property
    def publishes(self) -> int:
        """All publishes."""
        return sum(self.outcomes.values())

    @property
    def undelivered(self) -> int:
        """Publishes without a destination."""
        return sum(self.outcomes.get(outcome, 0) for outcome in UNDELIVERED)

    @property
    def bytes(self) -> int:
        """Bytes of all bodies."""
        return sum(step.bytes for step in self.steps)
