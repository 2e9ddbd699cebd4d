"""How many publishes each exchange, binding and destination got.

A decision is shared by many messages, so the publish path counts in the one `Tally` of that decision.
`Traffic` folds tallies into totals: when asked to, and when the last plan that holds a tally goes. The totals
are bounded: only what the rules name has one of its own. All of it belongs to one thread; it knows nothing of
metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakValueDictionary

#: What became of a publish, as metrics and audit records name it.
OUTCOMES = ("routed", "unrouted", "filtered", "rejected", "translated", "passed")
#: Exchange or binding name of everything that has no total of its own.
OTHER = "other"
#: Bindings with a total of their own where nobody says otherwise (setting `metrics.bindings`).
BINDING_LIMIT = 500
#: Tallies folded between two pauses of `Traffic.folding`: about a millisecond's work at ten bindings each.
FOLD_STEP = 256

#: Bindings that were true: (exchange, id of the binding).
Matched: TypeAlias = tuple[tuple[bytes, str], ...]
_TallyKey: TypeAlias = tuple[str, bytes, str, Matched, tuple[bytes, ...]]


@dataclass(slots=True, eq=False)
class ExchangeCounters:
    """Publishes to one exchange by outcome, and the bytes of their bodies.

    Args:
        vhost: virtual host.
        exchange: name, or b"other" for all that no rule names.
    """

    vhost: str
    exchange: bytes
    routed: int = 0
    unrouted: int = 0
    filtered: int = 0
    rejected: int = 0
    translated: int = 0
    passed: int = 0
    body_bytes: int = 0

    def add(self, outcome: str, publishes: int, body_bytes: int) -> None:
        """Count publishes of one outcome (a name of OUTCOMES)."""
        setattr(self, outcome, getattr(self, outcome) + publishes)
        self.body_bytes += body_bytes


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tally:
    """Publishes that shared one decision and that no total holds yet.

    The publish path does ``tally.publishes += 1`` and ``tally.body_bytes += size``. Made by `Traffic.tally`.
    """

    totals: Traffic
    vhost: str
    exchange: bytes
    outcome: str
    matched: Matched
    destinations: tuple[bytes, ...]
    publishes: int = 0
    body_bytes: int = 0

    def fold(self) -> None:
        """Move what was counted into the totals."""
        publishes = self.publishes
        if publishes:
            body_bytes = self.body_bytes
            self.publishes = self.body_bytes = 0
            self.totals.add(
                self.vhost,
                self.exchange,
                self.outcome,
                self.matched,
                self.destinations,
                publishes,
                body_bytes,
            )

    def __del__(self) -> None:
        """Fold what the last holder left, so that a cache may drop its plans without telling anybody."""
        self.fold()


class Traffic:
    """Totals of publishes per exchange, binding and destination.

    Args:
        binding_limit: bindings with a total of their own; the rest count as `other`.
    """

    __slots__ = (
        "__weakref__",
        "_binding_limit",
        "_destinations",
        "_exchanges",
        "_matches",
        "_named_bindings",
        "_other_matches",
        "_others",
        "_tallies",
    )

    def __init__(self, binding_limit: int = BINDING_LIMIT) -> None:
        """Start with nothing named and nothing counted."""
        self._binding_limit = binding_limit
        self._exchanges: dict[tuple[str, bytes], ExchangeCounters] = {}
        self._others: dict[str, ExchangeCounters] = {}
        self._matches: dict[tuple[bytes, str], int] = {}
        self._other_matches = 0
        self._named_bindings: frozenset[tuple[bytes, str]] = frozenset()
        self._destinations: dict[bytes, int] = {}
        self._tallies: WeakValueDictionary[_TallyKey, Tally] = WeakValueDictionary()

    def name(
        self,
        exchanges: Iterable[tuple[str, bytes]],
        bindings: Iterable[tuple[bytes, str]],
        destinations: Iterable[bytes],
    ) -> None:
        """Say what the rules name now; call it when rules are loaded and when they change.

        What is named starts at zero and what stays named keeps its total. What is no longer named loses it,
        but for bindings that no rules ever named (declared by clients): those keep theirs.

        Args:
            exchanges: (vhost, exchange).
            bindings: (exchange, binding id), in the order of the files: the first ones get the totals.
            destinations: names of queues and exchanges that messages are routed to.
        """
        for _ in self.folding():
            pass
        named = list(dict.fromkeys(bindings))
        gone = self._named_bindings.difference(named)
        self._named_bindings = frozenset(named)
        self._matches = {key: count for key, count in self._matches.items() if key not in gone}
        for key in named:
            if len(self._matches) >= self._binding_limit:
                break
            self._matches.setdefault(key, 0)
        self._destinations = {name: self._destinations.get(name, 0) for name in destinations}
        self._exchanges = {key: self._exchanges.get(key) or ExchangeCounters(*key) for key in exchanges}

    def tally(
        self, vhost: str, exchange: bytes, outcome: str, matched: Matched, destinations: tuple[bytes, ...]
    ) -> Tally:
        """Give the tally of a decision: the same one as long as somebody holds it.

        Args:
            vhost: virtual host of the publish.
            exchange: exchange of the publish.
            outcome: a name of OUTCOMES.
            matched: bindings that were true.
            destinations: names of the destinations.

        Returns:
            The tally to keep beside the cached plan and to count in.
        """
        key = (vhost, exchange, outcome, matched, destinations)
        found = self._tallies.get(key)
        if found is None:
            found = self._tallies[key] = Tally(self, vhost, exchange, outcome, matched, destinations)
        return found

    def add(
        self,
        vhost: str,
        exchange: bytes,
        outcome: str,
        matched: Matched,
        destinations: Iterable[bytes],
        publishes: int,
        body_bytes: int,
    ) -> None:
        """Count publishes at once, without a tally; for decisions that nobody keeps."""
        self._exchange(vhost, exchange).add(outcome, publishes, body_bytes)
        matches = self._matches
        for key in matched:
            if key in matches:
                matches[key] += publishes
            elif len(matches) < self._binding_limit and key not in self._named_bindings:
                matches[key] = publishes
            else:
                self._other_matches += publishes
        totals = self._destinations
        for name in destinations:
            if name in totals:
                totals[name] += publishes

    def folding(self) -> Iterator[None]:
        """Fold all tallies, pausing after every few so that a caller can let others run in between."""
        for index, reference in enumerate(self._tallies.valuerefs(), 1):
            tally = reference()
            if tally is not None:
                tally.fold()
            if not index % FOLD_STEP:
                yield

    def publishes(self) -> Iterator[tuple[str, bytes, str, int, int]]:
        """Yield (vhost, exchange, outcome, publishes, body bytes).

        The bytes of all outcomes stand in the first row of an exchange.
        """
        for counters in (*self._exchanges.values(), *self._others.values()):
            body_bytes = counters.body_bytes
            for outcome in OUTCOMES:
                yield counters.vhost, counters.exchange, outcome, getattr(counters, outcome), body_bytes
                body_bytes = 0

    def matches(self) -> Iterator[tuple[bytes, str, int]]:
        """Yield (exchange, binding id, matches), the last one being all that have no total of their own."""
        for (exchange, binding), count in list(self._matches.items()):
            yield exchange, binding, count
        yield OTHER.encode(), OTHER, self._other_matches

    def destinations(self) -> Iterator[tuple[bytes, int]]:
        """Yield (name, publishes) of each destination that the rules name."""
        yield from list(self._destinations.items())

    def _exchange(self, vhost: str, exchange: bytes) -> ExchangeCounters:
        found = self._exchanges.get((vhost, exchange)) or self._others.get(vhost)
        if found is None:
            found = self._others[vhost] = ExchangeCounters(vhost, OTHER.encode())
        return found
