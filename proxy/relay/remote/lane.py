"""A lane tracks the publishes from one producer's channel to another broker, and the result of each publish.

A lane outlives links. When a link is lost, waiting messages are sent over the next link, and unconfirmed messages count
as lost, since nothing is sent twice. On a link, the lane has its own channel, so that a channel error (such as a
missing exchange or a wrong user-id) affects only publishes from one producer's channel. This module uses no sockets.

Source: the messenger-addressing specification, 3.4 "Confirms"; RabbitMQ guide "Publisher confirms".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Protocol

from proxy.addressing.targets import Remote
from proxy.amqp.frames import BODY, CONTENT_HEAD, FRAME_HEAD, HEADER, OVERHEAD, U16, body_frames
from proxy.amqp.method_frames import basic_publish, channel_close, channel_open, confirm_select
from proxy.amqp.properties import table_span

#: Maximum number of cached method frames. The cache key is exchange, routing key and mandatory flag.
_KEPT_METHODS = 256


class RemoteResult(Enum):
    """Result of one message."""

    ACKED = "acked"
    #: refused by the broker, lost with a closed channel, or impossible to send
    NACKED = "nacked"
    #: returned, since the broker has no queue for it
    RETURNED = "returned"
    #: the link was lost or the deadline passed, so it is unknown whether the broker has the message
    LOST = "lost"


class RemoteMessage:
    """One publish to another broker; it is sent at most once.

    Args:
        mandatory: whether the message is returned if the broker has no queue for it.
        header: payload of the content header frame.
        since: time of arrival on the driver's monotonic clock.
    """

    __slots__ = ("body", "exchange", "header", "mandatory", "returned", "routing_key", "since")

    def __init__(
        self, exchange: bytes, routing_key: bytes, mandatory: bool, header: bytes, body: bytes, since: float
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.header = header
        self.body = body
        self.since = since
        #: whether the broker has returned the message, whose ack is then still outstanding
        self.returned = False

    @property
    def size_bytes(self) -> int:
        return len(self.header) + len(self.body)

    def settled(self, result: RemoteResult, reason: str) -> None:
        """Handle the result; called once. The reason is for logs. It may be empty and contains no credentials."""


class RemotePublisher(Protocol):
    """Sends publishes from one producer's channel to another broker, in order."""

    def send(self, message: RemoteMessage) -> None:
        """Accept a message. Its `settled` is called once, possibly before this method returns."""

    def close(self) -> None:
        """Stop accepting messages; accepted messages are still sent."""


class Remotes(Protocol):
    """The other brokers of one producer's connection."""

    def publisher(self, remote: Remote) -> RemotePublisher | str:
        """Return a new publisher to a broker, or the reason why there is none."""


class Stage(Enum):
    """State of the lane's channel on the link."""

    NONE = "none"
    OPENING = "opening"
    READY = "ready"


class LaneTransport(Protocol):
    """The link that a lane uses."""

    frame_max: int
    to_send: list[bytes]
    paused: bool

    def release_channel(self, number: int) -> None:
        """Release the number of a channel that we closed. It stays in use until the broker answers the close."""


class Lane:
    """The publishes from one producer's channel to one broker.

    Args:
        settled: called with each message and its result, before the message's own callback.
    """

    __slots__ = (
        "_link",
        "_low",
        "_mandatory",
        "_methods",
        "_settled",
        "_tag",
        "number",
        "stage",
        "unconfirmed",
        "waiting",
    )

    def __init__(self, settled: Callable[[RemoteMessage, RemoteResult, str], None]) -> None:
        self._settled = settled
        self._link: LaneTransport | None = None
        self._methods: dict[tuple[bytes, bytes, bool], bytes] = {}
        self._tag = 0
        #: lowest unconfirmed tag
        self._low = 1
        #: messages that wait for a channel
        self.waiting: deque[RemoteMessage] = deque()
        #: sent messages that have not been confirmed yet, by delivery tag, ascending
        self.unconfirmed: dict[int, RemoteMessage] = {}
        #: sent messages that may be returned, in order
        self._mandatory: deque[RemoteMessage] = deque()
        self.number = 0
        self.stage = Stage.NONE

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.unconfirmed

    def open(self, link: LaneTransport, number: int) -> None:
        self._link = link
        self.number = number
        self.stage = Stage.OPENING
        self._tag = 0
        self._low = 1
        self._methods.clear()
        link.to_send += (channel_open(number), confirm_select(number))

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None and self.number:
            link.to_send.append(channel_close(self.number, 200, b"done"))
            link.release_channel(self.number)
        self.number = 0
        self.stage = Stage.NONE

    def send(self, message: RemoteMessage) -> None:
        link = self._link
        if link is None or self.stage is not Stage.READY or self.waiting or link.paused:
            self.waiting.append(message)
        else:
            self._write(link, message)

    def flush(self) -> None:
        link = self._link
        while self.waiting and link is not None and self.stage is Stage.READY and not link.paused:
            self._write(link, self.waiting.popleft())

    def _write(self, link: LaneTransport, message: RemoteMessage) -> None:
        number = self.number
        if len(message.header) + OVERHEAD > link.frame_max:
            self._settle(message, RemoteResult.NACKED, "its headers exceed the broker's maximum frame size")
            return
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
            self._mandatory.append(message)
        body = message.body
        header = message.header
        if len(body) + OVERHEAD > link.frame_max:
            head = method + FRAME_HEAD.pack(HEADER, number, len(header)) + header + b"\xce"
            link.to_send += (head, *body_frames(number, body, link.frame_max))
            return
        parts = [method, FRAME_HEAD.pack(HEADER, number, len(header)), header, b"\xce"]
        if body:
            parts += (FRAME_HEAD.pack(BODY, number, len(body)), body, b"\xce")
        link.to_send.append(b"".join(parts))

    # -- methods from the broker ------------------------------------------------------------------------------------

    def selected(self) -> None:
        self.stage = Stage.READY
        self.flush()

    def confirmed(self, tag: int, multiple: bool, result: RemoteResult) -> None:
        """Handle an ack or nack; unknown tags are ignored."""
        unconfirmed = self.unconfirmed
        if not multiple:
            message = unconfirmed.pop(tag, None)
            if message is not None:
                self._confirmed(message, result)
            return
        last = min(tag, self._tag) if tag else self._tag
        low, self._low = self._low, max(self._low, last + 1)
        for confirmed_tag in range(low, last + 1):
            message = unconfirmed.pop(confirmed_tag, None)
            if message is not None:
                self._confirmed(message, result)

    def _confirmed(self, message: RemoteMessage, result: RemoteResult) -> None:
        waiting = self._mandatory
        if waiting and waiting[0] is message:
            waiting.popleft()
        if message.returned and result is RemoteResult.ACKED:
            result = RemoteResult.RETURNED
        self._settle(message, result, "" if result is not RemoteResult.NACKED else "refused by the broker")

    def returned(self, exchange: bytes, routing_key: bytes, header: bytes) -> None:
        """Handle a return. Returns arrive in the order of the publishes, so no earlier message is returned later."""
        seen = _fingerprint(header)
        while self._mandatory:
            message = self._mandatory.popleft()
            if (
                message.exchange == exchange
                and message.routing_key == routing_key
                and _fingerprint(message.header) == seen
            ):
                message.returned = True
                return

    def closed(self, reason: str) -> None:
        """After the broker's close, count unconfirmed messages as nacked and send waiting messages on a new channel."""
        link = self._link
        number = self.number
        self.stage = Stage.NONE
        self._fail(RemoteResult.NACKED, reason)
        if link is not None:
            self.open(link, number)

    def lost(self, reason: str) -> None:
        self._link = None
        self.number = 0
        self.stage = Stage.NONE
        self._fail(RemoteResult.LOST, reason)

    def _fail(self, result: RemoteResult, reason: str) -> None:
        messages, self.unconfirmed = list(self.unconfirmed.values()), {}
        self._mandatory.clear()
        for message in messages:
            self._settle(message, result, reason)

    def expire(self, before: float, why: str) -> None:
        """Report as lost all unsettled messages that arrived before a given time."""
        while self.waiting and self.waiting[0].since < before:
            self._settle(self.waiting.popleft(), RemoteResult.LOST, why)
        while self.unconfirmed:
            tag, message = next(iter(self.unconfirmed.items()))
            if message.since >= before:
                return
            del self.unconfirmed[tag]
            self._settle(message, RemoteResult.LOST, "not confirmed in time")

    def _settle(self, message: RemoteMessage, result: RemoteResult, reason: str) -> None:
        self._settled(message, result, reason)
        message.settled(result, reason)


def _fingerprint(header: bytes) -> Hashable:
    """Return a content header without its table, which may change when the broker returns the message."""
    fixed = CONTENT_HEAD.size - FRAME_HEAD.size
    flags = U16.unpack_from(header, fixed)[0]
    span = table_span(header, fixed + 2, flags)
    if span is None:
        return header[4:]
    return header[4 : span[0] - 4], header[span[1] :]
