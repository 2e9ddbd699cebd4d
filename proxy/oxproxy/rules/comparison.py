"""Compares two sets of rules on the same publishes, for ``oxproxy shadow``.

Outcome, destinations and error message are compared as `explain` reports them, regardless of whether a destination
exists. This module performs no I/O and does not read the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from oxproxy.routing.decision import Decision, QueueNames
from oxproxy.rules.evaluation import Evaluation, RoutingResult, evaluate
from oxproxy.rules.loader import LoadedRules
from oxproxy.rules.message import DescribedMessage
from oxproxy.rules.ruleset import VhostRules
from oxproxy.values import text

#: Maximum number of exchanges with separate counts and, for each exchange, maximum number of kinds of difference with
#: an example, to limit memory use. All others are counted together.
EXCHANGES, KINDS = 500, 20
#: Name under which the exchanges without separate counts are counted.
OTHER = "other"


@dataclass(frozen=True, slots=True)
class ObservedPublish:
    """One publish that both sets of rules evaluate.

    Args:
        queues: names of the queues in the virtual host, among which regex routes choose.
        decision: the decision of the live rules.
    """

    vhost: str
    message: DescribedMessage
    at: float
    queues: QueueNames
    decision: Decision


class ComparedRules:
    """One of the two sets of rules."""

    def __init__(self, loaded: LoadedRules) -> None:
        self.loaded = loaded
        self._books = {name: book.with_empty_cache() for name, book in loaded.books.items()}
        self._named = {
            name: {exchange.name for exchange in vhost.exchanges} for name, vhost in loaded.rules.vhosts.items()
        }

    def touches(self, vhost: str, exchange: bytes) -> bool:
        """Return True if these rules may affect publishes to an exchange."""
        return vhost in self._books or exchange in self._named.get(vhost, ())

    def judge(self, seen: ObservedPublish, decision: Decision | None = None) -> Evaluation:
        """Evaluate these rules for a publish.

        Args:
            decision: the decision for the publish, if already known.
        """
        name = seen.vhost

        def decision_of(message: DescribedMessage) -> Decision:
            if decision is not None:
                return decision
            return self.loaded.routers[name].decide(message.exchange, message.facts, seen.at, seen.queues, _first)

        vhost = self.loaded.rules.vhosts.get(name, VhostRules(name))
        return evaluate(seen.message, vhost, self._books.get(name), decision_of)


@dataclass(slots=True)
class _Kind:
    """Number of publishes with the same difference, and an example."""

    example: dict[str, object]
    count: int = 1


@dataclass(slots=True)
class _Counts:
    """Numbers of publishes to one exchange. `kinds` counts those whose results differ, by live and candidate result."""

    compared: int = 0
    equal: int = 0
    random: int = 0
    further: int = 0
    kinds: dict[tuple[RoutingResult, RoutingResult], _Kind] = field(default_factory=dict)


class RulesComparison:
    """Compares the results of two sets of rules for each publish, and keeps counts and examples."""

    def __init__(self, live: ComparedRules, candidate: ComparedRules) -> None:
        self.live = live
        self.candidate = candidate
        self._exchanges: dict[tuple[str, str], _Counts] = {}
        #: Number of matches by virtual host, exchange and id of the binding.
        self._matches: Counter[tuple[str, bytes, str]] = Counter()

    def compare(self, seen: ObservedPublish, example: Callable[[], dict[str, object]]) -> None:
        """Evaluate one publish with both sets of rules.

        Args:
            example: returns the fields of the publish that may be shown.
        """
        evaluations = self.live.judge(seen, seen.decision), self.candidate.judge(seen)
        decisions = [evaluation.decision for evaluation in evaluations]
        counts = self._counts(seen)
        if decisions[1] is not None:
            self._matches.update((seen.vhost, *label) for label in decisions[1].matched)
        if any(decision is not None and not decision.keep for decision in decisions):
            counts.random += 1
            return
        counts.compared += 1
        live, candidate = (_comparable(evaluation.result) for evaluation in evaluations)
        if live == candidate:
            counts.equal += 1
            return
        kind = counts.kinds.get((live, candidate))
        if kind is not None:
            kind.count += 1
        elif len(counts.kinds) < KINDS:
            counts.kinds[live, candidate] = _Kind(example())
        else:
            counts.further += 1

    def _counts(self, seen: ObservedPublish) -> _Counts:
        key = (seen.vhost, text(seen.message.exchange))
        if key not in self._exchanges and len(self._exchanges) >= EXCHANGES:
            key = (seen.vhost, OTHER)
        return self._exchanges.setdefault(key, _Counts())

    def as_json(self) -> dict[str, object]:
        exchanges = [_exchange_json(*key, counts) for key, counts in sorted(self._exchanges.items())]
        totals = {
            name: sum(int(str(exchange[name])) for exchange in exchanges)
            for name in ("compared", "equal", "different", "random")
        }
        return {
            "live": self.live.loaded.rules.version,
            "candidate": self.candidate.loaded.rules.version,
            **totals,
            "exchanges": exchanges,
            "bindings": self._bindings(),
        }

    def _bindings(self) -> list[dict[str, object]]:
        """Return how often each binding in the candidate's files was true, in file order."""
        return [
            {
                "vhost": vhost.vhost,
                "exchange": text(exchange.name),
                "binding": binding.id,
                "matches": self._matches[vhost.vhost, exchange.name, binding.id],
            }
            for vhost in self.candidate.loaded.rules.vhosts.values()
            for exchange in vhost.exchanges
            for binding in exchange.bindings
        ]


def _first(_: int) -> int:
    """Replace a random pick with a fixed choice. The results of random picks are not compared."""
    return 0


def _comparable(result: RoutingResult) -> RoutingResult:
    """Remove details that do not affect the routing: the order of names, and the address rule that applied."""
    queues, exchanges, remotes = (tuple(sorted(names)) for names in (result.queues, result.exchanges, result.remotes))
    return replace(result, queues=queues, exchanges=exchanges, remotes=remotes, rule=None)


def _exchange_json(vhost: str, exchange: str, counts: _Counts) -> dict[str, object]:
    kinds = sorted(counts.kinds.items(), key=lambda item: -item[1].count)
    return {
        "vhost": vhost,
        "exchange": exchange,
        "compared": counts.compared,
        "equal": counts.equal,
        "different": counts.compared - counts.equal,
        "random": counts.random,
        "differences": [
            {
                "publishes": kind.count,
                "live": live.as_json(),
                "candidate": candidate.as_json(),
                "example": kind.example,
            }
            for (live, candidate), kind in kinds
        ],
        "further_differences": counts.further,
    }
