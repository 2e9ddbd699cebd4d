"""Which counter is each metric read from?

Functions from what the process counts to rows of labels and values, for `metrics` to name. Rows come in steps, so
that whoever writes ten thousand of them can let others run. Nothing is counted here, and no format is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from proxy.relay.counters import REGEX_OWNERS, Counters
from proxy.relay.traffic import OTHER

#: Rows merged between two pauses: well below a millisecond's work.
MERGE_STEP = 512

#: Label values in the order of the metric's labels, and the value.
Row: TypeAlias = tuple[tuple[str, ...], float]
#: None says: a good moment to let others run.
Rows: TypeAlias = Iterable[Row | None]


class MetricsSource(Protocol):
    """Where publishes per exchange, binding and destination come from; `proxy.relay.traffic.Traffic` is one.

    Each method is an iteration over a copy, since the loop runs other things between two steps of it.
    """

    def folding(self) -> Iterator[None]:
        """Bring the totals up to date, pausing now and then."""

    def publishes(self) -> Iterator[tuple[str, bytes, str, int, int]]:
        """Yield (vhost, exchange, outcome, publishes, body bytes)."""

    def matches(self) -> Iterator[tuple[bytes, str, int]]:
        """Yield (exchange, binding id, matches)."""

    def destinations(self) -> Iterator[tuple[bytes, int]]:
        """Yield (destination, publishes)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a scrape reads: the counters, where the traffic is counted, and the version of this program."""

    counters: Counters
    sources: tuple[MetricsSource, ...]
    version: str


def text(name: bytes) -> str:
    """Give a name from the wire as text; bytes that are not UTF-8 become ``\\xNN``."""
    return name.decode(errors="backslashreplace")


def merged(rows: Iterable[Row]) -> Rows:
    """Add up rows with equal labels: two names may look alike as text, and a series may stand only once."""
    totals: dict[tuple[str, ...], float] = {}
    for index, (labels, value) in enumerate(rows, 1):
        totals[labels] = totals.get(labels, 0) + value
        if not index % MERGE_STEP:
            yield None
    yield from totals.items()


def publishes(reading: Reading) -> Rows:
    """Publishes by vhost, exchange and outcome."""

    def rows() -> Iterator[Row]:
        for source in reading.sources:
            for vhost, exchange, outcome, count, _ in source.publishes():
                yield (vhost, text(exchange), outcome), count
        for relay in list(reading.counters.relays.values()):
            yield (relay.vhost, OTHER, "passed"), relay.publishes_passed

    return merged(rows())


def publish_bytes(reading: Reading) -> Rows:
    """Bytes of bodies by vhost and exchange."""

    def rows() -> Iterator[Row]:
        for source in reading.sources:
            for vhost, exchange, _, _, body_bytes in source.publishes():
                yield (vhost, text(exchange)), body_bytes
        for relay in list(reading.counters.relays.values()):
            yield (relay.vhost, OTHER), relay.bytes_passed

    return merged(rows())


def binding_matches(reading: Reading) -> Rows:
    """Matches by exchange and binding id."""
    return merged(
        ((text(exchange), binding), count)
        for source in reading.sources
        for exchange, binding, count in source.matches()
    )


def destination_publishes(reading: Reading) -> Rows:
    """Publishes by destination."""
    return merged(((text(name),), count) for source in reading.sources for name, count in source.destinations())


def relays(attribute: str) -> Callable[[Reading], Rows]:
    """Read one attribute of `RelayCounters`, summed over the virtual hosts."""

    def rows(reading: Reading) -> Rows:
        return [((), sum(getattr(relay, attribute) for relay in reading.counters.relays.values()))]

    return rows


def relays_by(*attributes: tuple[str, str]) -> Callable[[Reading], Rows]:
    """Read several attributes of `RelayCounters` under one label: (attribute, label value)."""

    def rows(reading: Reading) -> Rows:
        relays = list(reading.counters.relays.values())
        return [((value,), sum(getattr(relay, name) for relay in relays)) for name, value in attributes]

    return rows


def regex_owners(reading: Reading) -> Rows:
    """Decisions that spent a regex budget, by its owner."""
    relays = list(reading.counters.relays.values())
    return [((owner,), sum(relay.regex_owners[owner] for relay in relays)) for owner in REGEX_OWNERS]


def protocol_errors(reading: Reading) -> Rows:
    """Closes that we sent by reply code."""
    return merged(
        ((str(code),), count)
        for relay in list(reading.counters.relays.values())
        for code, count in sorted(relay.protocol_errors.items())
    )


def connections(reading: Reading) -> Rows:
    """Open connections by side."""
    return [
        (("downstream",), reading.counters.downstream.open),
        (("upstream",), reading.counters.upstream.open),
    ]


def connections_total(reading: Reading) -> Rows:
    """Attempts to connect by side and result."""
    sides = (("downstream", reading.counters.downstream), ("upstream", reading.counters.upstream))
    return [((side, result), count) for side, counted in sides for result, count in counted.results.items()]


def turned_away(reading: Reading) -> Rows:
    """Producers that were kept out by reason."""
    return [((reason,), count) for reason, count in reading.counters.limits.turned_away.items()]


def limit_hits(reading: Reading) -> Rows:
    """How often limits were reached, by limit."""
    hits = dict(reading.counters.limits.hits)
    hits["message_size"] += sum(relay.oversized for relay in reading.counters.relays.values())
    return [((limit,), count) for limit, count in hits.items()]


def remote_up(reading: Reading) -> Rows:
    """Whether the link stands, by broker."""
    return [((name,), remote.up) for name, remote in reading.counters.remotes.items()]


def remote_publishes(reading: Reading) -> Rows:
    """Publishes by broker and result."""
    remotes = reading.counters.remotes.items()
    return [((name, result), count) for name, remote in remotes for result, count in remote.results.items()]


def certificates(reading: Reading) -> Rows:
    """When certificates end, by side and file."""
    return reading.counters.certificates.items()


def control_failures(reading: Reading) -> Rows:
    """Failures of the control plane by task."""
    return [((task,), count) for task, count in reading.counters.control_failures.items()]


def reloads(reading: Reading) -> Rows:
    """Loads of the rules by result."""
    return [((result,), count) for result, count in reading.counters.rules.reloads.items()]


def one(read: Callable[[Counters], float]) -> Callable[[Reading], Rows]:
    """Read one number that has no labels."""
    return lambda reading: [((), read(reading.counters))]


def nothing(reading: Reading) -> Rows:
    """Give no rows: a histogram is read as a whole."""
    return ()
