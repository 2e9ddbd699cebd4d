"""Handlers for the broker's methods: acks, nacks, returns, declare-oks, closes and connection.blocked.

Source: AMQP 0-9-1 spec, 1.4 to 1.8; RabbitMQ guides "Publisher confirms" and "Blocked connections".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from proxy.amqp import methods
from proxy.amqp.frames import U32
from proxy.amqp.method_frames import Ack, Nack, channel_close_ok, connection_close_ok, read_method
from proxy.amqp.methods import method_frame
from proxy.relay.channel import HEADER_TO_COME, Channel
from proxy.relay.channel_state import BOTH_AWAITING_BROKER, RELAYED_DOWN, US_AWAITING_BROKER, ChannelEvent
from proxy.relay.connection_state import ConnectionState, Phase

_ANSWERS: Final = frozenset(
    (
        methods.EXCHANGE_DECLARE_OK,
        methods.EXCHANGE_DELETE_OK,
        methods.EXCHANGE_BIND_OK,
        methods.EXCHANGE_UNBIND_OK,
        methods.QUEUE_DECLARE_OK,
        methods.QUEUE_DELETE_OK,
        methods.QUEUE_BIND_OK,
        methods.QUEUE_UNBIND_OK,
    )
)
_LOOKS: Final = frozenset((methods.QUEUE_DECLARE, methods.EXCHANGE_DECLARE))
_WITH_CONTENT: Final = frozenset((methods.BASIC_DELIVER, methods.BASIC_GET_OK))


class BrokerMethods:
    """Handles the broker's methods that need inspection."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection = connection

    @property
    def looked_at(self) -> frozenset[int]:
        """Methods that need inspection. Deliveries are included only if an address may have to be restored."""
        return _EVERYTHING if self._connection.plans.state.restores else _WITHOUT_CONTENT

    def take_connection_method(self, frame: bytes) -> bool:
        """Handle a method on channel 0; return whether it is forwarded to the producer unchanged."""
        index = U32.unpack_from(frame, 7)[0] if len(frame) >= 12 else 0
        taken = _CONNECTION_HANDLERS.get(index)
        return taken(self) if taken else self._connection.lifecycle.phase is not Phase.CLOSING

    def take_channel_method(self, channel: Channel, index: int, frame: bytes) -> bool:
        """Handle a method on an open channel; return whether it is forwarded to the producer unchanged."""
        taken = _CHANNEL_HANDLERS.get(index)
        return taken(self, channel, frame) if taken else True

    def take_while_closing(self, channel: Channel, index: int) -> bool:
        """Handle a frame on a channel that was closed by the broker or by us. Most methods are discarded."""
        connection = self._connection
        if index == methods.CHANNEL_CLOSE_OK:
            return self._closed(channel)
        if index == methods.CHANNEL_CLOSE:  # the producer has already been sent a close, ours or the broker's first
            connection.change(channel, ChannelEvent.BROKER_CLOSE, index)
            if not channel.broker_closed and not connection.upstream.closing:
                connection.to_upstream.append(method_frame(channel.number, methods.CHANNEL_CLOSE_OK))
            channel.broker_closed = True
        elif index == methods.CHANNEL_OPEN_OK:
            connection.change(channel, ChannelEvent.BROKER_OPEN_OK, index)
        return False

    def _ack(self, channel: Channel, frame: bytes) -> bool:
        tag, multiple = read_method(Ack, frame[7:-1])
        return self._settle(channel, tag, multiple, ack=True) and not self._connection.delay_confirm(channel, frame)

    def _nack(self, channel: Channel, frame: bytes) -> bool:
        tag, multiple, _ = read_method(Nack, frame[7:-1])
        return self._settle(channel, tag, multiple, ack=False) and not self._connection.delay_confirm(channel, frame)

    def _commit_ok(self, channel: Channel, frame: bytes) -> bool:
        return not self._connection.delay_confirm(channel, frame)

    def _settle(self, channel: Channel, tag: int, multiple: bool, *, ack: bool) -> bool:
        connection = self._connection
        counters = connection.plans.counters
        confirms = channel.confirms
        if confirms.ledger is None:
            settled, published = confirms.settled, confirms.published
            refused: Sequence[int] = ()
            if not ack:
                refused = settled.outstanding(min(tag or published, published)) if multiple else (tag,)
            count = settled.settle(tag, multiple, published)
            if ack:
                counters.confirms_acked += count
            else:
                counters.confirms_nacked += count
                for producer_tag in refused:
                    connection.note_nack(channel, producer_tag)
            connection.note_settled(channel)
            return True
        for producer_tag, acked in confirms.ledger.settle(tag, multiple, ack):
            connection.send_confirm(channel, producer_tag, acked)
        return False

    def _return(self, channel: Channel, frame: bytes) -> bool:
        connection = self._connection
        # The content header is needed to restore an address, to join returns and to record failed publishes.
        failures = connection.plans.failures
        if connection.plans.state.restores or channel.confirms.returns or (failures is not None and failures.watched):
            return self._content(channel, frame)
        connection.note_return(channel, frame)
        connection.deliveries.unfinished[channel.number] = HEADER_TO_COME
        return True

    def _content(self, channel: Channel, frame: bytes) -> bool:
        channel.output.returned = frame
        self._connection.deliveries.mark(channel)
        return False

    def _opened(self, channel: Channel, frame: bytes) -> bool:
        self._connection.change(channel, ChannelEvent.BROKER_OPEN_OK, methods.CHANNEL_OPEN_OK)
        return True

    def _answer(self, channel: Channel, frame: bytes) -> bool:
        """Handle the broker's reply to a declare, delete, bind or unbind from the producer or the sidecar."""
        index = U32.unpack_from(frame, 7)[0]
        if not channel.replies or channel.replies.next.reply != index:
            return True
        taken = channel.replies.popleft().taken
        return taken is None or taken(frame)

    def _close(self, channel: Channel, frame: bytes) -> bool:
        connection = self._connection
        connection.change(channel, ChannelEvent.BROKER_CLOSE, methods.CHANNEL_CLOSE)
        channel.broker_closed = True
        if channel.content is not None and not channel.content.begun:
            connection.drop_content(channel)
        connection.end_confirms(channel)
        refusal = _naming_the_request(channel, frame)
        if refusal != frame:
            connection.send_to_producer(channel, refusal)
        channel.replies.drop()
        connection.take_held_again(channel)
        return refusal == frame

    def _closed(self, channel: Channel, frame: bytes = b"") -> bool:
        """Handle the broker's close-ok; return whether it is relayed to the producer."""
        connection, before = self._connection, channel.state
        connection.change(channel, ChannelEvent.BROKER_CLOSE_OK, methods.CHANNEL_CLOSE_OK)
        if before is BOTH_AWAITING_BROKER or before is US_AWAITING_BROKER:
            # RabbitMQ rejects an open that arrives before RabbitMQ has sent its close-ok (504, second open), so the
            # held frames had to wait until now.
            connection.take_held_again(channel)
        if before not in RELAYED_DOWN:
            return False
        connection.to_producer += [channel_close_ok(channel.number)] * channel.output.close_oks
        channel.output.close_oks = 0
        return True

    def _connection_close(self) -> bool:
        connection = self._connection
        if connection.lifecycle.phase is Phase.OPEN and connection.lifecycle.last_frame is None:
            connection.lifecycle.end(Phase.CLOSING)
            connection.forget_all()
            return True
        connection.to_upstream.append(connection_close_ok())
        connection.upstream.end()
        connection.end_refusal()
        # If the producer's close is unanswered, it has crossed the broker's close, so we answer it ourselves.
        if connection.lifecycle.phase in (Phase.OPEN, Phase.PRODUCER_CLOSES):
            connection.producer_answered()
            connection.to_producer.append(connection_close_ok())
        return False

    def _connection_close_ok(self) -> bool:
        connection = self._connection
        connection.upstream.done = True
        if connection.lifecycle.phase is Phase.PRODUCER_CLOSES:
            connection.producer_answered()
            return True
        connection.end_refusal()
        return False

    def _block(self, blocked: bool) -> bool:
        connection = self._connection
        connection.plans.counters.upstream_blocked += connection.upstream.block(blocked)
        if blocked:  # the broker does not read our close
            connection.end_refusal()
        return connection.lifecycle.phase is not Phase.CLOSING


# These tables do not contain bound methods. A connection without reference cycles is freed as soon as it ends.
_CHANNEL_HANDLERS: Final[dict[int, Callable[[BrokerMethods, Channel, bytes], bool]]] = {
    methods.BASIC_ACK: BrokerMethods._ack,
    methods.BASIC_NACK: BrokerMethods._nack,
    methods.BASIC_RETURN: BrokerMethods._return,
    methods.TX_COMMIT_OK: BrokerMethods._commit_ok,
    methods.CHANNEL_OPEN_OK: BrokerMethods._opened,
    methods.CHANNEL_CLOSE: BrokerMethods._close,
    methods.CHANNEL_CLOSE_OK: BrokerMethods._closed,
    methods.BASIC_DELIVER: BrokerMethods._content,
    methods.BASIC_GET_OK: BrokerMethods._content,
    **dict.fromkeys(_ANSWERS, BrokerMethods._answer),
}
_CONNECTION_HANDLERS: Final[dict[int, Callable[[BrokerMethods], bool]]] = {
    methods.CONNECTION_CLOSE: BrokerMethods._connection_close,
    methods.CONNECTION_CLOSE_OK: BrokerMethods._connection_close_ok,
    methods.CONNECTION_BLOCKED: lambda relayed: relayed._block(True),
    methods.CONNECTION_UNBLOCKED: lambda relayed: relayed._block(False),
}
_EVERYTHING: Final = frozenset((*_CHANNEL_HANDLERS, *_CONNECTION_HANDLERS))
_WITHOUT_CONTENT: Final = _EVERYTHING - _WITH_CONTENT


def _naming_the_request(channel: Channel, close: bytes) -> bytes:
    """Return the broker's close; if it refuses our passive declare, name the producer's method in it."""
    request_method = channel.replies.next.request_method if channel.replies else 0
    if not request_method or U32.unpack_from(close, len(close) - 1 - U32.size)[0] not in _LOOKS:
        return close
    return close[: -1 - U32.size] + U32.pack(request_method) + close[-1:]
