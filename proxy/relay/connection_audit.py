"""Writes the audit lines of one producer connection: one for each publish, a settle line where there is more to add.

The publish path appends finished bytes; the form of a line and the file are the audit log's, see `audit_sink`.

Source: the audit record in docs/audit.md.
"""

from __future__ import annotations

import struct
from collections import deque

from proxy.amqp.frames import U32
from proxy.amqp.tables import pick
from proxy.errors import ProtocolError
from proxy.relay.audit_sink import AuditSink, LineTemplate
from proxy.relay.channel import Channel
from proxy.relay.channel_state import CONFIRM
from proxy.relay.delayed_confirms import DelayedConfirms

#: Mandatory publishes of a channel that a return may still name; beyond that the oldest are forgotten. With confirms
#: those that are settled go at once: the broker returns a message before it confirms it.
_MANDATORY, _MANDATORY_CONFIRMING = 4096, 65536
#: flags and sizes of the properties between header table and message id; 0: a short string
_BEFORE_MESSAGE_ID = ((0x1000, 1), (0x0800, 1), (0x0400, 0), (0x0200, 0), (0x0100, 0))
_MESSAGE_ID = 0x0080


class ConnectionAudit:
    """The audit of one producer connection.

    Args:
        journal: the log.
        conn: id of the connection.
        user: name the producer logged in with.
        vhost: its virtual host.
        delayed_confirms: confirms that wait for lines, where they have to.
    """

    __slots__ = (
        "_conn",
        "_delayed_confirms",
        "_journal",
        "_opening",
        "_user",
        "_vhost",
        "append",
        "ruled_only",
    )

    def __init__(
        self, journal: AuditSink, conn: str, user: str, vhost: str, delayed_confirms: DelayedConfirms | None = None
    ) -> None:
        """Start with no publish."""
        self._delayed_confirms = delayed_confirms
        self._journal = journal
        self._conn = conn
        self._user = user
        self._vhost = vhost
        self.append = journal.append
        self.ruled_only = journal.ruled_only
        self._opening = ""

    def begin(self) -> None:
        """Something was read: take the time."""
        self._opening = self._journal.opening()

    def origin(self, channel: int) -> str:
        """What a channel fixes in its lines."""
        return self._journal.origin(self._conn, self._user, self._vhost, channel)

    def _facts(self, data: bytes, start: int, stop: int) -> tuple[bytes | None, str]:
        """Read message id, None where there is none, and allow-listed headers of a content header frame."""
        flags = (data[start + 19] << 8) | data[start + 20]
        if not self._journal.names and not flags & _MESSAGE_ID:
            return None, "{}"
        try:
            return self._read(data, start, stop, flags)
        except (IndexError, struct.error, ProtocolError):  # malformed: the broker's answer tells, not the audit
            return None, "{}"

    def _read(self, data: bytes, start: int, stop: int, flags: int) -> tuple[bytes | None, str]:
        names = self._journal.names
        headers = "{}"
        at = start + 21
        for flag in (0x8000, 0x4000):
            if flags & flag:
                at += 1 + data[at]
        if flags & 0x2000:
            first = at + 4
            at = first + U32.unpack_from(data, at)[0]
            if names and at < stop:
                headers = self._journal.headers(pick(data, first, at, names))
        if not flags & _MESSAGE_ID:
            return None, headers
        for flag, size in _BEFORE_MESSAGE_ID:
            if flags & flag and at < stop:
                at += size or 1 + data[at]
        after = at + 1 + data[at]
        return (data[at + 1 : after] if after < stop else None), headers

    def publish(
        self,
        channel: Channel,
        template: LineTemplate,
        exchange: bytes,
        routing_key: bytes,
        mandatory: int,
        data: bytes,
        start: int,
        stop: int,
        size: int,
        decide_us: float,
    ) -> None:
        """Write the line of a publish, which its channel has counted already.

        Args:
            channel: where it came from.
            template: what the decision fixes.
            exchange: as the producer named it.
            routing_key: likewise.
            mandatory: whether a return may name it.
            data: bytes with the content header frame in them.
            start: its offset.
            stop: offset after it.
            size: bytes of the body.
            decide_us: microseconds of its decision; negative where that was known.
        """
        trail = channel.audit
        origin = trail.origin
        if not origin:
            origin = trail.origin = self.origin(channel.number)
        seq = channel.confirms.total
        message_id, headers = self._facts(data, start, stop)
        ending = template.ending(routing_key, message_id, size, headers, decide_us)
        self.append(f"{self._opening}{origin}{seq}{ending}".encode())
        if self._delayed_confirms is not None:
            self._delayed_confirms.wrote(channel)
        if mandatory:
            if trail.mandatory is None:
                trail.mandatory = deque()
            elif len(trail.mandatory) >= (_MANDATORY_CONFIRMING if channel.mode is CONFIRM else _MANDATORY):
                trail.mandatory.popleft()
            trail.mandatory.append((seq, exchange, routing_key))

    def returned(self, channel: Channel, exchange: bytes, routing_key: bytes) -> None:
        """The broker returned a publish, as the producer addressed it: returns come in the order of publishes."""
        waiting = channel.audit.mandatory
        while waiting:
            seq, to, key = waiting.popleft()
            if to == exchange and key == routing_key:
                self._journal.settle(self._conn, channel.number, seq, "returned")
                return

    def settled(self, channel: Channel, producer_tag: int, result: str, confirm_us: float | None = None) -> None:
        """The broker confirmed, refused or lost a publish."""
        self._journal.settle(self._conn, channel.number, channel.confirms.before + producer_tag, result, confirm_us)

    def lost(self, channel: Channel) -> None:
        """The connection ended: what is not settled gets no result."""
        if channel.mode is CONFIRM:
            for tag in channel.confirms.settled.outstanding(channel.confirms.published):
                self.settled(channel, tag, "lost")
