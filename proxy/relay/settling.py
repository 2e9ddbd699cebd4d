"""How does a producer hear what became of its publishes, where more than one broker has a say? Acks, nacks, returns.

What the producer's own broker says alone is relayed and never comes here.

Source: RabbitMQ guide "Publisher confirms"; the messenger-addressing specification, 3.4.
"""

from __future__ import annotations

from struct import Struct

from proxy.amqp import methods
from proxy.amqp.frames import FRAME_END, METHOD, body_frames
from proxy.amqp.method_frames import basic_return
from proxy.amqp.methods import method_frame
from proxy.relay.channel import Channel, PendingPublish
from proxy.relay.connection_state import Conversation

_NO_ROUTE = 312
#: a whole frame of Basic.Ack
_ACK = Struct(">BHIIQBB")
_ACK_BYTES = 13


def confirm(conversation: Conversation, channel: Channel, producer_tag: int, acked: bool) -> None:
    """Ack or nack one publish.

    Args:
        conversation: the connection.
        channel: where it came from; it has a ledger.
        producer_tag: its delivery tag.
        acked: False for a nack.
    """
    if channel.returns:
        channel.returns.settled(producer_tag)
    channel.settled.settle(producer_tag, False, channel.published)
    if channel.sample is not None:
        conversation.time_confirm(channel)
    channel.forget_mandatory()
    if acked:
        conversation.counters.confirms_acked += 1
        number = channel.number
        frame = _ACK.pack(METHOD, number, _ACK_BYTES, methods.BASIC_ACK, producer_tag, 0, FRAME_END)
        if not conversation.withhold(channel, frame):
            conversation.say(channel, frame)
        return
    conversation.counters.confirms_nacked += 1
    if conversation.audit is not None:
        conversation.audit.settled(channel, producer_tag, "nacked")
    frame = method_frame(channel.number, methods.BASIC_NACK, producer_tag, False, False)
    if not conversation.withhold(channel, frame):
        conversation.say(channel, frame)


def give_back(conversation: Conversation, publish: PendingPublish, header: bytes, body: bytes) -> None:
    """Return a mandatory publish that no broker had a queue for.

    Args:
        conversation: the connection.
        publish: its method.
        header: its content header frame, as it came.
        body: its body.
    """
    channel = publish.channel
    conversation.counters.returns += 1
    if conversation.audit is not None:
        conversation.audit.returned(channel, publish.exchange, publish.routing_key)
    method = basic_return(channel.number, _NO_ROUTE, b"NO_ROUTE", publish.exchange, publish.routing_key)
    body_parts = body_frames(channel.number, body, conversation.tuning.frame_max_producer)
    conversation.say(channel, b"".join((method, header, *body_parts)))
