"""In what form does the broker keep what clients declared? Arguments and keys of stored exchanges and bindings.

An open exchange is a real direct exchange marked ``x-open-exchange``; each client binding is a real binding of it with
the client's own arguments: the first of a destination under its token, further ones under a storage key that no publish
uses. One more argument, ``x-oxproxy``, keeps the raw
bytes of the client's table, its routing key, its user name and a sequence number: the management API's JSON loses
types and order, and the routing key on the broker is another one.

Source: delivery notes, "The store"; architecture, "The broker is the store".
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import blake2b
from typing import NamedTuple

from proxy.amqp.frames import U32, U64, shortstr
from proxy.amqp.original import longstr_entry
from proxy.amqp.tables import decode_table
from proxy.amqp.tokens import RESERVED
from proxy.amqp.vhost import StoredBinding
from proxy.routing.bindings import typed_arguments

#: argument that marks an exchange of ours on the broker
MARK = b"x-open-exchange"
#: argument that keeps sequence and raw arguments; never shown to clients
KEPT = b"x-oxproxy"
#: argument by which a client chooses the delivery of an exchange it declares
DELIVERY = b"x-delivery"
STORAGE = RESERVED + b"b."
_MARK_ENTRY = b"\x0f" + MARK + b"t\x01"


class Kept(NamedTuple):
    """What ``x-oxproxy`` says.

    Args:
        sequence: place in the order of declarations.
        routing_key: the client's; empty for an exchange.
        client: the user that bound; empty for an exchange.
        entries: raw entries of the client's table.
    """

    sequence: int
    routing_key: bytes
    client: str
    entries: bytes


def pack(sequence: int, entries: bytes, routing_key: bytes = b"", client: str = "") -> bytes:
    """Give the value of ``x-oxproxy``: base64 of sequence (8 bytes), routing key, user and raw table entries."""
    user = client.encode()
    return b64encode(U64.pack(sequence) + shortstr(routing_key) + U32.pack(len(user)) + user + entries)


def unpack(text: bytes) -> Kept:
    """Read a value of ``x-oxproxy`` back.

    Raises:
        ValueError: it is not one, or was damaged.
    """
    raw = b64decode(text, validate=True)
    key_at = U64.size + 1
    user_at = key_at + (raw[U64.size] if len(raw) > U64.size else 0) + U32.size
    entries_at = user_at + (U32.unpack_from(raw, user_at - U32.size)[0] if len(raw) >= user_at else 0)
    if len(raw) < entries_at:
        raise ValueError(f"{len(raw)} bytes, expected at least {entries_at}")
    key, user = raw[key_at : user_at - U32.size], raw[user_at:entries_at]
    return Kept(int(U64.unpack_from(raw)[0]), key, user.decode(), raw[entries_at:])


def kept_arguments(sequence: int, entries: bytes, routing_key: bytes = b"", client: str = "") -> bytes:
    """Give the entries of a stored binding: the client's own and ours."""
    return entries + longstr_entry(KEPT, pack(sequence, entries, routing_key, client))


def exchange_arguments(sequence: int, entries: bytes) -> bytes:
    """Give the entries under which a client's open exchange is declared on the broker: its own, the mark, ours."""
    return entries + _MARK_ENTRY + longstr_entry(KEPT, pack(sequence, entries))


def storage_key(kind: str, destination: bytes, routing_key: bytes, entries: bytes) -> bytes:
    """Give the key under which a client's binding is stored: equal bindings, equal keys; the sequence is not in it.

    Args:
        kind: ``queue`` or ``exchange``.
        destination: the destination's name.
        routing_key: the client's routing key.
        entries: the client's raw arguments.
    """
    table = decode_table(entries, 0, len(entries))
    identity = repr((kind, destination, routing_key, typed_arguments(table))).encode()
    return STORAGE + blake2b(identity, digest_size=8).hexdigest().encode()


def kept_rows(stored: StoredBinding) -> list[tuple[bytes, bytes]]:
    """Give key and argument entries of each binding on the broker that keeps a copy, the copy made first in front."""
    key = stored.binding.routing_key
    return [
        (stored.key_of(sequence), kept_arguments(sequence, stored.entries, key, client))
        for sequence, client in stored.copies
    ]
