"""Producer to broker, frame by frame: publishes that the fast path of `publishing` does not take.

Publishes that arrive in pieces, are too large to wait for, wait for their destinations, leave in several copies, or are
refused. Faults are `ProtocolError`.

Source: AMQP 0-9-1 spec, 4.2.6 (content framing); reply codes as RabbitMQ gives them.
"""

from __future__ import annotations

from proxy.amqp.frames import BASIC, BODY, CONTENT_HEAD, HEADER, HEARTBEAT, METHOD, OVERHEAD, U16, U32
from proxy.amqp.method_arguments import read_publish
from proxy.amqp.properties import table_span
from proxy.errors import ProtocolError, Scope
from proxy.relay.audit_sink import LineTemplate
from proxy.relay.channel import Channel, CollectedPublish, Content, PendingPublish
from proxy.relay.connection_state import BindDestinations, ConnectionState
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
        channel.publish = self.published = PendingPublish(frame, plan, exchange, routing_key, channel, mandatory)
        channel.content = Content.HEADER
        return False  # it goes with its header, which may be refused: a content that has begun can't be taken back

    def content(self, channel: Channel, kind: int, frame: bytes) -> bool:
        """Take a frame where content is expected, or one that is none of a method; answer whether it goes upstream.

        Raises:
            ProtocolError: 505 and 501 on the connection for what does not belong there; what the publish itself
                is refused for.
        """
        if kind == HEADER and channel.content is Content.HEADER and channel.publish is not None:
            if len(frame) < _LEAST_HEADER:
                raise ProtocolError(501, "content header frame is too short", Scope.CONNECTION, *PUBLISH)
            return self._header(channel, channel.publish, frame)
        if kind == BODY and channel.content is Content.BODY:
            return self._body(channel, frame)
        # spec, 4.2.6: content frames on a channel must not be interleaved with other frames of that channel
        text = f"expected {channel.content.value} on channel {channel.number}, got a {KIND_NAMES[kind]} frame instead"
        class_method = PUBLISH if channel.content is not Content.METHOD else (0, 0)
        raise ProtocolError(505, text, Scope.CONNECTION, *class_method)

    def _body(self, channel: Channel, frame: bytes) -> bool:
        size = len(frame) - OVERHEAD
        if size > channel.remaining:
            text = f"body is {size - channel.remaining} bytes longer than announced"
            raise ProtocolError(501, text, Scope.CONNECTION, *PUBLISH)
        channel.remaining -= size
        collected = channel.collected
        if collected is not None:
            collected.body.extend(frame[7:-1])
        if not channel.remaining:
            channel.content = Content.METHOD
            channel.publish = None
            if collected is not None:
                self._connection.drop_collected(channel)
                send_collected(self._connection, collected)
        return collected is None

    def _header(self, channel: Channel, publish: PendingPublish, frame: bytes) -> bool:
        _, _, _, class_id, _, body_size = CONTENT_HEAD.unpack_from(frame)
        if class_id != BASIC:
            text = f"expected content header for class 60, got one for class {class_id}"
            raise ProtocolError(505, text, Scope.CONNECTION, *PUBLISH)
        connection = self._connection
        self._check_size(body_size)
        # Between method and header the rules may have changed: it is judged by those of now.
        plan = find_plan(connection.plans, publish.exchange, publish.routing_key)
        if plan is None:
            return self._pass(channel, publish, frame, body_size)
        head, outgoing = plan.forward(publish.frame, publish.routing_key, frame, 0, len(frame))
        if outgoing.waits and not channel.waited:
            if self._hold(channel, publish, plan, frame, outgoing):
                return False
        channel.waited = False
        remote_targets = outgoing.remote_targets
        if remote_targets is not None and channel.transactional:
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
            self._collect(
                channel, CollectedPublish(publish, plan, frame, copies, body_size, bytearray(), remote_targets)
            )
            return False
        connection.to_upstream.append(head or publish.frame + frame)
        self._count(channel)
        self._begin_body(channel, body_size)
        return False

    def _check_size(self, body_size: int) -> None:
        connection = self._connection
        most = connection.limits.message_bytes
        if 0 < most < body_size:
            connection.counters.oversized += 1
            text = f"message size {body_size} is larger than configured max size {most}"  # RabbitMQ's text
            raise ProtocolError(406, text, Scope.CHANNEL, *PUBLISH)

    def _pass(self, channel: Channel, publish: PendingPublish, header: bytes, body_size: int) -> bool:
        """Let a publish go to an exchange that is not evaluated here."""
        connection = self._connection
        restores = connection.state.restores
        if RESERVED_PREFIX in header or (restores and ORIGINAL in header):
            span = table_span(header, 21, U16.unpack_from(header, 19)[0], len(header) - 1)
            entries = b"" if span is None else header[slice(*span)]
            refuse_reserved(publish.routing_key, entries, CC_BCC)
            if restores:
                refuse_forged(connection.state, entries)
        connection.to_upstream.append(publish.frame)
        self._begin_body(channel, body_size)
        self._count(channel)
        connection.counters.publishes_passed += 1
        connection.counters.bytes_passed += body_size
        audit = connection.audit
        if audit is not None and not audit.ruled_only:
            ending = audit.passing(publish, header, 0, len(header), body_size)
            audit.publish(publish, ending, channel.before + channel.published)
        return True

    def _audit(self, publish: PendingPublish, header: bytes, template: LineTemplate, body_size: int) -> None:
        """Write the audit line of a publish that is counted next."""
        audit = self._connection.audit
        if audit is not None:
            ending = audit.ending(template, publish, header, 0, len(header), body_size)
            audit.publish(publish, ending, publish.channel.before + publish.channel.published + 1)

    @staticmethod
    def _count(channel: Channel) -> None:
        """Count a publish that leaves as one publish."""
        channel.published += 1
        if channel.ledger is not None:
            channel.ledger.add(channel.published, 1)

    @staticmethod
    def _begin_body(channel: Channel, body_size: int) -> None:
        channel.remaining = body_size
        if body_size:
            channel.content = Content.BODY
        else:
            channel.content = Content.METHOD
            channel.publish = None

    def _collect(self, channel: Channel, collected: CollectedPublish) -> None:
        """Begin a publish that leaves in several copies, once its body is whole."""
        connection = self._connection
        channel.published += 1
        self._begin_body(channel, collected.body_size)
        if collected.body_size:
            channel.collected = collected
            connection.collected_bytes += collected.body_size
        else:
            send_collected(connection, collected)

    def _hold(
        self, channel: Channel, publish: PendingPublish, plan: ExchangePlan, header: bytes, outgoing: Outgoing
    ) -> bool:
        """Let a publish wait until its destinations are bound; False where there is nothing to wait for."""
        connection = self._connection
        asked = connection.permission_checks(outgoing.decision.unchecked)
        if not outgoing.unbound and not asked:
            return False
        channel.held = [publish.frame, header]
        channel.waits = True
        channel.held_bytes = len(publish.frame) + len(header)
        connection.held_bytes += channel.held_bytes
        connection.shape += 1
        channel.content = Content.METHOD
        channel.publish = None
        connection.requests.append(BindDestinations(channel, plan.owned.name, outgoing.unbound, asked))
        return True


def _header_bytes(head: bytes) -> int:
    """Size of the header frame after a method frame; negative where nothing of ours leaves."""
    if not head:
        return -1
    method_bytes: int = U32.unpack_from(head, 3)[0]
    return len(head) - method_bytes - OVERHEAD
