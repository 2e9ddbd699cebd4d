"""What does a consumer or a producer see of a message whose address we changed? The original.

Source: spec "Messenger addressing", 3.3; delivery notes, "The original address can't be forged".
"""

from __future__ import annotations

from proxy.addressing.targets import AddressBook, Publication, Target
from proxy.amqp import methods
from proxy.amqp.frames import HEADER, U16, U32, frame
from proxy.amqp.method_arguments import Deliver, GetOk, Return, read_deliver, read_get_ok, read_return
from proxy.amqp.methods import method_frame
from proxy.amqp.properties import table_span
from proxy.errors import ProtocolError, Scope
from proxy.relay import original_address as original
from proxy.relay.original_address import OriginalAddress
from proxy.relay.tokens import NOWHERE
from proxy.relay.vhost import Delivery, VhostState
from proxy.routing.bindings.binding import EXCHANGE, QUEUE


def can_produce(state: VhostState, first: OriginalAddress, new: OriginalAddress) -> bool:
    """Say whether this configuration sends a publish to `first` under the address `new`."""
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
    """Refuse a producer's header that would show consumers another address than its message has, or may come to have.

    What passes untouched keeps its bytes, so the header can't be cut out; what nobody would restore may stay.

    Args:
        state: the virtual host.
        entries: of the header table of a publish that nothing of ours changes.

    Raises:
        ProtocolError: 403 on the channel.
    """
    try:
        found = original.read(entries)
    except ProtocolError:  # nobody restores what can't be read
        return
    if found is not None and can_produce(state, *found):
        text = f"header '{original.ADDRESS_HEADER.decode()}' names an address that only the proxy may give"
        raise ProtocolError(403, text, Scope.CHANNEL, *divmod(methods.BASIC_PUBLISH, 1 << 16))


def _translated(state: VhostState, book: AddressBook, first: OriginalAddress, new: OriginalAddress) -> bool:
    """Whether the address table sends a publish to `first` to `new`, perhaps by way of an exchange of the rules."""
    target = book.look_up(*first)
    if not isinstance(target, Target) or target.remote is not None:
        return False
    owned = state.exchanges.get(target.publication.exchange)
    if owned is None:
        return tuple(new) == tuple(target.publication)
    if owned.delivery is Delivery.CARRIER and new == (owned.carrier, target.publication.routing_key):
        return True
    return can_produce(state, OriginalAddress(*target.publication), new)


def _destination(state: VhostState, book: AddressBook, first: OriginalAddress, new: OriginalAddress) -> bool:
    """Whether a queue that `first` may choose becomes an exchange and key of its own."""
    rewrites = book.rewrites(first.exchange, state.router.destinations(first.exchange))
    return rewrites.leads_to(first.routing_key, Publication(*new))


def restored_content(state: VhostState, method: bytes, header: bytes) -> tuple[bytes, bytes]:
    """Give method and header frame of a delivery, get or return as the producer or consumer should see them.

    What is malformed stays as it came: one message that somebody else has stored must not end the connection of
    everybody who gets it.

    Args:
        state: the virtual host.
        method: the broker's method frame.
        header: the content header frame behind it.
    """
    try:
        return _restored(state, method, header) or (method, header)
    except ProtocolError:
        return method, header


def _restored(state: VhostState, method: bytes, header: bytes) -> tuple[bytes, bytes] | None:
    payload = method[7:-1]
    index = U32.unpack_from(payload)[0]
    fields: Deliver | GetOk | Return
    if index == methods.BASIC_DELIVER:
        fields = read_deliver(payload)
    elif index == methods.BASIC_GET_OK:
        fields = read_get_ok(payload)
    else:
        fields = read_return(payload)
    span = table_span(header, 21, U16.unpack_from(header, 19)[0], len(header) - 1)
    if span is None:
        return None
    entries = header[span[0] : span[1]]
    found = original.read(entries)
    if found is None or found[1] != (fields.exchange, fields.routing_key) or not can_produce(state, *found):
        return None
    fields = fields._replace(exchange=found[0].exchange, routing_key=found[0].routing_key)
    table = original.restored(entries)
    head = b"".join((header[7 : span[0] - 4], U32.pack(len(table)), table, header[span[1] : -1]))
    channel = U16.unpack_from(method, 1)[0]
    return method_frame(channel, index, *fields), frame(HEADER, channel, head)
