"""What does a client ask for with queue.bind, exchange.bind or one of their unbinds?

Whether it may, and what comes of it, is `client_bindings`' question.

Source: AMQP 0-9-1 spec, 1.7.2.3 and 1.7.2.5; RabbitMQ guides "Exchange to exchange bindings" and "Queues" (an empty
name is the queue declared last).
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.amqp import methods
from proxy.amqp.frames import OVERHEAD, U32
from proxy.amqp.method_arguments import read_exchange_bind, read_queue_bind, read_queue_unbind
from proxy.amqp.method_frames import empty_ok
from proxy.relay.channel import Channel, Expected
from proxy.relay.declare.stored import storage_key
from proxy.relay.vhost import Destination
from proxy.routing.bindings.binding import EXCHANGE, QUEUE

#: what answers each of the methods
_REPLIES = {
    methods.QUEUE_BIND: methods.QUEUE_BIND_OK,
    methods.QUEUE_UNBIND: methods.QUEUE_UNBIND_OK,
    methods.EXCHANGE_BIND: methods.EXCHANGE_BIND_OK,
    methods.EXCHANGE_UNBIND: methods.EXCHANGE_UNBIND_OK,
}


class BindRequest(NamedTuple):
    """A bind or unbind, of a queue or an exchange.

    Args:
        kind: ``queue`` or ``exchange``: what is bound.
        destination: its name.
        source: the exchange that it is bound to.
        routing_key: as given; that of a queue without a name is the name, where it is empty.
        nowait: whether no answer is expected.
        entries: raw entries of the argument table.
        method: class id << 16 | method id.
    """

    kind: str
    destination: bytes
    source: bytes
    routing_key: bytes
    nowait: bool
    entries: bytes
    method: int

    @property
    def receiver(self) -> Destination:
        """Kind and name of the destination."""
        return self.kind, self.destination

    @property
    def ids(self) -> tuple[int, int]:
        """Class and method, for errors."""
        return self.method >> 16, self.method & 0xFFFF

    @property
    def key(self) -> bytes:
        """The key under which the broker keeps the binding."""
        return storage_key(self.kind, self.destination, self.routing_key, self.entries)

    def answer(self, channel: Channel) -> bytes:
        """Build the answer for the client; b"" where it expects none."""
        return b"" if self.nowait else empty_ok(channel.number, _REPLIES[self.method])

    def pass_on(self, channel: Channel) -> bool:
        """Take note that the broker answers it; gives True: it goes upstream as it came."""
        if not self.nowait:
            channel.replies.append(Expected(_REPLIES[self.method]))
        return True


def read_bind_request(channel: Channel, index: int, frame: bytes) -> BindRequest:
    """Read a bind or unbind.

    Args:
        channel: where it came: it knows the queue declared last.
        index: which of the four it is.
        frame: the whole frame.

    Raises:
        ProtocolError: 502 on the connection, malformed arguments.
    """
    payload = frame[7:-1]
    if index in (methods.EXCHANGE_BIND, methods.EXCHANGE_UNBIND):
        name, source, key, nowait, entries = read_exchange_bind(payload)
        return BindRequest(EXCHANGE, name, source, key, nowait, entries, index)
    read = read_queue_bind if index == methods.QUEUE_BIND else read_queue_unbind
    name, source, key, nowait, entries = read(payload)
    if not name:  # the queue declared last on the channel, and its name for an empty key (RabbitMQ does so)
        name = channel.last_queue
        key = key or channel.last_queue
    return BindRequest(QUEUE, name, source, key, nowait, entries, index)


def is_bind(frame: bytes) -> int:
    """Give the method of a method frame where it is a bind, else 0."""
    index: int = U32.unpack_from(frame, 7)[0] if len(frame) >= OVERHEAD + U32.size else 0
    return index if index in (methods.QUEUE_BIND, methods.EXCHANGE_BIND) else 0
