"""What goes into a decision, what comes out, and the trace of how it was made.

``Facts`` is the part of a message that rules can look at. ``Interest`` specifies which part the rules of an exchange do
look at, so that nothing else is extracted and the rest is not part of a cache key. ``Decision`` is the result. All are
immutable and independent of the wire format. ``Facts`` and ``Decision`` are made for every message whose decision is
not cached; they are not frozen dataclasses only because making one takes four times as long.

A ``Trace`` is collected on request only; then every binding is visited, whether or not the index would have left it
out. It is plain data for explanations and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from proxy.routing.bindings.binding import Binding, Reach
from proxy.values import Destination, Table, Value

NO_PROPERTIES: Mapping[str, bytes | int] = MappingProxyType({})


@dataclass(slots=True, init=False)
class Facts:
    """What rules may know of a message."""

    routing_key: bytes  # the one AMQP routing key
    headers: Table  # header table in message order, () where there is none
    #: set properties by AMQP name with underscores (``content_type``); text properties as bytes (``expiration`` too,
    #: as it was sent), ``delivery_mode``, ``priority``, ``timestamp`` as int
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
    """Which facts can change the decision of an exchange (and of the exchanges it leads to)."""

    routing_key: bool = False  # whether the routing key matters
    headers: frozenset[bytes] | None = frozenset()  # names of the headers that matter; None: the whole table does
    properties: frozenset[str] = frozenset()  # names of the properties that matter
    #: sorted cut points; two sizes with equal ``bisect_right(body_sizes, size)`` are alike
    body_sizes: tuple[int, ...] = ()
    clock: bool = False  # whether a datetime operator is there: a decision holds for one second
    queues: bool = False  # whether the list of queues matters: a decision holds for one version of it


@dataclass(frozen=True, slots=True)
class QueueNames:
    """The queues of one virtual host, as regex routes see them; a new version whenever the names change."""

    names: tuple[bytes, ...] = ()
    version: int = 0


class Outcome(Enum):
    """What the rules made of a message."""

    ROUTED = "routed"
    UNROUTED = "unrouted"
    FILTERED = "filtered"  # dropped by a filter of the exchange that is silent
    REJECTED = "rejected"  # a filter or an invalid regex of the producer: the channel is closed with `error`


@dataclass(slots=True, init=False)
class Decision:
    """Where one message goes. Shared by all messages with the same facts while the rules stay."""

    exchange: bytes  # the exchange that was asked
    outcome: Outcome  # see Outcome; ROUTED as soon as the final set has a member, whether or not it exists
    queues: tuple[bytes, ...]  # queues chosen by name, sorted
    exchanges: tuple[bytes, ...]  # exchanges outside the router that get the message under its own key, sorted
    #: the asked exchange itself chose nothing (or dropped the message silently), so that its alternate exchange
    #: applies. An alternate that is in the router has been evaluated already, and this is False.
    alternate: bool
    error: bytes  # for REJECTED, the reply text without ``PRECONDITION_FAILED - ``
    #: ids of the bindings that were true, in visiting order, with their exchange: (exchange, id)
    matched: tuple[tuple[bytes, str], ...]
    keep: bool  # whether the decision may be cached (False after a random draw)
    match_limit_hits: int  # patterns that ran into the match limit
    #: whose regex budgets were spent: rules (those of rules files), client, message; sorted
    spent_budgets: tuple[str, ...]
    #: what routes of clients' bindings chose and is not yet known to be within their reach
    unchecked: frozenset[tuple[Reach, Destination]]
    trace: Trace | None = field(compare=False)  # what was visited, where it was asked for

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
        unchecked: frozenset[tuple[Reach, Destination]] = frozenset(),
        trace: Trace | None = None,
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
        self.unchecked = unchecked
        self.trace = trace


@dataclass(frozen=True, slots=True)
class FilterStep:
    """One filter that was asked."""

    name: bytes  # of the exchange argument
    breach: str | None  # what was wrong, None where the message passed
    silent: bool  # whether a breach drops the message instead of closing the channel


class Verdict(Enum):
    """The answer of an operator."""

    MATCH = "match"
    MISMATCH = "mismatch"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class OperatorStep:
    """One operator's answer."""

    key: bytes  # the argument's key
    expected: Value  # the argument's value
    verdict: Verdict
    #: what it looked at: a header's Value, the bytes or the number of a property, the routing key, the clock's text;
    #: None if it was absent
    seen: Value | bytes | int | None


@dataclass(frozen=True, slots=True)
class BindingStep:
    """One visit."""

    binding: Binding
    id: str  # its id in decisions
    order: int
    match_type: str  # how the operators were put together
    true: bool
    operators: tuple[OperatorStep, ...]  # each with its answer
    added: tuple[Destination, ...] = ()  # destinations that are there now and were not before
    removed: tuple[Destination, ...] = ()  # destinations that were there before
    jump: int | None = None  # order at which the visit went on, None where at the next binding
    stopped: bool = False  # whether nothing was visited after it
    error: bytes = b""  # reply text for an invalid regex of the producer, which ended everything
    #: whose regex budget was spent, so that the binding is false or its routes chose nothing: rules (those of rules
    #: files), client, message
    spent_budgets: tuple[str, ...] = ()


@dataclass(slots=True)
class ExchangeStep:
    """One exchange that the message came to."""

    name: bytes
    type: str
    filters: list[FilterStep] = field(default_factory=list)  # those that were asked
    #: bindings, in order; those that a jump or a stop left out are not there
    visits: list[BindingStep] = field(default_factory=list)
    alternate: bytes | None = None  # the alternate exchange, where it was used


@dataclass(slots=True)
class Trace:
    """All exchanges that one message came to, in order, the asked one first."""

    exchanges: list[ExchangeStep] = field(default_factory=list)
