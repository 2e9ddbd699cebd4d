"""Input, result and trace of a decision.

``Facts`` is the part of a message that rules can test. ``Interest`` specifies which facts are tested by the rules
of an exchange; no other facts are extracted or included in a cache key. ``Decision`` is the result. All three are
independent of the wire format and never changed after creation. ``Facts`` and ``Decision`` are created for every
message whose decision is not cached. They are not frozen dataclasses, since creating a frozen instance takes four times
as long.

A ``Trace`` is collected only on request. Every binding is then visited, including those that the index would skip. The
trace is plain data for explanations and does not affect the decision.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from oxproxy.routing.bindings.binding import Binding
from oxproxy.values import Destination, Table, Value

NO_PROPERTIES: Final[Mapping[str, bytes | int]] = MappingProxyType({})


@dataclass(slots=True, init=False)
class Facts:
    """The facts of a message that rules can test."""

    routing_key: bytes  # the AMQP routing key
    headers: Table  # header table in message order, () if there is none
    #: the properties that are set, by AMQP name with underscores (``content_type``). String properties are bytes,
    #: including ``expiration``, which is not parsed; ``delivery_mode``, ``priority`` and ``timestamp`` are int
    properties: Mapping[str, bytes | int]
    body_size_bytes: int  # announced size of the body

    def __init__(
        self,
        routing_key: bytes,
        headers: Table = (),
        properties: Mapping[str, bytes | int] = NO_PROPERTIES,
        body_size_bytes: int = 0,
    ) -> None:
        self.routing_key = routing_key
        self.headers = headers
        self.properties = properties
        self.body_size_bytes = body_size_bytes


@dataclass(frozen=True, slots=True)
class Interest:
    """Facts that can change the decision of an exchange, or of the exchanges that it routes to."""

    routing_key: bool = False  # whether the routing key matters
    headers: frozenset[bytes] | None = frozenset()  # names of the headers that matter; None: the whole table
    properties: frozenset[str] = frozenset()  # names of the properties that matter
    #: sorted boundaries; two sizes with equal ``bisect_right(body_sizes, size)`` are equivalent
    body_sizes: tuple[int, ...] = ()
    clock: bool = False  # whether there is a clock operator: a decision is then valid for one second
    queues: bool = False  # whether the list of queues matters: a decision is then valid for one version of the list


@dataclass(frozen=True, slots=True)
class QueueNames:
    """The queues of one virtual host, as seen by regex routes. There is a new version whenever the names change."""

    names: tuple[bytes, ...] = ()  # sorted
    version: int = 0

    def __contains__(self, name: bytes) -> bool:
        at = bisect_left(self.names, name)
        return at < len(self.names) and self.names[at] == name

    def with_name(self, name: bytes) -> QueueNames:
        """Return a version with a name added, or this version if it contains the name."""
        if name in self:
            return self
        names = list(self.names)
        insort(names, name)  # fast even with thousands of names
        return QueueNames(tuple(names), self.version + 1)

    def without_name(self, name: bytes) -> QueueNames:
        """Return a version without a name, or this version if it does not contain the name."""
        if name not in self:
            return self
        names = list(self.names)
        del names[bisect_left(names, name)]
        return QueueNames(tuple(names), self.version + 1)


class Outcome(Enum):
    """Result of the rules for a message."""

    ROUTED = "routed"
    UNROUTED = "unrouted"
    FILTERED = "filtered"  # dropped, or sent to the alternate exchange, by a `-silent` filter of the exchange
    REJECTED = "rejected"  # by a filter, or because of a producer's invalid regex; the channel is closed with `error`


#: Members for the publish path, since access through the class takes 0.1 us.
ROUTED: Final = Outcome.ROUTED
UNROUTED: Final = Outcome.UNROUTED
FILTERED: Final = Outcome.FILTERED


@dataclass(slots=True, init=False)
class Decision:
    """The destinations of a message, shared by all messages with the same facts while the rules do not change."""

    exchange: bytes  # the exchange that the message was published to
    #: ROUTED if any destination was chosen, whether or not the destination exists, unless a filter applied
    outcome: Outcome
    queues: tuple[bytes, ...]  # queues chosen by name, sorted
    exchanges: tuple[bytes, ...]  # exchanges outside the router that receive the message with the message's key, sorted
    #: True if the exchange's alternate exchange, which is outside the router, must receive the message, because the
    #: exchange itself chose nothing or dropped the message silently
    alternate: bool
    error: bytes  # for REJECTED, the reply text without ``PRECONDITION_FAILED - ``
    #: (exchange, id) of the bindings that were true, in visiting order
    matched: tuple[tuple[bytes, str], ...]
    keep: bool  # whether the decision may be cached (False after a random pick)
    match_limit_hits: int  # regex searches that reached the match limit
    #: owners whose regex budgets were spent, sorted: rules (rules files), client, message
    spent_budgets: tuple[str, ...]
    trace: Trace | None = field(compare=False)  # the steps of the evaluation, if requested
    filtered_by: bytes  # for FILTERED, the name of the violated filter
    #: (exchange, condition or filter) that the message violates: the one that rejects it, or those that are observed
    violations: tuple[tuple[bytes, str], ...]

    def __init__(
        self,
        exchange: bytes,
        outcome: Outcome,
        queues: tuple[bytes, ...] = (),
        exchanges: tuple[bytes, ...] = (),
        alternate: bool = False,
        error: bytes = b"",
        matched: tuple[tuple[bytes, str], ...] = (),
        keep: bool = True,
        match_limit_hits: int = 0,
        spent_budgets: tuple[str, ...] = (),
        trace: Trace | None = None,
        filtered_by: bytes = b"",
        violations: tuple[tuple[bytes, str], ...] = (),
    ) -> None:
        self.exchange = exchange
        self.outcome = outcome
        self.queues = queues
        self.exchanges = exchanges
        self.alternate = alternate
        self.error = error
        self.matched = matched
        self.keep = keep
        self.match_limit_hits = match_limit_hits
        self.spent_budgets = spent_budgets
        self.trace = trace
        self.filtered_by = filtered_by
        self.violations = violations


@dataclass(frozen=True, slots=True)
class FilterStep:
    """The check of one filter."""

    name: bytes  # name of the exchange argument
    breach: str | None  # the violation, None if the message passed
    silent: bool  # whether a violation drops the message instead of closing the channel
    observed: bool = False  # whether a violation is only recorded


class Verdict(Enum):
    """Result of an operator."""

    MATCH = "match"
    MISMATCH = "mismatch"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class OperatorStep:
    """The result of one operator."""

    key: bytes  # the argument's key
    expected: Value  # the argument's value
    verdict: Verdict
    #: the tested fact: a header's Value, the bytes or the number of a property, the routing key, or the clock's text;
    #: None if the fact was absent
    seen: Value | bytes | int | None
    header: bytes | None = None  # name of the tested header


@dataclass(frozen=True, slots=True)
class BindingStep:
    """A visit to one binding."""

    binding: Binding
    id: str  # id of the binding in decisions
    order: int
    match_type: str  # how the operators were combined
    true: bool
    operators: tuple[OperatorStep, ...]  # each with its verdict
    added: tuple[Destination, ...] = ()  # destinations that were added
    removed: tuple[Destination, ...] = ()  # destinations that were removed
    jump: int | None = None  # order at which the evaluation continued, None for the next binding
    stopped: bool = False  # whether the binding ended the evaluation of the exchange
    error: bytes = b""  # reply text for an invalid regex from the producer, which ended the decision
    #: owners whose regex budget was spent, so that the binding was false or its routes chose nothing: rules (rules
    #: files), client, message
    spent_budgets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConditionStep:
    """The check of one condition of a contract."""

    written: str  # the condition without its value
    expected: str  # the value, as text
    operator: OperatorStep
    violated: bool
    observed: bool  # whether a violation is only recorded


@dataclass(slots=True)
class ExchangeStep:
    """One exchange that the message reached."""

    name: bytes
    type: str
    filters: list[FilterStep] = field(default_factory=list)  # the checked filters
    contract: list[ConditionStep] = field(default_factory=list)  # the conditions of the contract
    #: visited bindings, in order, without those that a jump or a stop skipped
    visits: list[BindingStep] = field(default_factory=list)
    alternate: bytes | None = None  # the alternate exchange, if it was used


@dataclass(slots=True)
class Trace:
    """All exchanges that one message reached, in order, starting with the exchange to which it was published."""

    exchanges: list[ExchangeStep] = field(default_factory=list)
