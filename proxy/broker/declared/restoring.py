"""What a client declared, made again from what was kept of it: the raw bytes of its tables.

The kept form is the relay's (`amqp.stored`); a snapshot keeps the same parts. Pure. Whatever was damaged is a
``ValueError`` that says how. Source: architecture, "The broker is the store".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import tzinfo

from proxy.amqp.tables import decode_table
from proxy.broker.listed import BindingInfo, ExchangeInfo
from proxy.errors import ProtocolError
from proxy.relay.declare.stored import StoredArguments, signed_fields, storage_key, unpack
from proxy.relay.vhost import (
    BindingCopy,
    Declared,
    Delivery,
    OwnedExchange,
    StoredBinding,
    VhostState,
    in_order,
)
from proxy.routing.bindings.binding import Binding
from proxy.routing.bindings.exchange_types import OPEN
from proxy.routing.exchange import Exchange
from proxy.values import Table

_ALTERNATE = b"alternate-exchange"


def kept_of(text: str) -> StoredArguments:
    """Read what the broker keeps in ``x-oxproxy``.

    Raises:
        ValueError: it was damaged.
    """
    return unpack(text.encode())


def exchange_of(info: ExchangeInfo, local_time: tzinfo) -> tuple[OwnedExchange, Exchange]:
    """Make the open exchange that a client declared, from its carrier on the broker.

    Raises:
        ValueError: what is kept in it was damaged, or says more than the broker was asked for.
    """
    kept = kept_of(info.kept)
    declared = Declared(info.durable, info.auto_delete, info.internal, kept.entries, kept.sequence)
    owned, exchange = declared_exchange(info.name, declared, Delivery.CARRIER, local_time)
    # The broker asks for permission to write to the alternate exchange that it was told, and for no other.
    permitted = info.arguments.get(_ALTERNATE.decode())
    if (None if owned.alternate is None else owned.alternate.decode(errors="replace")) != permitted:
        raise ValueError(f"it keeps another alternate exchange than the broker has, {permitted!r}")
    return owned, exchange


def declared_exchange(
    name: bytes, declared: Declared, delivery: Delivery, local_time: tzinfo
) -> tuple[OwnedExchange, Exchange]:
    """Make an open exchange from what a client said when it declared it.

    Args:
        name: its name.
        declared: what was said.
        delivery: how its messages leave.
        local_time: time zone of ``dtl`` operators.

    Raises:
        ValueError: the arguments are damaged.
    """
    arguments = _table(declared.entries)
    alternate = _alternate(arguments)
    try:
        exchange = Exchange(name, OPEN, arguments, local_time, alternate)
    except ProtocolError as error:
        raise ValueError(str(error)) from error
    owned = OwnedExchange(name, OPEN, delivery, name, alternate=alternate, arguments=arguments, declared=declared)
    return owned, exchange


def binding_of(state: VhostState, exchange: bytes, carrier: bytes, info: BindingInfo) -> StoredBinding:
    """Make the binding that a client made, from the one that keeps it on the broker.

    Args:
        state: the virtual host, whose secrets verify it.
        exchange: name of the exchange.
        carrier: that of its carrier, which the signature is about.
        info: the binding as listed.

    Raises:
        ValueError: what is kept in it was damaged, or belongs to another binding.
    """
    kept = kept_of(info.kept)
    destination = info.destination_type, info.destination
    stored = stored_binding(exchange, *destination, kept.routing_key, kept.entries, [])
    if not info.under_token and stored.key != info.routing_key:
        raise ValueError("it belongs to another binding")
    copy = BindingCopy(kept.sequence, kept.client, info.routing_key, info.signature.encode())
    return with_copies(stored, [verified(state, carrier, stored, copy)])


def verified(state: VhostState, carrier: bytes, stored: StoredBinding, copy: BindingCopy) -> BindingCopy:
    """Give a copy that knows which of the secrets signed it."""
    said = copy.client, copy.sequence, stored.binding.routing_key, stored.entries
    fields = signed_fields(state.name, carrier, stored.destination, *said)
    return copy._replace(secret=state.secrets.verify(copy.signature, *fields))


def stored_binding(
    exchange: bytes,
    destination_type: str,
    destination: bytes,
    routing_key: bytes,
    entries: bytes,
    copies: Iterable[BindingCopy],
) -> StoredBinding:
    """Make a client's binding from its parts.

    Args:
        exchange: the source.
        destination_type: ``queue`` or ``exchange``.
        destination: its name.
        routing_key: the client's.
        entries: raw entries of the client's table.
        copies: every copy; none where they are filled in later.

    Raises:
        ValueError: the arguments are damaged.
    """
    binding = Binding(exchange, destination_type, destination, routing_key, _table(entries))
    key = storage_key(destination_type, destination, routing_key, entries)
    return with_copies(StoredBinding(binding, entries, key, ()), copies)


def with_copies(stored: StoredBinding, copies: Iterable[BindingCopy]) -> StoredBinding:
    """Give a binding with these copies, the first of which counts."""
    ordered = in_order(copies)
    sequence = ordered[0].sequence if ordered else 0
    return stored._replace(binding=replace(stored.binding, sequence=sequence), copies=ordered)


def _table(entries: bytes) -> Table:
    try:
        return decode_table(entries, 0, len(entries))
    except ProtocolError as error:
        raise ValueError(str(error)) from error


def _alternate(arguments: Table) -> bytes | None:
    value = dict(arguments).get(_ALTERNATE)
    return value.value if value is not None and isinstance(value.value, bytes) else None
