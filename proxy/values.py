"""AMQP field values as Python sees them (lossless, typed, hashable), and the names of what messages are sent to.

A value keeps its type letter until a comparison is done, since ``I 1``, ``l 1`` and ``d 1.0`` are one number to a
rule but three identities to a binding. Letters are those of RabbitMQ (AMQP 0-9-1 errata, "Field types").

=========  ==========================================================
letter     Python value
=========  ==========================================================
t          bool
b B s u    int (8 bits signed, unsigned, 16 bits signed, unsigned)
I i        int (32 bits signed, unsigned)
l L        int (64 bits; RabbitMQ reads ``L`` as signed as well)
T          int (seconds)
f d        float (``f`` holds a single-precision number exactly)
D          (scale: int, unsigned: int)
S x        bytes (text, byte array)
A          tuple of Value
F          Table
V          None
=========  ==========================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias


class Value(NamedTuple):
    """One typed field value."""

    letter: str
    value: object


def strings(value: Value) -> Iterator[bytes]:
    """Yield the byte strings of a value, or of the list that it is."""
    elements = value.value if value.letter == "A" and isinstance(value.value, tuple) else (value,)
    for element in elements:
        if isinstance(element.value, bytes):
            yield element.value


#: Entries in wire order; a name may occur twice.
Table: TypeAlias = tuple[tuple[bytes, Value], ...]

#: What keys of ours on carriers begin with: on a direct exchange words, on a topic exchange, where dots cost, one word.
RESERVED_PREFIX = b"x.o.p.e.n.x."
RESERVED_WORD = RESERVED_PREFIX.replace(b".", b"-")
#: No producer may use a routing key or CC entry that begins so: tokens are ours alone.
RESERVED_PREFIXES = (RESERVED_PREFIX, RESERVED_WORD)

#: The kinds of destinations.
QUEUE = "queue"
EXCHANGE = "exchange"

#: Kind (QUEUE or EXCHANGE) and name of what a message can be sent to.
Destination: TypeAlias = tuple[str, bytes]


def reserved_prefix(name: bytes) -> bytes:
    """Return the reserved prefix that a name or routing key begins with; b"" where it begins with none."""
    for prefix in RESERVED_PREFIXES:
        if name.startswith(prefix):
            return prefix
    return b""
