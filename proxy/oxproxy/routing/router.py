"""Decides the destinations of a message published to an exchange of a virtual host.

A `Router` contains the exchanges that the sidecar evaluates, and follows chains of such exchanges. Each exchange is
evaluated at most once per message, even if it is also an alternate exchange. The destinations in a decision are queues,
or exchanges outside the router.

Source: the open-exchange specification, section 1 (items 5 and 6) and section 10 (item 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from types import MappingProxyType

from oxproxy.routing.bindings.patterns import DEFAULT_BUDGET
from oxproxy.routing.decision import (
    FILTERED,
    ROUTED,
    UNROUTED,
    Decision,
    ExchangeStep,
    Facts,
    Interest,
    Outcome,
    QueueNames,
    Trace,
)
from oxproxy.routing.error_texts import encode_error_text
from oxproxy.routing.exchange import Exchange, join_interests
from oxproxy.routing.message import Message
from oxproxy.values import EXCHANGE, QUEUE, Destination

_numbers = count(1)


class Router:
    """The exchanges of one virtual host that the sidecar evaluates."""

    __slots__ = ("_exchanges", "_reaches", "exchanges")

    def __init__(self, exchanges: Iterable[Exchange]) -> None:
        self._exchanges = {exchange.name: exchange for exchange in exchanges}
        self.exchanges: Mapping[bytes, Exchange] = MappingProxyType(self._exchanges)
        self._reaches: dict[bytes, Reach] = {}

    def add(self, exchange: Exchange) -> None:
        """Add an exchange, or replace the exchange with the same name."""
        self._exchanges[exchange.name] = exchange
        self._forget_reaches(exchange.name)

    def remove(self, name: bytes) -> None:
        self._exchanges.pop(name, None)
        self._forget_reaches(name)

    def _forget_reaches(self, name: bytes) -> None:
        self._reaches = {start: reach for start, reach in self._reaches.items() if not reach.depends_on(name)}

    @property
    def sees_queues(self) -> bool:
        """True if a decision depends on which queues exist."""
        return any(exchange.sees_queues for exchange in self._exchanges.values())

    def interest(self, exchange: bytes) -> Interest:
        """Return the facts that can change the decision for a message published to `exchange`."""
        return self.reach(exchange).interest

    def destinations(self, exchange: bytes) -> frozenset[Destination]:
        """Return all destinations outside the router that are named in the rules for messages to `exchange`.

        The alternate exchange of `exchange` itself is not included, since the broker applies it. The result is the same
        object until a binding changes.
        """
        return self.reach(exchange).destinations

    def leads_on(self, exchange: bytes) -> bool:
        """Return True if messages to `exchange` can reach an exchange outside the router.

        This includes the alternate exchange of `exchange` itself.
        """
        return self.reach(exchange).leads_on

    def has_client_bindings(self, exchange: bytes) -> bool:
        """Return True if a binding that a client declared can affect messages to `exchange`."""
        return any(reached.client_bindings > 0 for reached in self.reach(exchange).exchanges)

    def names(self, exchange: bytes, destination: Destination) -> bool:
        """Return True if `destinations` contains this destination, without building that set, which may be large."""
        if destination[0] == EXCHANGE and destination[1] in self._exchanges:
            return False
        return any(
            reached.uses(destination) > 0 or (reached.name != exchange and destination == (EXCHANGE, reached.alternate))
            for reached in self.reach(exchange).exchanges
        )

    def mentions(self, destination: Destination) -> bool:
        """Return True if any exchange has the given destination in its bindings, or as its alternate exchange."""
        alternate = destination[1] if destination[0] == EXCHANGE else None
        return any(
            exchange.uses(destination) > 0 or (alternate is not None and exchange.alternate == alternate)
            for exchange in self._exchanges.values()
        )

    def may_choose(self, exchange: bytes, destination: Destination) -> bool:
        """Return True if the given destination is outside the router and messages to `exchange` can reach it.

        The destination need not be named in a rule.
        """
        kind, name = destination
        if kind == EXCHANGE and name in self._exchanges:
            return False
        return self.may_choose_unnamed(exchange, kind) or self.names(exchange, destination)

    def may_be_chosen(self, destination: Destination) -> bool:
        """Return True if messages to any exchange can reach the given destination; see `may_choose`."""
        return any(self.may_choose(exchange, destination) for exchange in self._exchanges)

    def may_choose_unnamed(self, exchange: bytes, kind: str) -> bool:
        """Return True if messages to `exchange` can reach destinations of this kind that no rule names."""
        reached = self.reach(exchange).exchanges
        return any(other.chooses_queues if kind == QUEUE else other.lets_producer_add_exchanges for other in reached)

    def decide(
        self,
        exchange: bytes,
        facts: Facts,
        now: float,
        queues: QueueNames,
        draw: Callable[[int], int],
        trace: Trace | None = None,
        regex_budget: int = DEFAULT_BUDGET,
    ) -> Decision:
        """Decide the destinations of one message.

        Args:
            exchange: the name of an exchange of this router.
            facts: the facts of the message. Facts that `interest` does not name may be missing.
            now: seconds since the epoch, for clock operators.
            queues: the queues of the virtual host, for regex routes.
            draw: returns an index below its argument; called only for random picks.
            trace: receives the steps of the evaluation.
            regex_budget: budget for the regexes of each owner, in match-limit units.

        Returns:
            The decision, whose `keep` states whether it may be cached for messages with the same facts.
        """
        message = Message(facts, now, queues, draw, regex_budget)
        matched: list[tuple[bytes, str]] = []
        violations: list[tuple[bytes, str]] = []
        final: set[Destination] = set()
        alternate = False
        filtered = b""
        seen = {exchange}
        pending = [self._exchanges[exchange]]
        while pending:
            current = pending.pop()
            step = _step(current, trace)
            breach = current.breach(message, violations, step) if current.checks else None
            if breach is None:
                routed = current.route(message, matched, step)
                if isinstance(routed, bytes):
                    return _rejected(exchange, routed, message, violations, trace)
            elif not breach.silent:
                return _rejected(exchange, encode_error_text(breach.message), message, violations, trace)
            else:
                routed = set()
                if current.name == exchange:
                    filtered = breach.filter
            if not routed and current.alternate is not None:
                if step is not None:
                    step.alternate = current.alternate
                if current.name == exchange and current.alternate not in self._exchanges:
                    alternate = True
                    continue
                routed = {(EXCHANGE, current.alternate)}
            pending += self._split(routed, seen, final)
        queue_names: list[bytes] = []
        exchange_names: list[bytes] = []
        for kind, name in final:
            if kind == EXCHANGE:
                exchange_names.append(name)
            elif name:
                queue_names.append(name)
        return Decision(
            exchange,
            FILTERED if filtered else ROUTED if final else UNROUTED,
            _sorted(queue_names),
            _sorted(exchange_names),
            alternate,
            b"",
            tuple(matched),
            message.keep,
            message.match_limit_hits,
            tuple(sorted(message.spent_budgets)) if message.spent_budgets else (),
            trace,
            filtered,
            tuple(violations),
        )

    def _split(self, routed: set[Destination], seen: set[bytes], final: set[Destination]) -> list[Exchange]:
        """Put destinations outside the router into `final`; return the exchanges in the router to visit next."""
        nested: list[Exchange] = []
        for destination in routed:
            kind, name = destination
            if kind == QUEUE or name not in self._exchanges:
                final.add(destination)
            elif name not in seen:
                seen.add(name)
                nested.append(self._exchanges[name])
        if len(nested) > 1:
            # As in the broker, the exchange whose name sorts last is visited first. The order matters only if two
            # exchanges would close the channel.
            nested.sort(key=_name)
        return nested

    def reach(self, exchange: bytes) -> Reach:
        """Return the exchanges that messages to `exchange` can reach: the same object until one of them changes."""
        reach = self._reaches.get(exchange)
        if reach is None or not reach.is_current():
            reach = self._reaches[exchange] = Reach(self._exchanges, exchange)
        return reach


class Reach:
    """The exchanges in the router that messages to one exchange can reach, including that exchange."""

    __slots__ = ("_changes", "_destinations", "_leads_on", "_owned", "_start", "exchanges", "interest", "number")

    def __init__(self, owned: Mapping[bytes, Exchange], start: bytes) -> None:
        #: differs from the number of every other object
        self.number: int = next(_numbers)
        self._owned = owned
        self._start = start
        self._destinations: frozenset[Destination] | None = None
        self._leads_on: bool | None = None
        self.exchanges = _reachable(owned, start)
        self._changes = [exchange.changes for exchange in self.exchanges]
        self.interest = join_interests(exchange.interest for exchange in self.exchanges)

    @property
    def destinations(self) -> frozenset[Destination]:
        if self._destinations is None:
            named: set[Destination] = set()
            for exchange in self.exchanges:
                named |= exchange.destinations
                if exchange.alternate is not None and exchange.name != self._start:
                    named.add((EXCHANGE, exchange.alternate))
            owned = self._owned
            self._destinations = frozenset(
                destination for destination in named if destination[0] == QUEUE or destination[1] not in owned
            )
        return self._destinations

    @property
    def leads_on(self) -> bool:
        if self._leads_on is None:
            self._leads_on = any(
                exchange.lets_producer_add_exchanges
                or not exchange.next_names <= self._owned.keys()
                or (exchange.alternate is not None and exchange.alternate not in self._owned)
                for exchange in self.exchanges
            )
        return self._leads_on

    def depends_on(self, name: bytes) -> bool:
        """Return True if messages can reach an exchange with this name, whether or not it is in the router."""
        return any(
            name in (exchange.name, exchange.alternate)
            or name in exchange.next_names
            or exchange.lets_producer_add_exchanges
            for exchange in self.exchanges
        )

    def is_current(self) -> bool:
        for exchange, changes in zip(self.exchanges, self._changes, strict=True):
            if exchange.changes != changes:
                return False
        return True


def _reachable(owned: Mapping[bytes, Exchange], start: bytes) -> list[Exchange]:
    reachable = {start: owned[start]}
    pending = [owned[start]]
    while pending:
        current = pending.pop()
        if current.lets_producer_add_exchanges:
            return list(owned.values())
        names = set(current.next_names)
        if current.alternate is not None:
            names.add(current.alternate)
        for name in names & owned.keys() - reachable.keys():
            reachable[name] = owned[name]
            pending.append(owned[name])
    return list(reachable.values())


def _sorted(names: list[bytes]) -> tuple[bytes, ...]:
    if len(names) > 1:
        names.sort()
    return tuple(names)


def _name(exchange: Exchange) -> bytes:
    return exchange.name


def _step(exchange: Exchange, trace: Trace | None) -> ExchangeStep | None:
    if trace is None:
        return None
    step = ExchangeStep(exchange.name, exchange.type)
    trace.exchanges.append(step)
    return step


def _rejected(
    exchange: bytes, error: bytes, message: Message, violations: list[tuple[bytes, str]], trace: Trace | None
) -> Decision:
    return Decision(
        exchange,
        Outcome.REJECTED,
        error=error,
        keep=message.keep,
        match_limit_hits=message.match_limit_hits,
        spent_budgets=tuple(sorted(message.spent_budgets)),
        trace=trace,
        violations=tuple(violations),
    )
