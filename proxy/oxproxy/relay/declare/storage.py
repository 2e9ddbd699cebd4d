"""The format in which clients' declarations are stored on the broker, as arguments and keys of exchanges and bindings.

A binding is signed, since any user with permission to bind can put any user name into ``x-oxproxy``. An exchange needs
no signature, since the user that declared it has permission to configure it.

Source: docs/reference/declaring.md (storage on the broker).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Hashable
from hashlib import blake2b
from typing import NamedTuple

from oxproxy.amqp.frames import U32, U64, shortstr
from oxproxy.amqp.tables import MAX_NESTING, decode_table, too_deep
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.original_address import longstr_entry
from oxproxy.relay.tokens import STORAGE, STORAGE_WORD
from oxproxy.relay.vhost import (
    BindingCopy,
    CarrierType,
    DeclaredExchange,
    Delivery,
    OwnedExchange,
    StoredBinding,
    VhostState,
)
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.bindings.exchange_types import OPEN
from oxproxy.routing.exchange import Exchange
from oxproxy.values import Destination, Table, Value, shown

#: argument that marks our exchanges on the broker
MARK = b"x-open-exchange"
#: argument with the sequence number, routing key, user and raw arguments of a declaration; hidden from clients
KEPT = b"x-oxproxy"
#: argument with the signature of a binding; hidden from clients
SIGNATURE = b"x-oxproxy-signature"
#: argument that requests queue delivery; only rules files may do so
DELIVERY = b"x-delivery"
#: argument with which a client chooses the type of an exchange's carrier
CARRIER_TYPE = b"x-carrier-type"
ALTERNATE = b"alternate-exchange"
#: Greatest valid sequence number. Sequence numbers are microseconds since 1970, so it will be reached in 2255.
LAST_SEQUENCE = 2**53 - 1
_MARK_ENTRY = b"\x0f" + MARK + b"t\x01"


class StoredArguments(NamedTuple):
    """Content of ``x-oxproxy``."""

    #: position in the order of declarations
    sequence: int
    #: the client's routing key; empty for an exchange
    routing_key: bytes
    #: user that created the binding; empty for an exchange
    client: str
    #: raw entries of the client's table
    entries: bytes


def pack(sequence: int, entries: bytes, routing_key: bytes = b"", client: str = "") -> bytes:
    """Return the value of ``x-oxproxy``: base64 of sequence (8 bytes), routing key, user and raw table entries."""
    user = client.encode()
    return b64encode(U64.pack(sequence) + shortstr(routing_key) + U32.pack(len(user)) + user + entries)


def unpack(text: bytes) -> StoredArguments:
    """Parse a value of ``x-oxproxy``; raise ValueError if it is malformed."""
    raw = b64decode(text, validate=True)
    key_at = U64.size + 1
    user_at = key_at + (raw[U64.size] if len(raw) > U64.size else 0) + U32.size
    entries_at = user_at + (U32.unpack_from(raw, user_at - U32.size)[0] if len(raw) >= user_at else 0)
    if len(raw) < entries_at:
        raise ValueError(f"{len(raw)} bytes, expected at least {entries_at}")
    key, user = raw[key_at : user_at - U32.size], raw[user_at:entries_at]
    sequence = int(U64.unpack_from(raw)[0])
    if sequence > LAST_SEQUENCE:
        raise ValueError(f"its sequence number is {sequence}, expected at most {LAST_SEQUENCE}")
    return StoredArguments(sequence, key, user.decode(), raw[entries_at:])


def kept_arguments(
    sequence: int, entries: bytes, routing_key: bytes = b"", client: str = "", signature: bytes = b""
) -> bytes:
    """Return the argument entries of a stored binding: the client's entries, followed by our own."""
    signed = longstr_entry(SIGNATURE, signature) if signature else b""
    return entries + longstr_entry(KEPT, pack(sequence, entries, routing_key, client)) + signed


def signed_fields(
    vhost: str, carrier: bytes, destination: Destination, client: str, sequence: int, routing_key: bytes, entries: bytes
) -> tuple[bytes, ...]:
    """Return the fields that a stored binding's signature covers: the binding's whole content and location."""
    kind, name = destination
    return (vhost.encode(), carrier, kind.encode(), name, client.encode(), U64.pack(sequence), routing_key, entries)


def signed_copy(state: VhostState, carrier: bytes, binding: Binding, entries: bytes, client: str) -> BindingCopy:
    """Create a signed copy of a client's binding, to be stored on a carrier."""
    destination = binding.destination_type, binding.destination
    sequence, client_key = binding.sequence, binding.routing_key
    fields = signed_fields(state.name, carrier, destination, client, sequence, client_key, entries)
    return BindingCopy(sequence, client, entries, state.secrets.sign(*fields))


def refuse_own_arguments(entries: bytes) -> None:
    """Refuse, with 403 on the channel, arguments of a client's declare or bind that are reserved for sidecars."""
    if KEPT not in entries and MARK not in entries:
        return
    for name, _ in decode_table(entries, 0, len(entries)):
        if name == MARK or name.startswith(KEPT):
            raise ProtocolError(403, f"argument '{shown(name)}' is reserved for the proxy", Scope.CHANNEL)


def refuse_nested(entries: bytes, target: str, name: bytes, vhost: str) -> None:
    """Refuse, with 406 on the channel, arguments of a declare or bind that are nested too deeply to be decoded.

    The broker accepts and stores arguments of any depth, but its management API then returns JSON that no client can
    decode. One such queue would hide all queues in the virtual host from all sidecars.
    """
    argument = too_deep(entries) if entries else None
    if argument is not None:
        text = (
            f"invalid arg '{shown(argument)}' for {target} '{shown(name)}' in vhost '{vhost}': tables and arrays "
            f"nested deeper than {MAX_NESTING} levels"
        )
        raise ProtocolError(406, text, Scope.CHANNEL)


def exchange_arguments(sequence: int, entries: bytes) -> bytes:
    """Return the argument entries of an open exchange on the broker: the client's entries and our own."""
    return entries + _MARK_ENTRY + longstr_entry(KEPT, pack(sequence, entries))


def wanted_type(table: Table) -> CarrierType | None:
    """Return the requested carrier type from the arguments of a declare; None if it is invalid."""
    value = dict(table).get(CARRIER_TYPE)
    if value is None:
        return CarrierType.AUTO
    return next((member for member in CarrierType if value == Value("S", member.value.encode())), None)


def open_exchange(name: bytes, declared: DeclaredExchange) -> tuple[OwnedExchange, Exchange]:
    """Create an open exchange from a client's declaration. Its ``dtl`` operators use the system's time zone.

    Raises:
        ProtocolError: an argument has an invalid value (406 on the channel), or the table is malformed (502).
    """
    table = decode_table(declared.entries, 0, len(declared.entries))
    value = dict(table).get(ALTERNATE)
    alternate = value.value if value is not None and isinstance(value.value, bytes) else None
    exchange = Exchange(name, OPEN, table, alternate=alternate, local_time=None)
    owned = OwnedExchange(name, OPEN, Delivery.CARRIER, name, alternate=alternate, arguments=table, declared=declared)
    owned.wanted_type = wanted_type(table) or CarrierType.AUTO
    return owned, exchange


def identity_key(identity: tuple[Hashable, ...], *, one_word: bool = False) -> bytes:
    """Return the storage key for a binding's identity. The key does not depend on the source or the sequence."""
    hashed = blake2b(repr(identity[1:]).encode(), digest_size=8).hexdigest()
    return (STORAGE_WORD if one_word else STORAGE) + hashed.encode()


def stored_rows(stored: StoredBinding) -> list[tuple[bytes, bytes]]:
    """Return the key and argument entries of each copy stored on the broker, in the order of `StoredBinding.copies`."""
    client_key = stored.binding.routing_key
    return [
        (stored.key, kept_arguments(copy.sequence, copy.entries, client_key, copy.client, copy.signature))
        for copy in stored.copies
    ]
