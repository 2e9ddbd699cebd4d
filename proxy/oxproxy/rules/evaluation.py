"""Evaluates the rules for a message, without a broker.

In addition to the decision, this module considers the address table, the alternate exchange and ``unmatched: pass``,
but not whether a destination exists. Tests in rules files, ``oxproxy explain`` and ``oxproxy shadow`` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from oxproxy.addressing.targets import AddressBook, FailedTranslation, Publication
from oxproxy.routing.bindings.patterns import DEFAULT_BUDGET
from oxproxy.routing.decision import Decision, Outcome, QueueNames, Trace
from oxproxy.routing.destination_translation import CARRIER_TARGET, TranslatedDestinations, translate_destinations
from oxproxy.routing.router import Router
from oxproxy.rules.message import DescribedMessage
from oxproxy.rules.ruleset import VhostRules
from oxproxy.values import QUEUE, RESERVED_PREFIX, RESERVED_PREFIXES, text

PASSED, TRANSLATED = "passed", "translated"


@dataclass(frozen=True, slots=True)
class RoutingResult:
    """Result of routing a message. The first five fields have the same names as the keys under `expect` in a test.

    `exchanges` includes the alternate exchange if it is used. `failed` contains the reasons for failed translations.
    `violates` lists the violated conditions of contracts, and violated filters that are only observed. `rule` is the
    index of the first address rule that applied. `code` is the reply code of `error`.
    """

    queues: tuple[str, ...]
    exchanges: tuple[str, ...]
    remotes: tuple[str, ...]
    outcome: str
    error: str | None
    failed: tuple[str, ...] = ()
    rule: int | None = None
    code: int = 406
    violates: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return all fields except the rule and the code as plain data."""
        return {
            "outcome": self.outcome,
            "queues": list(self.queues),
            "exchanges": list(self.exchanges),
            "remotes": list(self.remotes),
            "error": self.error,
            "failed": list(self.failed),
            "violates": list(self.violates),
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the rules and the address table do with a message.

    Args:
        message: the message as the evaluated exchange receives it. After a translation, this is a different object from
            the original message.
        decision: None if no exchange is evaluated.
    """

    message: DescribedMessage
    result: RoutingResult
    decision: Decision | None = None

    @property
    def untouched(self) -> bool:
        """True if neither the rules nor the address table apply to the message."""
        return self.decision is None and self.result.outcome == PASSED


def mentioned_queues(vhost: VhostRules, router: Router) -> frozenset[bytes]:
    """Return the queues named by a virtual host's rules. Without a broker, regex routes choose among these queues."""
    queues = {queue.name for queue in vhost.queues}
    for exchange in router.exchanges.values():
        queues |= {name for kind, name in exchange.destinations if kind == QUEUE}
    return frozenset(queues)


def decide(
    router: Router,
    message: DescribedMessage,
    at: float,
    queues: Iterable[bytes],
    trace: Trace | None = None,
    regex_budget: int = DEFAULT_BUDGET,
) -> Decision:
    """Evaluate the rules. Random picks are replaced with the first name in byte order, to make results comparable."""
    names = QueueNames(tuple(sorted(queues)))
    return router.decide(message.exchange, message.facts, at, names, lambda _: 0, trace, regex_budget)


def evaluate(
    message: DescribedMessage,
    vhost: VhostRules,
    book: AddressBook | None,
    decision_of: Callable[[DescribedMessage], Decision],
) -> Evaluation:
    """Apply the address table and the rules to a message. A translated message is not translated again.

    Args:
        decision_of: evaluates the rules for a message.
    """
    if all(exchange.name != message.exchange for exchange in vhost.exchanges):
        translated = None if book is None else _translate_publish(message, vhost, book)
        if translated is None:
            return Evaluation(message, RoutingResult((), (text(message.exchange),), (), PASSED, None))
        if isinstance(translated, RoutingResult):
            return Evaluation(message, translated)
        message, book = translated, None
    decision = decision_of(message)
    return Evaluation(message, _routing_result(decision, vhost, book, message.facts.routing_key), decision)


def _routing_result(
    decision: Decision, vhost: VhostRules, book: AddressBook | None, routing_key: bytes
) -> RoutingResult:
    """Apply the address table, the alternate exchange and ``unmatched: pass`` to a decision."""
    rule = next(exchange for exchange in vhost.exchanges if exchange.name == decision.exchange)
    outcome = decision.outcome.value
    translated = TranslatedDestinations(decision.queues, decision.exchanges)
    if book is not None:
        taken = {exchange.name for exchange in vhost.exchanges} | vhost.carriers
        translated = translate_destinations(book, decision.queues, decision.exchanges, routing_key, taken)
    exchanges = {*translated.exchanges, *(publication.exchange for publication in translated.publications)}
    if decision.outcome is Outcome.UNROUTED and rule.unmatched_pass:
        outcome = PASSED
    elif decision.alternate and rule.alternate is not None:
        exchanges.add(rule.alternate)
    return RoutingResult(
        tuple(text(name) for name in translated.queues),
        tuple(text(name) for name in sorted(exchanges)),
        tuple(dict.fromkeys(target.remote.label for target in translated.remotes if target.remote)),
        outcome,
        text(decision.error) if decision.outcome is Outcome.REJECTED else None,
        tuple(failure.reason for failure in translated.failed),
        translated.rule,
        violates=tuple(dict.fromkeys(name for _, name in decision.violations)),
    )


def _translate_publish(
    message: DescribedMessage, vhost: VhostRules, book: AddressBook
) -> DescribedMessage | RoutingResult | None:
    """Look up the address of a publish in the address table if the sidecar does not evaluate the exchange.

    Returns:
        None if no rule applies, or if the address stays the same; the redirected message if its new exchange is
        evaluated; otherwise the final result.
    """
    target = book.look_up(message.exchange, message.facts.routing_key)
    if target is None:
        return None
    if isinstance(target, FailedTranslation):
        return _failed(target)
    exchange, key = target.publication
    if key.startswith(RESERVED_PREFIXES):
        error = f"routing keys that begin with '{text(RESERVED_PREFIX)}' are reserved"
        return RoutingResult((), (), (), Outcome.REJECTED.value, error, (), target.rule, 403)
    if target.remote is not None:
        return RoutingResult((), (), (target.remote.label,), TRANSLATED, None, (), target.rule)
    if any(evaluated.name == exchange for evaluated in vhost.exchanges):
        return replace(message, exchange=exchange, facts=replace(message.facts, routing_key=key))
    if exchange in vhost.carriers:
        return _failed(FailedTranslation(target.rule, CARRIER_TARGET))
    if target.publication == Publication(message.exchange, message.facts.routing_key):
        return None
    queues, exchanges = ((), (text(exchange),)) if exchange else ((text(key),), ())
    return RoutingResult(queues, exchanges, (), TRANSLATED, None, (), target.rule)


def _failed(failure: FailedTranslation) -> RoutingResult:
    return RoutingResult((), (), (), Outcome.UNROUTED.value, None, (failure.reason,), failure.rule)
