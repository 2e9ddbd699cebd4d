"""Broker to producer: copied through, and looked at only where something of ours is in play.

Confirms are counted (and joined, on a channel with a ledger), returns and deliveries of publishes whose address we
changed get the original back, the answer to a declare waits for the queue's tokens, and what comes on a channel
that we closed is discarded.

Source: AMQP 0-9-1 spec, 4.2.3 and 2.2.10; spec "Messenger addressing", 3.3.
"""

from __future__ import annotations

from typing import Final

from proxy.amqp import methods
from proxy.amqp.broker_methods import BrokerMethods
from proxy.amqp.channel import Channel, Life
from proxy.amqp.conversation import Conversation, Phase
from proxy.amqp.frames import (
    BODY,
    CONTENT_HEAD,
    FRAME_END,
    FRAME_HEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    U32,
    U64,
    body_frames,
    check_head,
)
from proxy.amqp.method_arguments import read_return
from proxy.amqp.restoring import restored_content
from proxy.errors import ProtocolError

#: payload of a Basic.Ack: class, method, delivery tag, bits
_ACK_BYTES = 13


class Delivering:
    """The broker's side of one connection.

    Args:
        conversation: what both directions share.
    """

    def __init__(self, conversation: Conversation) -> None:
        """Start at a frame boundary."""
        self._conversation: Final = conversation
        self._methods: Final = BrokerMethods(conversation)
        self._tail = b""
        tuning = conversation.tuning
        self._cut_at: Final = tuning.frame_max_producer if tuning.frame_max_producer < tuning.frame_max_upstream else 0

    def receive(self, data: bytes) -> None:
        """Take bytes from the broker; what goes to the producer gathers in the conversation.

        Args:
            data: any piece of the stream.

        Raises:
            ProtocolError: the broker's bytes are not AMQP; the link is of no use any more.
        """
        if self._tail:
            data = self._tail + data
            self._tail = b""
        at = self._run(data)
        if at < len(data):
            self._tail = data[at:]

    def _run(self, data: bytes) -> int:  # noqa: C901 -- one pass over the read buffer, as in `publishing`
        conversation = self._conversation
        out = conversation.to_producer
        odd = conversation.odd
        cut_at = self._cut_at
        frame_max = conversation.tuning.frame_max_upstream
        own = conversation.own.number
        looked_at = self._methods.looked_at
        channels = conversation.channels
        end = len(data)
        at = start = acked = 0
        unpack_head, unpack_method, unpack_tag = FRAME_HEAD.unpack_from, U32.unpack_from, U64.unpack_from
        while end - at >= OVERHEAD:
            kind, number, size = unpack_head(data, at)
            stop = at + size + OVERHEAD
            if stop > end:
                check_head(kind, number, size, frame_max)
                break
            if data[stop - 1] != FRAME_END:
                raise ProtocolError(501, f"the broker's frame on channel {number} does not end with octet 206")
            if kind == METHOD:
                if size == _ACK_BYTES and unpack_method(data, at + 7)[0] == methods.BASIC_ACK and number not in odd:
                    channel = channels.get(number)
                    if channel is not None and channel.ledger is None:
                        acked += channel.settled.settle(unpack_tag(data, at + 11)[0], data[at + 19], channel.published)
                        if channel.sample is not None:
                            conversation.time_confirm(channel)
                        at = stop
                        continue
                plain = number != own and not (size >= 4 and unpack_method(data, at + 7)[0] in looked_at)
            else:
                plain = kind != HEARTBEAT and not (cut_at and size + OVERHEAD > cut_at)
            if plain and not (odd and number in odd):
                at = stop
                continue
            if start < at:
                out.append(data[start:at])
            start = at if self._take(kind, number, data[at:stop]) else stop
            at = stop
        if acked:
            conversation.counters.confirms_acked += acked
        if start < at:
            out.append(data[start:at] if start or at < end else data)
        return at

    def _take(self, kind: int, number: int, frame: bytes) -> bool:
        """Take one frame that is not plain; answer whether it goes to the producer as it came."""
        conversation = self._conversation
        if kind == HEARTBEAT:
            return False
        if number == conversation.own.number:
            if kind == METHOD:
                conversation.own.receive(frame[7:-1])
            return False
        if number == 0:
            return self._methods.connection(frame)
        channel = conversation.channel(number)
        index = U32.unpack_from(frame, 7)[0] if kind == METHOD and len(frame) >= 12 else 0
        if channel.discard_upstream or channel.life is not Life.OPEN:
            return self._methods.closing(channel, index)
        if channel.held_back is not None and index not in (methods.CHANNEL_CLOSE, methods.CHANNEL_CLOSE_OK):
            channel.held_back.append(frame)
            conversation.held_back_bytes += len(frame)
            return False
        if kind == METHOD:
            return self._methods.channel(channel, index, frame)
        if channel.swallowing:
            self._swallow(channel, kind, frame)
            return False
        if channel.returned is not None and kind == HEADER:
            self._restore(channel, channel.returned, frame)
            return False
        return self._cut(kind, number, frame)

    def _restore(self, channel: Channel, method: bytes, header: bytes) -> None:
        """Give a delivery, get or return the address that the producer wrote."""
        conversation = self._conversation
        channel.returned = None
        conversation.odd.discard(channel.number)
        restored = restored_content(conversation.state, method, header)
        conversation.to_producer += restored
        if conversation.audit is not None and U32.unpack_from(method, 7)[0] == methods.BASIC_RETURN:
            _, _, exchange, routing_key = read_return(restored[0][7:-1])
            conversation.audit.returned(channel, exchange, routing_key)

    def _swallow(self, channel: Channel, kind: int, frame: bytes) -> None:
        """Drop the content of a return that is one of several copies."""
        if kind == HEADER:
            channel.returned = None
            channel.swallowed = CONTENT_HEAD.unpack_from(frame)[5]
        else:
            channel.swallowed -= len(frame) - OVERHEAD
        if channel.swallowed <= 0:
            channel.swallowing = False
            self._conversation.odd.discard(channel.number)

    def _cut(self, kind: int, number: int, frame: bytes) -> bool:
        """Cut a frame smaller for a producer that insists on less than the broker accepts."""
        if not self._cut_at or len(frame) <= self._cut_at:
            return True
        if kind != BODY:
            self._conversation.fail(
                ProtocolError(501, f"the broker's frame of {len(frame)} bytes exceeds frame_max {self._cut_at}")
            )
            return False
        self._conversation.to_producer += body_frames(number, frame[7:-1], self._cut_at)
        return False

    def release(self, frames: list[bytes]) -> None:
        """Take frames that a channel kept back, in front of everything that comes."""
        tail, self._tail = self._tail, b""
        if self._conversation.phase is not Phase.CLOSED:
            self.receive(b"".join(frames))
        self._tail = tail
