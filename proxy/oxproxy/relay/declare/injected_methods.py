"""Runs the sidecar's own methods on a client's channel, so that the broker checks the client's permissions.

Meanwhile, the client's frames on the channel are held, except in `when_processed`. The broker answers in order, so each
reply is identified by its position. A refusal is the broker's own Channel.Close, which is relayed to the client.

Source: architecture, "The broker is the store"; AMQP 0-9-1 spec, 1.3 (synchronous methods are answered in order).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias

from oxproxy.amqp.method_frames import ExchangeDeclare, ExchangeDelete, QueueDeclare, QueueDelete
from oxproxy.amqp.methods import CHANNEL_FLOW, method_frame, reply_of, reply_to
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.channel import Channel, ExpectedReply
from oxproxy.relay.channel_state import DECLARING, ChannelEvent
from oxproxy.relay.connection_state import NOT_LOOKED_UP, ConnectionState, LookUp
from oxproxy.values import Destination, shown

#: Starts an operation, and calls the given function when the operation is done, with its result if there is one.
Step: TypeAlias = Callable[[Callable[..., None]], None]
#: A sequence of steps: each `yield` waits for a step, and returns its result. If the channel or the connection ends,
#: the sequence ends at that step.
Steps: TypeAlias = Generator[Step, Any, None]  # Any: the result of any step


def run_steps(steps: Steps, result: object = None) -> None:
    """Run a sequence until a step has to wait; when that step is done, the sequence continues.

    Args:
        result: the result of the previous step; None at the start of the sequence.
    """
    try:
        step = steps.send(result)
    except StopIteration:
        return
    step(partial(run_steps, steps))


def pass_on(channel: Channel, method: int, nowait: bool) -> bool:
    """Expect the broker's reply to a request; return True, since the request is forwarded unchanged."""
    if not nowait:
        channel.replies.append(ExpectedReply(reply_of(method)))
    return True


def expect_reply(
    connection: ConnectionState,
    channel: Channel,
    method: int,
    request: ExchangeDeclare | ExchangeDelete | QueueDeclare | QueueDelete,
    taken: Callable[[bytes], bool],
) -> bool:
    """Expect the broker's reply to a request. If the client's request has nowait set, send it without nowait instead.

    Args:
        taken: called with the reply; returns whether the reply is forwarded.

    Returns:
        Whether the client's own frame is to be forwarded.
    """
    channel.replies.append(ExpectedReply(reply_of(method), taken))
    if request.nowait:
        with_reply = request._replace(nowait=False)
        connection.to_upstream.append(method_frame(channel.number, method, 0, *with_reply))
    return not request.nowait


def answer(channel: Channel, method: int, nowait: bool) -> bytes:
    """Build the reply to a request, a method without arguments; b"" if the client expects no reply."""
    return b"" if nowait else method_frame(channel.number, reply_of(method))


def reply_and_resume(connection: ConnectionState, channel: Channel, answer: bytes) -> None:
    """Answer the client and process its held frames, unless its channel has been closed in the meantime."""
    if channel.state is not DECLARING:
        return
    if answer:
        connection.send_to_producer(channel, answer)
    connection.pending.resume(channel)


def inject(
    connection: ConnectionState,
    channel: Channel,
    steps: Sequence[bytes],
    then: Callable[[], None],
    dropped: Callable[[], None] | None = None,
) -> None:
    """Run methods in order on a client's channel; the client's frames wait until `reply_and_resume`.

    Args:
        channel: the client's channel; its frames may already be held.
        steps: frames of our own methods, none of them with nowait. If empty, a method without effect is sent, so that
            earlier requests of the client are answered first.
        then: called when all methods have been answered; must eventually lead to a call of `reply_and_resume`.
        dropped: called instead of `then` if the channel is closed before all methods have been answered.
    """

    connection.change(channel, ChannelEvent.DECLARE)
    expect(connection, channel, steps or [nothing(channel)], then, dropped)


def expect(
    connection: ConnectionState,
    channel: Channel,
    steps: Sequence[bytes],
    then: Callable[[], None] | None = None,
    dropped: Callable[[], None] | None = None,
) -> None:
    """Send our own methods on a client's channel; see `inject` for the arguments."""

    def answered(_: bytes) -> bool:
        if then is not None:
            then()
        return False

    connection.to_upstream += steps
    for frame in steps[:-1]:
        channel.replies.append(ExpectedReply(reply_to(frame), _discarded))
    for frame in steps[-1:]:
        channel.replies.append(ExpectedReply(reply_to(frame), answered, dropped=dropped))


def when_processed(connection: ConnectionState, channel: Channel, then: Callable[[], None]) -> None:
    """Call a function when the broker has processed all earlier frames of a channel. No frames are held meanwhile."""

    def answered(_: bytes) -> bool:
        then()
        return False

    frame = nothing(channel)
    connection.to_upstream.append(frame)
    channel.replies.append(ExpectedReply(reply_to(frame), answered))


def refuse_in_order(connection: ConnectionState, channel: Channel, error: ProtocolError) -> None:
    """Refuse a method as RabbitMQ does: after the replies to the client's earlier methods on the channel.

    If one of these methods causes an error on the broker, the client receives only that error.
    """
    inject(connection, channel, [], partial(connection.refuse, channel, error))


def look_up(
    connection: ConnectionState,
    exchange: bytes,
    then: Callable[[str | None], None],
    destination: Destination | None = None,
) -> None:
    """Look up an exchange, or some of its bindings, on the broker. The client's channel must hold frames meanwhile.

    See `LookUp` for the arguments.
    """
    connection.pending.requests.append(LookUp(exchange, then, destination))


def refuse_unknown(exchange: bytes, exchange_type: str | None) -> None:
    """Refuse a declaration that concerns an exchange which could not be looked up (406 on the channel)."""
    if exchange_type == NOT_LOOKED_UP:
        text = f"the proxy could not look up exchange '{shown(exchange)}' on the broker, please try again later"
        raise ProtocolError(406, text, Scope.CHANNEL)


def _discarded(_: bytes) -> bool:
    """Do not forward a reply."""
    return False


def nothing(channel: Channel) -> bytes:
    """Build a method that changes nothing, needs no permission, and is answered in order.

    Every channel is already active, and RabbitMQ answers a flow without consulting permissions, also in confirm mode
    and in transactions. (A passive declare needs configure permission since RabbitMQ 4.2.6.)
    """
    return method_frame(channel.number, CHANNEL_FLOW, True)
