"""A client connection to another broker, called a link: the login, and then frames for the lanes that use the link.

The login uses SASL PLAIN; no error message contains a password. A link ends when the broker closes it or violates the
protocol, or when the socket is lost. `failure` then contains the reason.

A lane tracks the publishes from one producer's channel to another broker, and the result of each publish. A lane may
outlive the link that it uses. When a link is lost, waiting messages are sent over the next link, and unconfirmed
messages count as lost, since nothing is sent twice. A lane that is in use has its own channel on the link, so that a
channel error (such as a missing exchange or a wrong user-id) affects only publishes from one producer's channel. This
module uses no sockets and no clock.

Source: the messenger-addressing specification, 3.4 "Confirms"; AMQP 0-9-1 spec, 2.2.4 to 2.2.10, 4.2.3; RFC 4616;
RabbitMQ guides "Publisher confirms", "Blocked connections" and "authentication_failure_close".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice, takewhile
from typing import Final, Protocol

from oxproxy.amqp import methods
from oxproxy.amqp.frames import (
    ACK_FRAME,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    FrameBuffer,
    RawFrame,
    body_frames,
    frame,
)
from oxproxy.amqp.method_frames import (
    Ack,
    Close,
    Nack,
    Return,
    basic_publish,
    channel_close,
    channel_close_ok,
    channel_open,
    confirm_select,
    connection_close,
    connection_close_ok,
    read_method,
)
from oxproxy.amqp.methods import NAMES, arguments, method_frame, method_of
from oxproxy.amqp.properties import fingerprint
from oxproxy.amqp.tables import encode_table
from oxproxy.errors import ProtocolError
from oxproxy.values import Table, Value

#: Our own frame_max in bytes. The broker may propose a lower value.
FRAME_MAX = 131_072
#: Heartbeat interval in seconds that is used if the broker proposes none.
_HEARTBEAT = 60
_TOP_CHANNEL = 65535
_CAPABILITIES = (b"publisher_confirms", b"basic.nack", b"connection.blocked", b"authentication_failure_close")
#: Maximum number of cached method frames per lane. The cache key consists of exchange, routing key and mandatory flag.
_KEPT_METHODS = 256
#: Maximum number of expired mandatory messages per lane whose returns are still recognized.
_KEPT_EXPIRED = 4096


class RemoteResult(Enum):
    """Result of one message."""

    ACKED = "acked"
    #: refused by the broker, lost with a closed channel, or impossible to send
    NACKED = "nacked"
    #: returned, since the broker has no queue for it
    RETURNED = "returned"
    #: the link was lost or the deadline passed, so it is unknown whether the broker has the message
    LOST = "lost"


@dataclass(slots=True, eq=False)
class RemoteMessage:
    """One publish to another broker; it is sent at most once."""

    exchange: bytes
    routing_key: bytes
    #: whether the message is returned if the broker has no queue for it
    mandatory: bool
    #: payload of a content header frame that RabbitMQ can decode (`refuse_undecodable_header`)
    header: bytes
    body: bytes
    #: time of arrival on the driver's monotonic clock
    since: float
    #: called once, with the result
    settled: Callable[[RemoteResult], None]
    #: whether the broker has returned the message; its ack is still outstanding in this case
    returned: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.header) + len(self.body)


class RemotePublisher(Protocol):
    """Sends publishes from one producer's channel to another broker, in order."""

    def send(self, message: RemoteMessage) -> None:
        """Accept a message. Its `settled` is called once, possibly before this method returns."""

    def close(self) -> None:
        """Stop accepting messages; accepted messages are still sent."""


class Lane:
    """The publishes from one producer's channel to one broker.

    Args:
        settled: called with each settled message, its result, and the reason for a failure, before the message's own
            callback. The reason contains no credentials.
    """

    __slots__ = (
        "_fingerprints", "_link", "_low", "_methods", "_ready", "_returnable", "_settled", "_tag", "number",
        "unconfirmed", "waiting",
    )  # fmt: skip

    def __init__(self, settled: Callable[[RemoteMessage, RemoteResult, str], None]) -> None:
        self._settled = settled
        self._link: RemoteLink | None = None
        #: whether the lane's channel on the link is open
        self._ready = False
        self._methods: dict[tuple[bytes, bytes, bool], bytes] = {}
        self._tag = 0
        #: lowest unconfirmed tag
        self._low = 1
        #: messages that have not been sent yet, in order
        self.waiting: deque[RemoteMessage] = deque()
        #: sent messages that have not been confirmed yet, by delivery tag, ascending
        self.unconfirmed: dict[int, RemoteMessage] = {}
        #: fingerprints of the sent messages that may still be returned, by delivery tag
        self._fingerprints: dict[int, Hashable] = {}
        #: delivery tags of the same messages, by fingerprint, oldest first
        self._returnable: dict[Hashable, deque[int]] = {}
        self.number = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.unconfirmed

    def open(self, link: RemoteLink, number: int) -> None:
        self._link = link
        self.number = number
        self._ready = False
        self._tag = 0
        self._low = 1
        self._methods.clear()
        self._forget_mandatory()
        link.to_send += (channel_open(number), confirm_select(number))

    def close(self) -> None:
        """Release the lane's channel on the link; the lane must have no messages in progress."""
        link, self._link = self._link, None
        if link is not None and self.number:
            link.to_send.append(channel_close(self.number, 200, b"done"))
            link.release_channel(self.number)
        self.number = 0

    def send(self, message: RemoteMessage) -> None:
        self.waiting.append(message)
        self.flush()

    def flush(self) -> None:
        link = self._link
        while self.waiting and link is not None and self._ready and not link.paused:
            self._write(link, self.waiting.popleft())

    def _write(self, link: RemoteLink, message: RemoteMessage) -> None:
        number = self.number
        if len(message.header) + OVERHEAD > link.frame_max:
            self._settle(message, RemoteResult.NACKED, "its headers exceed the broker's maximum frame size")
            return
        header = frame(HEADER, number, message.header)
        self._tag = tag = self._tag + 1
        self.unconfirmed[tag] = message
        key = (message.exchange, message.routing_key, message.mandatory)
        method = self._methods.get(key)
        if method is None:
            if len(self._methods) >= _KEPT_METHODS:
                self._methods.clear()
            method = basic_publish(number, message.exchange, message.routing_key, mandatory=message.mandatory)
            self._methods[key] = method
        if message.mandatory:
            seen = fingerprint(message.exchange, message.routing_key, header)
            self._fingerprints[tag] = seen
            self._returnable.setdefault(seen, deque()).append(tag)
        link.to_send += (method, header, *body_frames(number, message.body, link.frame_max))

    def selected(self) -> None:
        self._ready = True
        self.flush()

    def confirmed(self, tag: int, multiple: bool, result: RemoteResult) -> None:
        """Handle an ack or nack; unknown tags are ignored."""
        tags = range(tag, tag + 1)
        if multiple:
            last = min(tag, self._tag) if tag else self._tag
            low, self._low = self._low, max(self._low, last + 1)
            tags = range(low, last + 1)
        for confirmed_tag in tags:
            if confirmed_tag in self._fingerprints:
                self._not_returnable(confirmed_tag)
            message = self.unconfirmed.pop(confirmed_tag, None)
            if message is None:
                continue
            if result is RemoteResult.NACKED:
                self._settle(message, result, "refused by the broker")
            else:
                self._settle(message, RemoteResult.RETURNED if message.returned else result, "")
        # Otherwise, an ack with `multiple` would have to visit every tag that was acked individually.
        while self._low <= self._tag and self._low not in self.unconfirmed and self._low not in self._fingerprints:
            self._low += 1

    def returned(self, exchange: bytes, routing_key: bytes, header: bytes) -> None:
        """Handle a return; `header` is the content header frame.

        If several messages have the same fingerprint, the oldest is chosen. The broker routes all of them in the same
        way.
        """
        tags = self._returnable.get(fingerprint(exchange, routing_key, header))
        if tags is None:
            return
        tag = tags[0]
        self._not_returnable(tag)
        message = self.unconfirmed.get(tag)
        if message is not None:
            message.returned = True

    def _not_returnable(self, tag: int) -> None:
        seen = self._fingerprints.pop(tag)
        tags = self._returnable[seen]
        tags.remove(tag)
        if not tags:
            del self._returnable[seen]

    def _forget_mandatory(self) -> None:
        self._fingerprints.clear()
        self._returnable.clear()

    def closed(self, reason: str) -> None:
        """After the broker's close, count unconfirmed messages as nacked and send waiting messages on a new channel."""
        self._ready = False
        self._fail(RemoteResult.NACKED, reason)
        if self._link is not None:
            self.open(self._link, self.number)

    def lost(self, reason: str) -> None:
        self._link = None
        self.number = 0
        self._fail(RemoteResult.LOST, reason)

    def _fail(self, result: RemoteResult, reason: str) -> None:
        messages, self.unconfirmed = list(self.unconfirmed.values()), {}
        self._forget_mandatory()
        for message in messages:
            self._settle(message, result, reason)

    def expire(self, before: float, why: str) -> None:
        """Report as lost all unsettled messages that arrived before a given time."""
        while self.waiting and self.waiting[0].since < before:
            self._settle(self.waiting.popleft(), RemoteResult.LOST, why)
        late = list(takewhile(lambda sent: sent[1].since < before, self.unconfirmed.items()))
        for tag, _ in late:
            del self.unconfirmed[tag]
        # Expired messages may still be returned, but must not accumulate here if the broker never confirms them.
        excess = len(self._fingerprints) - len(self.unconfirmed) - _KEPT_EXPIRED
        for tag in tuple(islice(self._fingerprints, max(excess, 0))):
            self._not_returnable(tag)
        for _, message in late:
            self._settle(message, RemoteResult.LOST, "not confirmed in time")

    def _settle(self, message: RemoteMessage, result: RemoteResult, reason: str) -> None:
        self._settled(message, result, reason)
        message.settled(result)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials for another broker."""

    user: bytes
    password: bytes = field(repr=False)
    vhost: bytes


class RemoteLink:
    """A connection to another broker. The login starts immediately.

    Half of the attributes are what the broker has proposed or what the driver reads; the lanes own the messages.

    Attributes:
        to_send: output for the socket, in order; the driver sends and clears it.
        open: whether the login has been completed and the link has not ended.
        paused: whether sending is paused because of an alarm on the broker or a full socket.
        failure: why the link ended, without credentials; None until then.
        channel_max: highest channel number; 0 until the broker has proposed its limits.
        frame_max: largest frame in bytes.
        heartbeat: heartbeat interval in seconds.
    """

    def __init__(self, credentials: Credentials, version: str) -> None:
        self._credentials: Final = credentials
        self._version: Final = version
        #: the next expected method of the login
        self._expected = methods.CONNECTION_START
        self._received = FrameBuffer(FRAME_MAX)
        self.to_send: list[bytes] = [PROTOCOL_HEADER]
        self.open = False
        self.paused = False
        self._blocked = self._socket_full = False
        self.failure: str | None = None
        self.channel_max = 0
        self.frame_max = FRAME_MAX
        self.heartbeat = 0
        self._lanes: dict[int, Lane] = {}
        #: channel numbers whose close is unanswered
        self._closing: set[int] = set()
        self._next = 1
        self._free: list[int] = []
        self._returned: dict[int, tuple[bytes, bytes]] = {}

    def receive(self, data: bytes) -> None:
        self._received.feed(data)
        try:
            while self.failure is None and (frame := self._received.next_frame()) is not None:
                self._take(frame)
        except ProtocolError as error:
            self.lost(f"violated AMQP 0-9-1: {error}")

    @property
    def channels_closing(self) -> int:
        """Number of channels that become available once the broker has answered their close."""
        return len(self._closing)

    def attach(self, lane: Lane) -> bool:
        """Assign a channel to a lane; return False if no channel number is available."""
        if self._free:
            number = self._free.pop()
        elif self._next <= self.channel_max:
            number = self._next
            self._next += 1
        else:
            return False
        self._lanes[number] = lane
        lane.open(self, number)
        return True

    def set_socket_full(self, full: bool) -> None:
        """Record whether the socket is full. While it is full, messages wait in their lanes."""
        self._socket_full = full
        self._update_paused()

    def _update_paused(self) -> None:
        self.paused = self._blocked or self._socket_full
        if not self.paused:
            for lane in tuple(self._lanes.values()):
                lane.flush()

    def release_channel(self, number: int) -> None:
        """Release a lane's channel number, which can be reused once the broker has answered the close."""
        self._lanes.pop(number, None)
        self._closing.add(number)

    def lost(self, reason: str) -> None:
        """End the connection and notify every lane; further calls have no effect."""
        if self.failure is not None:
            return
        self.failure = reason
        self.open = False
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.lost(reason)

    def close(self) -> None:
        """Send Connection.Close; the driver closes the socket once the method has been sent."""
        if self.open:
            self.to_send.append(connection_close(200, b"Goodbye"))
        self.lost("closed by the proxy")

    def _take(self, frame: RawFrame) -> None:
        if len(frame.raw) == ACK_FRAME.size and frame.channel in self._lanes:  # as in `_method`, but faster
            kind, number, _, method, tag, multiple, _ = ACK_FRAME.unpack(frame.raw)
            if kind == METHOD and method == methods.BASIC_ACK:
                self._lanes[number].confirmed(tag, bool(multiple), RemoteResult.ACKED)
                return
        if frame.kind == HEARTBEAT:
            return
        if not self.open:
            self._logging_in(frame)
        elif frame.channel == 0:
            self._connection(frame)
        elif frame.kind == METHOD:
            self._method(frame)
        elif frame.kind == HEADER and frame.channel in self._returned:
            exchange, key = self._returned.pop(frame.channel)
            lane = self._lanes.get(frame.channel)
            if lane is not None:
                lane.returned(exchange, key, frame.raw)

    def _logging_in(self, frame: RawFrame) -> None:
        if frame.kind != METHOD or frame.channel:
            self.lost("sent a frame that is not part of a login")
            return
        method = method_of(frame.payload)
        if method == methods.CONNECTION_CLOSE:
            self._closed(frame.payload, "refused")
        elif method != self._expected:
            self.lost(f"sent {NAMES[method]}, expected {NAMES[self._expected]}")
        elif method == methods.CONNECTION_START:
            self._start(frame.payload)
        elif method == methods.CONNECTION_TUNE:
            self._tune(frame.payload)
        else:
            arguments(frame.payload)
            self.open = True

    def _start(self, payload: bytes) -> None:
        mechanisms = arguments(payload)[3]
        if not isinstance(mechanisms, bytes) or b"PLAIN" not in mechanisms.split():
            self.lost("does not offer SASL PLAIN")
            return
        capabilities: Table = tuple((name, Value("t", True)) for name in _CAPABILITIES)
        properties: Table = (
            (b"product", Value("S", b"oxproxy")),
            (b"version", Value("S", self._version.encode())),
            (b"connection_name", Value("S", b"oxproxy remote link")),
            (b"capabilities", Value("F", capabilities)),
        )
        response = b"\0" + self._credentials.user + b"\0" + self._credentials.password
        self.to_send.append(
            method_frame(0, methods.CONNECTION_START_OK, encode_table(properties), b"PLAIN", response, b"en_US")
        )
        self._expected = methods.CONNECTION_TUNE

    def _tune(self, payload: bytes) -> None:
        channels, frame_max, heartbeat = (int(number) for number in arguments(payload))
        self.channel_max = channels or _TOP_CHANNEL
        self.frame_max = min(frame_max or FRAME_MAX, FRAME_MAX)
        self.heartbeat = heartbeat or _HEARTBEAT
        tuned = (self.channel_max, self.frame_max, self.heartbeat)
        self.to_send.append(method_frame(0, methods.CONNECTION_TUNE_OK, *tuned))
        self.to_send.append(method_frame(0, methods.CONNECTION_OPEN, self._credentials.vhost, b"", False))
        self._expected = methods.CONNECTION_OPEN_OK

    def _closed(self, payload: bytes, event: str) -> None:
        close = read_method(Close, payload)
        self.to_send.append(connection_close_ok())
        self.lost(f"{event}: {close.reply_code} {close.reply_text.decode(errors='replace')}")

    def _connection(self, frame: RawFrame) -> None:
        method = method_of(frame.payload)
        if method == methods.CONNECTION_CLOSE:
            self._closed(frame.payload, "closed")
        elif method in (methods.CONNECTION_BLOCKED, methods.CONNECTION_UNBLOCKED):
            self._blocked = method == methods.CONNECTION_BLOCKED
            self._update_paused()

    def _method(self, frame: RawFrame) -> None:
        method = method_of(frame.payload)
        number = frame.channel
        if method == methods.CHANNEL_CLOSE_OK:
            if number in self._closing:
                self._closing.discard(number)
                self._free.append(number)
            return
        lane = self._lanes.get(number)
        if method == methods.CHANNEL_CLOSE:
            self.to_send.append(channel_close_ok(number))
        if lane is None:
            return
        if method == methods.BASIC_ACK:
            lane.confirmed(*read_method(Ack, frame.payload), RemoteResult.ACKED)
        elif method == methods.BASIC_NACK:
            tag, multiple, _ = read_method(Nack, frame.payload)
            lane.confirmed(tag, multiple, RemoteResult.NACKED)
        elif method == methods.BASIC_RETURN:
            _, _, exchange, key = read_method(Return, frame.payload)
            self._returned[number] = (exchange, key)
        elif method == methods.CONFIRM_SELECT_OK:
            lane.selected()
        elif method == methods.CHANNEL_CLOSE:
            close = read_method(Close, frame.payload)
            lane.closed(f"channel closed: {close.reply_code} {close.reply_text.decode(errors='replace')}")
