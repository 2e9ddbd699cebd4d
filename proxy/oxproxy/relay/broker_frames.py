"""Relays frames from the broker to the producer. Frames are copied, and inspected only if necessary.

Confirms are counted and, on a channel with a ledger, combined. The original address is restored in returns and
deliveries of publishes whose address we changed. Frames on a channel that we closed are discarded, but a content whose
first frame was sent to the producer is always completed.

Source: AMQP 0-9-1 spec, 1.4 to 1.8, 2.2.10, 4.2.3 and 4.2.6; RabbitMQ guides "Publisher confirms" and "Blocked
connections"; the messenger-addressing specification, 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from oxproxy.amqp import methods
from oxproxy.amqp.frames import (
    ACK_BYTES,
    BODY,
    CONTENT_HEAD,
    FRAME_END,
    FRAME_HEAD,
    HEADER,
    HEARTBEAT,
    KINDS,
    LEAST_HEADER_FRAME,
    METHOD,
    OVERHEAD,
    U32,
    PartialFrame,
    body_frames,
    check_head,
)
from oxproxy.amqp.method_frames import Ack, Nack, Return, channel_close_ok, connection_close_ok, read_method
from oxproxy.amqp.methods import method_frame, method_in
from oxproxy.amqp.properties import fingerprint
from oxproxy.errors import ProtocolError
from oxproxy.relay.channel import HEADER_TO_COME, Channel
from oxproxy.relay.channel_state import BOTH_AWAITING_BROKER, DISCARDING, RELAYED_DOWN, US_AWAITING_BROKER, ChannelEvent
from oxproxy.relay.connection_state import ConnectionState, Phase
from oxproxy.relay.original_address import ADDRESS_HEADER, restored_content

#: size of a Basic.Ack frame in bytes
_ACK_FRAME_BYTES: Final = 21
#: size in bytes of the part of the frame that precedes the two lowest octets of the delivery tag
_ACK_HEAD_BYTES: Final = 17
#: the upper four octets of a delivery tag below 2**32
_FOUR_ZEROS: Final = bytes(4)
_ENDED: Final = frozenset((Phase.CLOSING, Phase.CLOSED))
_ANSWERS: Final = frozenset(
    (
        methods.CHANNEL_FLOW_OK,
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
_WITH_CONTENT: Final = frozenset((methods.BASIC_DELIVER, methods.BASIC_GET_OK))


class BrokerFrames:
    """Processes the bytes from the broker for one connection."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection: Final = connection
        self._rest: Final = PartialFrame()
        tuning = connection.terms.tuning
        #: size limit in bytes for frames to the producer
        self._least_max: Final = min(tuning.frame_max_producer, tuning.frame_max_upstream)

    @property
    def at_boundary(self) -> bool:
        """True if there is no partial frame."""
        return not self._rest

    def read_broker(self, data: bytes) -> None:
        """Process the next bytes from the broker, which may begin and end within a frame.

        Output for the producer is collected in the connection's state.

        Raises:
            ProtocolError: the broker's bytes are not valid AMQP, so the upstream connection is unusable.
        """
        if self._rest:
            data = self._rest.join(data)
        at = self._run(data) if self._connection.lifecycle.phase not in _ENDED else self._end(data, 0)
        if at < len(data):
            self._rest.keep(data[at:])

    def _run(self, data: bytes) -> int:  # noqa: C901 -- one pass over the read buffer, as in `publish_pass`
        """Process whole frames; return the offset of the first byte that has not been processed.

        Frames that need no processing extend the run `start:at`, which is copied as one slice. Such frames are contents
        or parts of contents, confirms on channels without a ledger, and methods that are not inspected.
        """
        connection = self._connection
        out = connection.to_producer
        inspected = connection.deliveries.inspected
        unfinished = connection.deliveries.unfinished
        frame_max = connection.terms.tuning.frame_max_upstream
        largest = self._least_max - OVERHEAD
        sidecar_channel = connection.upstream.sidecar_channel.number or -1
        restores = connection.plans.state.restores
        # Deliveries are inspected only if an address may have to be restored.
        inspected_methods = _EVERYTHING if restores else _WITHOUT_CONTENT
        delayed_confirms = connection.delayed_confirms
        acked = delivered = 0
        end = len(data)
        at = 0
        start = 0  # start of the bytes to copy unchanged
        while end - at >= OVERHEAD:
            kind: int = data[at]
            number: int = (data[at + 1] << 8) | data[at + 2]
            size: int = (data[at + 3] << 24) | (data[at + 4] << 16) | (data[at + 5] << 8) | data[at + 6]
            stop: int = at + size + OVERHEAD
            if stop > end:
                check_head(kind, number, size, frame_max)
                break
            if data[stop - 1] != FRAME_END:
                raise ProtocolError(501, f"the broker's frame on channel {number} does not end with octet 206")

            if number != sidecar_channel and not (inspected and number in inspected):
                if kind == METHOD and size >= 4:
                    index: int = (data[at + 7] << 24) | (data[at + 8] << 16) | (data[at + 9] << 8) | data[at + 10]
                    if index == methods.BASIC_ACK and size == ACK_BYTES:
                        channel = connection.channels.get(number)
                        if channel is not None and channel.confirms.ledger is None:
                            confirms = channel.confirms
                            settled, published = confirms.settled, confirms.published
                            first = at
                            last = settled.low
                            # Confirms often arrive back to back, so loop while only the last octets differ.
                            head = data[at : at + _ACK_HEAD_BYTES]
                            upper_tag: int = (data[at + 15] << 24) | (data[at + 16] << 16)
                            if data[at + 11 : at + 15] != _FOUR_ZEROS:
                                upper_tag |= U32.unpack_from(data, at + 11)[0] << 32
                            while True:
                                tag: int = upper_tag | (data[at + 17] << 8) | data[at + 18]
                                if tag == last + 1 or (tag > last and data[at + 19]):
                                    last = tag
                                else:
                                    acked += settled.settle_to(min(last, published))
                                    acked += settled.settle(tag, data[at + 19], published)
                                    last = settled.low
                                at = stop
                                stop += _ACK_FRAME_BYTES
                                if stop > end or data[stop - 1] != FRAME_END:
                                    break
                                if data[at : at + _ACK_HEAD_BYTES] != head:
                                    break
                            acked += settled.settle_to(min(last, published))
                            if confirms.sample is not None or channel.audit.mandatory:
                                connection.note_settled(channel)
                            if delayed_confirms is not None and delayed_confirms.waits(channel):
                                if start < first:
                                    out.append(data[start:first])
                                delayed_confirms.keep(channel, data[first:at])
                                start = at
                            continue
                    elif index == methods.BASIC_DELIVER or index == methods.BASIC_GET_OK:
                        after = self._whole_content_end(data, stop, number, largest)
                        if after and not (restores and data.find(ADDRESS_HEADER, stop, after) >= 0):
                            at = after
                            delivered += 1
                            continue
                        if not restores:
                            unfinished[number] = HEADER_TO_COME
                            at = stop
                            continue
                    elif index not in inspected_methods:
                        at = stop
                        continue
                elif (kind == BODY or kind == HEADER) and size <= largest and number in unfinished:
                    self._progress(kind, number, data, at, size)
                    at = stop
                    continue

            # All other frames are handled individually: each of them may change any channel, or end the connection.
            if start < at:
                out.append(data[start:at])
            start = at if self._take(kind, number, data[at:stop]) else stop
            at = stop
            if connection.lifecycle.phase in _ENDED:
                break
        if acked:
            connection.plans.counters.confirms_acked += acked
        connection.deliveries.in_last_read = delivered
        if start < at:
            out.append(data[start:at] if start or at < end else data)
        return at if connection.lifecycle.phase not in _ENDED else self._end(data, at)

    def _whole_content_end(self, data: bytes, header_at: int, number: int, largest: int) -> int:
        """Return the offset after a content that is complete and has at most one body frame; 0 otherwise.

        `header_at` is the offset of the content's header frame. `largest` is the maximum payload size, in bytes, of a
        frame to the producer.
        """
        end = len(data)
        if end - header_at < LEAST_HEADER_FRAME or data[header_at] != HEADER:
            return 0
        if ((data[header_at + 1] << 8) | data[header_at + 2]) != number:
            return 0
        size: int = (
            (data[header_at + 3] << 24) | (data[header_at + 4] << 16) | (data[header_at + 5] << 8) | data[header_at + 6]
        )
        body_at = header_at + size + OVERHEAD
        if size < LEAST_HEADER_FRAME - OVERHEAD or size > largest or body_at > end or data[body_at - 1] != FRAME_END:
            return 0
        body_size: int = (
            (data[header_at + 15] << 24)
            | (data[header_at + 16] << 16)
            | (data[header_at + 17] << 8)
            | data[header_at + 18]
        )
        if data[header_at + 14] or data[header_at + 13] or data[header_at + 12] or data[header_at + 11]:
            return 0  # a body of 4 GiB or more
        if not body_size:
            return body_at
        after = body_at + body_size + OVERHEAD
        if (
            after > end
            or body_size > largest
            or data[body_at] != BODY
            or ((data[body_at + 1] << 8) | data[body_at + 2]) != number
            or ((data[body_at + 3] << 24) | (data[body_at + 4] << 16) | (data[body_at + 5] << 8) | data[body_at + 6])
            != body_size
            or data[after - 1] != FRAME_END
        ):
            return 0
        return after

    def _end(self, data: bytes, at: int) -> int:
        """Discard all methods except those that end the connection (spec, 1.4.2.9)."""
        while len(data) - at >= OVERHEAD:
            kind, number, size = FRAME_HEAD.unpack_from(data, at)
            stop = at + size + OVERHEAD
            if stop > len(data):
                check_head(kind, number, size, self._connection.terms.tuning.frame_max_upstream)
                break
            if kind == METHOD and number == 0:
                self._connection_method(data[at:stop])
            at = stop
        return at

    def _progress(self, kind: int, number: int, data: bytes, at: int, size: int) -> None:
        """Record that a content frame is forwarded to the producer."""
        unfinished = self._connection.deliveries.unfinished
        if kind == BODY:
            left = unfinished.get(number, 0) - size
        else:
            left = CONTENT_HEAD.unpack_from(data, at)[5] if size >= LEAST_HEADER_FRAME - OVERHEAD else 0
        if left > 0:
            unfinished[number] = left
        else:
            unfinished.pop(number, None)

    def _take(self, kind: int, number: int, frame: bytes) -> bool:
        """Handle one frame that `_run` does not copy; return whether it is forwarded to the producer unchanged."""
        connection = self._connection
        if kind == HEARTBEAT:
            return False
        if kind not in KINDS or (number == 0 and kind != METHOD):
            raise ProtocolError(505, f"frame of type {kind} on channel {number}")
        if number == connection.upstream.sidecar_channel.number:
            if kind == METHOD and not connection.upstream.closing:
                connection.upstream.sidecar_channel.take_method(frame)
            return False
        if number == 0:
            return self._connection_method(frame)
        channel = connection.channels.get(number)
        if channel is None:
            return self._unknown(kind, number, frame)
        if kind == METHOD:
            return self._method(channel, frame)
        self._inspected_content(channel, kind, frame)
        return False

    def _unknown(self, kind: int, number: int, frame: bytes) -> bool:
        """Discard a frame on a channel that does not exist, and return False.

        An open-ok, a close, a close-ok or the rest of a content raises a `ProtocolError` instead.
        """
        if kind == METHOD:
            self._while_closing(Channel(number, self._connection.backlog), frame)
        elif number in self._connection.deliveries.unfinished:
            raise ProtocolError(505, f"content frame on channel {number}, which is closed")
        return False

    def _method(self, channel: Channel, frame: bytes) -> bool:
        if channel.state in DISCARDING:
            return self._while_closing(channel, frame)
        handler = _CHANNEL_HANDLERS.get(method_in(frame))
        return handler(self, channel, frame) if handler else True

    def _inspected_content(self, channel: Channel, kind: int, frame: bytes) -> None:
        """Handle a content frame that is too large or belongs to a channel that needs inspection."""
        if channel.number in self._connection.deliveries.unfinished:
            # This is also done on a closed channel, since no method may be sent between the frames of a content (spec,
            # 4.2.6).
            self._pass_content(channel, kind, frame)
        elif channel.state in DISCARDING:
            pass
        elif channel.output.returned is not None:
            self._returned(channel, channel.output.returned, kind, frame)
        elif channel.output.swallowed:
            channel.output.swallowed = max(channel.output.swallowed - len(frame) + OVERHEAD, 0)
            self._connection.deliveries.inspect(channel)
        # else: the frame belongs to content whose method was discarded because the channel has since been closed

    def _returned(self, channel: Channel, method: bytes, kind: int, header: bytes) -> None:
        """Handle the content header of a delivery, get-ok or return whose method frame is held."""
        connection = self._connection
        if kind != HEADER or len(header) < LEAST_HEADER_FRAME:
            raise ProtocolError(505, f"expected a content header on channel {channel.number}")
        channel.output.returned = None
        is_return = U32.unpack_from(method, 7)[0] == methods.BASIC_RETURN
        returns = channel.confirms.returns
        if is_return and returns:
            _, _, exchange, routing_key = read_method(Return, method[7:-1])
            # Other copies of the publish have not been returned yet, or will not be returned.
            if not returns.returned(fingerprint(exchange, routing_key, header)):
                channel.output.swallowed = CONTENT_HEAD.unpack_from(header)[5]
                connection.deliveries.inspect(channel)
                return
        connection.deliveries.inspect(channel)
        method, header = restored_content(connection.plans.state, method, header)
        if is_return:
            connection.note_return(channel, method, header)
        connection.to_producer.append(method)
        self._pass_content(channel, HEADER, header)

    def _pass_content(self, channel: Channel, kind: int, frame: bytes) -> None:
        """Send a content frame to the producer, split if the producer's frame_max is smaller than the broker's."""
        connection = self._connection
        if len(frame) <= self._least_max:
            connection.to_producer.append(frame)
        elif kind == BODY:
            connection.to_producer += body_frames(channel.number, frame[7:-1], self._least_max)
        else:
            text = f"the broker's frame of {len(frame)} bytes exceeds frame_max {self._least_max}"
            connection.fail(ProtocolError(501, text))
            connection.end_refusal()  # the rest of the content can't be relayed
            return
        self._progress(kind, channel.number, frame, 0, len(frame) - OVERHEAD)
        if channel.output.deferred and channel.number not in connection.deliveries.unfinished:
            connection.to_producer += channel.output.deferred
            channel.output.deferred = []
            connection.deliveries.inspect(channel)

    # -- methods -----------------------------------------------------------------------------------------------

    def _connection_method(self, frame: bytes) -> bool:
        """Handle a method on channel 0; return whether it is forwarded to the producer unchanged."""
        index = method_in(frame)
        taken = _CONNECTION_HANDLERS.get(index)
        return taken(self, frame) if taken else self._connection.lifecycle.phase is not Phase.CLOSING

    def _while_closing(self, channel: Channel, frame: bytes) -> bool:
        """Handle a method on a channel that was closed by the broker or by us. Most methods are discarded."""
        connection, index = self._connection, method_in(frame)
        if index == methods.CHANNEL_CLOSE_OK:
            return self._closed(channel)
        if index == methods.CHANNEL_CLOSE:
            # a close, ours or the broker's first one, has already been sent to the producer
            connection.change(channel, ChannelEvent.BROKER_CLOSE, index)
            if not channel.broker_closed:
                connection.note_broker_close(channel.number, frame, ())
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
        return self._rollback_ok(channel, frame) and not self._connection.delay_confirm(channel, frame)

    def _rollback_ok(self, channel: Channel, frame: bytes) -> bool:
        """Record the end of a transaction, after which none of its publishes can be returned."""
        confirms = channel.confirms
        if confirms.transactions:
            last = confirms.transactions.popleft()
            if confirms.returns:
                confirms.returns.processed(last)
        return True

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
        # The content header is needed to restore an address, to combine returns and to record failed publishes.
        failures = connection.plans.failures
        if connection.plans.state.restores or channel.confirms.returns or (failures is not None and failures.watched):
            return self._content(channel, frame)
        connection.note_return(channel, frame)
        connection.deliveries.unfinished[channel.number] = HEADER_TO_COME
        return True

    def _content(self, channel: Channel, frame: bytes) -> bool:
        channel.output.returned = frame
        self._connection.deliveries.inspect(channel)
        return False

    def _opened(self, channel: Channel, frame: bytes) -> bool:
        self._connection.change(channel, ChannelEvent.BROKER_OPEN_OK, methods.CHANNEL_OPEN_OK)
        return True

    def _answer(self, channel: Channel, frame: bytes) -> bool:
        """Handle the broker's reply to a flow, declare, delete, bind or unbind from the producer or the sidecar."""
        index = method_in(frame)
        if not channel.replies or channel.replies.next.reply != index:
            return True
        taken = channel.replies.popleft().taken
        return taken is None or taken(frame)

    def _close(self, channel: Channel, frame: bytes) -> bool:
        connection = self._connection
        connection.note_broker_close(channel.number, frame, (channel,))
        connection.change(channel, ChannelEvent.BROKER_CLOSE, methods.CHANNEL_CLOSE)
        channel.broker_closed = True
        if channel.content is not None and not channel.content.begun:
            connection.drop_content(channel)
        connection.end_confirms(channel)
        channel.replies.drop()
        connection.take_held_again(channel)
        return True

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

    def _connection_close(self, frame: bytes) -> bool:
        connection = self._connection
        connection.note_broker_close(0, frame, connection.channels.values())
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

    def _connection_close_ok(self, frame: bytes) -> bool:
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


# These tables contain functions instead of bound methods, which would create reference cycles. Without cycles, a
# connection is freed as soon as it ends.
_CHANNEL_HANDLERS: Final[dict[int, Callable[[BrokerFrames, Channel, bytes], bool]]] = {
    methods.BASIC_ACK: BrokerFrames._ack,
    methods.BASIC_NACK: BrokerFrames._nack,
    methods.BASIC_RETURN: BrokerFrames._return,
    methods.TX_COMMIT_OK: BrokerFrames._commit_ok,
    methods.TX_ROLLBACK_OK: BrokerFrames._rollback_ok,
    methods.CHANNEL_OPEN_OK: BrokerFrames._opened,
    methods.CHANNEL_CLOSE: BrokerFrames._close,
    methods.CHANNEL_CLOSE_OK: BrokerFrames._closed,
    methods.BASIC_DELIVER: BrokerFrames._content,
    methods.BASIC_GET_OK: BrokerFrames._content,
    **dict.fromkeys(_ANSWERS, BrokerFrames._answer),
}
_CONNECTION_HANDLERS: Final[dict[int, Callable[[BrokerFrames, bytes], bool]]] = {
    methods.CONNECTION_CLOSE: BrokerFrames._connection_close,
    methods.CONNECTION_CLOSE_OK: BrokerFrames._connection_close_ok,
    methods.CONNECTION_BLOCKED: lambda frames, frame: frames._block(True),
    methods.CONNECTION_UNBLOCKED: lambda frames, frame: frames._block(False),
}
_EVERYTHING: Final = frozenset((*_CHANNEL_HANDLERS, *_CONNECTION_HANDLERS))
_WITHOUT_CONTENT: Final = _EVERYTHING - _WITH_CONTENT
