"""The trace of a decision: which exchanges and bindings were visited, and what each did.

A `Trace` is collected on request only; then every binding is visited, whether or not the index would have left it out.
It is plain data for explanations and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from proxy.routing.bindings.binding import Binding
from proxy.values import Destination, Value


@dataclass(frozen=True, slots=True)
class FilterStep:
    """One filter that was asked.

    Args:
        name: of the exchange argument.
        breach: what was wrong, None where the message passed.
        silent: whether a breach drops the message instead of closing the channel.
    """

    name: bytes
    breach: str | None
    silent: bool


class Verdict(Enum):
    """The answer of an operator."""

    MATCH = "match"
    MISMATCH = "mismatch"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class OperatorStep:
    """One operator's answer.

    Args:
        key: the argument's key.
        expected: the argument's value.
        verdict: the answer.
        seen: what it looked at: a header's Value, the bytes or the number of a property, the routing key, the clock's
            text; None where it was absent.
    """

    key: bytes
    expected: Value
    verdict: Verdict
    seen: object


@dataclass(frozen=True, slots=True)
class BindingStep:
    """One visit.

    Args:
        binding: as it was declared.
        id: its id in decisions.
        order: its order.
        match_type: how the operators were put together.
        true: its result.
        operators: each with its answer.
        added: destinations that are there now and were not before.
        removed: destinations that were there before.
        jump: order at which the visit went on, None where at the next binding.
        stopped: whether nothing was visited after it.
        error: reply text for an invalid regex of the producer, which ended everything.
        spent_budgets: whose regex budget was spent, so that the binding is false or its routes chose nothing: rules
            (those of rules files), client, message.
    """

    binding: Binding
    id: str
    order: int
    match_type: str
    true: bool
    operators: tuple[OperatorStep, ...]
    added: tuple[Destination, ...] = ()
    removed: tuple[Destination, ...] = ()
    jump: int | None = None
    stopped: bool = False
    error: bytes = b""
    spent_budgets: tuple[str, ...] = ()


@dataclass(slots=True)
class ExchangeStep:
    """One exchange that the message came to.

    Args:
        name: of the exchange.
        type: of the exchange.
        filters: those that were asked.
        visits: bindings, in order; those that a jump or a stop left out are not there.
        alternate: the alternate exchange, where it was used.
    """

    name: bytes
    type: str
    filters: list[FilterStep] = field(default_factory=list)
    visits: list[BindingStep] = field(default_factory=list)
    alternate: bytes | None = None


@dataclass(slots=True)
class Trace:
    """All exchanges that one message came to, in order, the asked one first."""

    exchanges: list[ExchangeStep] = field(default_factory=list)
