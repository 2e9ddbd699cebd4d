"""Every metric of the sidecar: its name, its meaning, and which plain counter it is read from.

The names are promises to users (docs/metrics.md). Nothing is counted here: values are read from
`proxy.amqp.counters` at the moment of a scrape. Labels come from closed sets or from the rules files; never
from routing keys, users, peers or queues that producers named. How the text is made without holding the event
loop is in `exposition`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from proxy.amqp.counters import Counters, Histogram
from proxy.amqp.traffic import OTHER

PREFIX = "oxproxy_"
#: Rows merged between two pauses: well below a millisecond's work.
MERGE_STEP = 512

#: Label values in the order of the metric's labels, and the value.
Row: TypeAlias = tuple[tuple[str, ...], float]
#: None says: a good moment to let others run.
Rows: TypeAlias = Iterable[Row | None]


class Kind(Enum):
    """Type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"
    HISTOGRAM = "histogram"


class MetricsSource(Protocol):
    """Where publishes per exchange, binding and destination come from; `proxy.amqp.traffic.Traffic` is one.

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


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Args:
        name: full name as Prometheus shows it, without the suffixes of a histogram.
        kind: its type.
        labels: names of its labels.
        help: one sentence on what it says.
        rows: reads its values; for a histogram, see `histogram`.
        histogram: for HISTOGRAM, where the observations are.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    rows: Callable[[Reading], Rows]
    histogram: Callable[[Reading], Histogram] | None = None


def text(name: bytes) -> str:
    """Give a name from the wire as text; bytes that are not UTF-8 become ``\\xNN``."""
    return name.decode(errors="backslashreplace")


def _merged(rows: Iterable[Row]) -> Rows:
    """Add up rows with equal labels: two names may look alike as text, and a series may stand only once."""
    totals: dict[tuple[str, ...], float] = {}
    for index, (labels, value) in enumerate(rows, 1):
        totals[labels] = totals.get(labels, 0) + value
        if not index % MERGE_STEP:
            yield None
    yield from totals.items()


def _publishes(reading: Reading) -> Rows:
    def rows() -> Iterator[Row]:
        for source in reading.sources:
            for vhost, exchange, outcome, publishes, _ in source.publishes():
                yield (vhost, text(exchange), outcome), publishes
        for relay in list(reading.counters.relays.values()):
            yield (relay.vhost, OTHER, "passed"), relay.publishes_passed

    return _merged(rows())


def _publish_bytes(reading: Reading) -> Rows:
    def rows() -> Iterator[Row]:
        for source in reading.sources:
            for vhost, exchange, _, _, body_bytes in source.publishes():
                yield (vhost, text(exchange)), body_bytes
        for relay in list(reading.counters.relays.values()):
            yield (relay.vhost, OTHER), relay.bytes_passed

    return _merged(rows())


def _binding_matches(reading: Reading) -> Rows:
    return _merged(
        ((text(exchange), binding), count)
        for source in reading.sources
        for exchange, binding, count in source.matches()
    )


def _destination_publishes(reading: Reading) -> Rows:
    return _merged(
        ((text(name),), count) for source in reading.sources for name, count in source.destinations()
    )


def _relays(attribute: str) -> Callable[[Reading], Rows]:
    """Read one attribute of `RelayCounters`, summed over the virtual hosts."""

    def rows(reading: Reading) -> Rows:
        return [((), sum(getattr(relay, attribute) for relay in reading.counters.relays.values()))]

    return rows


def _relays_by(*attributes: tuple[str, str]) -> Callable[[Reading], Rows]:
    """Read several attributes of `RelayCounters` under one label: (attribute, label value)."""

    def rows(reading: Reading) -> Rows:
        relays = list(reading.counters.relays.values())
        return [((value,), sum(getattr(relay, name) for relay in relays)) for name, value in attributes]

    return rows


def _protocol_errors(reading: Reading) -> Rows:
    return _merged(
        ((str(code),), count)
        for relay in list(reading.counters.relays.values())
        for code, count in sorted(relay.protocol_errors.items())
    )


def _connections(reading: Reading) -> Rows:
    return [
        (("downstream",), reading.counters.downstream.open),
        (("upstream",), reading.counters.upstream.open),
    ]


def _connections_total(reading: Reading) -> Rows:
    sides = (("downstream", reading.counters.downstream), ("upstream", reading.counters.upstream))
    return [((side, result), count) for side, counted in sides for result, count in counted.results.items()]


def _remote_up(reading: Reading) -> Rows:
    return [((name,), remote.up) for name, remote in reading.counters.remotes.items()]


def _remote_publishes(reading: Reading) -> Rows:
    remotes = reading.counters.remotes.items()
    return [((name, result), count) for name, remote in remotes for result, count in remote.results.items()]


def _reloads(reading: Reading) -> Rows:
    return [((result,), count) for result, count in reading.counters.rules.reloads.items()]


def _one(read: Callable[[Counters], float]) -> Callable[[Reading], Rows]:
    return lambda reading: [((), read(reading.counters))]


def _nothing(reading: Reading) -> Rows:
    return ()


def _metric(name: str, kind: Kind, labels: str, rows: Callable[[Reading], Rows], about: str) -> MetricSpec:
    return MetricSpec(PREFIX + name, kind, tuple(labels.split()), about, rows)


def _histogram(name: str, read: Callable[[Counters], Histogram], about: str) -> MetricSpec:
    return MetricSpec(
        PREFIX + name, Kind.HISTOGRAM, (), about, _nothing, lambda reading: read(reading.counters)
    )


#: All metrics of our own, in the order of the page. `process_*` and `python_info` are prometheus_client's.
METRICS: tuple[MetricSpec, ...] = (
    _metric(
        "build_info",
        Kind.INFO,
        "version",
        lambda reading: [((reading.version,), 1)],
        "Version of this sidecar; always 1.",
    ),
    _metric(
        "rules_info",
        Kind.INFO,
        "version",
        lambda reading: [((reading.counters.rules.version,), 1)],
        "Version (short hash) of the rules that decide now; always 1.",
    ),
    _metric("rules_reload_total", Kind.COUNTER, "result", _reloads, "Loads of the rules files: ok or error."),
    _metric(
        "rules_last_reload_success_timestamp_seconds",
        Kind.GAUGE,
        "",
        _one(lambda counters: counters.rules.last_success_seconds),
        "When the rules that decide now were loaded.",
    ),
    _metric(
        "connections",
        Kind.GAUGE,
        "side",
        _connections,
        "Open connections: downstream (producers) and upstream (links to RabbitMQ).",
    ),
    _metric(
        "connections_total",
        Kind.COUNTER,
        "side result",
        _connections_total,
        "Attempts to open a connection: ok, refused, unavailable, timeout or protocol_error.",
    ),
    _metric("channels", Kind.GAUGE, "", _relays("channels"), "Open channels of producers."),
    _metric(
        "publishes_total",
        Kind.COUNTER,
        "vhost exchange outcome",
        _publishes,
        "Publishes by what became of them; exchanges that no rule names count as other.",
    ),
    _metric(
        "publish_bytes_total",
        Kind.COUNTER,
        "vhost exchange",
        _publish_bytes,
        "Bytes of message bodies published; exchanges that no rule names count as other.",
    ),
    _metric(
        "binding_matches_total",
        Kind.COUNTER,
        "exchange binding",
        _binding_matches,
        "Publishes for which a binding was true; bindings beyond metrics.bindings count as other.",
    ),
    _metric(
        "destination_publishes_total",
        Kind.COUNTER,
        "destination",
        _destination_publishes,
        "Publishes routed to a destination that the rules files name.",
    ),
    _metric(
        "decision_cache_total",
        Kind.COUNTER,
        "result",
        _relays_by(("cache_hits", "hit"), ("cache_misses", "miss"), ("cache_bypassed", "bypassed")),
        "Publishes to exchanges evaluated here: hit, miss, or bypassed where a decision may not be kept.",
    ),
    _histogram(
        "decision_seconds",
        lambda counters: counters.decision_seconds,
        "Time that a sampled decision took, the cache look-up included.",
    ),
    _histogram(
        "confirm_seconds",
        lambda counters: counters.confirm_seconds,
        "Time from a sampled publish to its confirm by RabbitMQ.",
    ),
    _metric(
        "confirms_total",
        Kind.COUNTER,
        "result",
        _relays_by(("confirms_acked", "acked"), ("confirms_nacked", "nacked")),
        "Publishes settled to producers with an ack or a nack.",
    ),
    _metric("returns_total", Kind.COUNTER, "", _relays("returns"), "Messages returned to producers."),
    _metric(
        "regex_limit_hits_total",
        Kind.COUNTER,
        "",
        _relays("regex_limit_hits"),
        "Regular expressions that ran into the match limit and so did not match.",
    ),
    _metric(
        "upstream_blocked",
        Kind.GAUGE,
        "",
        _relays("upstream_blocked"),
        "Links that RabbitMQ has blocked (memory or disk alarm).",
    ),
    _metric(
        "paused_producers",
        Kind.GAUGE,
        "",
        _relays("paused_producers"),
        "Producers whose socket is not being read, because something behind it is slow.",
    ),
    _metric(
        "topology_missing_destinations",
        Kind.GAUGE,
        "",
        _one(lambda counters: counters.missing_destinations),
        "Destinations that the rules name and that RabbitMQ does not have or we can't reach.",
    ),
    _metric(
        "audit_lines_total",
        Kind.COUNTER,
        "",
        _one(lambda counters: counters.audit.lines),
        "Audit lines written to disk.",
    ),
    _metric(
        "audit_dropped_total",
        Kind.COUNTER,
        "",
        _one(lambda counters: counters.audit.dropped),
        "Audit lines given up because disk or writer could not keep up.",
    ),
    _metric(
        "audit_bytes_total",
        Kind.COUNTER,
        "",
        _one(lambda counters: counters.audit.text_bytes),
        "Bytes of audit text written to disk, before compression.",
    ),
    _metric("remote_up", Kind.GAUGE, "broker", _remote_up, "Whether the link to another broker stands."),
    _metric(
        "remote_publishes_total",
        Kind.COUNTER,
        "broker result",
        _remote_publishes,
        "Publishes to another broker: acked, nacked, returned or lost.",
    ),
    _metric(
        "protocol_errors_total",
        Kind.COUNTER,
        "reply_code",
        _protocol_errors,
        "Channels and connections that the sidecar closed, by AMQP reply code.",
    ),
)
