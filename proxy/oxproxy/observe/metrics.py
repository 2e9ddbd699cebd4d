"""All metrics of the sidecar: name, labels and help text, and the counter from which each metric is read.

The names are a documented interface (docs/reference/metrics.md). Label values come from fixed sets or from the rules
files, never from routing keys, users, peers or queues named by producers.

This module reads counters without a lock, in a different thread, while the event loop may modify them. Dictionaries
that may grow are therefore copied first, which is atomic in CPython.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from oxproxy.native import BUILD
from oxproxy.relay.counters import OTHER, REGEX_OWNERS, Counters, Histogram, RelayCounters
from oxproxy.values import text

#: Label values in the order of the metric's labels, and the value.
Row: TypeAlias = tuple[tuple[str, ...], float]
Reading: TypeAlias = Callable[[Counters], Iterable[Row]]


def merged(rows: Iterable[Row]) -> Iterable[Row]:
    """Add up rows with equal labels, since two names may decode to the same text and a series must be unique."""
    totals: dict[tuple[str, ...], float] = {}
    for labels, value in rows:
        totals[labels] = totals.get(labels, 0) + value
    return totals.items()


def relay_counters(counters: Counters) -> list[RelayCounters]:
    return list(counters.relays.copy().values())


def publishes(counters: Counters) -> Iterable[Row]:
    ruled = [((vhost, text(name), outcome), count) for vhost, name, outcome, count, _ in counters.traffic.publishes()]
    passed = [((relay.vhost, OTHER, "passed"), relay.publishes_passed) for relay in relay_counters(counters)]
    return merged([*ruled, *passed])


def publish_bytes(counters: Counters) -> Iterable[Row]:
    ruled = [((vhost, text(name)), body_bytes) for vhost, name, _, _, body_bytes in counters.traffic.publishes()]
    passed = [((relay.vhost, OTHER), relay.bytes_passed) for relay in relay_counters(counters)]
    return merged([*ruled, *passed])


def binding_matches(counters: Counters) -> Iterable[Row]:
    matches = counters.traffic.matches()
    return merged(((vhost, text(exchange), binding), count) for vhost, exchange, binding, count in matches)


def contract_violations(counters: Counters) -> Iterable[Row]:
    return [((vhost, text(exchange)), count) for vhost, exchange, count in counters.traffic.violations()]


def destination_publishes(counters: Counters) -> Iterable[Row]:
    return merged(((vhost, text(name)), count) for vhost, name, count in counters.traffic.destinations())


def by_label(numbers: Callable[[Counters], dict[str, int]]) -> Reading:
    """Return a function that reads a dictionary whose keys are the values of the metric's only label."""
    return lambda counters: [((label,), number) for label, number in numbers(counters).copy().items()]


def relays(attribute: str) -> Callable[[Counters], float]:
    """Return a function that reads one attribute of `RelayCounters`, summed over all virtual hosts."""
    return lambda counters: sum(getattr(relay, attribute) for relay in relay_counters(counters))


def relays_by(*attributes: tuple[str, str]) -> Reading:
    """Return a function that reads a metric from attributes of `RelayCounters`, given as (name, label value)."""

    def rows(counters: Counters) -> Iterable[Row]:
        summed = relay_counters(counters)
        return [((value,), sum(getattr(relay, name) for relay in summed)) for name, value in attributes]

    return rows


def regex_owners(counters: Counters) -> Iterable[Row]:
    summed = relay_counters(counters)
    return [((owner,), sum(relay.regex_owners[owner] for relay in summed)) for owner in REGEX_OWNERS]


def by_reply_code(attribute: str) -> Reading:
    """Return a function that reads a counter of `RelayCounters` by reply code, summed over all virtual hosts."""

    def rows(counters: Counters) -> Iterable[Row]:
        closes = [getattr(relay, attribute).copy() for relay in relay_counters(counters)]
        return merged(((str(code),), count) for counted in closes for code, count in sorted(counted.items()))

    return rows


def connections(counters: Counters) -> Iterable[Row]:
    return [(("downstream",), counters.downstream.open), (("upstream",), counters.upstream.open)]


def connections_total(counters: Counters) -> Iterable[Row]:
    sides = (("downstream", counters.downstream), ("upstream", counters.upstream))
    attempts = [((side, result), count) for side, counted in sides for result, count in counted.results.items()]
    # Producers can't connect before the control plane has connected. Until then, only the control plane's attempts show
    # that the broker is unavailable.
    return merged([*attempts, (("upstream", "unavailable"), counters.control_unreachable)])


def limit_hits(counters: Counters) -> Iterable[Row]:
    hits = dict(counters.limits.hits)
    hits["message_size"] += sum(relay.oversized for relay in relay_counters(counters))
    return [((limit,), count) for limit, count in hits.items()]


def remote_up(counters: Counters) -> Iterable[Row]:
    return [((name,), remote.up) for name, remote in counters.remotes.copy().items() if remote.wanted]


def remote_publishes(counters: Counters) -> Iterable[Row]:
    remotes = counters.remotes.copy().items()
    return [((name, result), count) for name, remote in remotes for result, count in remote.results.items()]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Args:
        name: full name as Prometheus shows it, without the suffixes of a histogram.
        help: help text, one sentence.
        kind: type of the metric in Prometheus: counter, gauge, info or histogram.
        read: reads the values; for a histogram, returns the observations.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    read: Reading | Callable[[Counters], Histogram]


def _metric(name: str, labels: str, rows: Reading, about: str) -> MetricSpec:
    """Return a metric whose name shows its type: a counter, an info metric, or otherwise a gauge."""
    kind = "counter" if name.endswith("_total") else "info" if name.endswith("_info") else "gauge"
    return MetricSpec(f"oxproxy_{name}", kind, tuple(labels.split()), about, rows)


def _number(name: str, value: Callable[[Counters], float], about: str) -> MetricSpec:
    """Return a metric without labels."""
    return _metric(name, "", lambda counters: [((), value(counters))], about)


def _histogram(name: str, about: str) -> MetricSpec:
    return MetricSpec(f"oxproxy_{name}", "histogram", (), about, attrgetter(name))


#: All metrics of the sidecar, in the order of the page. prometheus_client adds `process_*` and `python_info`.
METRICS: tuple[MetricSpec, ...] = (
    _metric(
        "build_info",
        "version build",
        lambda counters: [((counters.version, BUILD), 1)],
        "Version and build (compiled or interpreted) of this sidecar; always 1.",
    ),
    _metric(
        "rules_info",
        "version",
        lambda counters: [((counters.rules.version,), 1)],
        "Version (short hash) of the active rules; always 1.",
    ),
    _metric(
        "rules_reload_total",
        "result",
        by_label(lambda counters: counters.rules.reloads),
        "Attempts to load rules files by result: ok or error.",
    ),
    _number(
        "rules_last_reload_success_timestamp_seconds",
        lambda counters: counters.rules.last_success_seconds,
        "Time when the active rules were loaded.",
    ),
    _metric(
        "rules_outdated",
        "vhost",
        lambda counters: [((vhost,), outdated) for vhost, outdated in counters.rules.outdated.items()],
        "1 while the previous rules of a virtual host are active because the last reload failed for it, else 0.",
    ),
    _metric(
        "connections",
        "side",
        connections,
        "Open connections: downstream (from producers) and upstream (to RabbitMQ).",
    ),
    _metric(
        "connections_total",
        "side result",
        connections_total,
        "Attempts to open a connection by result: ok, refused, unavailable, timeout, protocol_error or tls_error.",
    ),
    _number(
        "connections_kept",
        lambda counters: counters.kept_connections,
        "Idle upstream connections kept for reuse (upstream.reuse); not included in oxproxy_connections.",
    ),
    _number(
        "connections_reused_total",
        lambda counters: counters.reused_connections,
        "Idle upstream connections that were reused for another producer.",
    ),
    _metric(
        "certificate_expiry_timestamp_seconds",
        "side file",
        lambda counters: counters.certificates.copy().items(),
        "Expiry time of a certificate that the sidecar presents to its clients (downstream) or to brokers (upstream).",
    ),
    _number("channels", relays("channels"), "Open channels of producers."),
    _metric(
        "publishes_total",
        "vhost exchange outcome",
        publishes,
        "Publishes by outcome; exchanges that are not in rules files count as other.",
    ),
    _metric(
        "publish_bytes_total",
        "vhost exchange",
        publish_bytes,
        "Bytes of published message bodies; exchanges that are not in rules files count as other.",
    ),
    _metric(
        "binding_matches_total",
        "vhost exchange binding",
        binding_matches,
        "Publishes that matched a binding; bindings beyond metrics.bindings count as other.",
    ),
    _metric(
        "destination_publishes_total",
        "vhost destination",
        destination_publishes,
        "Publishes routed to a destination named in the rules files.",
    ),
    _metric(
        "contract_violations_total",
        "vhost exchange",
        contract_violations,
        "Publishes that violate the contract of an exchange, or a filter that is only observed.",
    ),
    _metric(
        "decision_cache_total",
        "result",
        relays_by(("cache_hits", "hit"), ("cache_misses", "miss"), ("cache_bypassed", "bypassed")),
        "Publishes to evaluated exchanges by cache result: hit, miss, or bypassed if the decision was not cached.",
    ),
    _histogram("decision_seconds", "Duration of decisions that were not in the decision cache."),
    _histogram("confirm_seconds", "Time from a sampled publish to its confirm from RabbitMQ."),
    _metric(
        "confirms_total",
        "result",
        relays_by(("confirms_acked", "acked"), ("confirms_nacked", "nacked")),
        "Publishes confirmed to producers with an ack or a nack.",
    ),
    _number("returns_total", relays("returns"), "Messages returned to producers."),
    _number(
        "regex_limit_hits_total",
        relays("regex_limit_hits"),
        "Regular expression searches that reached the match limit and were counted as no match.",
    ),
    _metric(
        "regex_budget_spent_total",
        "owner",
        regex_owners,
        "Decisions that exceeded limits.regex_budget, by owner of the regular expressions, bindings or names: rules "
        "(rules files), client (a user's bindings) or message (message headers).",
    ),
    _number(
        "failed_translations_total",
        relays("failed_translations"),
        "Destinations whose address translation failed; each causes a nack.",
    ),
    _number(
        "upstream_blocked",
        relays("upstream_blocked"),
        "Upstream connections that RabbitMQ has blocked (memory or disk alarm).",
    ),
    _number(
        "paused_producers",
        relays("paused_producers"),
        "Producers whose socket is not being read because of back-pressure.",
    ),
    _number(
        "throttled_producers",
        lambda counters: counters.limits.throttled,
        "Producers paused because their user exceeded limits.publish_rate or limits.publish_bytes, or "
        "because their publishes exhausted regex budgets.",
    ),
    _metric(
        "connections_rejected_total",
        "reason",
        by_label(lambda counters: counters.limits.rejected_connections),
        "Connections rejected by a limit: connections or connections_per_peer.",
    ),
    _metric(
        "limit_hits_total",
        "limit",
        limit_hits,
        "Number of times that an open connection reached a limit: publish_rate, publish_bytes, patience, "
        "message_size, idle or regex_budget.",
    ),
    _number(
        "topology_missing_destinations",
        lambda counters: counters.missing_destinations,
        "Destinations named in the rules that do not exist or can't be reached.",
    ),
    _number(
        "topology_foreign_bindings",
        lambda counters: counters.foreign_bindings,
        "Foreign bindings on carriers, which were not created by a sidecar and bypass the rules.",
    ),
    _number(
        "topology_carrier_bypasses",
        lambda counters: counters.carrier_bypasses,
        "Alternate and dead-letter exchanges on RabbitMQ that route messages to a carrier and bypass its rules.",
    ),
    _metric(
        "carrier_bindings",
        "vhost type fits",
        lambda counters: list(counters.carrier_bindings.items()),
        "Bindings on carriers by carrier type (direct or topic); `fits` is `no` if the other type is configured "
        "or costs RabbitMQ less.",
    ),
    _number(
        "topology_unsigned_bindings",
        lambda counters: counters.unsigned_bindings,
        "Stored client bindings without a valid signature, which route only to their own destination.",
    ),
    _metric(
        "control_loop_failures_total",
        "task",
        by_label(lambda counters: counters.control_failures),
        "Unexpected exceptions in tasks of the control plane; tracebacks are logged and the tasks retried.",
    ),
    _number("audit_lines_total", lambda counters: counters.audit.lines, "Audit records written to disk."),
    _number(
        "audit_dropped_total",
        lambda counters: counters.audit.dropped,
        "Audit records dropped because the disk or the writer could not keep up.",
    ),
    _number(
        "audit_bytes_total",
        lambda counters: counters.audit.text_bytes,
        "Bytes of audit text written to disk, before compression.",
    ),
    _number(
        "audit_failing",
        lambda counters: counters.audit.failing,
        "1 while the disk rejects audit records or does not respond.",
    ),
    _metric("remote_up", "broker", remote_up, "1 if the link to another broker is up, else 0."),
    _metric(
        "remote_publishes_total",
        "broker result",
        remote_publishes,
        "Publishes to another broker by result: acked, nacked, returned or lost.",
    ),
    _metric(
        "protocol_errors_total",
        "reply_code",
        by_reply_code("protocol_errors"),
        "Channels and connections that the sidecar closed, by AMQP reply code.",
    ),
    _metric(
        "broker_closes_total",
        "reply_code",
        by_reply_code("broker_closes"),
        "Producers' channels and connections that RabbitMQ closed because of an error, by AMQP reply code.",
    ),
)
