"""Producer to broker, frame by frame: what does each frame mean for its channel?

Everything that the fast path of `publishing` does not take: methods other than known publishes, large bodies, content
that arrives in pieces, channels that are closing or waiting. Faults are `ProtocolError`.

Source: AMQP 0-9-1 spec, 4.2.6 (content framing) and 2.2.10; reply codes as RabbitMQ gives them.
"""

from __future__ import annotations

from functools import partial

from proxy.amqp import methods
from proxy.amqp.auditing import Template
from proxy.amqp.channel import Channel, Collected, Content, Expected, Life, Publish
from proxy.amqp.client_bindings import ClientBindings
from proxy.amqp.conversation import BindDestinations, Conversation, Phase
from proxy.amqp.copies import send_collected
from proxy.amqp.declaring import Declaring
from proxy.amqp.frames import BODY, CONTENT_HEAD, HEADER, HEARTBEAT, METHOD, OVERHEAD, U16, U32
from proxy.amqp.method_arguments import read_publish, read_queue_declare, read_queue_delete
from proxy.amqp.method_frames import channel_close_ok, connection_close_ok
from proxy.amqp.outgoing import PUBLISH, Outgoing, refuse_reserved
from proxy.amqp.own_bindings import bind_tokens
from proxy.amqp.properties import table_span
from proxy.amqp.vhost import Destination
from proxy.errors import ProtocolError, Scope

_KIND_NAMES = {METHOD: "method", HEADER: "content header", BODY: "content body", HEARTBEAT: "heartbeat"}


class ProducerFrames:
    """Takes single frames of the producer.

    Args:
        conversation: what both directions share.
    """

    def __init__(self, conversation: Conversation) -> None:
        """Start with nothing published."""
        self._conversation = conversation
        self._declaring = Declaring(conversation)
        self._bindings = ClientBindings(conversation)
        #: set when the last frame taken was a Basic.Publish method
        self.published: Publish | None = None

    def take(self, kind: int, number: int, frame: bytes) -> bool:
        """Take one whole frame.

        Args:
            kind: frame type.
            number: channel number.
            frame: the whole frame.

        Returns:
            Whether it goes upstream as it came. (What goes instead is in the conversation already.)

        Raises:
            ProtocolError: a fault that ends the connection.
        """
        conversation = self._conversation
        if conversation.phase is not Phase.OPEN:
            return self._ending(number, kind, frame)
        if number == 0:
            return self._connection_frame(kind, frame)
        if kind == HEARTBEAT:
            raise ProtocolError(505, f"heartbeat frame on channel {number}, expected on channel 0")
        if number > conversation.tuning.channel_max_producer:
            raise ProtocolError(
                530,
                f"channel {number} is above the negotiated channel_max {conversation.tuning.channel_max_producer}",
            )
        channel = conversation.channel(number)
        if channel.held is not None:
            channel.held.append(frame)
            channel.held_bytes += len(frame)
            conversation.held_bytes += len(frame)
            return False
        if channel.life is not Life.OPEN:
            return self._closing(channel, kind, frame)
        try:
            return self._content(channel, kind, frame)
        except ProtocolError as error:
            if error.scope is Scope.CONNECTION:
                raise
            conversation.refuse(channel, error)
            return False

    def _ending(self, number: int, kind: int, frame: bytes) -> bool:
        conversation = self._conversation
        index = U32.unpack_from(frame, 7)[0] if kind == METHOD and number == 0 and len(frame) >= 12 else 0
        if conversation.phase is Phase.CLOSING:
            if index == methods.CONNECTION_CLOSE_OK:
                conversation.phase = Phase.CLOSED
                return not conversation.upstream_closing
            if index == methods.CONNECTION_CLOSE:
                conversation.to_producer.append(connection_close_ok())
        return False

    def _connection_frame(self, kind: int, frame: bytes) -> bool:
        conversation = self._conversation
        if kind == HEARTBEAT:
            return False
        if kind != METHOD:
            # spec, 4.2.3: header and body frames on channel 0
            raise ProtocolError(505, f"{_KIND_NAMES[kind]} frame on channel 0, expected a method frame")
        if len(frame) < 12:
            raise ProtocolError(502, "method frame on channel 0 without class and method id")
        index = U32.unpack_from(frame, 7)[0]
        if index == methods.CONNECTION_CLOSE:
            conversation.phase = Phase.PRODUCER_CLOSES
            conversation.upstream_closing = True
            conversation.forget_all()
            return True
        if index >> 16 != 10:
            raise ProtocolError(
                503,
                "method on channel 0 that belongs on another channel",
                Scope.CONNECTION,
                index >> 16,
                index & 0xFFFF,
            )
        return True

    def _closing(self, channel: Channel, kind: int, frame: bytes) -> bool:
        """Discard what a closing channel still brings, until the close-ok."""
        if kind != METHOD or len(frame) < 12:
            return False
        index = U32.unpack_from(frame, 7)[0]
        if index == methods.CHANNEL_CLOSE:
            # Both sides close at once: each answers the other (spec, 1.5.2.5 and 1.5.2.6).
            self._conversation.to_producer.append(channel_close_ok(channel.number))
        elif index == methods.CHANNEL_CLOSE_OK:
            relayed = channel.life is Life.CLOSED_UPSTREAM
            self._conversation.forget(channel)
            return relayed
        return False

    def _content(self, channel: Channel, kind: int, frame: bytes) -> bool:
        content = channel.content
        if kind == METHOD:
            if content is not Content.METHOD:
                raise _unexpected(channel, kind)
            return self._method(channel, frame)
        if kind == HEADER:
            if content is not Content.HEADER or channel.publish is None:
                raise _unexpected(channel, kind)
            if len(frame) < CONTENT_HEAD.size + 3:
                raise ProtocolError(502, "content header frame is too short", Scope.CONNECTION, *PUBLISH)
            return self._header(channel, channel.publish, frame)
        return self._body(channel, kind, frame)

    def _body(self, channel: Channel, kind: int, frame: bytes) -> bool:
        if channel.content is not Content.BODY:
            raise _unexpected(channel, kind)
        size = len(frame) - OVERHEAD
        if size > channel.remaining:
            raise ProtocolError(
                501,
                f"body is {size - channel.remaining} bytes longer than announced",
                Scope.CONNECTION,
                *PUBLISH,
            )
        channel.remaining -= size
        collected = channel.collected
        if collected is not None:
            collected.body += frame[7:-1]
        if not channel.remaining:
            channel.content = Content.METHOD
            channel.publish = None
            if collected is not None:
                channel.collected = None
                send_collected(self._conversation, collected)
        return collected is None

    def _method(self, channel: Channel, frame: bytes) -> bool:
        if len(frame) < 12:
            raise ProtocolError(502, "method frame without class and method id")
        index = U32.unpack_from(frame, 7)[0]
        if index == methods.BASIC_PUBLISH:
            return self._publish(channel, frame)
        if index == methods.EXCHANGE_DECLARE:
            return self._declaring.declare(channel, frame)
        if index == methods.EXCHANGE_DELETE:
            return self._declaring.delete(channel, frame)
        if index in (methods.QUEUE_BIND, methods.EXCHANGE_BIND):
            return self._bindings.bind(channel, index, frame)
        if index in (methods.QUEUE_UNBIND, methods.EXCHANGE_UNBIND):
            return self._bindings.unbind(channel, index, frame)
        if index in _NOTED:
            _NOTED[index](self._conversation, channel, frame[7:-1])
        return True

    def _publish(self, channel: Channel, frame: bytes) -> bool:
        exchange, routing_key, mandatory, _ = read_publish(frame[7:-1])
        plan = self._conversation.plans.get(exchange)
        if plan is not None or exchange in self._conversation.state.carriers:
            refuse_reserved(routing_key, b"")
        publish = Publish(frame, plan, exchange, routing_key, channel, mandatory)
        channel.publish = self.published = publish
        channel.content = Content.HEADER
        return plan is None

    def _header(self, channel: Channel, publish: Publish, frame: bytes) -> bool:
        _, _, _, class_id, _, body_size = CONTENT_HEAD.unpack_from(frame)
        if class_id != 60:
            raise ProtocolError(
                505,
                f"expected content header for class 60, got one for class {class_id}",
                Scope.CONNECTION,
                *PUBLISH,
            )
        conversation = self._conversation
        plan = publish.plan
        if plan is None:
            if publish.exchange in conversation.state.carriers:
                span = table_span(frame, 21, U16.unpack_from(frame, 19)[0], len(frame) - 1)
                refuse_reserved(publish.routing_key, frame[slice(*span)] if span else b"")
            self._begin_body(channel, body_size)
            self._count(channel, publish)
            conversation.counters.publishes_passed += 1
            conversation.counters.bytes_passed += body_size
            audit = conversation.audit
            if audit is not None and not audit.ruled_only:
                self._audit(publish, frame, audit.passed(publish.exchange), body_size, 0)
            return True
        head, outgoing = plan.forward(publish.frame, publish.routing_key, frame, 0, len(frame))
        if outgoing.unbound and not channel.waited and self._hold(channel, publish, frame, outgoing.unbound):
            return False
        channel.waited = False
        outgoing.tally.publishes += 1
        outgoing.tally.body_bytes += body_size
        if outgoing.record is not None:
            self._audit(publish, frame, outgoing.record, body_size, 1)
        if outgoing.decision.error:
            raise ProtocolError(406, outgoing.decision.error, Scope.CHANNEL, *PUBLISH)
        out = conversation.to_upstream
        if not outgoing.copies:
            out.append(publish.frame)
            out.append(frame)
        elif len(outgoing.copies) > 1 or _header_bytes(head) > conversation.tuning.frame_max_upstream:
            return self._several(channel, publish, frame, body_size, outgoing)
        else:
            out.append(head)
        self._count(channel, publish)
        self._begin_body(channel, body_size)
        return False

    def _audit(self, publish: Publish, header: bytes, template: Template, body_size: int, ahead: int) -> None:
        """Write the audit line of a publish; `ahead` is 1 where it has not been counted yet."""
        audit = self._conversation.audit
        if audit is not None:
            seq = publish.channel.before + publish.channel.published + ahead
            audit.publish(template, publish, audit.facts(header, 0, len(header)), body_size, seq)

    def _count(self, channel: Channel, publish: Publish) -> None:
        """Count a publish that leaves as one publish."""
        channel.published += 1
        if channel.ledger is not None:
            channel.ledger.add(channel.published, 1, publish.mandatory)

    def _begin_body(self, channel: Channel, body_size: int) -> None:
        channel.remaining = body_size
        if body_size:
            channel.content = Content.BODY
        else:
            channel.content = Content.METHOD
            channel.publish = None

    def _several(self, channel: Channel, publish: Publish, header: bytes, body_size: int, outgoing: Outgoing) -> bool:
        limit = self._conversation.limits.replay_bytes
        if body_size > limit:
            raise ProtocolError(
                311,
                f"body of {body_size} bytes goes to several exchanges, at most {limit} can",
                Scope.CHANNEL,
                *PUBLISH,
            )
        channel.published += 1
        collected = Collected(publish, header, outgoing)
        if body_size:
            channel.collected = collected
            self._begin_body(channel, body_size)
        else:
            channel.content = Content.METHOD
            channel.publish = None
            send_collected(self._conversation, collected)
        return False

    def _hold(self, channel: Channel, publish: Publish, header: bytes, unbound: tuple[Destination, ...]) -> bool:
        """Let a publish wait until its destinations are bound; False where there is nothing to wait for."""
        conversation = self._conversation
        plan = publish.plan
        assert plan is not None  # noqa: S101 -- only publishes with a plan have destinations
        own = plan.owned.declared is not None and conversation.plans.rules.own_routes
        if own:
            unbound = conversation.bindable(plan.owned, unbound)
            if not unbound:
                return False
        channel.held = [publish.frame, header]
        channel.held_bytes = len(publish.frame) + len(header)
        conversation.held_bytes += channel.held_bytes
        conversation.shape += 1
        channel.content = Content.METHOD
        channel.publish = None
        if own:
            wanted = [(plan.owned, one) for one in unbound]
            done = partial(conversation.resumable.append, channel)
            bind_tokens(conversation, wanted, done, conversation.refused)
        else:
            conversation.requests.append(BindDestinations(channel, publish.exchange, unbound))
        return True


def _header_bytes(head: bytes) -> int:
    """Size of the header frame behind a method frame."""
    method_bytes: int = U32.unpack_from(head, 3)[0]
    return len(head) - method_bytes - OVERHEAD


def _unexpected(channel: Channel, kind: int) -> ProtocolError:
    # spec, 4.2.6: content frames on a channel must not be interleaved with other frames of that channel
    text = f"expected {channel.content.value} on channel {channel.number}, got a {_KIND_NAMES[kind]} frame instead"
    class_method = PUBLISH if channel.content is not Content.METHOD else (0, 0)
    return ProtocolError(505, text, Scope.CONNECTION, *class_method)


def _declare(conversation: Conversation, channel: Channel, payload: bytes) -> None:
    declare = read_queue_declare(payload)
    channel.last_queue = declare.queue or channel.last_queue
    if not declare.nowait:
        channel.replies.append(Expected(methods.QUEUE_DECLARE_OK, declare.queue, declare.exclusive))
    elif declare.queue and not declare.passive:
        conversation.inventory.queue_declared(declare.queue, declare.exclusive)


def _delete(conversation: Conversation, channel: Channel, payload: bytes) -> None:
    delete = read_queue_delete(payload)
    if not delete.nowait:
        channel.replies.append(Expected(methods.QUEUE_DELETE_OK, delete.queue))
    else:
        conversation.inventory.queue_deleted(delete.queue)


def _confirm(conversation: Conversation, channel: Channel, payload: bytes) -> None:
    if not channel.confirming:
        # Tags count from the publish after confirm.select (RabbitMQ guide "Publisher confirms").
        channel.confirming = True
        channel.before += channel.published
        channel.published = 0


def _transaction(conversation: Conversation, channel: Channel, payload: bytes) -> None:
    channel.transactional = True


_NOTED = {
    methods.QUEUE_DECLARE: _declare,
    methods.QUEUE_DELETE: _delete,
    methods.CONFIRM_SELECT: _confirm,
    methods.TX_SELECT: _transaction,
}
