"""Relays the frames from the producer that the publish pass does not handle, and handles the slow path of the pass.

These frames include most methods, frames on channels that are closing or waiting, frames that close the connection,
body frames of split publishes, misplaced frames, and method frames that are not directly followed by their header
frame. A publish takes the slow path (`ProducerFrames.leave`) if it can't be sent immediately as a single upstream
publish: it waits until its destinations are bound, is sent to other brokers, is split, or is refused. Errors are raised
as `ProtocolError`.

Source: AMQP 0-9-1 spec, 1.4, 1.5, 4.2.3 and 4.2.6; RabbitMQ's reply codes. A method to which RabbitMQ would not reply
is refused with 540 or 503.
"""

from __future__ import annotations

from typing import Final

from oxproxy.amqp import methods
from oxproxy.amqp.frames import (
    BASIC,
    BODY,
    CONTENT_HEAD,
    HEADER,
    HEARTBEAT,
    LEAST_HEADER_FRAME,
    LEAST_METHOD_FRAME,
    METHOD,
    OVERHEAD,
    U64,
)
from oxproxy.amqp.method_frames import Publish, channel_close_ok, connection_close_ok, read_method
from oxproxy.amqp.methods import method_in
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.channel import HEADER_TO_COME, Channel, CollectedPublish, ContentUnderWay, PendingPublish
from oxproxy.relay.channel_state import (
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
from oxproxy.relay.connection_audit import table_offsets
from oxproxy.relay.connection_state import AHEAD_MESSAGES, BindDestinations, ConnectionState, Phase
from oxproxy.relay.declare.bindings import ClientBindings
from oxproxy.relay.declare.exchanges import ClientExchanges
from oxproxy.relay.declare.injected_methods import look_up, pass_on, refuse_in_order
from oxproxy.relay.declare.queues import ClientQueues
from oxproxy.relay.plan.outgoing import PUBLISH, Outgoing, copy_frames, refuse_reserved, remote_header
from oxproxy.relay.plan.plan import Plan
from oxproxy.relay.publish.split_publish import fitting, send_collected
from oxproxy.relay.remote.forwarding import send_alone
from oxproxy.values import counted

_KIND_NAMES: Final = {METHOD: "method", HEADER: "content header", BODY: "content body", HEARTBEAT: "heartbeat"}
_CONNECTION: Final = 10
_EVENTS = {
    methods.CHANNEL_OPEN: ChannelEvent.PRODUCER_OPEN,
    methods.CHANNEL_CLOSE: ChannelEvent.PRODUCER_CLOSE,
    methods.CHANNEL_CLOSE_OK: ChannelEvent.PRODUCER_CLOSE_OK,
}
#: Access.Request and Basic.Credit, which RabbitMQ supports but which are not in the AMQP 0-9-1 specification.
_BEYOND = frozenset((30 << 16 | 10, 60 << 16 | 200))


class ProducerFrames:
    """Handles single frames from the producer."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection: Final = connection
        #: whether the frames being processed were held before
        self.resuming = False
        exchanges, queues = ClientExchanges(connection), ClientQueues(connection)
        self._bindings = ClientBindings(connection)
        #: Handlers other than those in `_OWN_HANDLERS`.
        self._handlers = {
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
        """Handle one whole frame of type `kind` on channel `number`; return whether it is forwarded unchanged.

        If it is not forwarded, anything sent in its place is already in the output. Only errors that close the
        connection are raised.
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
            if not (held.batches and not held and kind == METHOD and self._bindings.bind_while_held(channel, frame)):
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
            return self._content(channel, channel.content, kind, frame)
        if kind != METHOD:
            self._connection.change(channel, ChannelEvent.PRODUCER_CONTENT)
            return False  # part of a discarded publish, on a channel that is being closed
        if channel.state is OPEN or channel.state is OPENING:
            return self._method(channel, frame)
        index = method_in(frame)
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
                # sent only after the broker's close-ok, since confirms may arrive before it
                channel.output.close_oks += 1
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

    def _end_transaction(self, channel: Channel, frame: bytes) -> bool:
        _check(_method_of(frame), frame[7:-1])
        channel.confirms.transactions.append(channel.confirms.total)
        return True

    def _flow(self, channel: Channel, frame: bytes) -> bool:
        """Expect the reply to the producer's flow, which must not be mistaken for the reply to one of our own."""
        _check(methods.CHANNEL_FLOW, frame[7:-1])
        return pass_on(channel, methods.CHANNEL_FLOW, nowait=False)

    def _qos(self, channel: Channel, frame: bytes) -> bool:
        """Record whether the prefetch count limits the connection's consumers to a few messages."""
        _, prefetch_count, _ = methods.arguments(frame[7:-1])
        if isinstance(prefetch_count, int) and 0 < prefetch_count < AHEAD_MESSAGES:
            self._connection.deliveries.few_at_a_time = True
        return True

    def _ending(self, number: int, kind: int, frame: bytes) -> bool:
        connection = self._connection
        index = method_in(frame) if kind == METHOD and number == 0 else 0
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
            raise ProtocolError(505, f"{_KIND_NAMES[kind]} frame on channel 0, expected a method frame")
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
        own, other = _OWN_HANDLERS.get(index), self._handlers.get(index)
        try:
            if own is not None:
                return own(self, channel, frame)
            if other is not None:
                return other(channel, frame)
        except ProtocolError as error:
            error.about(index)
            raise
        _check(index, frame[7:-1])
        return True

    # -- publishes ---------------------------------------------------------------------------------------------

    def _publish(self, channel: Channel, frame: bytes) -> bool:
        """Hold a Basic.Publish until its header frame arrives; then both are sent upstream or refused."""
        exchange, routing_key, mandatory, _ = read_method(Publish, frame[7:-1])
        refuse_reserved(routing_key, b"")
        channel.content = ContentUnderWay(PendingPublish(frame, exchange, routing_key, channel, mandatory))
        return False

    def _content(self, channel: Channel, content: ContentUnderWay, kind: int, frame: bytes) -> bool:
        """Handle a content frame outside the publish pass; return whether it is sent upstream."""
        if kind == HEADER and content.remaining == HEADER_TO_COME:
            if len(frame) < LEAST_HEADER_FRAME:
                raise ProtocolError(501, "content header frame is too short", Scope.CONNECTION, *PUBLISH)
            class_id = CONTENT_HEAD.unpack_from(frame)[3]
            text = f"expected content header for class {BASIC}, got one for class {class_id}"
            raise ProtocolError(505, text, Scope.CONNECTION, *PUBLISH)
        if kind == BODY and content.remaining != HEADER_TO_COME:
            return self._body(channel, content, frame)
        # spec, 4.2.6: content frames on a channel must not be interleaved with other frames of that channel
        expected = _KIND_NAMES[HEADER if content.remaining == HEADER_TO_COME else BODY]
        text = f"expected a {expected} frame on channel {channel.number}, got a {_KIND_NAMES[kind]} frame instead"
        raise ProtocolError(505, text, Scope.CONNECTION, *PUBLISH)

    def _body(self, channel: Channel, content: ContentUnderWay, frame: bytes) -> bool:
        size = len(frame) - OVERHEAD
        if size > content.remaining:
            text = f"body is {counted(size - content.remaining, 'byte')} longer than announced"
            raise ProtocolError(501, text, Scope.CONNECTION, *PUBLISH)
        content.remaining -= size
        collected = content.collected
        if collected is not None:
            collected.body.extend(frame[7:-1])
        if not content.remaining:
            self._connection.drop_content(channel)
            if collected is not None:
                send_collected(self._connection, collected)
        return collected is None

    def refuse_size(self, body_size: int) -> None:
        """Refuse a message that is larger than the configured limit, with 406 on the channel."""
        connection = self._connection
        connection.plans.counters.oversized += 1
        most = connection.terms.limits.message_bytes
        text = f"message size {body_size} is larger than configured max size {most}"  # RabbitMQ's text
        raise ProtocolError(406, text, Scope.CHANNEL, *PUBLISH)

    def leave(
        self, publish: PendingPublish, header: bytes, plan: Plan, out: Outgoing, took_us: float, *, waited: bool
    ) -> None:
        """Process a publish that can't be sent immediately as a single upstream publish.

        Args:
            header: content header frame of the publish.
            took_us: duration of the decision in microseconds; negative if the decision was cached.
            waited: whether the publish has already waited for its destinations. Destinations that are still unbound
                count as missing.

        Raises:
            ProtocolError: on the channel: 406 if the publish is rejected by a filter, has an invalid regex in a header,
                or would be sent to another broker within a transaction; 311 if it is too large to be split. On the
                connection: 502 if the header is malformed.
        """
        connection = self._connection
        channel = publish.channel
        if out.waits and self._wait(publish, header, plan, out, waited=waited):
            return
        body_size: int = U64.unpack_from(header, 11)[0]
        remote_targets = out.remote_targets
        if remote_targets is not None and channel.mode is TX:
            text = "a transaction can't include publishes that the address table redirects to other brokers"
            raise ProtocolError(406, text, Scope.CHANNEL, *PUBLISH)
        original = out.address_of(publish.routing_key)
        frames = copy_frames(out.copies[0], original, publish.frame, header) if len(out.copies) == 1 else None
        too_large = frames is not None and len(frames[1]) > connection.terms.tuning.frame_max_upstream
        several = len(out.copies) > 1 or too_large or remote_targets is not None
        copies = fitting(connection, publish, header, body_size, out) if several else []
        self._record(publish, header, plan, out, body_size, took_us)
        if out.decision.error:
            raise ProtocolError(406, out.decision.error, Scope.CHANNEL, *PUBLISH)
        if not several:
            connection.to_upstream += frames or (publish.frame, header)
            confirms = channel.confirms
            if confirms.ledger is not None:
                confirms.ledger.add(confirms.published, 1)
        if body_size:
            channel.content = ContentUnderWay(publish, body_size)
        if several:
            collected = CollectedPublish(publish, original, header, copies, body_size, bytearray(), remote_targets)
            if channel.content is None:
                send_collected(connection, collected)
            else:
                channel.content.collected = collected
                connection.backlog.collected += body_size

    def leave_for_remote(
        self, publish: PendingPublish, header: bytes, body: bytes, plan: Plan, out: Outgoing, took_us: float
    ) -> bool:
        """Send a complete publish to its only target, which is on another broker. See `leave` for the arguments.

        Return False if `leave` has to process the publish instead.
        """
        connection = self._connection
        channel = publish.channel
        target = out.remote_alone
        if target is None or out.remote_targets is None or publish.mandatory or channel.mode is TX:
            return False
        publisher = None if target.remote is None else channel.remote_publishers.get(target.remote)
        if publisher is None or (channel.mode is CONFIRM and channel.confirms.ledger is None):
            return False  # `leave` creates the publisher and the ledger for the first publish
        sent = remote_header(target, out.remote_targets.by_broker, out.address_of(publish.routing_key), header)
        self._record(publish, header, plan, out, len(body), took_us)
        confirms = channel.confirms
        traffic = connection.traffic
        if channel.mode is CONFIRM and confirms.sample is None and traffic.now >= traffic.sample_after:
            confirms.sample = (confirms.published, traffic.now)
        send_alone(connection, channel, publisher, target, sent[7:-1], body)
        return True

    def _record(
        self, publish: PendingPublish, header: bytes, plan: Plan, out: Outgoing, body_size: int, took_us: float
    ) -> None:
        """Count a publish, write its audit record, and report it to a tap."""
        channel = publish.channel
        out.count.publishes += 1
        out.count.body_bytes += body_size
        channel.confirms.published += 1
        audit = self._connection.audit
        if audit is not None and out.record is not None:
            address = (publish.exchange, publish.routing_key)
            entries_at, table_end = table_offsets(header)
            audit.publish(
                channel,
                out.record,
                *address,
                publish.mandatory,
                header,
                entries_at,
                table_end,
                body_size,
                took_us,
                plan.facts_record(header),
            )
        plans = self._connection.plans
        if plans.failures is not None and plans.failures.watched:
            user, address = self._connection.terms.user, (publish.exchange, publish.routing_key)
            reason = plan.unroutable(out)
            if reason:
                number = plans.fail(user, channel.number, "unroutable", reason, address, header)
                if publish.mandatory:
                    channel.audit.expect_return(*address, number)
            if out.decision.violations and not out.decision.error:  # a rejected publish is recorded as such
                reason = f"violates {', '.join(dict.fromkeys(name for _, name in out.decision.violations))}"
                plans.fail(user, channel.number, "violating", reason, address, header)
        if plan.tap is not None:
            plan.observe(plan.tap, publish.exchange, publish.routing_key, header, out)

    def look_up(self, channel: Channel, method: bytes, exchange: bytes, header: bytes) -> None:
        """Hold a publish until its exchange, which another sidecar may have declared, has been looked up.

        If the publish were forwarded, the broker would route it without the rules.
        """
        connection = self._connection
        connection.change(channel, ChannelEvent.WAIT, methods.BASIC_PUBLISH)
        channel.held.keep([method, header])
        channel.held.looked_up = exchange
        look_up(connection, exchange, lambda _: connection.pending.resume(channel))

    def _wait(self, publish: PendingPublish, header: bytes, plan: Plan, out: Outgoing, *, waited: bool) -> bool:
        """Hold a publish until its destinations are bound; return False if there is nothing to wait for.

        A publish never waits twice for the same destination, so it can't wait forever.
        """
        connection, channel = self._connection, publish.channel
        asked = channel.held.asked if waited else frozenset()
        channel.held.asked = frozenset()
        unbound = tuple(destination for destination in out.unbound if destination not in asked)
        if not unbound:
            return False
        channel.held.asked = asked.union(unbound)
        connection.change(channel, ChannelEvent.WAIT, methods.BASIC_PUBLISH)
        channel.held.keep([publish.frame, header])
        connection.pending.requests.append(BindDestinations(channel, plan.owned.name, unbound))
        return True


# This table contains functions instead of bound methods, which would create reference cycles. Without cycles, a
# connection is freed as soon as it ends.
_OWN_HANDLERS = {
    methods.CHANNEL_OPEN: ProducerFrames._channel_method,
    methods.CHANNEL_CLOSE: ProducerFrames._channel_method,
    methods.CHANNEL_CLOSE_OK: ProducerFrames._channel_method,
    methods.CHANNEL_FLOW: ProducerFrames._flow,
    methods.CONFIRM_SELECT: ProducerFrames._select,
    methods.TX_SELECT: ProducerFrames._select,
    methods.TX_COMMIT: ProducerFrames._end_transaction,
    methods.TX_ROLLBACK: ProducerFrames._end_transaction,
    methods.BASIC_QOS: ProducerFrames._qos,
    methods.BASIC_PUBLISH: ProducerFrames._publish,
}


def _method_of(frame: bytes) -> int:
    """Return the method of a frame: class id << 16 | method id."""
    if len(frame) < LEAST_METHOD_FRAME:
        raise ProtocolError(501, f"method frame of {counted(len(frame) - OVERHEAD, 'byte')}, expected 4 or more")
    return method_in(frame)


def _check(index: int, payload: bytes) -> None:
    """Refuse methods that the broker would not answer, or would refuse with a less clear error (502, 503 or 540)."""
    if index in _BEYOND:
        return
    methods.arguments(payload)
    if index in methods.ONLY_FROM_BROKER:
        text = f"{methods.NAMES[index]} from a producer"
        raise ProtocolError(503, text, Scope.CONNECTION, *divmod(index, 1 << 16))
