"""The values that a page of the report shows, and their selection from the tables.

A page shows the largest rows; the tables have the rest. `Figures` is plain data: the templates read its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from proxy.report import tables as names

if TYPE_CHECKING:
    import duckdb  # a page is drawn without it

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


#: Rows of a list; what is farther down is in the tables.
MOST_ROWS = 20
#: Rows of the lists where each row asks for something to be done.
MOST_FINDINGS = 60
#: Messages whose way through several sidecars is shown.
MOST_WAYS = 10
#: Columns of the chart over time: wide enough each to be seen and pointed at.
MOST_STEPS = 150
#: Minutes that a column may stand for.
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 10080)
#: Tables that the page shows.
SHOWN = tuple(name for name in names.TABLES if name != names.TRACE)

Row = tuple[Any, ...]  # values of any column


class Selection:
    """The tables of some days.

    Args:
        duck: a connection.
        files: of each table (`SHOWN`) and day.
    """

    def __init__(self, duck: duckdb.DuckDBPyConnection, files: Mapping[str, Mapping[date, Iterable[Path]]]) -> None:
        self._duck = duck
        self._found: dict[str, int] = {}
        for name, by_day in files.items():
            parts = [
                f"SELECT DATE '{day}' AS date, * FROM read_parquet('{file}')"
                for day, several in by_day.items()
                for file in several
            ]
            duck.execute(f"CREATE OR REPLACE TEMP VIEW t_{name} AS {' UNION ALL BY NAME '.join(parts)}")

    def fill(self, figures: Figures) -> Figures:
        """Fill in what the tables have."""
        step, steps = self._over_time()
        hot, dead = self._bindings()
        shown = "CASE exchange WHEN '' THEN '(default)' ELSE exchange END || ' in ' || vhost"
        return replace(
            figures,
            step_minutes=step,
            steps=steps,
            exchanges=self._by_name(shown, "exchanges"),
            proxies=self._by_name("proxy", "proxies"),
            rules=[
                row[0] for row in self._rows("SELECT DISTINCT rules FROM t_bindings WHERE rules <> '' ORDER BY ALL")
            ],
            destinations=self._destinations(),
            hot=hot,
            dead=dead,
            unroutable=self._unroutable(),
            latency=self._latency(),
            producers=self._producers(),
            sizes=self._rows(
                """SELECT size.up_to, total(size.publishes) FROM (SELECT unnest(sizes) AS size FROM t_producers)
                GROUP BY ALL ORDER BY 1 NULLS LAST"""
            ),
            anomalies=self._anomalies(),
            found=self._found,
        )

    def _over_time(self) -> tuple[int, list[Step]]:
        rows = self._rows(
            """SELECT ((date - DATE '1970-01-01') * 24 + hour) * 60 + minute AS clock, outcome, total(publishes),
                total(bytes) FROM t_traffic GROUP BY ALL"""
        )
        if not rows:
            return 1, []
        times = [row[0] for row in rows]
        span = max(times) - min(times)
        step = next((step for step in _STEPS if span / step <= MOST_STEPS), _STEPS[-1])
        steps: dict[int, Step] = {}
        for at, outcome, publishes, octets in rows:
            begin = at - at % step
            known = steps.get(begin) or Step(datetime.fromtimestamp(begin * 60, UTC), {}, 0)
            known.outcomes[outcome] = known.outcomes.get(outcome, 0) + publishes
            steps[begin] = known._replace(bytes=known.bytes + octets)
        return step, [steps[begin] for begin in sorted(steps)]

    def _by_name(self, name: str, what: str) -> list[Named]:
        question = f"SELECT {name} AS name, total(publishes) AS publishes, total(bytes) FROM t_traffic GROUP BY ALL"
        return [Named(*row) for row in self._largest(question, "publishes", what)]

    def _destinations(self) -> list[Sent]:
        question = """SELECT vhost, destination, kind, total(publishes) AS publishes, min(first_seen)::TIMESTAMP,
            max(last_seen)::TIMESTAMP FROM t_destinations GROUP BY ALL"""
        return [Sent(*row) for row in self._largest(question, "publishes", "destinations")]

    def _bindings(self) -> tuple[list[Matched], list[Matched]]:
        whole = """SELECT vhost, exchange, binding, total(matches) AS matches, max(last_match)::TIMESTAMP,
            bool_or(in_file) FROM t_bindings GROUP BY ALL HAVING"""
        hot = self._largest(f"{whole} matches > 0", "matches", "hot")
        silent = self._largest(f"{whole} matches = 0", "matches", "dead", MOST_FINDINGS)
        return [Matched(*row) for row in hot], [Matched(*row) for row in silent]

    def _unroutable(self) -> list[Lost]:
        question = """SELECT vhost, exchange, rk_pattern, total(publishes) AS publishes, total(returned),
            min({'t': first_seen, 'rk': example_rk, 'id': example_message_id}) AS example
            FROM t_unroutable GROUP BY vhost, exchange, rk_pattern"""
        rows = self._largest(
            f"SELECT * EXCLUDE example, example.rk, example.id, example.t::TIMESTAMP AS t FROM ({question})",
            "publishes",
            "unroutable",
        )
        return [Lost(*row) for row in rows]

    def _latency(self) -> list[Timed]:
        rows = self._rows(f"SELECT {_BEGIN}, what, p50_us, p95_us, p99_us, samples FROM t_latency ORDER BY 1, 2")
        return [Timed(*row) for row in rows]

    def _producers(self) -> list[Sender]:
        question = """SELECT "user", conn, proxy, total(publishes) AS publishes, total(bytes), max(p95_size),
            max(peak_per_second) FROM t_producers GROUP BY "user", conn, proxy"""
        return [Sender(*row) for row in self._largest(question, "publishes", "producers")]

    def _anomalies(self) -> list[Finding]:
        question = f"SELECT {_BEGIN} AS begin, what, subject, seen, expected, score, example FROM t_anomalies"
        rows = self._largest(question, "score", "anomalies", MOST_FINDINGS)
        return sorted((Finding(*row) for row in rows), key=lambda finding: finding.begin)

    def _largest(self, question: str, by: str, what: str, most: int = MOST_ROWS) -> list[Row]:
        """Return the rows with the greatest values, and note how many there are, or that there are more than these."""
        rows = self._rows(f"FROM ({question}) ORDER BY {by} DESC, COLUMNS(* EXCLUDE {by}) LIMIT {most + 1}")
        self._found[what] = len(rows)
        return rows[:most]

    def _rows(self, question: str) -> list[Row]:
        """Return rows; their times, which DuckDB gives without a zone, are UTC."""
        rows = self._duck.execute(question).fetchall()
        return [tuple(at.replace(tzinfo=UTC) if isinstance(at, datetime) else at for at in row) for row in rows]


#: The beginning of a row's hour.
_BEGIN = "date + INTERVAL 1 HOUR * hour"


def longest_ways(ways: Iterable[tuple[str, list[dict[str, Any]]]]) -> list[tuple[str, list[Stop]]]:
    """Choose the longest of the ways that days have, the first ones by message id among equals."""
    chosen = sorted(ways, key=lambda way: (-len(way[1]), way[0]))[:MOST_WAYS]
    return [(message_id, [_stop(**step) for step in steps]) for message_id, steps in chosen]


def _stop(ts: str, queues: list[str] | None, **others: Any) -> Stop:
    return Stop(ts=datetime.fromisoformat(ts).replace(tzinfo=UTC), queues=queues or [], **others)
