"""A declared binding and its identity. The module `arguments` interprets a binding's arguments.

Source: the open-exchange specification, section 7 (routes), sections 8 and 13 (order of ties, identity).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import itemgetter
from typing import Final, cast

from oxproxy.values import QUEUE, Destination, Table, Value

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
    #: whether it is visited after all bindings without this flag, regardless of its order, and has no routes
    last: bool = field(default=False, compare=False)
    #: user whose client declared the binding, and whose regex budget the binding uses; None for a rules file's binding
    owner: str | None = field(default=None, compare=False)
    #: whether it may have operators that the open-exchange plugin does not have
    extensions: bool = field(default=False, compare=False)
    readable: bool = field(default=False, compare=False)  # whether a rules file has it in the readable spelling

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

    def limited(self, sequence: int, *, last: bool, owner: str | None) -> Binding:
        """Return a copy with the limits of a client's binding. This is faster than `dataclasses.replace`."""
        named = self.exchange, self.destination_type, self.destination, self.routing_key, self.arguments
        return Binding(*named, self.id, sequence, last, owner, self.extensions)


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


#: Replaces the queue named by the routing key if a binding has no routes. No queue has this name, but the message
#: counts as routed.
UNREACHABLE: Final[Destination] = (QUEUE, b"")
