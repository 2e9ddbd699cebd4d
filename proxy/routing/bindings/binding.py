"""A binding as it was declared, its identity, and how far its routes may reach.

What its arguments mean is in `arguments`. A `Reach` limits what a client's bindings lead to: nothing that the client
could not have bound itself. It knows what its client may bind to one exchange, as far as that was asked; other
destinations are left out of the decision, which lists them so that they can be asked for. The declared destination
of a binding fact_names no check: the broker permitted it when the binding was made.

Source: the open-exchange specification, section 7 (routes), sections 8 and 13 (order of ties, identity).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import itemgetter
from typing import cast

from proxy.values import QUEUE, Destination, Table, Value

_name = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Binding:
    """One binding as it was declared."""

    exchange: bytes  # the source
    destination_type: str  # QUEUE or EXCHANGE
    destination: bytes  # name of the queue or exchange
    routing_key: bytes  # must be empty for open exchanges
    arguments: Table  # in declared order
    id: str = ""  # the operator's name for it, else its ``binding_hash``
    sequence: int = 0  # of two bindings of equal order the one with the greater sequence is visited first
    reach: Reach | None = field(default=None, compare=False)  # how far its routes reach; None: anywhere
    #: whether it is visited after all bindings that are not, whatever its order
    last: bool = field(default=False, compare=False)
    #: user whose client made it, whose regex budget it uses; None: a rules file
    owner: str | None = field(default=None, compare=False)

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Equal for two bindings exactly where the broker takes them for one."""
        return (
            self.exchange,
            self.destination_type,
            self.destination,
            self.routing_key,
            typed_arguments(self.arguments),
        )


def by_name(table: Table) -> Table:
    """The entries in a stable sort by name (byte order), as the broker keeps and reads them."""
    return tuple(sorted(table, key=_name))


def typed_arguments(arguments: Table) -> Hashable:
    """Arguments as plain tuples sorted by name, with the types that the broker distinguishes."""
    return tuple((name, *typed(value)) for name, value in by_name(arguments))


def typed(value: Value) -> tuple[str, Hashable]:
    """A value with the type that the broker gives it: ``L`` is read as ``l``, the other letters are kept."""
    letter, content = value
    if letter == "A":
        return letter, tuple(typed(element) for element in cast("tuple[Value, ...]", content))
    if letter == "F":
        return letter, tuple((name, *typed(element)) for name, element in cast("Table", content))
    return "l" if letter == "L" else letter, content


def binding_hash(destination_type: str, destination: bytes, routing_key: bytes, arguments: Table) -> str:
    """A short stable name for a binding that has none: 10 hex digits of what makes it itself."""
    content = (destination_type, destination, routing_key, typed_arguments(arguments))
    return blake2b(repr(content).encode(), digest_size=5).hexdigest()


#: Replaces what is out of reach: a name that no queue has, so that the message counts as routed all the same.
UNREACHABLE: Destination = (QUEUE, b"")


class Reach:
    """What one client may bind to one exchange.

    Args:
        client: its name.
        closed: whether nothing is allowed and no client is to be asked.
    """

    __slots__ = ("allowed", "client", "closed", "refused")

    def __init__(self, client: str, closed: bool = False) -> None:
        self.client = client
        self.closed = closed
        #: destinations that the client could bind
        self.allowed: set[Destination] = set()
        #: those that it could not, with the reason
        self.refused: dict[Destination, str] = {}

    def limit(
        self, chosen: Collection[Destination], unchecked: set[tuple[Reach, Destination]]
    ) -> Collection[Destination]:
        """Return those of the destinations that are within reach, and `UNREACHABLE` for the others.

        Args:
            chosen: destinations.
            unchecked: gets the others that are to be checked.
        """
        if self.allowed.issuperset(chosen):
            return chosen
        kept = {UNREACHABLE}
        for one in chosen:
            if one in self.allowed:
                kept.add(one)
            elif not self.closed and one not in self.refused:
                unchecked.add((self, one))
        return kept


#: Of a binding that no client is known to have made: its routes lead nowhere, and no client is asked.
NO_REACH = Reach("", closed=True)
