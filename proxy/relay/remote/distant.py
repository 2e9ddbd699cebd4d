"""Whole publishes that go to one other broker and nowhere else: the fast path of such a publish.

Like the fast path of `publishing`, but apart from it, so that what goes to the producer's own broker pays nothing.
Mandatory publishes, transactions, large and split ones go frame by frame. One copy needs no entry in the ledger: its
own confirm settles it.

Source: architecture, "Bodies stream, headers are read in place"; the messenger-addressing specification, 3.4.
"""

from __future__ import annotations

from typing import Final

from proxy.amqp.frames import CONTENT_HEAD, FRAME_END, FRAME_HEAD, OVERHEAD, U32
from proxy.errors import ProtocolError
from proxy.relay.channel import Channel, PendingPublish
from proxy.relay.channel_state import CONFIRM, CONFIRMABLE, OPEN, TX
from proxy.relay.connection_state import ConnectionState, Phase
from proxy.relay.publish.address_plan import TranslatedPlan
from proxy.relay.publish.shapes import Shapes
from proxy.relay.publish.split_publish import ledger_of
from proxy.relay.remote.forwarding import remote_publisher
from proxy.relay.remote.lane import RemoteMessage, RemotePublisher, RemoteResult
from proxy.values import RESERVED_PREFIX

_HEAD = FRAME_HEAD.size
#: Publishes remembered by their method frame, headers by what came.
_REMEMBERED = 2048
#: Bytes of headers remembered, with what leaves in their place.
_REMEMBERED_BYTES = 1 << 20
_TAKEN = frozenset((RemoteResult.ACKED, RemoteResult.RETURNED))


class _Only(RemoteMessage):
    """The one copy of a publish."""

    __slots__ = ("_channel", "_connection", "_tag")

    def __init__(
        self,
        connection: ConnectionState,
        channel: Channel,
        tag: int,
        exchange: bytes,
        routing_key: bytes,
        header: bytes,
        body: bytes,
    ) -> None:
        super().__init__(exchange, routing_key, False, header, body, connection.now)
        self._connection = connection
        self._channel = channel
        self._tag = tag

    def settled(self, result: RemoteResult, reason: str) -> None:
        tag = self._tag
        if not tag:
            return
        connection, channel = self._connection, self._channel
        if connection.phase is Phase.OPEN and channel.state in CONFIRMABLE:
            connection.send_confirm(channel, tag, result in _TAKEN)
            connection.notify_driver()


class Distant:
    """Publishes of one connection that go to one other broker each.

    Args:
        connection: what both directions share.
        shapes: of contents, by the fixed part of their header frame.
    """

    def __init__(self, connection: ConnectionState, shapes: Shapes) -> None:
        """Start with none remembered."""
        self._connection: Final = connection
        self._shapes: Final = shapes
        self._publishes: dict[bytes, tuple[PendingPublish, TranslatedPlan]] = {}
        #: by plan and header frame
        self._headers: dict[tuple[TranslatedPlan, bytes], bytes] = {}
        self._headers_bytes = 0

    def __bool__(self) -> bool:
        """Whether any is remembered."""
        return bool(self._publishes)

    def clear(self) -> None:
        """A channel or the rules have changed."""
        self._publishes.clear()
        self._forget_headers()

    def _forget_headers(self) -> None:
        self._headers.clear()
        self._headers_bytes = 0

    def remember(self, publish: PendingPublish) -> bool:
        """Note a publish that will go this way the next time; False where it will not."""
        plan = publish.plan
        if (
            not isinstance(plan, TranslatedPlan)
            or plan.remote is None
            or publish.mandatory
            or publish.channel.mode is TX
            or publish.channel.state is not OPEN
        ):
            return False
        if len(self._publishes) >= _REMEMBERED:
            self._publishes.clear()
        self._publishes[publish.frame] = (publish, plan)
        return True

    def take(self, data: bytes, at: int, header_at: int, end: int) -> int:
        """Send whole publishes on their publisher, as long as they have one method frame.

        Args:
            data: bytes with the method frame in them.
            at: its offset.
            header_at: offset after it.
            end: of the data.

        Returns:
            The offset after them; 0 where the frame-by-frame path must look at the first; -1 where more bytes must
            come for it.
        """
        found = self._found(data, at, end)
        if found is None or found[0].channel.content is not None or found[0].channel.state is not OPEN:
            return 0
        if end - header_at < CONTENT_HEAD.size:
            return -1
        publish, plan, publisher = found
        channel = publish.channel
        starts = data.startswith
        first = at
        while True:
            shape = self._shapes[data[header_at : header_at + CONTENT_HEAD.size]]
            header_bytes, content_bytes, body_head, body_size = shape
            stop = header_at + content_bytes
            body_at = header_at + header_bytes
            if not content_bytes or not starts(channel.head, header_at):
                return at if at > first else 0
            if stop > end:
                return at if at > first else -1
            if data[body_at - 1] != FRAME_END or data[stop - 1] != FRAME_END or not starts(body_head, body_at):
                return at if at > first else 0
            header = data[header_at:body_at]
            body = data[body_at + _HEAD : stop - 1] if body_size else b""
            # Under the reserved prefix there may be a key to refuse, which is for the frame-by-frame path.
            if RESERVED_PREFIX in header or not self._send(publish, plan, publisher, header, body):
                return at if at > first else 0
            at = stop
            if not starts(publish.frame, stop):
                found = self._found(data, stop, end)
                if found is None or found[0].channel is not channel:
                    return at
                publish, plan, publisher = found
            header_at = stop + len(publish.frame)

    def _found(self, data: bytes, at: int, end: int) -> tuple[PendingPublish, TranslatedPlan, RemotePublisher] | None:
        """Give what is remembered of the method frame that begins here, and the way to its broker."""
        size = U32.unpack_from(data, at + 3)[0] if end - at >= OVERHEAD else 0
        found = self._publishes.get(data[at : at + size + OVERHEAD])
        if found is None:
            return None
        publisher = remote_publisher(self._connection, found[0].channel, found[1].remote)
        return None if publisher is None else (*found, publisher)

    def _header(self, plan: TranslatedPlan, header: bytes) -> bytes:
        """Give what goes to the other broker for a producer's content header frame."""
        if plan.untouched:
            return header[7:-1]
        payload = self._headers.get((plan, header))
        if payload is None:
            payload = plan.distant_header(header)
            self._headers_bytes += len(header) + len(payload)
            if len(self._headers) >= _REMEMBERED or self._headers_bytes > _REMEMBERED_BYTES:
                self._forget_headers()
            self._headers[plan, header] = payload
        return payload

    def _send(
        self, publish: PendingPublish, plan: TranslatedPlan, publisher: RemotePublisher, header: bytes, body: bytes
    ) -> bool:
        connection = self._connection
        channel = publish.channel
        try:
            payload = self._header(plan, header)
        except ProtocolError:
            return False  # the frame-by-frame path says what is wrong
        leaving = plan.leaving
        leaving.tally.publishes += 1
        leaving.tally.body_bytes += len(body)
        confirms = channel.confirms
        confirms.published += 1
        tag = 0
        if channel.mode is CONFIRM:
            tag = confirms.published
            if confirms.ledger is None:
                ledger_of(connection, channel)
            if confirms.sample is None and connection.now >= connection.sample_after:
                confirms.sample = (tag, connection.now)
        audit = connection.audit
        if audit is not None and leaving.record is not None:
            ending = audit.ending(leaving.record, publish, header, 0, len(header), len(body))
            audit.publish(publish, ending, confirms.before + confirms.published)
        publisher.send(_Only(connection, channel, tag, *plan.there, payload, body))
        return True
