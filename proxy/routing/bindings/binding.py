"""A declared binding, its identity, and the reach of its routes.

The module `arguments` interprets a binding's arguments. A `Reach` limits the destinations of a client's bindings to
those that the client has permission to bind, and caches which destinations the client is permitted to bind to one
exchange. A decision does not route to unchecked destinations, but lists them separately so that they will be checked.
The declared destination of a binding needs no check, since the broker permitted it when the binding was created.

Source: the open-exchange specification, section 7 (routes), sections 8 and 13 (order of ties, identity).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import itemgetter
from typing import Final, cast

from proxy.values import QUEUE, Destination, Table, Value

_name = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding as declared."""

    exchange: bytes  # the source
    destination_type: str  # QUEUE or EXCHANGE
    destination: bytes  # name of the queue or exchange
    routing_key: bytes  # must be empty for open exchanges
    arguments: Table  # in declared order
    id: str = ""  # the name in the rules file, or the ``binding_hash``; if empty, decisions use the hash
    sequence: int = 0  # of two bindings with equal order, the binding with the higher sequence is visited first
    reach: Reach | None = field(default=None, compare=False)  # limits its routes; None for no limit
    #: whether it is visited after all bindings without this flag, regardless of its order
    last: bool = field(default=False, compare=False)
    #: user whose client declared the binding, and whose regex budget the binding uses; None for a rules file's binding
    owner: str | None = field(default=None, compare=False)

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Key that is equal for two bindings if and only if the broker considers them the same binding."""
        return (
            self.exchange,
            self.destination_type,
            self.destination,
            self.routing_key,
            typed_arguments(self.arguments),
        )

    def limited(self, reach: Reach | None, *, last: bool, owner: str | None) -> Binding:
        """Return a copy with a client's limits. This is faster than `dataclasses.replace`."""
        named = self.exchange, self.destination_type, self.destination, self.routing_key, self.arguments
        return Binding(*named, self.id, self.sequence, reach, last, owner)


def by_name(table: Table) -> Table:
    """Return the entries sorted by name, as the broker stores and reads them (stable sort, byte order)."""
    return tuple(sorted(table, key=_name))


def typed_arguments(arguments: Table) -> Hashable:
    """Return arguments as plain tuples sorted by name, with the types that the broker distinguishes."""
    return tuple((name, *typed(value)) for name, value in by_name(arguments))


def typed(value: Value) -> tuple[str, Hashable]:
    """Return a value with the type that the broker stores: ``L`` becomes ``l``, other letters are unchanged."""
    letter, content = value
    if letter == "A":
        return letter, tuple(typed(element) for element in cast("tuple[Value, ...]", content))
    if letter == "F":
        return letter, tuple((name, *typed(element)) for name, element in cast("Table", content))
    return "l" if letter == "L" else letter, content


def binding_hash(destination_type: str, destination: bytes, routing_key: bytes, arguments: Table) -> str:
    """Return the default id of a binding: 10 hex digits of a hash of its identity."""
    content = (destination_type, destination, routing_key, typed_arguments(arguments))
    return blake2b(repr(content).encode(), digest_size=5).hexdigest()


#: Maximum number of refused destinations that a `Reach` keeps. Older refused destinations are checked again.
_KEPT_REFUSALS: Final = 4096

#: Replaces destinations that are out of reach. No queue has this name, but the message still counts as routed.
UNREACHABLE: Final[Destination] = (QUEUE, b"")


class Reach:
    """The destinations that one client is permitted to bind to one exchange.

    Args:
        closed: whether all destinations are refused without a check.
    """

    __slots__ = ("allowed", "client", "closed", "refused")

    def __init__(self, client: str, closed: bool = False) -> None:
        self.client = client
        self.closed = closed
        #: destinations that the client is permitted to bind
        self.allowed: set[Destination] = set()
        #: destinations that the client is not permitted to bind, with the reason. Only the latest are kept, since
        #: messages can name any number of destinations.
        self.refused: dict[Destination, str] = {}

    def refuse(self, destination: Destination, reason: str) -> None:
        """Record that the client is not permitted to bind a destination."""
        if len(self.refused) >= _KEPT_REFUSALS:
            del self.refused[next(iter(self.refused))]
        self.refused[destination] = reason

    def limit(
        self, chosen: Collection[Destination], unchecked: set[tuple[Reach, Destination]]
    ) -> Collection[Destination]:
        """Return the destinations within reach, and `UNREACHABLE` if some are not.

        Args:
            chosen: destinations chosen by a binding.
            unchecked: receives the destinations that still have to be checked.
        """
        if self.allowed.issuperset(chosen):
            return chosen
        kept = {UNREACHABLE}
        for destination in chosen:
            if destination in self.allowed:
                kept.add(destination)
            elif not self.closed and destination not in self.refused:
                unchecked.add((self, destination))
        return kept


#: Reach of a binding whose client is unknown: its routes have no destinations, and nothing is checked.
NO_REACH: Final = Reach("", closed=True)
