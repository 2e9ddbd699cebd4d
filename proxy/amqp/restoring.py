"""What does a consumer or a producer see of a message whose address we changed? The original.

Source: spec "Messenger addressing", 3.3; delivery notes, "The original address can't be forged".
"""

from __future__ import annotations

from proxy.amqp import methods, original
from proxy.amqp.frames import HEADER, U16, U32, frame
from proxy.amqp.method_arguments import Deliver, GetOk, Return, read_deliver, read_get_ok, read_return
from proxy.amqp.methods import method_frame
from proxy.amqp.original import Address
from proxy.amqp.properties import table_span
from proxy.amqp.vhost import Delivery, VhostState


def can_produce(state: VhostState, first: Address, new: Address) -> bool:
    """Say whether this configuration sends a publish to `first` under the address `new`."""
    owned = state.exchanges.get(first.exchange)
    if owned is None:
        return False
    if owned.delivery is Delivery.CARRIER and owned.carrier != owned.name and new.exchange == owned.carrier:
        return new.routing_key == first.routing_key
    if new.exchange == b"":
        return owned.delivery is Delivery.QUEUE or owned.alternate is not None
    return owned.delivery is Delivery.QUEUE and new.routing_key == first.routing_key


def restored_content(state: VhostState, method: bytes, header: bytes) -> tuple[bytes, bytes]:
    """Give method and header frame of a delivery, get or return as the producer or consumer should see them.

    Args:
        state: the virtual host.
        method: the broker's method frame.
        header: the content header frame behind it.
    """
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
        return method, header
    entries = header[span[0] : span[1]]
    found = original.read(entries)
    if found is None or found[1] != (fields.exchange, fields.routing_key) or not can_produce(state, *found):
        return method, header
    fields = fields._replace(exchange=found[0].exchange, routing_key=found[0].routing_key)
    table = original.restored(entries)
    head = b"".join((header[7 : span[0] - 4], U32.pack(len(table)), table, header[span[1] : -1]))
    channel = U16.unpack_from(method, 1)[0]
    return method_frame(channel, index, *fields), frame(HEADER, channel, head)
