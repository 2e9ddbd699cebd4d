"""How do methods of ours run on a client's own channel, so that the broker checks that client's permissions?

The client's frames on the channel wait meanwhile; the broker answers in order, so each answer is known by its place.
A refusal is the broker's own Channel.Close, which goes to the client as it is.

Source: architecture, "The broker is the store"; AMQP 0-9-1 spec, 1.3 (synchronous methods are answered in order).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from proxy.amqp.channel import Channel, Expected
from proxy.amqp.conversation import Conversation

#: a frame for the broker and the method that answers it
Step: TypeAlias = tuple[bytes, int]


def hold(conversation: Conversation, channel: Channel) -> None:
    """Keep the client's frames on a channel until `go_on`."""
    if channel.held is None:
        channel.held = []
        conversation.shape += 1


def go_on(conversation: Conversation, channel: Channel, answer: bytes) -> None:
    """Answer the client and let its frames go on.

    Args:
        conversation: the connection.
        channel: the channel that was held.
        answer: frames for the client, b"" where it expects none.
    """
    if answer:
        conversation.to_producer.append(answer)
    conversation.resumable.append(channel)


def run(conversation: Conversation, channel: Channel, steps: Sequence[Step], done: Callable[[], bytes]) -> None:
    """Run methods in order; the client's frames wait until the last is answered.

    Args:
        conversation: the connection.
        channel: the client's channel.
        steps: methods of ours, none of them nowait.
        done: called when all were answered; gives the frames for the client.
    """
    hold(conversation, channel)
    left = len(steps)
    if not left:
        go_on(conversation, channel, done())
        return

    def answered(frame: bytes, last: bool) -> bool:
        if last:
            go_on(conversation, channel, done())
        return False

    for index, (frame, reply) in enumerate(steps, 1):
        conversation.to_upstream.append(frame)
        channel.replies.append(Expected(reply, taken=partial(answered, last=index == left)))
