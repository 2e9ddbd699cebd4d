"""Handles queue.declare and queue.delete: notifies the control plane, and binds the tokens of new queues.

Both methods are forwarded to the broker. After a declare, the channel's frames are held until the broker has answered
and the tokens of the queue are bound, so that the client's next publish reaches the queue even if the client does not
wait for the declare-ok. Before a queue with bindings is declared, the sidecar checks whether the queue still exists. If
not, for example because its last consumer has been cancelled, the broker has also deleted the bindings.

Source: AMQP 0-9-1 spec, 1.7.2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from oxproxy.amqp import methods
from oxproxy.amqp.method_frames import QueueDeclare, QueueDeclareOk, QueueDelete, read_method, read_request
from oxproxy.amqp.tables import decode_value, pick
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.channel import Channel
from oxproxy.relay.channel_state import DECLARING, ChannelEvent
from oxproxy.relay.connection_state import ConnectionState, EnsureDestination
from oxproxy.relay.declare.injected_methods import Steps, expect_reply, reply_and_resume, run_steps
from oxproxy.relay.declare.storage import refuse_nested, refuse_own_arguments
from oxproxy.relay.declare.token_bindings import bind_tokens, is_gone
from oxproxy.relay.vhost import OwnedExchange
from oxproxy.values import QUEUE, Destination, reserved_prefix

_DEAD_LETTER_KEY = b"x-dead-letter-routing-key"
#: Number of exclusive queues that may be recorded for a connection before those that no longer exist are removed.
_EXCLUSIVE = 1000


class ClientQueues:
    """Handles queue.declare and queue.delete on one connection."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection = connection
        #: number of recorded exclusive queues at which they are next compared with the existing queues
        self._check_at = _EXCLUSIVE

    def declare(self, channel: Channel, frame: bytes) -> bool:
        """Handle queue.declare; return whether it is forwarded unchanged.

        If the client expects no reply, a reply is requested in three cases: rules may choose the queue; the broker
        generates the name of the queue, to which later methods may refer by an empty name; or the queue is exclusive,
        and can be bound only after its declaration, on this connection.
        """
        connection = self._connection
        request = read_request(QueueDeclare, frame[7:-1])
        refuse_nested(request.arguments, QUEUE, request.queue, connection.plans.state.name)
        _refuse_dead_letter_key(request)
        refuse_own_arguments(request.arguments)
        channel.last_queue = request.queue or channel.last_queue
        if request.exclusive:  # such a queue is deleted with its connection
            connection.upstream.may_be_kept = False
        if not request.passive and connection.plans.state.bound_by_clients((QUEUE, request.queue)):
            run_steps(self._declare_again(channel, request, frame))
            return False
        if request.nowait and request.queue and not (request.exclusive or self._is_chosen(request.queue)):
            if not request.passive:
                connection.terms.inventory.declared((QUEUE, request.queue), False)
            return True
        connection.change(channel, ChannelEvent.DECLARE)
        return self._declare(channel, request)

    def delete(self, channel: Channel, frame: bytes) -> bool:
        """Handle queue.delete; return whether it is forwarded unchanged."""
        connection = self._connection
        request = read_request(QueueDelete, frame[7:-1])
        queue = request.queue or channel.last_queue

        def deleted(_: bytes) -> bool:
            connection.terms.inventory.queue_deleted(queue)
            connection.upstream.exclusive_queues.discard(queue)
            return not request.nowait

        # A reply is always requested, since the broker may refuse to delete the queue, which then keeps its bindings.
        return expect_reply(connection, channel, methods.QUEUE_DELETE, request, deleted)

    def _declare(self, channel: Channel, request: QueueDeclare) -> bool:
        """Expect the reply to queue.declare; return whether the client's frame is to be forwarded."""
        declared = partial(self._declared, channel, request)
        return expect_reply(self._connection, channel, methods.QUEUE_DECLARE, request, declared)

    def _declare_again(self, channel: Channel, request: QueueDeclare, frame: bytes) -> Steps:
        """Declare a queue for which bindings are known. If the queue no longer exists, remove these bindings first."""
        connection = self._connection
        if (yield from is_gone(connection, channel, (QUEUE, request.queue))):
            connection.terms.inventory.queue_deleted(request.queue)
        if channel.state is DECLARING and self._declare(channel, request):
            connection.to_upstream.append(frame)

    def _declared(self, channel: Channel, request: QueueDeclare, frame: bytes) -> bool:
        """Handle the declare-ok; answer the client when the tokens of the queue are bound."""
        connection = self._connection
        inventory = connection.terms.inventory
        queue = channel.last_queue = read_method(QueueDeclareOk, frame[7:-1]).queue
        exclusive = request.exclusive and not request.passive
        if exclusive and queue not in connection.upstream.exclusive_queues:
            # The queue is new, so any earlier queue with this name has been deleted, together with its bindings.
            inventory.queue_deleted(queue)
        inventory.declared((QUEUE, queue), exclusive)
        if exclusive:
            self._add_exclusive(queue)
        if connection.upstream.closing:
            return not request.nowait
        wanted = [(owned, (QUEUE, queue)) for owned in connection.plans.state.needing((QUEUE, queue))]
        go_on = partial(reply_and_resume, connection, channel, b"" if request.nowait else frame)
        if exclusive:
            bind_tokens(connection, wanted, go_on)
        elif inventory.interested(queue) and not (request.passive and _all_bound(wanted)):
            connection.pending.requests.append(EnsureDestination((QUEUE, queue), go_on))
        else:
            go_on()
        return False

    def _is_chosen(self, queue: bytes) -> bool:
        """Return True if the client's next message may be routed to a queue that is being declared."""
        connection = self._connection
        return connection.terms.inventory.interested(queue) or connection.plans.state.router.may_be_chosen(
            (QUEUE, queue)
        )

    def _add_exclusive(self, queue: bytes) -> None:
        """Record an exclusive queue; from time to time, forget queues that were deleted, such as auto-delete queues."""
        connection = self._connection
        queues = connection.upstream.exclusive_queues
        queues.add(queue)
        if len(queues) > self._check_at:
            existing = connection.plans.state.queues
            queues.intersection_update([name for name in queues if name in existing])
            self._check_at = max(_EXCLUSIVE, 2 * len(queues))


def _all_bound(wanted: Sequence[tuple[OwnedExchange, Destination]]) -> bool:
    return bool(wanted) and all(destination in owned.tokens.bound for owned, destination in wanted)


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
