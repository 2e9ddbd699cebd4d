"""In what form does the broker keep what clients declared? Arguments and keys of stored exchanges and bindings.

An open exchange is a real direct exchange marked ``x-open-exchange``; each client binding is a real binding of it with
the client's own arguments, under a storage key that no publish uses. One more argument, ``x-oxproxy``, keeps
the raw bytes of the client's table and a sequence number, because the management API's JSON loses types and order.

Source: delivery notes, "The store"; architecture, "The broker is the store".
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import blake2b

from proxy.amqp.frames import U64
from proxy.amqp.original import longstr_entry
from proxy.amqp.tables import decode_table
from proxy.amqp.tokens import RESERVED
from proxy.routing.bindings import typed_arguments

#: argument that marks an exchange of ours on the broker
MARK = b"x-open-exchange"
#: argument that keeps sequence and raw arguments; never shown to clients
KEPT = b"x-oxproxy"
#: argument by which a client chooses the delivery of an exchange it declares
DELIVERY = b"x-delivery"
STORAGE = RESERVED + b"b."
_MARK_ENTRY = b"\x0f" + MARK + b"t\x01"


def pack(sequence: int, entries: bytes) -> bytes:
    """Give the value of ``x-oxproxy``: base64 of the sequence (8 bytes) and the client's raw table entries."""
    return b64encode(U64.pack(sequence) + entries)


def unpack(text: bytes) -> tuple[int, bytes]:
    """Read a value of ``x-oxproxy`` back.

    Returns:
        Sequence and raw entries of the client's table.

    Raises:
        ValueError: it is not one, or was damaged.
    """
    raw = b64decode(text, validate=True)
    if len(raw) < U64.size:
        raise ValueError(f"{len(raw)} bytes, expected at least {U64.size}")
    return int(U64.unpack_from(raw)[0]), raw[U64.size :]


def kept_arguments(sequence: int, entries: bytes) -> bytes:
    """Give the entries of a stored binding: the client's own and ours."""
    return entries + longstr_entry(KEPT, pack(sequence, entries))


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
