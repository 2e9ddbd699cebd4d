"""Headers with the original address of a message that was sent upstream with a different exchange or routing key.

If we change the exchange or routing key of a publish, we add `x-original-address`: a table with the original and the
new pair of exchange and routing key. `x-original-cc` stores a producer's CC if the broker must not route by it. In
deliveries, get-oks and returns that pass through a sidecar, both headers are removed, and the original exchange,
routing key and CC are restored. This is done only if the message still has the pair that we set and this configuration
can produce that pair, so that a forged header has no effect.

Source: the messenger-addressing specification, 3.3.
"""

from __future__ import annotations

from typing import Final

from oxproxy.addressing.targets import AddressBook, Publication, Target
from oxproxy.amqp import methods
from oxproxy.amqp.frames import HEADER, U16, U32, frame, shortstr
from oxproxy.amqp.method_frames import Deliver, GetOk, Return, read_method
from oxproxy.amqp.methods import method_frame
from oxproxy.amqp.properties import header_table
from oxproxy.amqp.tables import decode_value, pick, without
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.tokens import NOWHERE
from oxproxy.relay.vhost import Delivery, VhostState
from oxproxy.values import EXCHANGE, LONGEST_NAME_BYTES, QUEUE

ADDRESS_HEADER: Final = b"x-original-address"
CC_ASIDE: Final = b"x-original-cc"
#: headers that are reserved for the sidecar, and removed from every publish that the sidecar changes
OURS: Final = frozenset((ADDRESS_HEADER, CC_ASIDE))
_NAMES = (b"exchange", b"routing-key", b"new-exchange", b"new-routing-key")
#: methods from the broker that precede a content
_FIELDS: Final[dict[int, type[Deliver] | type[GetOk] | type[Return]]] = {
    methods.BASIC_DELIVER: Deliver,
    methods.BASIC_GET_OK: GetOk,
    methods.BASIC_RETURN: Return,
}


def longstr_entry(name: bytes, text: bytes) -> bytes:
    return shortstr(name) + b"S" + U32.pack(len(text)) + text


#: start of the header entry, before the length and the content of its table
ADDRESS_ENTRY: Final = shortstr(ADDRESS_HEADER) + b"F"


def entry(original: Publication, new: Publication) -> bytes:
    """Encode the header entry for a publish that is sent to `new`."""
    table = b"".join(map(longstr_entry, _NAMES, (*original, *new)))
    return ADDRESS_ENTRY + U32.pack(len(table)) + table


def address_parts(original_exchange: bytes, new_exchange: bytes) -> tuple[bytes, bytes]:
    """Encode the parts of the header entry's table that precede the original and the new routing key."""
    exchange, key, new, new_key = _NAMES
    return (
        longstr_entry(exchange, original_exchange) + shortstr(key) + b"S",
        longstr_entry(new, new_exchange) + shortstr(new_key) + b"S",
    )


def read(entries: bytes) -> tuple[Publication, Publication] | None:
    """Return (original, new) from the entries of a header table, or None if our header is missing or invalid.

    Raises:
        ProtocolError: 502: the entries, or the value of our header, can't be decoded.
    """
    if ADDRESS_HEADER not in entries:
        return None
    picked = pick(entries, 0, len(entries), frozenset((ADDRESS_HEADER,)))
    table = decode_value(picked[0][1]) if picked else None
    if table is None or table.letter != "F" or not isinstance(table.value, tuple) or len(table.value) != len(_NAMES):
        return None
    fields = {key: field.value for key, field in table.value if field.letter == "S"}
    match [fields.get(key) for key in _NAMES]:
        case [bytes() as exchange, bytes() as key, bytes() as new_exchange, bytes() as new_key] if (
            max(len(exchange), len(key)) <= LONGEST_NAME_BYTES  # longer names can't be restored
        ):
            return Publication(exchange, key), Publication(new_exchange, new_key)
    return None


def restored(entries: bytes) -> bytes:
    """Remove our headers from a table's entries and restore the original CC."""
    aside = [raw for name, raw in pick(entries, 0, len(entries), OURS) if name == CC_ASIDE]
    rest = without(entries, 0, len(entries), OURS)
    return rest + b"".join(shortstr(b"CC") + raw for raw in aside)


def can_produce(state: VhostState, first: Publication, new: Publication) -> bool:
    """Return True if this configuration can change the address of a publish from `first` to `new`."""
    owned = state.exchanges.get(first.exchange)
    if owned is None:
        return state.addresses is not None and _translated(state, state.addresses, first, new)
    if state.addresses is not None and _destination(state, state.addresses, first, new):
        return True
    if owned.delivery is Delivery.CARRIER and owned.carrier != owned.name and new.exchange == owned.carrier:
        return new.routing_key == first.routing_key
    if new == (b"", NOWHERE):
        return owned.delivery is Delivery.QUEUE or owned.alternate is not None
    if owned.delivery is not Delivery.QUEUE:
        return False
    if new.exchange == b"":
        return state.router.may_choose(first.exchange, (QUEUE, new.routing_key))
    chosen = new.exchange == owned.alternate or state.router.may_choose(first.exchange, (EXCHANGE, new.exchange))
    return chosen and new.routing_key == first.routing_key


def refuse_forged(state: VhostState, entries: bytes) -> None:
    """Refuse a forged header. Otherwise, consumers would see a wrong address for the message.

    The header can't be removed, since the message is forwarded unchanged. A header from which
    no sidecar would restore an address is harmless.

    Raises:
        ProtocolError: the header is forged; 403 on the channel.
    """
    try:
        addresses = read(entries)
    except ProtocolError:  # no sidecar restores an address from a malformed header
        return
    if addresses is not None and can_produce(state, *addresses):
        text = f"header '{ADDRESS_HEADER.decode()}' names an address that only the proxy may set"
        raise ProtocolError(403, text, Scope.CHANNEL, *divmod(methods.BASIC_PUBLISH, 1 << 16))


def _translated(state: VhostState, book: AddressBook, first: Publication, new: Publication) -> bool:
    """Return True if the address table translates `first` to `new`, possibly through an exchange evaluated here."""
    target = book.look_up(*first)
    if not isinstance(target, Target) or target.remote is not None:
        return False
    owned = state.exchanges.get(target.publication.exchange)
    if owned is None:
        return new == target.publication
    if owned.delivery is Delivery.CARRIER and new == (owned.carrier, target.publication.routing_key):
        return True
    return can_produce(state, target.publication, new)


def _destination(state: VhostState, book: AddressBook, first: Publication, new: Publication) -> bool:
    """Return True if a publish to `first` may be routed to a destination that is translated to `new`.

    The header does not contain the destination. If no rule names the destination, its name is unknown here, so any
    result of the address table is possible.
    """
    rewrites = book.rewrites(first.exchange, state.router.destinations(first.exchange))
    if rewrites.leads_to(first.routing_key, new):
        return True
    if not new.exchange or new.exchange in state.exchanges:
        return False
    chooses = any(state.router.may_choose_unnamed(first.exchange, kind) for kind in (QUEUE, EXCHANGE))
    return chooses and book.may_lead_to(new.exchange)


def restored_content(state: VhostState, method: bytes, header: bytes) -> tuple[bytes, bytes]:
    """Build the method and header frames of a delivery, get-ok or return with the original address.

    A malformed message stays unchanged, since an error would close the connection of every consumer that receives it.
    """
    try:
        index = U32.unpack_from(method, 7)[0]
        fields = read_method(_FIELDS[index], method[7:-1])
        at, first, last = header_table(header)
        entries = header[first:last]
        pair = read(entries)
        if pair is None or pair[1] != (fields.exchange, fields.routing_key):
            return method, header
        if not can_produce(state, *pair):
            return method, header
        table = restored(entries)
    except ProtocolError:
        return method, header
    fields = fields._replace(exchange=pair[0].exchange, routing_key=pair[0].routing_key)
    head = b"".join((header[7:at], U32.pack(len(table)), table, header[last:-1]))
    channel = U16.unpack_from(method, 1)[0]
    return method_frame(channel, index, *fields), frame(HEADER, channel, head)
