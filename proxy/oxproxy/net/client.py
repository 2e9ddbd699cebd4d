"""A blocking AMQP connection to a sidecar, for commands that take messages from a queue and publish them again.

aio-pika is not used for this: pamqp changes the types of integers in header tables and fails on strings that are not
UTF-8, and aiormq adds a `message_id` to messages without one. Here, content headers and bodies remain bytes.

There is at most one request without a reply, so that a reply always belongs to the last request. Every wait has a
deadline. Heartbeats are disabled, since nothing is sent while a command waits between two messages.

Sources: AMQP 0-9-1 spec, 2.2.4 (opening a connection), 1.8 (class basic); RabbitMQ's guides on publisher confirms and
on blocked connections.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic
from typing import NamedTuple, cast

from oxproxy.amqp import methods
from oxproxy.amqp.frames import (
    BODY,
    CONTENT_HEAD,
    FRAME_HEAD,
    HEADER,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    FrameBuffer,
    RawFrame,
    body_frames,
    frame,
)
from oxproxy.amqp.method_frames import (
    Close,
    GetOk,
    basic_publish,
    channel_close,
    channel_close_ok,
    channel_open,
    confirm_select,
    connection_close,
    connection_close_ok,
    read_method,
)
from oxproxy.amqp.methods import NAMES, arguments, method_frame, method_of, reply_to
from oxproxy.amqp.tables import encode_table, pick
from oxproxy.errors import ProtocolError, UpstreamError, UpstreamFailure
from oxproxy.net.tls import words
from oxproxy.relay.handshake.greeting import OXPROXY
from oxproxy.values import Table, Value, shown, shown_user

#: Timeout for a reply, in seconds. A confirm of a quorum queue takes seconds while a new leader is elected.
_REPLY_SECONDS = 60.0
#: Largest frame accepted. A header table that another connection has published with a larger frame-max is delivered in
#: a single frame.
_LARGEST_FRAME = 64 << 20
#: Frame-max if the broker has no limit.
_FRAME_MAX = 131_072
_READ_BYTES = 1 << 18
#: Reply codes with which a login is refused: access refused, not allowed.
_REFUSALS = (403, 530)
_TRUE = Value("t", True)
_CAPABILITIES: Table = (
    (b"authentication_failure_close", _TRUE),
    (b"basic.nack", _TRUE),
    (b"connection.blocked", _TRUE),
    (b"publisher_confirms", _TRUE),
)


@dataclass(frozen=True, slots=True)
class Login:
    """Address, credentials and virtual host.

    Args:
        tls: context for TLS; None for plain TCP.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    vhost: str
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class ChannelClosed(UpstreamError):  # noqa: N818 - named after the event
    """The broker or the sidecar closed a channel."""

    def __init__(self, channel: int, message: str) -> None:
        super().__init__(UpstreamFailure.REFUSED, message)
        self.channel = channel


class Confirm(Enum):
    """Result of a mandatory publish in confirm mode."""

    ACKED = "acked"
    NACKED = "nacked"
    RETURNED = "returned"


class TakenMessage(NamedTuple):
    """A message taken from a queue.

    Args:
        remaining: number of ready messages in the queue after this one.
        header: payload of the content header frame.
    """

    tag: int
    exchange: bytes
    routing_key: bytes
    remaining: int
    header: bytes
    body: bytes


class BlockingClient:
    """An open connection. Methods raise `UpstreamError`, after which only `close` may be called, except as described.

    Raises:
        UpstreamError: REFUSED if the peer is not a sidecar, or refuses the user or the virtual host; otherwise
            UNAVAILABLE or TIMEOUT.
    """

    def __init__(self, login: Login) -> None:
        self._place = str(login)
        self._buffer = FrameBuffer(_LARGEST_FRAME)
        self._frame_max = _FRAME_MAX
        #: reason for which the broker blocks publishers; empty if it does not
        self._blocked = ""
        try:
            self._socket = socket.create_connection((login.host, login.port), timeout=_REPLY_SECONDS)
        except OSError as error:
            raise self._unavailable(words(error)) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if login.tls is not None:
                self._socket = login.tls.wrap_socket(self._socket, server_hostname=login.host)
            self._log_in(login)
        except OSError as error:
            self._socket.close()
            raise self._unavailable(words(error)) from error
        except BaseException:
            self._socket.close()
            raise

    def open_channel(self, channel: int, *, confirms: bool = False) -> None:
        self._request(channel_open(channel))
        if confirms:
            self._request(confirm_select(channel))

    def get(self, channel: int, queue: bytes) -> TakenMessage | None:
        """Take the first message of a queue, which has to be acked; None if the queue is empty.

        Raises:
            ChannelClosed: the queue can't be read.
        """
        self._send(method_frame(channel, methods.BASIC_GET, 0, queue, False))
        answer = self._reply(channel, methods.BASIC_GET_OK, methods.BASIC_GET_EMPTY)
        if method_of(answer.payload) == methods.BASIC_GET_EMPTY:
            return None
        got = read_method(GetOk, answer.payload)
        header, body = self._content(channel)
        return TakenMessage(got.delivery_tag, got.exchange, got.routing_key, got.message_count, header, body)

    def fits(self, header: bytes) -> bool:
        """Return True if a content header can be sent. It can't be split into several frames."""
        return len(header) + OVERHEAD <= self._frame_max

    def publish(self, channel: int, exchange: bytes, routing_key: bytes, header: bytes, body: bytes) -> Confirm:
        """Publish a message as mandatory, and wait for its confirm.

        Args:
            channel: a channel with confirms.
            header: payload of the content header frame, which is sent unchanged.

        Raises:
            ChannelClosed: if `channel` was closed, the message is not published, and a new channel can be opened.
        """
        publish = basic_publish(channel, exchange, routing_key, mandatory=True)
        self._send(b"".join((publish, frame(HEADER, channel, header), *body_frames(channel, body, self._frame_max))))
        returned = False
        while True:
            answer = self._reply(channel, methods.BASIC_ACK, methods.BASIC_NACK, methods.BASIC_RETURN)
            match method_of(answer.payload):
                case methods.BASIC_RETURN:
                    self._content(channel)
                    returned = True
                case methods.BASIC_NACK:
                    return Confirm.NACKED
                case _:
                    return Confirm.RETURNED if returned else Confirm.ACKED

    def ack(self, channel: int, tag: int) -> None:
        """Ack a message. The broker does not reply, but it has processed the ack when it replies on this channel."""
        self._send(method_frame(channel, methods.BASIC_ACK, tag, False))

    def close_channel(self, channel: int) -> None:
        """Close a channel and wait for the reply. Messages that were not acked return to their queues."""
        self._request(channel_close(channel, 200, b"done"))

    def close(self) -> None:
        """Close the connection. Errors are ignored, since nothing is lost."""
        with contextlib.suppress(UpstreamError, OSError):
            self._request(connection_close(200, b"done"))
        self._socket.close()

    # -- login ---------------------------------------------------------------------------------------------------------

    def _log_in(self, login: Login) -> None:
        self._send(PROTOCOL_HEADER)
        start = arguments(self._reply(0, methods.CONNECTION_START).payload)
        entries = cast(bytes, start[2])
        if not pick(entries, 0, len(entries), frozenset((OXPROXY,))):
            text = f"{self._place} is not a sidecar; expected the address in `listen`, so that the rules apply"
            raise UpstreamError(UpstreamFailure.REFUSED, text)
        properties: Table = (
            (b"product", Value("S", b"oxproxy")),
            (b"connection_name", Value("S", b"oxproxy replay")),
            (b"capabilities", Value("F", _CAPABILITIES)),
        )
        response = b"\0".join((b"", login.user.encode(), login.password.encode()))
        self._send(method_frame(0, methods.CONNECTION_START_OK, encode_table(properties), b"PLAIN", response, b"en_US"))
        try:
            tune = self._reply(0, methods.CONNECTION_TUNE)
            channel_max, frame_max, _ = (cast(int, number) for number in arguments(tune.payload))
            self._frame_max = frame_max or _FRAME_MAX
            tuned = method_frame(0, methods.CONNECTION_TUNE_OK, channel_max, frame_max, 0)
            self._send(tuned + method_frame(0, methods.CONNECTION_OPEN, login.vhost.encode(), b"", False))
            self._reply(0, methods.CONNECTION_OPEN_OK)
        except UpstreamError as error:
            if error.failure is not UpstreamFailure.REFUSED:
                raise
            text = f"{self._place} refused user {shown_user(login.user)!r} in vhost {login.vhost!r}: {error.message}"
            raise UpstreamError(UpstreamFailure.REFUSED, text) from error

    # -- frames --------------------------------------------------------------------------------------------------------

    def _request(self, request: bytes) -> None:
        """Send a synchronous method and wait for its reply."""
        self._send(request)
        self._reply(FRAME_HEAD.unpack_from(request)[1], reply_to(request))

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise self._late() from error
        except OSError as error:
            # The peer may have sent the reason before it closed the connection.
            with contextlib.suppress(OSError):
                while True:
                    self._next_frame(monotonic() + 1.0)
            raise self._unavailable(words(error)) from error

    def _reply(self, channel: int, *expected: int) -> RawFrame:
        """Return the next method on a channel, which must be one of the given methods.

        After a close, only the reply to it is expected (spec, 1.5.2.5 and 1.4.2.10), and other frames are discarded.
        """
        deadline = monotonic() + _REPLY_SECONDS
        closing = expected[0] in (methods.CHANNEL_CLOSE_OK, methods.CONNECTION_CLOSE_OK)
        while True:
            received = self._next_frame(deadline)
            if received.kind != METHOD:
                if received.channel == channel and not closing:
                    raise self._unavailable("sent a content without a method")
                continue
            method = method_of(received.payload)
            if method == methods.CHANNEL_CLOSE:
                close = read_method(Close, received.payload)
                self._send(channel_close_ok(received.channel))
                raise ChannelClosed(received.channel, f"{shown(close.reply_text)} ({close.reply_code})")
            if received.channel != channel or (closing and method not in expected):
                continue
            if method not in expected:
                raise self._unavailable(f"sent {NAMES[method]}, expected {NAMES[expected[0]]}")
            return received

    def _content(self, channel: int) -> tuple[bytes, bytes]:
        """Return the payload of the content header frame, and the body."""
        deadline = monotonic() + _REPLY_SECONDS
        header = self._next_frame(deadline)
        if (header.kind, header.channel) != (HEADER, channel) or len(header.raw) < CONTENT_HEAD.size:
            raise self._unavailable("sent no content header")
        size: int = CONTENT_HEAD.unpack_from(header.raw)[-1]
        parts: list[bytes] = []
        while size > 0:
            part = self._next_frame(monotonic() + _REPLY_SECONDS)
            if (part.kind, part.channel) != (BODY, channel):
                raise self._unavailable("sent an incomplete body")
            parts.append(part.payload)
            size -= len(part.payload)
        return header.payload, b"".join(parts)

    def _next_frame(self, deadline: float) -> RawFrame:
        """Return the next frame, except heartbeats and notices on channel 0, which are processed here."""
        try:
            while True:
                received = self._buffer.next_frame()
                if received is None:
                    self._read(deadline)
                elif received.kind == METHOD and received.channel == 0:
                    if not self._notice(received):
                        return received
                elif received.kind in (METHOD, HEADER, BODY):
                    return received
        except ProtocolError as error:
            raise self._unavailable(f"violated AMQP 0-9-1: {error}") from error

    def _notice(self, received: RawFrame) -> bool:
        """Process a method of the connection; return False if it is a reply."""
        method = method_of(received.payload)
        if method == methods.CONNECTION_CLOSE:
            close = read_method(Close, received.payload)
            with contextlib.suppress(OSError):
                self._socket.sendall(connection_close_ok())
            text = f"{shown(close.reply_text)} ({close.reply_code})"
            refused = close.reply_code in _REFUSALS
            raise UpstreamError(UpstreamFailure.REFUSED, text) if refused else self._unavailable(text)
        if method == methods.CONNECTION_BLOCKED:
            self._blocked = shown(cast(bytes, arguments(received.payload)[0]))
        elif method == methods.CONNECTION_UNBLOCKED:
            self._blocked = ""
        else:
            return False
        return True

    def _read(self, deadline: float) -> None:
        left = deadline - monotonic()
        if left <= 0:
            raise self._late()
        try:
            self._socket.settimeout(left)
            data = self._socket.recv(_READ_BYTES)
            self._socket.settimeout(_REPLY_SECONDS)
        except TimeoutError as error:
            raise self._late() from error
        except OSError as error:
            raise self._unavailable(words(error)) from error
        if not data:
            raise self._unavailable("connection closed")
        self._buffer.feed(data)

    def _late(self) -> UpstreamError:
        why = f"; the broker blocks publishers: {self._blocked}" if self._blocked else ""
        return UpstreamError(UpstreamFailure.TIMEOUT, f"{self._place}: no response within {_REPLY_SECONDS:g} s{why}")

    def _unavailable(self, text: str) -> UpstreamError:
        return UpstreamError(UpstreamFailure.UNAVAILABLE, f"{self._place}: {text}")
