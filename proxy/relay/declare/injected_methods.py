"""Runs methods of the sidecar on a client's own channel, so that the broker checks that client's permissions.

The client's frames on the channel wait meanwhile; the broker answers in order, so each answer is known by its place.
A refusal is the broker's own Channel.Close, which goes to the client as it is; where we only looked for something, it
names the method that the client has sent.

Source: architecture, "The broker is the store"; AMQP 0-9-1 spec, 1.3 (synchronous methods are answered in order).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from proxy.amqp.method_frames import exchange_declare
from proxy.amqp.methods import method_frame, reply_of, reply_to
from proxy.relay.channel import Channel, ExpectedReply
from proxy.relay.channel_state import DECLARING, ChannelEvent
from proxy.relay.connection_state import ConnectionState

#: Declares without an answer after which one is asked for.
_UNANSWERABLE = 256

#: Every virtual host has it, and asking whether it is there needs no permission.
_ALWAYS_THERE = b"amq.direct"


def pass_on(channel: Channel, method: int, nowait: bool) -> bool:
    """Let a request go upstream unchanged (hence True), and take note that the broker answers it."""
    if not nowait:
        channel.replies.append(ExpectedReply(reply_of(method)))
    return True


def answer(channel: Channel, method: int, nowait: bool) -> bytes:
    """Build the answer to a request, which has no arguments; b"" where the client expects none."""
    return b"" if nowait else method_frame(channel.number, reply_of(method))


def reply_and_resume(connection: ConnectionState, channel: Channel, answer: bytes) -> None:
    """Answer the client and let its frames go on, unless the channel has been closed meanwhile."""
    if channel.state is not DECLARING:
        return
    if answer:
        connection.send_to_producer(channel, answer)
    connection.pending.resumable.append(channel)


def inject(
    connection: ConnectionState,
    channel: Channel,
    steps: Sequence[bytes],
    then: Callable[[], None],
    request_method: int = 0,
) -> None:
    """Run methods in order on a client's channel; the client's frames wait until `reply_and_resume`.

    Args:
        connection: state of the connection.
        channel: the client's channel; it may be held already.
        steps: frames of methods of ours, none of them nowait. Where there are none, one runs that changes nothing: what
            the client asked before is answered before.
        then: called when all were answered; ends in `reply_and_resume`, or goes further.
        request_method: class id << 16 | method id of the client's request, where steps are declares that only look.
    """

    def answered(_: bytes, last: bool) -> bool:
        if last:
            then()
        return False

    connection.change(channel, ChannelEvent.DECLARE)
    steps = steps or [_nothing(channel)]
    for index, frame in enumerate(steps, 1):
        connection.to_upstream.append(frame)
        taken = partial(answered, last=index == len(steps))
        channel.replies.append(ExpectedReply(reply_to(frame), taken=taken, request_method=request_method))


def inject_and_reply(
    connection: ConnectionState, channel: Channel, steps: Sequence[bytes], done: Callable[[], bytes]
) -> None:
    """Run methods as `inject` does, then answer the client with what `done` gives and let its frames go on."""
    inject(connection, channel, steps, lambda: reply_and_resume(connection, channel, done()))


def count_unanswerable(connection: ConnectionState, channel: Channel) -> None:
    """Count a request that the broker does not answer; after some of them ask for something, so that answers come."""
    weight = connection.backlog.count_unanswerable(_UNANSWERABLE)
    if weight:
        frame = _nothing(channel)
        connection.to_upstream.append(frame)
        channel.replies.append(ExpectedReply(reply_to(frame), taken=lambda _: False, weight=weight))


def _nothing(channel: Channel) -> bytes:
    return exchange_declare(channel.number, _ALWAYS_THERE, b"direct", passive=True)
