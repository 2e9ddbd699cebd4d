"""What a rules file says, once it is parsed and checked: plain data for the other rooms."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import tzinfo

from proxy.routing.bindings import Binding
from proxy.routing.values import Table


#: Bindings of files have greater sequences than those of clients (microseconds since 1970): among equal orders the
#: greater sequence is visited first, so files come before clients.
FILE_FIRST = 1 << 62


@dataclass(frozen=True, slots=True)
class QueueRule:
    """A queue that a rules file asks for: declared durable, taken as it is where it exists."""

    name: bytes
    arguments: Table = ()


@dataclass(frozen=True, slots=True)
class ExchangeRule:
    """One exchange of a rules file.

    Args:
        name: the exchange that producers publish to.
        type: ``x-open``, ``headers``, ``topic``, ``direct`` or ``fanout``.
        delivery: ``carrier`` or ``queue``.
        carrier: name of the exchange on the broker (equal to `name` unless the file says otherwise).
        unmatched_pass: what no binding routes goes to the broker's own exchange as it came.
        arguments: exchange arguments in file order, alternate-exchange included.
        alternate: the alternate exchange's name, or None.
        bindings: in file order; their `sequence` says who wins ties.
        local_time: time zone of `dtl` operators.
    """

    name: bytes
    type: str
    delivery: str
    carrier: bytes
    unmatched_pass: bool
    arguments: Table
    alternate: bytes | None
    bindings: tuple[Binding, ...]
    local_time: tzinfo


@dataclass(frozen=True, slots=True)
class VhostRules:
    """Everything the rules files say about one virtual host."""

    vhost: str
    queues: tuple[QueueRule, ...] = ()
    exchanges: tuple[ExchangeRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules files together.

    Args:
        version: short hash of the files' content.
        vhosts: by name.
    """

    version: str
    vhosts: dict[str, VhostRules] = field(default_factory=dict)
