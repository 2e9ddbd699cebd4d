"""Counters of connections, relays, publishes and limits, as plain integers.

The publish path only increments attributes; `observe` exports the numbers as metrics. Many messages share a decision,
so the publish path counts them in a single `Tally` for that decision. A tally is folded into the totals of `Traffic` on
request, and when the last plan that holds the tally is dropped. The number of totals is bounded, since only exchanges
and destinations in the rules and a limited number of bindings have totals. Only one thread modifies counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

#: Outcomes of a publish, as named in metrics and audit records.
OUTCOMES = ("routed", "unrouted", "filtered", "rejected", "translated", "passed")
#: Name of the exchange or binding in the totals for everything that has no separate total.
OTHER = "other"
#: Default maximum number of bindings with separate totals (setting `metrics.bindings`).
BINDING_LIMIT = 500
#: Number of tallies that `Traffic.folding` folds before it yields. With ten bindings each, this takes about a
#: millisecond.
FOLD_STEP = 256

#: Bindings whose conditions were true: (exchange, id of the binding).
Matched: TypeAlias = tuple[tuple[bytes, str], ...]
T = TypeVar("T")
#: virtual host, exchange, outcome (one of OUTCOMES), bindings whose conditions were true, destinations, exchanges whose
#: contract is violated
_TallyKey: TypeAlias = tuple[str, bytes, str, Matched, tuple[bytes, ...], tuple[bytes, ...]]
#: Results of an attempt to open a connection.
RESULTS = ("ok", "refused", "unavailable", "timeout", "protocol_error", "tls_error")
#: Owners of regular expressions: rules files, a client's bindings, or headers of a message.
REGEX_OWNERS = ("rules", "client", "message")
#: Histogram bounds in seconds for decisions that are not cached. Ten thousand regular expressions take a second.
DECISION_BOUNDS = (1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 1.0)
#: Histogram bounds in seconds. A confirm takes 0.2 ms on loopback, and several seconds for a busy quorum queue.
CONFIRM_BOUNDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
#: Limits on the number of connections; a connection that would exceed one of them is rejected.
REJECTED_CONNECTIONS = ("connections", "connections_per_peer")
#: Limits that apply to producers, counted when a producer is slowed down or its channel or connection is closed.
LIMITS = ("publish_rate", "publish_bytes", "patience", "message_size", "idle", "regex_budget")


@dataclass(slots=True, eq=False)
class ExchangeCounters:
    """The number of publishes to one exchange, by outcome, and the total size of their bodies in bytes."""

    publishes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    body_bytes: int = 0


class Count:
    """Counters of the publish path: ``count.publishes += 1`` and ``count.body_bytes += size``."""

    __slots__ = ("body_bytes", "publishes")

    def __init__(self) -> None:
        self.publishes = 0
        self.body_bytes = 0


def _weakly_referenced(decorated: type[T]) -> type[T]:
    """Prevent a class from being compiled, since native classes don't support weak references."""
    return decorated


@_weakly_referenced
class Tally:
    """Counts publishes that share one decision and are not yet included in a total. Created by `Traffic.tally`."""

    __slots__ = ("__weakref__", "_key", "_totals", "count")

    def __init__(self, totals: Traffic, key: _TallyKey) -> None:
        self._totals = totals
        self._key = key
        self.count = Count()

    def fold(self) -> None:
        """Move the counts into the totals."""
        count = self.count
        publishes, body_bytes = count.publishes, count.body_bytes
        if publishes:
            count.publishes = count.body_bytes = 0
            vhost, exchange, outcome, matched, destinations, violated = self._key
            self._totals.add(vhost, exchange, outcome, matched, destinations, publishes, body_bytes, violated)

    def __del__(self) -> None:
        """Add the remaining counts to the totals, so that a cache can simply drop its plans."""
        self.fold()


class TrafficLabels(NamedTuple):
    """Names in the rules that have totals; see `Traffic.labels`.

    Args:
        exchanges: (vhost, exchange).
        bindings: (vhost, exchange, binding id) of the first bindings, up to the limit.
        kept: all bindings that are in the files and already have totals.
        destinations: (vhost, name).
        contracts: (vhost, exchange) of the exchanges whose violations are counted.
    """

    exchanges: tuple[tuple[str, bytes], ...]
    bindings: tuple[tuple[str, bytes, str], ...]
    kept: frozenset[tuple[str, bytes, str]]
    destinations: tuple[tuple[str, bytes], ...]
    contracts: tuple[tuple[str, bytes], ...] = ()


class Traffic:
    """Totals of publishes per exchange, binding and destination."""

    def __init__(self, binding_limit: int = BINDING_LIMIT) -> None:
        self._binding_limit = binding_limit
        self._exchanges: dict[tuple[str, bytes], ExchangeCounters] = {}
        self._others: dict[str, ExchangeCounters] = {}
        self._matches: dict[tuple[str, bytes, str], int] = {}
        #: matches of bindings without separate totals, by virtual host
        self._other_matches: dict[str, int] = {}
        self._named_bindings: frozenset[tuple[str, bytes, str]] = frozenset()
        self._destinations: dict[tuple[str, bytes], int] = {}
        #: publishes that violate the contract of an exchange, by (vhost, exchange)
        self._violations: dict[tuple[str, bytes], int] = {}
        self._tallies: WeakValueDictionary[_TallyKey, Tally] = WeakValueDictionary()

    def labels(
        self,
        exchanges: Iterable[tuple[str, bytes]],
        bindings: Iterable[tuple[str, bytes, str]],
        destinations: Iterable[tuple[str, bytes]],
        contracts: Iterable[tuple[str, bytes]] = (),
    ) -> TrafficLabels:
        """Choose the names for which `name` creates totals.

        Bindings are passed in the order of the files, and the first of them get totals. This method may run in another
        thread, since there may be 100,000 bindings.
        """
        first: dict[tuple[str, bytes, str], None] = {}
        kept = set()
        for key in bindings:
            if len(first) < self._binding_limit:
                first[key] = None
            if key in self._matches:
                kept.add(key)
        return TrafficLabels(tuple(exchanges), tuple(first), frozenset(kept), tuple(destinations), tuple(contracts))

    def name(self, labels: TrafficLabels) -> None:
        """Switch to the names of new rules.

        The totals of new names start at zero, names that remain in the rules keep their totals, and the totals of names
        that have been removed from the rules are dropped. Bindings declared by clients are not in the rules, and keep
        their totals.
        """
        for _ in self.folding():
            pass
        removed = self._named_bindings - labels.kept
        self._matches = {key: count for key, count in self._matches.items() if key not in removed}
        named = set(labels.kept)
        for key in labels.bindings:
            if len(self._matches) >= self._binding_limit:
                break
            self._matches.setdefault(key, 0)
            named.add(key)
        #: bindings in the rules that have a total
        self._named_bindings = frozenset(named)
        self._destinations = {name: self._destinations.get(name, 0) for name in labels.destinations}
        self._exchanges = {key: self._exchanges.get(key) or ExchangeCounters() for key in labels.exchanges}
        self._violations = {key: self._violations.get(key, 0) for key in labels.contracts}
        for vhost, _ in self._exchanges:
            self._other_matches.setdefault(vhost, 0)

    def tally(
        self,
        vhost: str,
        exchange: bytes,
        outcome: str,
        matched: Matched,
        destinations: tuple[bytes, ...],
        violated: tuple[bytes, ...] = (),
    ) -> Tally:
        """Return the tally for a decision. While a plan references a tally, the same object is returned."""
        key = (vhost, exchange, outcome, matched, destinations, violated)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally(self, key)
        return tally

    def add(
        self,
        vhost: str,
        exchange: bytes,
        outcome: str,
        matched: Matched,
        destinations: Iterable[bytes],
        publishes: int,
        body_bytes: int,
        violated: Iterable[bytes] = (),
    ) -> None:
        counters = self._exchanges.get((vhost, exchange)) or self._others.get(vhost)
        if counters is None:
            counters = self._others[vhost] = ExchangeCounters()
        counters.publishes[outcome] += publishes
        counters.body_bytes += body_bytes
        matches = self._matches
        for binding in matched:
            key = (vhost, *binding)
            if key in matches:
                matches[key] += publishes
            elif len(matches) < self._binding_limit:
                matches[key] = publishes
            else:
                self._other_matches[vhost] = self._other_matches.get(vhost, 0) + publishes
        totals = self._destinations
        for name in destinations:
            if (vhost, name) in totals:
                totals[vhost, name] += publishes
        for name in violated:
            if (vhost, name) in self._violations:
                self._violations[vhost, name] += publishes

    def folding(self) -> Iterator[None]:
        """Fold all tallies; yield after every `FOLD_STEP` tallies so that the caller can let other tasks run."""
        for index, reference in enumerate(self._tallies.valuerefs(), 1):
            tally = reference()
            if tally is not None:
                tally.fold()
            if not index % FOLD_STEP:
                yield

    def publishes(self) -> Iterator[tuple[str, bytes, str, int, int]]:
        """Yield (vhost, exchange, outcome, publishes, body bytes).

        The first row for an exchange contains the total bytes of all outcomes. This method and the next two may run in
        any thread, since they read copies and copying a dictionary is atomic.
        """
        others = {(vhost, OTHER.encode()): counters for vhost, counters in self._others.copy().items()}
        for (vhost, exchange), counters in (*self._exchanges.copy().items(), *others.items()):
            body_bytes = counters.body_bytes
            for outcome, publishes in counters.publishes.items():
                yield vhost, exchange, outcome, publishes, body_bytes
                body_bytes = 0

    def matches(self) -> Iterator[tuple[str, bytes, str, int]]:
        """Yield (vhost, exchange, binding id, matches).

        The last row for a virtual host is the sum for all bindings without a separate total.
        """
        for (vhost, exchange, binding), count in self._matches.copy().items():
            yield vhost, exchange, binding, count
        for vhost, count in self._other_matches.copy().items():
            yield vhost, OTHER.encode(), OTHER, count

    def violations(self) -> Iterator[tuple[str, bytes, int]]:
        """Yield (vhost, exchange, publishes that violate its contract) for each exchange with a contract."""
        for (vhost, exchange), count in self._violations.copy().items():
            yield vhost, exchange, count

    def destinations(self) -> Iterator[tuple[str, bytes, int]]:
        """Yield (vhost, name, publishes) for each destination that is named in the rules."""
        for (vhost, name), count in self._destinations.copy().items():
            yield vhost, name, count


class Histogram:
    """Counts of observed durations, by upper bound.

    Args:
        bounds: upper bounds in seconds, ascending; each bucket includes its bound (Prometheus: `le`).
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        place = 0
        for bound in self.bounds:  # for durations in the first buckets, this is faster than a binary search
            if seconds <= bound:
                break
            place += 1
        self.buckets[place] += 1
        self.total_seconds += seconds

    def cumulative(self) -> list[int]:
        """Return the number of durations up to each bound, followed by the number of all durations."""
        return list(accumulate(self.buckets))


@dataclass(slots=True, eq=False)
class RelayCounters:
    """Independent counters of the relays of one virtual host. Values marked as gauges can decrease."""

    vhost: str
    #: publishes forwarded to exchanges that are not evaluated
    publishes_passed: int = 0
    bytes_passed: int = 0
    returns: int = 0
    confirms_acked: int = 0
    confirms_nacked: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    #: publishes whose decision was computed but not cached
    cache_bypassed: int = 0
    regex_limit_hits: int = 0
    #: decisions in which a regex budget was exhausted
    regex_budgets_spent: int = 0
    #: number of exhausted budgets by owner (one of REGEX_OWNERS); one decision may exhaust several budgets
    regex_owners: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REGEX_OWNERS, 0))
    failed_translations: int = 0
    #: publishes refused because of the size of their bodies
    oversized: int = 0
    #: gauge: upstream connections that the broker has blocked
    upstream_blocked: int = 0
    #: gauge: producers whose sockets are not being read
    paused_producers: int = 0
    #: gauge: open channels of producers
    channels: int = 0
    #: closes that the sidecar has sent because of a producer's error or an exceeded limit, by reply code
    protocol_errors: Counter[int] = field(default_factory=Counter)
    #: closes of producers' channels and connections by the broker, by reply code
    broker_closes: Counter[int] = field(default_factory=Counter)

    def spend(self, owners: Iterable[str]) -> None:
        self.regex_budgets_spent += 1
        for owner in owners:
            self.regex_owners[owner] += 1


@dataclass(slots=True, eq=False)
class ConnectionCounters:
    """Connections to producers or to the broker.

    `open` is the number of open connections (a gauge), and `results` counts attempts by result (one of RESULTS).
    `last_error` is the time (seconds since 1970) and the reason for the last failure; None before the first failure.
    """

    open: int = 0
    results: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESULTS, 0))
    last_error: tuple[float, str] | None = None


@dataclass(slots=True, eq=False)
class LimitCounters:
    """Counts how often limits were reached."""

    #: number of refused connections by limit (one of REJECTED_CONNECTIONS)
    rejected_connections: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECTED_CONNECTIONS, 0))
    #: how often each limit (one of LIMITS) was reached
    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0))
    #: gauge: producers paused because their user has exceeded a rate limit, or because they exhausted a regex budget
    throttled: int = 0


@dataclass(slots=True, eq=False)
class AuditCounters:
    """Numbers of audit records written and dropped, and of bytes written (before compression).

    `failing` is a gauge: whether the disk currently rejects lines.
    """

    lines: int = 0
    dropped: int = 0
    text_bytes: int = 0
    failing: bool = False


@dataclass(slots=True, eq=False)
class RemoteCounters:
    """One broker named in the address table: its open links, and the number of publishes to it by result."""

    #: number of open links; usually 0 or 1
    links: int = 0
    #: number of links that are open or are to be opened; 0 if the broker is not in use
    wanted: int = 0
    results: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("acked", "nacked", "returned", "lost"), 0))

    @property
    def up(self) -> bool:
        return self.links > 0


@dataclass(slots=True, eq=False)
class RulesCounters:
    """Version of the rules, reloads by result, and time of the last successful reload (seconds since 1970)."""

    version: str = ""
    reloads: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("ok", "error"), 0))
    last_success_seconds: float = 0.0
    #: whether the new rules of a virtual host are not active, by virtual host
    outdated: dict[str, bool] = field(default_factory=dict)


class Counters:
    """All counters of one process. They are independent of each other: each attribute is the source of metrics."""

    def __init__(self, binding_limit: int = BINDING_LIMIT, version: str = "") -> None:
        self.version = version
        self.traffic = Traffic(binding_limit)
        self.relays: dict[str, RelayCounters] = {}
        self.downstream = ConnectionCounters()
        self.upstream = ConnectionCounters()
        self.decision_seconds = Histogram(DECISION_BOUNDS)
        self.confirm_seconds = Histogram(CONFIRM_BOUNDS)
        self.limits = LimitCounters()
        self.rules = RulesCounters()
        self.audit = AuditCounters()
        self.remotes: dict[str, RemoteCounters] = {}
        #: gauge: upstream connections that are kept without a producer
        self.kept_connections = 0
        #: number of times that a kept connection was reused
        self.reused_connections = 0
        self.missing_destinations = 0
        self.foreign_bindings = 0
        self.carrier_bypasses = 0
        #: number of carrier bindings by virtual host, carrier type, and whether the type fits ("yes" or "no")
        self.carrier_bindings: Mapping[tuple[str, str, str], int] = {}
        self.unsigned_bindings = 0
        #: failed attempts of the control plane to connect to the broker
        self.control_unreachable = 0
        #: number of unexpected exceptions, by task of the control plane
        self.control_failures: dict[str, int] = {}
        #: expiry of our own certificates in use (seconds since 1970), by side (downstream or upstream) and file
        self.certificates: dict[tuple[str, str], float] = {}

    def relay(self, vhost: str) -> RelayCounters:
        return self.relays.setdefault(vhost, RelayCounters(vhost))
