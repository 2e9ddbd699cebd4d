"""Relays the frames from the producer that the publish pass does not handle.

These include most methods, frames on channels that are closing or waiting, and frames that close the connection. Frames
of publishes are passed to `PublishFrames`. Errors are raised as `ProtocolError`.

Source: AMQP 0-9-1 spec, 1.4, 1.5, 4.2.3 and 4.2.6; RabbitMQ's reply codes. A method to which RabbitMQ would not reply
is refused with 540 or 503.
"""

from __future__ import annotations

from proxy.amqp import methods
from proxy.amqp.frames import HEARTBEAT, METHOD, OVERHEAD, U32
from proxy.amqp.method_frames import channel_close_ok, connection_close_ok
from proxy.errors import ProtocolError, Scope
from proxy.relay.channel import Channel
from proxy.relay.channel_state import (
    CLOSING_BY_PRODUCER,
    CONFIRM,
    HOLDING,
    OPEN,
    OPENING,
    RELAYED_UP,
    TX,
    ChannelEvent,
    next_mode,
)
from proxy.relay.connection_state import AHEAD_MESSAGES, ConnectionState, Phase
from proxy.relay.declare.bindings import ClientBindings
from proxy.relay.declare.exchanges import ClientExchanges
from proxy.relay.declare.injected_methods import refuse_in_order
from proxy.relay.declare.queues import ClientQueues
from proxy.relay.publish.publish_frames import KIND_NAMES, PublishFrames

_CONNECTION = 10
#: size of the shortest method frame in bytes
_LEAST_METHOD = 12
#: methods that consumers send for every message, with the size that their frames must have, in bytes
_FIXED_BYTES = dict.fromkeys((methods.BASIC_ACK, methods.BASIC_NACK, methods.BASIC_REJECT), 21)
_EVENTS = {
    methods.CHANNEL_OPEN: ChannelEvent.PRODUCER_OPEN,
    methods.CHANNEL_CLOSE: ChannelEvent.PRODUCER_CLOSE,
    methods.CHANNEL_CLOSE_OK: ChannelEvent.PRODUCER_CLOSE_OK,
}
#: Access.Request and Basic.Credit, which RabbitMQ supports but which are not in the AMQP 0-9-1 specification.
_BEYOND = frozenset((30 << 16 | 10, 60 << 16 | 200))


class ProducerFrames:
    """Handles single frames from the producer."""

    def __init__(self, connection: ConnectionState, publishes: PublishFrames) -> None:
        self._connection = connection
        self._publishes = publishes
        #: whether the frames being processed were held before
        self.resuming = False
        exchanges, queues = ClientExchanges(connection), ClientQueues(connection)
        self._bindings = ClientBindings(connection)
        #: Handlers other than those in `_OWN_HANDLERS`.
        self._handlers = {
            methods.BASIC_PUBLISH: publishes.method,
            methods.EXCHANGE_DECLARE: exchanges.declare,
            methods.EXCHANGE_DELETE: exchanges.delete,
            methods.QUEUE_DECLARE: queues.declare,
            methods.QUEUE_DELETE: queues.delete,
            methods.QUEUE_BIND: self._bindings.bind,
            methods.EXCHANGE_BIND: self._bindings.bind,
            methods.QUEUE_UNBIND: self._bindings.unbind,
            methods.EXCHANGE_UNBIND: self._bindings.unbind,
        }

    def take(self, kind: int, number: int, frame: bytes) -> bool:
        """Handle one whole frame of type `kind` on channel `number`.

        Returns:
            True if the frame is forwarded unchanged. Otherwise, the replacement, if any, is already in the output.

        Raises:
            ProtocolError: an error that closes the connection.
        """
        connection = self._connection
        if connection.lifecycle.phase is not Phase.OPEN:
            return self._ending(number, kind, frame)
        if connection.lifecycle.last_frame is not None and not self.resuming:
            return self._ending(number, kind, frame)
        if number == 0:
            return self._connection_frame(kind, frame)
        if kind == HEARTBEAT:
            raise ProtocolError(505, f"heartbeat frame on channel {number}, expected on channel 0")
        channel = connection.channels.get(number)
        if channel is None:
            return self._open(kind, number, frame)
        if channel.state is not OPEN and channel.state in HOLDING:
            held = channel.held
            if not (held.binds and not held and kind == METHOD and self._bindings.bind_while_held(channel, frame)):
                held.keep([frame])
            return False
        try:
            return self._channel_frame(channel, kind, frame)
        except ProtocolError as error:
            if error.scope is Scope.CONNECTION:
                raise
            refuse_in_order(connection, channel, error)
            return False

    def _open(self, kind: int, number: int, frame: bytes) -> bool:
        """Handle the first frame on a channel number.

        As on RabbitMQ, channel-max limits only the number of channels, not the channel numbers.
        """
        connection = self._connection
        most, count = connection.terms.tuning.channel_max_producer, len(connection.channels)
        if number == connection.upstream.sidecar_channel.number:
            text = f"channel {number} is above the negotiated channel_max {most} and used by the proxy itself"
            raise ProtocolError(530, text)
        if count >= most:
            text = f"number of channels opened ({count}) has reached the negotiated channel_max ({most})"
            raise ProtocolError(530, text)
        if kind != METHOD:
            connection.open_channel(number, ChannelEvent.PRODUCER_CONTENT, 0)
            return False
        index = _method_of(frame)
        _check(index, frame[7:-1])
        connection.open_channel(number, _EVENTS.get(index, ChannelEvent.PRODUCER_METHOD), index)
        return True

    def _channel_frame(self, channel: Channel, kind: int, frame: bytes) -> bool:
        if channel.content is not None:
            # This is also done on a channel that the broker has closed: if a content is not completed, the broker
            # closes the connection with 505.
            return self._publishes.content(channel, channel.content, kind, frame)
        if kind != METHOD:
            self._connection.change(channel, ChannelEvent.PRODUCER_CONTENT)
            return False  # part of a discarded publish, on a channel that is being closed
        if channel.state is OPEN or channel.state is OPENING:
            return self._method(channel, frame)
        index = U32.unpack_from(frame, 7)[0] if len(frame) >= _LEAST_METHOD else 0
        if index in _EVENTS:
            return self._channel_method(channel, frame)
        self._connection.change(channel, ChannelEvent.PRODUCER_METHOD, index)
        return False

    def _channel_method(self, channel: Channel, frame: bytes) -> bool:
        """Handle open, close or close-ok; return whether it is sent upstream."""
        connection = self._connection
        index = _method_of(frame)
        _check(index, frame[7:-1])
        before, event = channel.state, _EVENTS[index]
        connection.change(channel, event, index)
        if event is ChannelEvent.PRODUCER_CLOSE and channel.state is before:
            # This close crosses or follows another close. Each close is answered (spec, 1.5.2.5 and 1.5.2.6).
            if channel.state is CLOSING_BY_PRODUCER:
                channel.output.close_oks += 1  # sent after the broker's close-ok, before which confirms may arrive
            else:
                connection.send_to_producer(channel, channel_close_ok(channel.number))
            return False
        return event is not ChannelEvent.PRODUCER_CLOSE_OK or before in RELAYED_UP

    def _select(self, channel: Channel, frame: bytes) -> bool:
        index = _method_of(frame)
        _check(index, frame[7:-1])
        mode = next_mode(channel.mode, CONFIRM if index == methods.CONFIRM_SELECT else TX)
        if mode is CONFIRM and channel.mode is not CONFIRM:
            channel.confirms.select()
        channel.mode = mode
        return True

    def _qos(self, channel: Channel, frame: bytes) -> bool:
        """Record whether the prefetch count limits the connection's consumers to a few messages."""
        _, prefetch_count, _ = methods.arguments(frame[7:-1])
        if isinstance(prefetch_count, int) and 0 < prefetch_count < AHEAD_MESSAGES:
            self._connection.deliveries.few_at_a_time = True
        return True

    def _ending(self, number: int, kind: int, frame: bytes) -> bool:
        connection = self._connection
        index = U32.unpack_from(frame, 7)[0] if kind == METHOD and number == 0 and len(frame) >= _LEAST_METHOD else 0
        if index == methods.CONNECTION_CLOSE:  # RabbitMQ answers each close; multi-threaded clients may send several
            if connection.lifecycle.phase in (Phase.CLOSING, Phase.CLOSED):
                connection.to_producer.append(connection_close_ok())
            else:
                connection.lifecycle.further_closes += 1
        elif index == methods.CONNECTION_CLOSE_OK:
            if connection.lifecycle.phase is Phase.CLOSING:
                connection.finish()
                return not connection.upstream.closing
            if connection.lifecycle.phase is Phase.CLOSED:
                connection.lifecycle.producer_ends = False
        return False

    def _connection_frame(self, kind: int, frame: bytes) -> bool:
        connection = self._connection
        if kind == HEARTBEAT:
            return False
        if kind != METHOD:
            # spec, 4.2.3: header and body frames are not permitted on channel 0
            raise ProtocolError(505, f"{KIND_NAMES[kind]} frame on channel 0, expected a method frame")
        index = _method_of(frame)
        if index >> 16 != _CONNECTION:
            text = "unexpected method in connection state running"
            raise ProtocolError(504, text, Scope.CONNECTION, *divmod(index, 1 << 16))
        _check(index, frame[7:-1])
        if index != methods.CONNECTION_CLOSE:
            connection.upstream.may_be_kept = (
                False  # the producer has logged in again (Connection.UpdateSecret), or used a method unknown to us
            )
            return True
        if connection.holds:
            connection.lifecycle.last_frame = frame  # earlier publishes are sent first
        else:
            connection.producer_leaves(frame)
        return False

    def _method(self, channel: Channel, frame: bytes) -> bool:
        index = _method_of(frame)
        if _FIXED_BYTES.get(index) == len(frame):
            return True
        own, taken = _OWN_HANDLERS.get(index), self._handlers.get(index)
        try:
            if own is not None:
                return own(self, channel, frame)
            if taken is not None:
                return taken(channel, frame)
        except ProtocolError as error:
            error.about(index)
            raise
        _check(index, frame[7:-1])
        return True


# This table does not contain bound methods. A connection without reference cycles is freed as soon as it ends.
_OWN_HANDLERS = {
    methods.CHANNEL_OPEN: ProducerFrames._channel_method,
    methods.CHANNEL_CLOSE: ProducerFrames._channel_method,
    methods.CHANNEL_CLOSE_OK: ProducerFrames._channel_method,
    methods.CONFIRM_SELECT: ProducerFrames._select,
    methods.TX_SELECT: ProducerFrames._select,
    methods.BASIC_QOS: ProducerFrames._qos,
}


def _method_of(frame: bytes) -> int:
    """Return the method of a frame: class id << 16 | method id."""
    if len(frame) < _LEAST_METHOD:
        raise ProtocolError(501, f"method frame of {len(frame) - OVERHEAD} bytes, expected 4 or more")
    method: int = U32.unpack_from(frame, 7)[0]
    return method


def _check(index: int, payload: bytes) -> None:
    """Refuse methods that the broker would not answer, or would refuse with a less clear error.

    Raises:
        ProtocolError: 502 malformed arguments, 503 a method that only a broker sends, 540 an unknown method.
    """
    if index in _BEYOND:
        return
    methods.arguments(payload)
    if index in methods.ONLY_FROM_BROKER:
        text = f"{methods.NAMES[index]} from a producer"
        raise ProtocolError(503, text, Scope.CONNECTION, *divmod(index, 1 << 16))
