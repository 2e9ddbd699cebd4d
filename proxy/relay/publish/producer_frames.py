"""Producer to broker, frame by frame: every frame that the fast path of `publishing` does not take.

`PublishFrames` takes publishes that arrive in pieces, are too large to wait for, wait for their destinations, leave in
several copies, or are refused. `ProducerFrames` takes everything else: methods, channels that are closing or waiting,
the end of the connection. Faults are `ProtocolError`.

Source: AMQP 0-9-1 spec, 1.4, 1.5, 4.2.3 and 4.2.6; reply codes as RabbitMQ gives them, 540 and 503 where it drops the
connection or waits without a word.
"""

from __future__ import annotations

from functools import partial

from proxy.amqp import methods
from proxy.amqp.frames import BASIC, BODY, CONTENT_HEAD, HEADER, HEARTBEAT, METHOD, OVERHEAD, U16, U32
from proxy.amqp.method_frames import (
    QueueDeclare,
    channel_close_ok,
    connection_close_ok,
    read_publish,
    read_queue_declare,
    read_queue_delete,
)
from proxy.amqp.properties import table_span
from proxy.amqp.tables import decode_value, pick
from proxy.errors import ProtocolError, Scope
from proxy.relay.audit_sink import LineTemplate
from proxy.relay.channel import (
    HEADER_TO_COME,
    Channel,
    CollectedPublish,
    ContentUnderWay,
    ExpectedReply,
    PendingPublish,
)
from proxy.relay.channel_state import (
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
from proxy.relay.connection_state import BindDestinations, ConnectionState, Phase
from proxy.relay.declare.bindings import ClientBindings
from proxy.relay.declare.exchanges import ClientExchanges, refuse_nested
from proxy.relay.declare.injected_methods import count_unanswerable, hold_channel
from proxy.relay.declare.storage import refuse_own_arguments
from proxy.relay.declare.token_bindings import bind_tokens, tokens_of
from proxy.relay.original_address import ADDRESS_HEADER as ORIGINAL
from proxy.relay.original_address import refuse_forged
from proxy.relay.publish.address_plan import find_plan
from proxy.relay.publish.outgoing import CC_BCC, PUBLISH, Outgoing, refuse_reserved
from proxy.relay.publish.plan import ExchangePlan
from proxy.relay.publish.split_publish import fitting, send_collected
from proxy.values import RESERVED_PREFIX

KIND_NAMES = {METHOD: "method", HEADER: "content header", BODY: "content body", HEARTBEAT: "heartbeat"}
#: bytes of the shortest content header frame
_LEAST_HEADER = 22


class PublishFrames:
    """Takes the frames of publishes, one by one.

    Args:
        connection: what both directions share.
    """

    __slots__ = ("_connection", "published")

    def __init__(self, connection: ConnectionState) -> None:
        """Start with nothing published."""
        self._connection = connection
        #: set when the last frame taken was a Basic.Publish method
        self.published: PendingPublish | None = None

    def method(self, channel: Channel, frame: bytes) -> bool:
        """Take a Basic.Publish, which goes upstream with its header only.

        Raises:
            ProtocolError: 502 on the connection, 403 on the channel.
        """
        exchange, routing_key, mandatory, _ = read_publish(frame[7:-1])
        plan = find_plan(self._connection.plans, exchange, routing_key)
        refuse_reserved(routing_key, b"")
        self.published = PendingPublish(frame, plan, exchange, routing_key, channel, mandatory)
        channel.content = ContentUnderWay(self.published)
        return False  # it goes with its header, which may be refused: a content that has begun can't be taken back

    def content(self, channel: Channel, content: ContentUnderWay, kind: int, frame: bytes) -> bool:
        """Take a frame where content is expected; answer whether it goes upstream.

        Raises:
            ProtocolError: 505 and 501 on the connection for what does not belong there; what the publish itself
                is refused for.
        """
        if kind == HEADER and content.remaining == HEADER_TO_COME:
            if len(frame) < _LEAST_HEADER:
                raise ProtocolError(501, "content header frame is too short", Scope.CONNECTION, *PUBLISH)
            return self._header(channel, content, frame)
        if kind == BODY and content.remaining != HEADER_TO_COME:
            return self._body(channel, content, frame)
        # spec, 4.2.6: content frames on a channel must not be interleaved with other frames of that channel
        text = f"expected {content.expects} on channel {channel.number}, got a {KIND_NAMES[kind]} frame instead"
        raise ProtocolError(505, text, Scope.CONNECTION, *PUBLISH)

    def publish_again(self, channel: Channel, method: bytes, header: bytes) -> None:
        """Take a publish that waited for its destinations: what is not bound by now counts as missing.

        Raises:
            ProtocolError: see `method` and `content`.
        """
        self.method(channel, method)
        content, self.published = channel.content, None
        assert content is not None  # noqa: S101 -- made by the method
        if self._header(channel, content, header, waited=True):
            self._connection.to_upstream.append(header)

    def _body(self, channel: Channel, content: ContentUnderWay, frame: bytes) -> bool:
        size = len(frame) - OVERHEAD
        if size > content.remaining:
            text = f"body is {size - content.remaining} bytes longer than announced"
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

    def _header(self, channel: Channel, content: ContentUnderWay, frame: bytes, *, waited: bool = False) -> bool:
        publish = content.publish
        _, _, _, class_id, _, body_size = CONTENT_HEAD.unpack_from(frame)
        if class_id != BASIC:
            text = f"expected content header for class 60, got one for class {class_id}"
            raise ProtocolError(505, text, Scope.CONNECTION, *PUBLISH)
        connection = self._connection
        self._check_size(body_size)
        # Between method and header the rules may have changed: it is judged by those of now.
        plan = find_plan(connection.plans, publish.exchange, publish.routing_key)
        if plan is None:
            return self._pass(channel, content, frame, body_size)
        head, outgoing = plan.forward(publish.frame, publish.routing_key, frame, 0, len(frame))
        if outgoing.waits and not waited and self._wait(channel, publish, plan, frame, outgoing):
            return False
        remote_targets = outgoing.remote_targets
        if remote_targets is not None and channel.mode is TX:
            text = "a transaction can't reach other brokers, where the address table leads"
            raise ProtocolError(406, text, Scope.CHANNEL, *PUBLISH)
        several = len(outgoing.copies) > 1 or _header_bytes(head) > connection.tuning.frame_max_upstream
        several = several or remote_targets is not None
        copies = fitting(connection, plan, publish, frame, body_size, outgoing.copies) if several else []
        outgoing.tally.publishes += 1
        outgoing.tally.body_bytes += body_size
        if outgoing.record is not None:
            self._audit(publish, frame, outgoing.record, body_size)
        if outgoing.decision.error:
            raise ProtocolError(406, outgoing.decision.error, Scope.CHANNEL, *PUBLISH)
        if several:
            collected = CollectedPublish(publish, plan, frame, copies, body_size, bytearray(), remote_targets)
            self._collect(channel, content, collected)
            return False
        connection.to_upstream.append(head or publish.frame + frame)
        self._count(channel)
        self._begin_body(channel, content, body_size)
        return False

    def _check_size(self, body_size: int) -> None:
        connection = self._connection
        most = connection.limits.message_bytes
        if 0 < most < body_size:
            connection.counters.oversized += 1
            text = f"message size {body_size} is larger than configured max size {most}"  # RabbitMQ's text
            raise ProtocolError(406, text, Scope.CHANNEL, *PUBLISH)

    def _pass(self, channel: Channel, content: ContentUnderWay, header: bytes, body_size: int) -> bool:
        """Let a publish go to an exchange that is not evaluated here."""
        connection, publish = self._connection, content.publish
        restores = connection.state.restores
        if RESERVED_PREFIX in header or (restores and ORIGINAL in header):
            span = table_span(header, 21, U16.unpack_from(header, 19)[0], len(header) - 1)
            entries = b"" if span is None else header[slice(*span)]
            refuse_reserved(publish.routing_key, entries, CC_BCC)
            if restores:
                refuse_forged(connection.state, entries)
        connection.to_upstream.append(publish.frame)
        self._begin_body(channel, content, body_size)
        self._count(channel)
        connection.counters.publishes_passed += 1
        connection.counters.bytes_passed += body_size
        audit = connection.audit
        if audit is not None and not audit.ruled_only:
            ending = audit.passing(publish, header, 0, len(header), body_size)
            audit.publish(publish, ending, channel.confirms.total)
        return True

    def _audit(self, publish: PendingPublish, header: bytes, template: LineTemplate, body_size: int) -> None:
        """Write the audit line of a publish that is counted next."""
        audit = self._connection.audit
        if audit is not None:
            ending = audit.ending(template, publish, header, 0, len(header), body_size)
            audit.publish(publish, ending, publish.channel.confirms.total + 1)

    @staticmethod
    def _count(channel: Channel) -> None:
        """Count a publish that leaves as one publish."""
        confirms = channel.confirms
        confirms.published += 1
        if confirms.ledger is not None:
            confirms.ledger.add(confirms.published, 1)

    @staticmethod
    def _begin_body(channel: Channel, content: ContentUnderWay, body_size: int) -> None:
        content.remaining = body_size
        if not body_size:
            channel.content = None

    def _collect(self, channel: Channel, content: ContentUnderWay, collected: CollectedPublish) -> None:
        """Begin a publish that leaves in several copies, once its body is whole."""
        connection = self._connection
        channel.confirms.published += 1
        self._begin_body(channel, content, collected.body_size)
        if collected.body_size:
            content.collected = collected
            connection.buffered.collected += collected.body_size
        else:
            send_collected(connection, collected)

    def _wait(
        self, channel: Channel, publish: PendingPublish, plan: ExchangePlan, header: bytes, outgoing: Outgoing
    ) -> bool:
        """Let a publish wait until its destinations are bound; False where there is nothing to wait for."""
        connection = self._connection
        asked = connection.permission_checks(outgoing.decision.unchecked)
        if not outgoing.unbound and not asked:
            return False
        connection.change(channel, ChannelEvent.WAIT, methods.BASIC_PUBLISH)
        channel.held.keep([publish.frame, header])
        channel.content = None
        connection.requests.append(BindDestinations(channel, plan.owned.name, outgoing.unbound, asked))
        return True


def _header_bytes(head: bytes) -> int:
    """Size of the header frame after a method frame; negative where nothing of ours leaves."""
    if not head:
        return -1
    method_bytes: int = U32.unpack_from(head, 3)[0]
    return len(head) - method_bytes - OVERHEAD


_CONNECTION = 10
_QUEUE_DECLARE = (50, 10)
#: bytes of the shortest method frame
_LEAST_METHOD = 12
#: frames of methods that consumers send for every message: nothing in them to look at but their length
_FIXED_BYTES = dict.fromkeys((methods.BASIC_ACK, methods.BASIC_NACK, methods.BASIC_REJECT), 21)
_DEAD_LETTER_KEY = b"x-dead-letter-routing-key"
_EVENTS = {
    methods.CHANNEL_OPEN: ChannelEvent.PRODUCER_OPEN,
    methods.CHANNEL_CLOSE: ChannelEvent.PRODUCER_CLOSE,
    methods.CHANNEL_CLOSE_OK: ChannelEvent.PRODUCER_CLOSE_OK,
}
#: Access.Request and Basic.Credit: RabbitMQ knows them, the AMQP 0-9-1 specification does not.
_BEYOND = frozenset((30 << 16 | 10, 60 << 16 | 200))


class ProducerFrames:
    """Takes single frames of the producer.

    Args:
        connection: what both directions share.
    """

    def __init__(self, connection: ConnectionState) -> None:
        """Start with nothing published."""
        self._connection = connection
        self.publishes = PublishFrames(connection)
        #: the frames taken are those that a channel held, not new ones
        self.resuming = False
        declaring = ClientExchanges(connection)
        self._bindings = ClientBindings(connection)
        self._taken = {
            methods.CHANNEL_OPEN: self._channel_method,
            methods.CHANNEL_CLOSE: self._channel_method,
            methods.CHANNEL_CLOSE_OK: self._channel_method,
            methods.CONFIRM_SELECT: self._select,
            methods.TX_SELECT: self._select,
            methods.BASIC_PUBLISH: self.publishes.method,
            methods.EXCHANGE_DECLARE: declaring.declare,
            methods.EXCHANGE_DELETE: declaring.delete,
            methods.QUEUE_DECLARE: self._queue_declare,
            methods.QUEUE_BIND: self._bind,
            methods.EXCHANGE_BIND: self._bind,
            methods.QUEUE_UNBIND: self._unbind,
            methods.EXCHANGE_UNBIND: self._unbind,
        }

    def take(self, kind: int, number: int, frame: bytes) -> bool:
        """Take one whole frame.

        Args:
            kind: frame type.
            number: channel number.
            frame: the whole frame.

        Returns:
            Whether it goes upstream as it came. (What goes instead is in the output already.)

        Raises:
            ProtocolError: a fault that ends the connection.
        """
        connection = self._connection
        if connection.phase is not Phase.OPEN:
            return self._ending(number, kind, frame)
        if connection.last_frame is not None and not self.resuming:
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
            if not (held.binds and not held and kind == METHOD and self._bindings.bind_while_held(channel, frame)):
                held.keep([frame])
            return False
        try:
            return self._channel_frame(channel, kind, frame)
        except ProtocolError as error:
            if error.scope is Scope.CONNECTION:
                raise
            connection.refuse(channel, error)
            return False

    def publish_again(self, channel: Channel, method: bytes, header: bytes) -> None:
        """Take method and header of a publish that waited for its destinations."""
        try:
            self.publishes.publish_again(channel, method, header)
        except ProtocolError as error:
            if error.scope is Scope.CONNECTION:
                self._connection.fail(error)
            else:
                self._connection.refuse(channel, error)

    def _open(self, kind: int, number: int, frame: bytes) -> bool:
        """Take the first frame on a number: Like RabbitMQ, channel-max bounds how many there are, not their numbers."""
        connection = self._connection
        most, count = connection.tuning.channel_max_producer, len(connection.channels)
        if number == connection.sidecar_channel.number:
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
            # On a channel that the broker has closed, too: it expects the rest of a content that has begun, or closes
            # the connection with 505.
            return self.publishes.content(channel, channel.content, kind, frame)
        if kind != METHOD:
            self._connection.change(channel, ChannelEvent.PRODUCER_CONTENT)
            return False  # of a publish that was discarded, on a channel that is being closed
        if channel.state is OPEN or channel.state is OPENING:
            return self._method(channel, frame)
        index = U32.unpack_from(frame, 7)[0] if len(frame) >= _LEAST_METHOD else 0
        if index in _EVENTS:
            return self._channel_method(channel, frame)
        self._connection.change(channel, ChannelEvent.PRODUCER_METHOD, index)
        return False

    def _channel_method(self, channel: Channel, frame: bytes) -> bool:
        """Take open, close or close-ok; answer whether it goes upstream."""
        connection = self._connection
        index = _method_of(frame)
        _check(index, frame[7:-1])
        before, event = channel.state, _EVENTS[index]
        connection.change(channel, event, index)
        if event is ChannelEvent.PRODUCER_CLOSE and channel.state is before:
            # It crosses another close, or follows one: each is answered (spec, 1.5.2.5 and 1.5.2.6).
            if channel.state is CLOSING_BY_PRODUCER:
                channel.output.close_oks += 1  # confirms may come before the broker's
            else:
                connection.send_to_producer(channel, channel_close_ok(channel.number))
            return False
        return event is not ChannelEvent.PRODUCER_CLOSE_OK or before in RELAYED_UP

    def _select(self, channel: Channel, frame: bytes) -> bool:
        """Take Confirm.Select or Tx.Select."""
        index = _method_of(frame)
        _check(index, frame[7:-1])
        mode = next_mode(channel.mode, CONFIRM if index == methods.CONFIRM_SELECT else TX, index)
        if mode is CONFIRM and channel.mode is not CONFIRM:
            channel.confirms.select()
        channel.mode = mode
        return True

    def _ending(self, number: int, kind: int, frame: bytes) -> bool:
        connection = self._connection
        index = U32.unpack_from(frame, 7)[0] if kind == METHOD and number == 0 and len(frame) >= _LEAST_METHOD else 0
        if index == methods.CONNECTION_CLOSE:  # RabbitMQ answers each; clients with several threads send several
            if connection.phase in (Phase.CLOSING, Phase.CLOSED):
                connection.to_producer.append(connection_close_ok())
            else:
                connection.further_closes += 1
        elif index == methods.CONNECTION_CLOSE_OK:
            if connection.phase is Phase.CLOSING:
                connection.finish()
                return not connection.upstream_closing
            if connection.phase is Phase.CLOSED:
                connection.producer_ends = False
        return False

    def _connection_frame(self, kind: int, frame: bytes) -> bool:
        connection = self._connection
        if kind == HEARTBEAT:
            return False
        if kind != METHOD:
            # spec, 4.2.3: header and body frames on channel 0
            raise ProtocolError(505, f"{KIND_NAMES[kind]} frame on channel 0, expected a method frame")
        index = _method_of(frame)
        if index >> 16 != _CONNECTION:
            text = "unexpected method in connection state running"
            raise ProtocolError(504, text, Scope.CONNECTION, *divmod(index, 1 << 16))
        _check(index, frame[7:-1])
        if index != methods.CONNECTION_CLOSE:
            connection.may_be_kept = False  # it logs in again (Connection.UpdateSecret), or does what we don't know
            return True
        if connection.holds:
            connection.last_frame = frame  # what was published before it goes first
            connection.shape += 1
        else:
            connection.producer_leaves(frame)
        return False

    def _method(self, channel: Channel, frame: bytes) -> bool:
        index = _method_of(frame)
        if _FIXED_BYTES.get(index) == len(frame):
            return True
        taken = self._taken.get(index)
        if taken is not None:
            return taken(channel, frame)
        payload = frame[7:-1]
        _check(index, payload)
        if index == methods.QUEUE_DELETE:
            self._queue_delete(channel, payload)
        return True

    def _queue_declare(self, channel: Channel, frame: bytes) -> bool:
        connection = self._connection
        inventory = connection.inventory
        request = read_queue_declare(frame[7:-1])
        refuse_nested(request.arguments, "queue", request.queue, connection.state.name, _QUEUE_DECLARE)
        _refuse_dead_letter_key(request)
        refuse_own_arguments(request.arguments, _QUEUE_DECLARE)
        channel.last_queue = request.queue or channel.last_queue
        if request.exclusive:  # such a queue lives as long as its connection
            connection.may_be_kept = False
        connection.state.redeclared(("queue", request.queue))
        if not request.nowait:
            channel.replies.append(
                ExpectedReply(methods.QUEUE_DECLARE_OK, request.queue, request.exclusive, request.passive)
            )
        elif request.queue and not request.passive:
            if request.exclusive and inventory.interested(request.queue):
                self._declare_exclusive(channel, request)
                return False
            inventory.queue_declared(request.queue, request.exclusive)
            count_unanswerable(connection, channel)
        return True

    def _queue_delete(self, channel: Channel, payload: bytes) -> None:
        delete = read_queue_delete(payload)
        queue = delete.queue or channel.last_queue
        if not delete.nowait:
            channel.replies.append(ExpectedReply(methods.QUEUE_DELETE_OK, queue))
        else:
            self._connection.inventory.queue_deleted(queue)

    def _declare_exclusive(self, channel: Channel, request: QueueDeclare) -> None:
        """Ask for the answer that the producer does without: no other connection can bind the queue later."""
        connection = self._connection
        go_on = partial(connection.resumable.append, channel)

        def declared(_: bytes) -> bool:
            connection.inventory.queue_declared(request.queue, True)
            wanted = tokens_of(connection.state, request.queue)
            if wanted:
                bind_tokens(connection, wanted, go_on, connection.state.missing)
            else:
                go_on()
            return False

        hold_channel(connection, channel)
        channel.replies.append(ExpectedReply(methods.QUEUE_DECLARE_OK, taken=declared))
        declare = methods.method_frame(channel.number, methods.QUEUE_DECLARE, 0, *request._replace(nowait=False))
        connection.to_upstream.append(declare)

    def _bind(self, channel: Channel, frame: bytes) -> bool:
        return self._bindings.bind(channel, _method_of(frame), frame)

    def _unbind(self, channel: Channel, frame: bytes) -> bool:
        return self._bindings.unbind(channel, _method_of(frame), frame)


def _method_of(frame: bytes) -> int:
    """Read which method a frame is: class id << 16 | method id."""
    if len(frame) < _LEAST_METHOD:
        raise ProtocolError(501, f"method frame of {len(frame) - OVERHEAD} bytes, expected 4 or more")
    method: int = U32.unpack_from(frame, 7)[0]
    return method


def _check(index: int, payload: bytes) -> None:
    """Refuse what the broker does not answer, or answers less clearly.

    Raises:
        ProtocolError: 502 malformed arguments, 503 a method that only a broker sends, 540 an unknown one.
    """
    if index in _BEYOND:
        return
    methods.arguments(payload)
    if index in methods.ONLY_FROM_BROKER:
        text = f"{methods.NAMES[index]} from a producer"
        raise ProtocolError(503, text, Scope.CONNECTION, *divmod(index, 1 << 16))


def _refuse_dead_letter_key(request: QueueDeclare) -> None:
    """Refuse a queue whose dead letters would leave under a token, past the rules of a carrier.

    Raises:
        ProtocolError: 403 on the channel.
    """
    if request.passive or RESERVED_PREFIX not in request.arguments or _DEAD_LETTER_KEY not in request.arguments:
        return
    picked = pick(request.arguments, 0, len(request.arguments), frozenset((_DEAD_LETTER_KEY,)))
    for value in (decode_value(raw).value for _, raw in picked):
        if isinstance(value, bytes) and value.startswith(RESERVED_PREFIX):
            text = f"values of {_DEAD_LETTER_KEY.decode()} that begin with '{RESERVED_PREFIX.decode()}' are reserved"
            raise ProtocolError(403, text, Scope.CHANNEL, *divmod(methods.QUEUE_DECLARE, 1 << 16))
