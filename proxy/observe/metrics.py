"""Every metric of the sidecar: its name, labels and help text, and the counter that it is read from.

The names are promises to users (docs/metrics.md). Labels come from closed sets or from the rules files; never from
routing keys, users, peers or queues that producers named.

Functions read rows of labels and values from what the process counts. Rows come in steps, so that other tasks can run
while ten thousand of them are written. Nothing is counted here; the text format is in `exposition`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from proxy.relay.counters import OTHER, REGEX_OWNERS, Counters, Histogram

#: Rows merged between two pauses: well below a millisecond's work.
MERGE_STEP = 512

#: Label values in the order of the metric's labels, and the value.
Row: TypeAlias = tuple[tuple[str, ...], float]
#: None says: a good moment to let others run.
Rows: TypeAlias = Iterable[Row | None]


class MetricsSource(Protocol):
    """Where publishes per exchange, binding and destination come from; `proxy.relay.counters.Traffic` is one.

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
    """Return a name from the wire as text; bytes that are not UTF-8 become ``\\xNN``."""
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


def rejected_connections(reading: Reading) -> Rows:
    """Producers that were kept out by reason."""
    return [((reason,), count) for reason, count in reading.counters.limits.rejected_connections.items()]


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


def single(read: Callable[[Counters], float]) -> Callable[[Reading], Rows]:
    """Read one number that has no labels."""
    return lambda reading: [((), read(reading.counters))]


def nothing(reading: Reading) -> Rows:
    """Return no rows: a histogram is read as a whole."""
    return ()


PREFIX = "oxproxy_"


class MetricKind(Enum):
    """Type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"
    HISTOGRAM = "histogram"


class Aggregation(Enum):
    """What several processes say of one thing together."""

    SUM = "sum"
    #: each of them says the same, sooner or later
    MAX = "max"
    #: what is not so for one of them is not so
    MIN = "min"


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
        merge: what the numbers of several workers come to.
    """

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str
    rows: Callable[[Reading], Rows]
    histogram: Callable[[Reading], Histogram] | None = None
    merge: Aggregation = Aggregation.SUM


def _metric(
    name: str,
    kind: MetricKind,
    labels: str,
    rows: Callable[[Reading], Rows],
    about: str,
    merge: Aggregation = Aggregation.SUM,
) -> MetricSpec:
    return MetricSpec(PREFIX + name, kind, tuple(labels.split()), about, rows, merge=merge)


def _histogram(name: str, read: Callable[[Counters], Histogram], about: str) -> MetricSpec:
    return MetricSpec(PREFIX + name, MetricKind.HISTOGRAM, (), about, nothing, lambda reading: read(reading.counters))


#: All metrics of our own, in the order of the page. `process_*` and `python_info` are prometheus_client's.
METRICS: tuple[MetricSpec, ...] = (
    _metric(
        "build_info",
        MetricKind.INFO,
        "version",
        lambda reading: [((reading.version,), 1)],
        "Version of this sidecar; always 1.",
        Aggregation.MAX,
    ),
    _metric(
        "rules_info",
        MetricKind.INFO,
        "version",
        lambda reading: [((reading.counters.rules.version,), 1)],
        "Version (short hash) of the rules that decide now; always 1.",
        Aggregation.MAX,
    ),
    _metric(
        "rules_reload_total",
        MetricKind.COUNTER,
        "result",
        reloads,
        "Loads of the rules files: ok or error.",
        Aggregation.MAX,
    ),
    _metric(
        "rules_last_reload_success_timestamp_seconds",
        MetricKind.GAUGE,
        "",
        single(lambda counters: counters.rules.last_success_seconds),
        "When the rules that decide now were loaded.",
        Aggregation.MAX,
    ),
    _metric(
        "workers",
        MetricKind.GAUGE,
        "",
        single(lambda counters: 1),
        "Processes that serve producers: as many as `workers` says, or one is missing.",
    ),
    _metric(
        "worker_restarts_total",
        MetricKind.COUNTER,
        "",
        single(lambda counters: counters.worker_restarts),
        "Workers that ended by themselves and were started again.",
    ),
    _metric(
        "connections",
        MetricKind.GAUGE,
        "side",
        connections,
        "Open connections: downstream (producers) and upstream (links to RabbitMQ).",
    ),
    _metric(
        "connections_total",
        MetricKind.COUNTER,
        "side result",
        connections_total,
        "Attempts to open a connection: ok, refused, unavailable, timeout, protocol_error or tls_error.",
    ),
    _metric(
        "connections_kept",
        MetricKind.GAUGE,
        "",
        single(lambda counters: counters.kept_connections),
        "Upstream connections that wait for another producer (upstream.reuse); not among oxproxy_connections.",
    ),
    _metric(
        "connections_reused_total",
        MetricKind.COUNTER,
        "",
        single(lambda counters: counters.reused_connections),
        "Producers that got an upstream connection which another one had left.",
    ),
    _metric(
        "certificate_expiry_timestamp_seconds",
        MetricKind.GAUGE,
        "side file",
        certificates,
        "When a certificate of the sidecar ends: one for producers (downstream) or for brokers (upstream).",
        # the one that ends first: a worker may not have read the new file yet
        Aggregation.MIN,
    ),
    _metric("channels", MetricKind.GAUGE, "", relays("channels"), "Open channels of producers."),
    _metric(
        "publishes_total",
        MetricKind.COUNTER,
        "vhost exchange outcome",
        publishes,
        "Publishes by what became of them; exchanges that no rule names count as other.",
    ),
    _metric(
        "publish_bytes_total",
        MetricKind.COUNTER,
        "vhost exchange",
        publish_bytes,
        "Bytes of message bodies published; exchanges that no rule names count as other.",
    ),
    _metric(
        "binding_matches_total",
        MetricKind.COUNTER,
        "exchange binding",
        binding_matches,
        "Publishes for which a binding was true; bindings beyond metrics.bindings count as other.",
    ),
    _metric(
        "destination_publishes_total",
        MetricKind.COUNTER,
        "destination",
        destination_publishes,
        "Publishes routed to a destination that the rules files name.",
    ),
    _metric(
        "decision_cache_total",
        MetricKind.COUNTER,
        "result",
        relays_by(("cache_hits", "hit"), ("cache_misses", "miss"), ("cache_bypassed", "bypassed")),
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
        MetricKind.COUNTER,
        "result",
        relays_by(("confirms_acked", "acked"), ("confirms_nacked", "nacked")),
        "Publishes settled to producers with an ack or a nack.",
    ),
    _metric("returns_total", MetricKind.COUNTER, "", relays("returns"), "Messages returned to producers."),
    _metric(
        "regex_limit_hits_total",
        MetricKind.COUNTER,
        "",
        relays("regex_limit_hits"),
        "Regular expressions that ran into the match limit and so did not match.",
    ),
    _metric(
        "regex_budget_spent_total",
        MetricKind.COUNTER,
        "owner",
        regex_owners,
        "Decisions in which the regular expressions of an owner cost more than limits.regex_budget, so that bindings "
        "with them were false: rules (rules files), client (a user's bindings) or message (headers of the message).",
    ),
    _metric(
        "failed_translations_total",
        MetricKind.COUNTER,
        "",
        relays("failed_translations"),
        "Destinations that the address table sent nowhere: each is a nack.",
    ),
    _metric(
        "upstream_blocked",
        MetricKind.GAUGE,
        "",
        relays("upstream_blocked"),
        "Links that RabbitMQ has blocked (memory or disk alarm).",
    ),
    _metric(
        "paused_producers",
        MetricKind.GAUGE,
        "",
        relays("paused_producers"),
        "Producers whose socket is not being read, because something behind it is slow.",
    ),
    _metric(
        "throttled_producers",
        MetricKind.GAUGE,
        "",
        single(lambda counters: counters.limits.throttled),
        "Producers that wait since their user publishes more than limits.publish_rate or limits.publish_bytes, or "
        "since their publishes have spent regex budgets.",
    ),
    _metric(
        "connections_turned_away_total",
        MetricKind.COUNTER,
        "reason",
        rejected_connections,
        "Producers that a limit kept out: connections or connections_per_peer.",
    ),
    _metric(
        "limit_hits_total",
        MetricKind.COUNTER,
        "limit",
        limit_hits,
        "Limits that open connections ran into: publish_rate, publish_bytes, patience, message_size, idle or "
        "regex_budget.",
    ),
    _metric(
        "topology_missing_destinations",
        MetricKind.GAUGE,
        "",
        single(lambda counters: counters.missing_destinations),
        "Destinations that the rules name and that RabbitMQ does not have or we can't reach.",
        Aggregation.MAX,
    ),
    _metric(
        "topology_foreign_bindings",
        MetricKind.GAUGE,
        "",
        single(lambda counters: counters.foreign_bindings),
        "Bindings that others made on carriers: they route past the rules.",
        Aggregation.MAX,
    ),
    _metric(
        "topology_unkeyed_tokens",
        MetricKind.GAUGE,
        "",
        single(lambda counters: counters.unkeyed_tokens),
        "Bindings on carriers under tokens of version 0.1, which anybody can compute, until `oxproxy adopt --finish`.",
        Aggregation.MAX,
    ),
    _metric(
        "topology_carrier_bypasses",
        MetricKind.GAUGE,
        "",
        single(lambda counters: counters.carrier_bypasses),
        "Alternate and dead-letter exchanges on RabbitMQ that lead to a carrier without its rules.",
        Aggregation.MAX,
    ),
    _metric(
        "topology_unsigned_bindings",
        MetricKind.GAUGE,
        "",
        single(lambda counters: counters.unsigned_bindings),
        "Bindings stored as a client's that no secret of ours signed: they reach their own destination alone.",
        Aggregation.MAX,
    ),
    _metric(
        "control_loop_failures_total",
        MetricKind.COUNTER,
        "task",
        control_failures,
        "Unexpected exceptions in tasks of the control plane; each is logged with its traceback and tried again.",
    ),
    _metric(
        "audit_lines_total",
        MetricKind.COUNTER,
        "",
        single(lambda counters: counters.audit.lines),
        "Audit lines written to disk.",
    ),
    _metric(
        "audit_dropped_total",
        MetricKind.COUNTER,
        "",
        single(lambda counters: counters.audit.dropped),
        "Audit lines given up because disk or writer could not keep up.",
    ),
    _metric(
        "audit_bytes_total",
        MetricKind.COUNTER,
        "",
        single(lambda counters: counters.audit.text_bytes),
        "Bytes of audit text written to disk, before compression.",
    ),
    _metric(
        "audit_failing",
        MetricKind.GAUGE,
        "",
        single(lambda counters: counters.audit.failing),
        "1 while the disk refuses audit lines or does not answer.",
        Aggregation.MAX,
    ),
    _metric(
        "remote_up",
        MetricKind.GAUGE,
        "broker",
        remote_up,
        "Whether the link to another broker stands.",
        Aggregation.MIN,
    ),
    _metric(
        "remote_publishes_total",
        MetricKind.COUNTER,
        "broker result",
        remote_publishes,
        "Publishes to another broker: acked, nacked, returned or lost.",
    ),
    _metric(
        "protocol_errors_total",
        MetricKind.COUNTER,
        "reply_code",
        protocol_errors,
        "Channels and connections that the sidecar closed, by AMQP reply code.",
    ),
)
