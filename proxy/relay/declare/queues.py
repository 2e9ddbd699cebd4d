"""Handles queue.declare and queue.delete: notifies the control plane, and binds the tokens of new queues.

Both methods are forwarded to the broker. A declare-ok is held back until the tokens of the queue are bound, so that the
client's next publish reaches the queue.

Source: AMQP 0-9-1 spec, 1.7.2.1.
"""

from __future__ import annotations

from functools import partial

from proxy.amqp import methods
from proxy.amqp.method_frames import QueueDeclare, QueueDeclareOk, QueueDelete, read_method, read_request
from proxy.amqp.methods import method_frame
from proxy.amqp.tables import decode_value, pick
from proxy.errors import ProtocolError, Scope
from proxy.relay.channel import Channel, ExpectedReply
from proxy.relay.channel_state import ChannelEvent
from proxy.relay.connection_state import ConnectionState, EnsureDestination
from proxy.relay.declare.injected_methods import count_unanswerable
from proxy.relay.declare.storage import refuse_nested, refuse_own_arguments
from proxy.relay.declare.token_bindings import bind_tokens, tokens_of
from proxy.relay.vhost import Delivery
from proxy.values import QUEUE, reserved_prefix

_DEAD_LETTER_KEY = b"x-dead-letter-routing-key"
#: Number of exclusive queues of a connection that are recorded although the broker may have deleted them.
_EXCLUSIVE = 1000


class ClientQueues:
    """Handles queue.declare and queue.delete on one connection."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection = connection
        #: number of recorded exclusive queues at which they are next compared with the existing queues
        self._look_at = _EXCLUSIVE

    def declare(self, channel: Channel, frame: bytes) -> bool:
        """Handle queue.declare; return whether it is forwarded unchanged."""
        connection = self._connection
        request = read_request(QueueDeclare, frame[7:-1])
        refuse_nested(request.arguments, QUEUE, request.queue, connection.plans.state.name)
        _refuse_dead_letter_key(request)
        refuse_own_arguments(request.arguments)
        channel.last_queue = request.queue or channel.last_queue
        if request.exclusive:  # such a queue is deleted with its connection
            connection.upstream.may_be_kept = False
        for owned in connection.plans.state.exchanges.values():
            owned.tokens.declared((QUEUE, request.queue))
        if not request.nowait:
            if not (request.queue or request.passive):  # later methods may refer to this queue by an empty name
                connection.change(channel, ChannelEvent.DECLARE)
            declared = partial(self._declared, channel, request)
            channel.replies.append(ExpectedReply(methods.QUEUE_DECLARE_OK, declared))
        elif not request.passive:
            if request.exclusive or not request.queue or connection.terms.inventory.interested(request.queue):
                self._declare_and_wait(channel, request)
                return False
            connection.terms.inventory.declared((QUEUE, request.queue), False)
            count_unanswerable(connection, channel)
        return True

    def delete(self, channel: Channel, frame: bytes) -> bool:
        """Handle queue.delete; return whether it is forwarded unchanged."""
        connection = self._connection
        request = read_request(QueueDelete, frame[7:-1])
        queue = request.queue or channel.last_queue
        # Only this process stores these bindings, so the client's next frames wait until they have been removed.
        waits = any(
            (QUEUE, queue) in owned.receivers
            for owned in connection.plans.state.exchanges.values()
            if owned.delivery is Delivery.QUEUE
        )

        def deleted(_: bytes) -> bool:
            connection.terms.inventory.queue_deleted(queue)
            connection.upstream.exclusive_queues.discard(queue)
            if waits:
                connection.pending.resume(channel)
            return not request.nowait

        if waits:
            connection.change(channel, ChannelEvent.DECLARE)
        channel.replies.append(ExpectedReply(methods.QUEUE_DELETE_OK, deleted))
        if request.nowait:
            # A reply is requested, since the broker may refuse to delete the queue, which then keeps its bindings.
            with_reply = request._replace(nowait=False)
            connection.to_upstream.append(method_frame(channel.number, methods.QUEUE_DELETE, 0, *with_reply))
        return not request.nowait

    def _declared(self, channel: Channel, request: QueueDeclare, frame: bytes) -> bool:
        """Hold back a declare-ok until the tokens of the queue are bound."""
        connection = self._connection
        queue = read_method(QueueDeclareOk, frame[7:-1]).queue
        channel.last_queue = queue
        if not (request.queue or request.passive):
            connection.pending.resume(channel)
        exclusive = request.exclusive and not request.passive
        connection.terms.inventory.declared((QUEUE, queue), exclusive)
        if exclusive:
            self._add_exclusive(queue)
        if connection.upstream.closing or not connection.terms.inventory.interested(queue):
            return True
        wanted = tokens_of(connection.plans.state, queue)
        if request.passive and wanted and all(destination in owned.bound for owned, destination in wanted):
            return True
        channel.output.hold_back(frame)
        connection.deliveries.mark(channel)
        if exclusive and wanted:
            bind_tokens(connection, wanted, partial(connection.pending.released.append, channel))
        else:
            connection.pending.requests.append(EnsureDestination(channel, (QUEUE, queue)))
        return False

    def _add_exclusive(self, queue: bytes) -> None:
        """Record an exclusive queue, and forget deleted queues, such as auto-delete queues, from time to time."""
        connection = self._connection
        queues = connection.upstream.exclusive_queues
        queues.add(queue)
        if len(queues) > self._look_at:
            exists = connection.plans.state.has_queue
            queues.intersection_update([name for name in queues if exists(name)])
            self._look_at = max(_EXCLUSIVE, 2 * len(queues))

    def _declare_and_wait(self, channel: Channel, request: QueueDeclare) -> None:
        """Declare a queue that is exclusive, needs tokens or has no name yet, if the client expects no reply.

        A reply is requested from the broker. It contains the name, to which later methods may refer by an empty name.
        An exclusive queue can be bound only after its declaration, and only on this connection. If the broker refuses
        the declaration, another queue with this name may exist, which is not exclusive to this connection.
        """
        connection = self._connection
        go_on = partial(connection.pending.resume, channel)

        def declared(frame: bytes) -> bool:
            queue = channel.last_queue = read_method(QueueDeclareOk, frame[7:-1]).queue
            connection.terms.inventory.declared((QUEUE, queue), request.exclusive)
            if request.exclusive:
                self._add_exclusive(queue)
                bind_tokens(connection, tokens_of(connection.plans.state, queue), go_on)
            elif connection.terms.inventory.interested(queue) and not connection.upstream.closing:
                connection.pending.requests.append(EnsureDestination(channel, (QUEUE, queue), resumes=True))
            else:
                go_on()
            return False

        connection.change(channel, ChannelEvent.DECLARE)
        channel.replies.append(ExpectedReply(methods.QUEUE_DECLARE_OK, declared))
        with_reply = request._replace(nowait=False)
        connection.to_upstream.append(method_frame(channel.number, methods.QUEUE_DECLARE, 0, *with_reply))


def _refuse_dead_letter_key(request: QueueDeclare) -> None:
    """Refuse, with 403, a queue whose dead letters would be routed by a token and thereby bypass the rules."""
    if request.passive or _DEAD_LETTER_KEY not in request.arguments:
        return
    picked = pick(request.arguments, 0, len(request.arguments), frozenset((_DEAD_LETTER_KEY,)))
    for value in (decode_value(raw).value for _, raw in picked):
        prefix = reserved_prefix(value) if isinstance(value, bytes) else b""
        if prefix:
            text = f"values of {_DEAD_LETTER_KEY.decode()} that begin with '{prefix.decode()}' are reserved"
            raise ProtocolError(403, text, Scope.CHANNEL)
