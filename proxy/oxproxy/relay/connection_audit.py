"""Writes audit records for the publishes on one connection, and delays confirms until their lines are on disk.

There is one line per publish, and a settle line if the result of the publish becomes known later. The publish path
collects the publishes of one read, which `audit_record` renders and the audit log appends together.

In `strict` mode, no confirm is sent before the audit record of its publish is on disk. Only confirms (acks, nacks and
Tx.CommitOk) wait, until the last line of their channel is on disk. Nacks must wait too, since a nack with `multiple`
that overtook an ack would include the acked publish. All other frames may overtake the confirms. This includes returns,
which have to precede the acks of their publishes anyway.

The close of a channel or connection must not overtake its confirms. While lines are being written, the close and all
later output wait. If the disk rejects lines or does not respond, the close is sent and the waiting confirms are
dropped, as if the broker's confirms had crossed the close.

Source: docs/reference/audit.md (record, modes); RabbitMQ guide "Consumer acknowledgements and publisher confirms".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from oxproxy.amqp.properties import header_table
from oxproxy.amqp.tables import pick
from oxproxy.errors import ProtocolError
from oxproxy.relay.channel import Channel
from oxproxy.relay.channel_state import CONFIRM
from oxproxy.relay.records.audit_record import PublishLog, PublishRecord
from oxproxy.relay.records.facts_record import FactsRecord

#: Maximum number of mandatory publishes for which returns can be identified, per channel without confirms. If there are
#: more, the oldest are forgotten.
_MANDATORY: Final = 4096
#: The same limit for a channel with confirms. Its settled publishes are removed immediately, since the broker returns a
#: message before confirming it.
_MANDATORY_CONFIRMING: Final = 65536
#: bit of the delivery mode in the first octet of the property flags
_DELIVERY_MODE: Final = 0x10
#: bits of priority, correlation id, reply-to and expiration in the same octet
_BETWEEN: Final = 0x0F
#: bit of the message id in the second octet
_MESSAGE_ID: Final = 0x80
#: Maximum number of publishes whose lines have not been appended yet.
_PUBLISHES: Final = 256
#: Approximate memory in bytes for an entry of delayed confirms, without its frames.
_ENTRY_BYTES: Final = 128


def table_offsets(header: bytes) -> tuple[int, int]:
    """Locate the header table in a content header frame.

    Returns:
        The offset of the first entry, and the offset after the table. If there is no table, both are the offset where
        it would begin; if the frame is malformed, both are the end of the frame.
    """
    try:
        return header_table(header)[1:]
    except ProtocolError:  # the broker will reject it
        return len(header), len(header)


def _after_expiration(header: bytes, flags: int, at: int) -> int:
    """Return the offset after whichever of priority, correlation id, reply-to and expiration are set.

    Raises:
        IndexError: a property extends past the frame.
    """
    if flags & 0x08:  # priority
        at += 1
    if flags & 0x04:  # correlation id
        at += 1 + header[at]
    if flags & 0x02:  # reply-to
        at += 1 + header[at]
    if flags & 0x01:  # expiration
        at += 1 + header[at]
    return at


class AuditCommits(Protocol):
    """The audit log as seen by delayed confirms."""

    #: number of the last line on disk
    durable: int
    #: the error with which the disk currently rejects lines; None if the disk accepts lines
    failure: str | None

    @property
    def appended(self) -> int:
        """Number of the last appended line."""

    def commit_point(self) -> int:
        """Request that all appended lines be written; return the value that `durable` reaches when they are on disk."""


class DelayedConfirms:
    """Confirms on one connection that are waiting for their audit records.

    Args:
        lines: the audit log.
        out: output for the producer.
        send: sends methods on a channel; if a content is in progress there, the methods are sent after the content.
    """

    __slots__ = ("_before", "_lines", "_out", "_sealed", "_send", "_waiting", "_wrote", "size_bytes", "until")

    def __init__(self, lines: AuditCommits, out: list[bytes], send: Callable[[int, bytes], None]) -> None:
        self._lines = lines
        self._out = out
        self._send = send
        #: channels with new lines that `note` has not processed yet
        self._wrote: list[Channel] = []
        #: (line, confirms) by channel number, oldest first
        self._waiting: dict[int, deque[tuple[int, bytes]]] = {}
        self.size_bytes = 0
        #: number of the line that must be on disk before a close and all later output are sent; None if no close waits
        self.until: int | None = None
        #: output that precedes the waiting close
        self._before: list[bytes] = []
        #: the confirms in the waiting output
        self._sealed: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._waiting) or self.until is not None

    @property
    def out(self) -> list[bytes]:
        """Output that may be sent to the producer."""
        return self._out if self.until is None else self._before

    def wrote(self, channel: Channel) -> None:
        """Note that a publish on a channel was recorded; its line may not have been appended yet."""
        if not self._wrote or self._wrote[-1] is not channel:
            self._wrote.append(channel)

    def note(self) -> None:
        """Record the number of the last appended line for each channel passed to `wrote` since the last call."""
        for channel in self._wrote:
            channel.audit.line = self._lines.appended
        self._wrote.clear()

    def waits(self, channel: Channel) -> bool:
        """Return True if a confirm on a channel has to wait now. Call `ConnectionAudit.flush` first."""
        return channel.audit.line > self._lines.durable or channel.number in self._waiting

    def keep(self, channel: Channel, frames: bytes) -> None:
        """Delay confirms on a channel, and request that the lines for them be written."""
        self._lines.commit_point()
        self._waiting.setdefault(channel.number, deque()).append((channel.audit.line, frames))
        self.size_bytes += len(frames) + _ENTRY_BYTES

    def end(self, number: int, interrupted: bool) -> None:
        """Put a channel's waiting confirms before its close; drop them if a content is interrupted or a write fails."""
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return
        self.size_bytes -= sum(len(frames) + _ENTRY_BYTES for _, frames in waiting)
        if interrupted or self._lines.failure is not None:
            return
        if self.until is None:
            self._before += self._out
            self._out.clear()
        self.until = max(waiting[-1][0], self.until or 0)
        confirms = b"".join([frames for _, frames in waiting])
        self._sealed.append(confirms)
        self._out.append(confirms)

    def durable(self, line: int) -> None:
        """Release the confirms for lines up to this number, which are on disk now."""
        for number, waiting in tuple(self._waiting.items()):
            while waiting and waiting[0][0] <= line:
                _, frames = waiting.popleft()
                self.size_bytes -= len(frames) + _ENTRY_BYTES
                self._send(number, frames)
            if not waiting:
                del self._waiting[number]
        if self.until is not None and self.until <= line:
            self._go_on()

    def failing(self) -> None:
        """Release waiting closes and drop their confirms, since the disk rejects lines or does not respond."""
        if self.until is not None:
            sealed = {id(confirms) for confirms in self._sealed}
            self._out[:] = [piece for piece in self._out if id(piece) not in sealed]
            self._go_on()

    def _go_on(self) -> None:
        self._out[:0] = self._before
        self._before.clear()
        self._sealed.clear()
        self.until = None


class ConnectionAudit:
    """Writes the audit records for one producer connection, whose id is `conn`."""

    def __init__(
        self, journal: PublishLog, conn: str, user: str, vhost: str, delayed_confirms: DelayedConfirms | None = None
    ) -> None:
        #: confirms that are waiting for their lines; None if confirms need not wait
        self.delayed_confirms = delayed_confirms
        self._journal = journal
        self._conn = conn
        self._user = user
        self._vhost = vhost
        self._names = journal.names
        self.ruled_only = journal.ruled_only
        self._opening = ""
        #: channel of the last line
        self._channel: Channel | None = None
        #: beginning of all lines for this channel in the current read
        self._begin = ""
        #: publishes whose lines have not been appended yet, all with the current opening
        self._publishes: list[PublishRecord] = []

    def begin(self) -> None:
        """Set the time and the rules version of the publishes that follow."""
        self.flush()
        self._opening = self._journal.opening()
        self._channel = None

    def flush(self) -> None:
        publishes = self._publishes
        if publishes:
            self._publishes = []
            self._journal.append(publishes)
            if self.delayed_confirms is not None:
                self.delayed_confirms.note()

    def publish(
        self,
        channel: Channel,
        decided: str,
        exchange: bytes,
        routing_key: bytes,
        mandatory: int,
        header: bytes,
        entries_at: int,
        at: int,
        size: int,
        decide_us: float,
        facts: FactsRecord | None = None,
    ) -> None:
        """Record a publish, which must be the last publish that its channel has counted.

        Args:
            header: the content header frame.
            entries_at: offset of the first entry of the header table.
            at: offset after the header table, or where the table would begin.
            facts: the record of the message's facts.
        """
        message_id: bytes | None = None
        headers = "{}"
        names = self._names
        try:
            if names and at > entries_at:
                headers = self._journal.headers(pick(header, entries_at, at, names))
            if header[20] & _MESSAGE_ID:
                flags = header[19]
                if flags & _DELIVERY_MODE:
                    at += 1
                if flags & _BETWEEN:
                    at = _after_expiration(header, flags, at)
                end = at + 1 + header[at]
                if end < len(header):
                    message_id = header[at + 1 : end]
        except (IndexError, ProtocolError):  # malformed: the broker will reject it
            headers = "{}"
        if channel is not self._channel:
            trail = channel.audit
            if not trail.origin:
                trail.origin = self._journal.origin(self._conn, self._user, self._vhost, channel.number)
            self._channel = channel
            self._begin = self._opening + trail.origin
        confirms = channel.confirms
        seq = confirms.before + confirms.published
        publishes = self._publishes
        publishes.append((self._begin, seq, routing_key, message_id, size, decided, headers, decide_us, facts))
        if self.delayed_confirms is not None:
            self.delayed_confirms.wrote(channel)
        if len(publishes) >= _PUBLISHES:
            self.flush()
        if mandatory:
            self._expect_return(channel, (seq, exchange, routing_key, message_id, decided))

    def _expect_return(self, channel: Channel, publish: tuple[int, bytes, bytes, bytes | None, str]) -> None:
        trail = channel.audit
        if trail.mandatory is None:
            trail.mandatory = deque()
        elif len(trail.mandatory) >= (_MANDATORY_CONFIRMING if channel.mode is CONFIRM else _MANDATORY):
            trail.mandatory.popleft()
        trail.mandatory.append(publish)

    def returned(self, channel: Channel, exchange: bytes, routing_key: bytes, reply_code: int) -> None:
        """Record a return.

        The returned publish is the oldest one to which the producer gave this exchange and routing key, because returns
        arrive in the order of the publishes.
        """
        waiting = channel.audit.mandatory
        while waiting:
            seq, to, key, message_id, decided = waiting.popleft()
            if to == exchange and key == routing_key:
                self.flush()  # the line for the publish precedes its settle line
                self._journal.returned(
                    self._conn, channel.number, seq, self._vhost, routing_key, message_id, decided, reply_code
                )
                return

    def settled(self, channel: Channel, producer_tag: int, result: str, confirm_us: float | None = None) -> None:
        """Record that a publish was acked, nacked or lost."""
        self._settle(channel, channel.confirms.before + producer_tag, result, confirm_us)

    def lost(self, channel: Channel) -> None:
        """Record the result `lost` for unsettled publishes on a channel that has ended."""
        if channel.mode is CONFIRM:
            for tag in channel.confirms.settled.outstanding(channel.confirms.published):
                seq = channel.confirms.before + tag
                self._settle(channel, seq, "lost", reason=channel.audit.close_reason)

    def _settle(
        self, channel: Channel, seq: int, result: str, confirm_us: float | None = None, reason: str | None = None
    ) -> None:
        self.flush()  # the line for the publish precedes its settle line
        self._journal.settle(self._conn, channel.number, seq, result, confirm_us, reason)
