"""Handles single frames of publishes, and the slow path of the publish pass.

The single frames are body frames of split publishes, misplaced frames, and method frames that are not directly followed
by their header frame. A publish takes the slow path (`PublishFrames.leave`) if it can't be sent immediately as a single
upstream publish: it waits until its destinations are bound, is sent to other brokers, is split, or is refused.

Source: AMQP 0-9-1 spec, 4.2.6; RabbitMQ's reply codes.
"""

from __future__ import annotations

from typing import Final

from proxy.amqp import methods
from proxy.amqp.frames import BASIC, BODY, CONTENT_HEAD, HEADER, HEARTBEAT, METHOD, OVERHEAD, U64
from proxy.amqp.method_frames import Publish, read_method
from proxy.errors import ProtocolError, Scope
from proxy.relay.channel import HEADER_TO_COME, Channel, CollectedPublish, ContentUnderWay, PendingPublish
from proxy.relay.channel_state import CONFIRM, TX, ChannelEvent
from proxy.relay.connection_audit import table_offsets
from proxy.relay.connection_state import BindDestinations, ConnectionState
from proxy.relay.declare.injected_methods import look_up
from proxy.relay.publish.outgoing import PUBLISH, Outgoing, copy_frames, refuse_reserved, remote_header
from proxy.relay.publish.plan import Plan
from proxy.relay.publish.split_publish import fitting, send_collected
from proxy.relay.remote.forwarding import send_alone

KIND_NAMES: Final = {METHOD: "method", HEADER: "content header", BODY: "content body", HEARTBEAT: "heartbeat"}
#: size of the shortest content header frame in bytes
_LEAST_HEADER: Final = 22


class PublishFrames:
    """Handles publishes on one connection outside the publish pass."""

    __slots__ = ("_connection",)

    def __init__(self, connection: ConnectionState) -> None:
        self._connection = connection

    def method(self, channel: Channel, frame: bytes) -> bool:
        """Hold a Basic.Publish until its header frame arrives; then both are sent upstream or refused.

        Raises:
            ProtocolError: the method is malformed (502 on the connection), or the routing key has a reserved prefix
                (403 on the channel).
        """
        exchange, routing_key, mandatory, _ = read_method(Publish, frame[7:-1])
        refuse_reserved(routing_key, b"")
        channel.content = ContentUnderWay(PendingPublish(frame, exchange, routing_key, channel, mandatory))
        return False

    def content(self, channel: Channel, content: ContentUnderWay, kind: int, frame: bytes) -> bool:
        """Handle a content frame outside the publish pass; return whether it is sent upstream.

        Raises:
            ProtocolError: on the connection: 505 misplaced frame; 501 frame too short, or body longer than announced.
        """
        if kind == HEADER and content.remaining == HEADER_TO_COME:
            if len(frame) < _LEAST_HEADER:
                raise ProtocolError(501, "content header frame is too short", Scope.CONNECTION, *PUBLISH)
            class_id = CONTENT_HEAD.unpack_from(frame)[3]
            text = f"expected content header for class {BASIC}, got one for class {class_id}"
            raise ProtocolError(505, text, Scope.CONNECTION, *PUBLISH)
        if kind == BODY and content.remaining != HEADER_TO_COME:
            return self._body(channel, content, frame)
        # spec, 4.2.6: content frames on a channel must not be interleaved with other frames of that channel
        text = f"expected {content.expects} on channel {channel.number}, got a {KIND_NAMES[kind]} frame instead"
        raise ProtocolError(505, text, Scope.CONNECTION, *PUBLISH)

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
            waited: whether the publish has already waited for its destinations. If so, unbound destinations count as
                missing.

        Raises:
            ProtocolError: on the channel: 406 rejected by a filter, or sent to another broker within a transaction; 311
                too large to be split. On the connection: 502 malformed header.
        """
        connection = self._connection
        channel = publish.channel
        if out.waits and not waited and self._wait(publish, header, plan, out):
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
        """Send a whole publish to its only target, which is on another broker. See `leave` for the arguments.

        Returns:
            False if `leave` has to process the publish instead.

        Raises:
            ProtocolError: the header is malformed; 502 on the connection.
        """
        connection = self._connection
        channel = publish.channel
        target = out.remote_alone
        if target is None or out.remote_targets is None or publish.mandatory or channel.mode is TX:
            return False
        publisher = None if target.remote is None else channel.remote_publishers.get(target.remote)
        if publisher is None or (channel.mode is CONFIRM and channel.confirms.ledger is None):
            return False  # `leave` creates the publisher and the ledger for the first publish
        sent = remote_header(target, out.remote_targets.plain, out.address_of(publish.routing_key), header)
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
                channel, out.record, *address, publish.mandatory, header, entries_at, table_end, body_size, took_us
            )
        plans = self._connection.plans
        if plans.failures is not None and plans.failures.watched:
            reason = plan.unroutable(out)
            if reason:
                address = (publish.exchange, publish.routing_key)
                plans.fail(self._connection.terms.user, channel.number, "unroutable", reason, address, header)
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
        look_up(connection, channel, exchange, lambda _: connection.pending.resume(channel))

    def _wait(self, publish: PendingPublish, header: bytes, plan: Plan, out: Outgoing) -> bool:
        """Hold a publish until its destinations are bound; return False if there is nothing to wait for."""
        connection = self._connection
        asked = connection.permission_checks(out.decision.unchecked)
        if not out.unbound and not asked:
            return False
        channel = publish.channel
        connection.change(channel, ChannelEvent.WAIT, methods.BASIC_PUBLISH)
        channel.held.keep([publish.frame, header])
        connection.pending.requests.append(BindDestinations(channel, plan.owned.name, out.unbound, asked))
        return True
