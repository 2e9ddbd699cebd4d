"""An AMQP client on a blocking socket that sends the frames of ``client`` to a broker or a sidecar.

Every wait has a deadline. Heartbeats are skipped; all other frames are returned unchanged. The client is independent of
oxproxy.net and of every AMQP library except pamqp.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple, Self

import pytest
from pamqp import base, commands
from pamqp.common import FieldTable

from oxproxy.amqp.tables import decode_table
from oxproxy.values import Table, Value
from tests import client
from tests.client import Frame

#: Deadline for a reply in seconds; on loopback, a reply usually takes a millisecond.
ANSWER_SECONDS = 30.0

CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


class Gone(Exception):  # noqa: N818 - named after the event
    """The peer closed the socket."""


class Closed(Exception):  # noqa: N818 - named after the event
    """The peer closed a channel, or the connection if the channel is 0."""

    def __init__(self, channel: int, code: int, text: str, method: tuple[int, int]) -> None:
        super().__init__(channel, code, text, method)
        self.channel = channel
        self.code = code
        self.text = text
        self.method = method


class Message(NamedTuple):
    """A delivery, a get-ok or a return, with its content.

    Args:
        method: arguments of the method.
        flags: property flags.
        properties: encoded properties.
        entries: encoded entries of the header table; None if it is missing.
        body: the whole body.
    """

    method: Mapping[str, object]
    flags: int
    properties: bytes
    entries: bytes | None
    body: bytes

    @property
    def exchange(self) -> str:
        return str(self.method["exchange"])

    @property
    def key(self) -> str:
        return str(self.method["routing_key"])

    @property
    def address(self) -> tuple[str, str]:
        """Exchange and routing key."""
        return self.exchange, self.key

    @property
    def headers(self) -> dict[str, Value]:
        """The header table; duplicate names fail the test."""
        table = decode_table(self.entries or b"", 0, len(self.entries or b""))
        assert len({name for name, _ in table}) == len(table)
        return {name.decode(): value for name, value in table}


class Settled(NamedTuple):
    """The result of a publish in confirm mode: whether it was acked, and the returns received before the confirm."""

    acked: bool
    returned: list[Message]


def value(plain: object) -> Value:
    """Convert a Python value to an AMQP value; a Value is unchanged."""
    match plain:
        case Value():
            return plain
        case bool():
            return Value("t", plain)
        case int():
            return Value("I" if -(2**31) <= plain < 2**31 else "l", plain)
        case float():
            return Value("d", plain)
        case bytes():
            return Value("S", plain)
        case str():
            return Value("S", plain.encode())
        case list() | tuple():
            return Value("A", tuple(map(value, plain)))
        case dict():
            return Value("F", headers(plain))
    raise TypeError(plain)


def headers(plain: Mapping[str, object]) -> Table:
    """A header table from Python values."""
    return tuple((name.encode(), value(item)) for name, item in plain.items())


def stored_by_4(table: Table) -> Table:
    """A header table as RabbitMQ 4.0 and later store it: sorted by name, with the first of duplicate names."""
    return tuple(sorted(dict(reversed(table)).items()))


class Producer:
    """An AMQP connection; the constructor opens it.

    Args:
        port: port on loopback.
        vhost: virtual host.
        username: user name.
        password: password.
        frame_max: requested in TuneOk; 0 accepts the offered value.
        heartbeat: seconds, requested in TuneOk.
        channel_max: requested in TuneOk; 0 accepts the offered value.
        header: protocol header to send.
        log_in: if False, nothing is sent.
        tls: context for TLS to ``localhost``; None for plain TCP.
    """

    def __init__(
        self,
        port: int,
        vhost: str = "/",
        username: str = "guest",
        password: str = "guest",
        *,
        frame_max: int = 0,
        heartbeat: int = 0,
        channel_max: int = 0,
        header: bytes = client.PROTOCOL_HEADER,
        log_in: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.start: Mapping[str, object] = {}
        self.tune: Mapping[str, object] = {}
        self.frame_max = frame_max or 131072
        self._frame_max = frame_max
        self._heartbeat = heartbeat
        self._channel_max = channel_max
        self._header = header
        self._input = bytearray()
        try:
            if log_in:
                self.log_in(vhost, username, password)
        except BaseException:
            self.disconnect()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()

    # -- connection and channels ---------------------------------------------------------------------------------

    def log_in(self, vhost: str, username: str, password: str) -> None:
        self.send(self._header)
        self.start = self.expect("Connection.Start").arguments
        properties: FieldTable = {"capabilities": dict(CAPABILITIES), "connection_name": "test"}
        response = f"\0{username}\0{password}"
        self.call(commands.Connection.StartOk(properties, "PLAIN", response, "en_US"), channel=0)
        self.tune = self.expect("Connection.Tune").arguments
        channel_max, offered = self.tune["channel_max"], self.tune["frame_max"]
        assert isinstance(channel_max, int)
        assert isinstance(offered, int)
        self.frame_max = self._frame_max or offered
        answer = commands.Connection.TuneOk(self._channel_max or channel_max, self.frame_max, self._heartbeat)
        self.send(client.method(0, answer), client.method(0, commands.Connection.Open(vhost)))
        self.expect("Connection.OpenOk")

    def open(self, channel: int = 1, *, confirm: bool = False) -> Self:
        self.ask(commands.Channel.Open(), channel=channel)
        if confirm:
            self.ask(commands.Confirm.Select(), channel=channel)
        return self

    def close(self) -> None:
        """Close the connection and wait for the reply."""
        self.call(commands.Connection.Close(200, "", 0, 0), channel=0)
        while self.frame().name != "Connection.CloseOk":
            pass
        self.disconnect()

    def disconnect(self) -> None:
        """Close the socket without closing the connection."""
        self.socket.close()

    # -- frames --------------------------------------------------------------------------------------------------

    def send(self, *pieces: bytes) -> None:
        self.socket.sendall(b"".join(pieces))

    def call(self, command: base.Frame, channel: int = 1) -> None:
        """Send a method without waiting."""
        self.send(client.method(channel, command))

    def ask(self, command: base.Frame, channel: int = 1) -> Frame:
        """Send a method and return the reply.

        Raises:
            Closed: the reply is a close.
        """
        self.call(command, channel)
        return self.expect(f"{command.name}Ok")

    def frame(self) -> Frame:
        """Return the next frame that is not a heartbeat.

        Raises:
            Gone: the socket was closed.
        """
        while True:
            received = self._whole()
            if received is not None and received.kind != 8:
                return received
            if received is None:
                self._read()

    def expect(self, *names: str) -> Frame:
        """Return the next frame, which must have one of these names.

        Raises:
            Closed: the frame is a close.
        """
        received = self.frame()
        method = received.method if received.kind == 1 else None
        if isinstance(method, commands.Channel.Close | commands.Connection.Close):
            ids = (method.class_id or 0, method.method_id or 0)
            raise Closed(received.channel, method.reply_code or 0, method.reply_text, ids)
        if received.name in names:
            return received
        raise AssertionError(f"expected {' or '.join(names)}, got {received.name} on channel {received.channel}")

    def closed(self, channel: int = 1) -> Closed:
        """Return the next close on a channel, and send the close-ok."""
        with pytest.raises(Closed) as caught:
            self.expect("Channel.Close" if channel else "Connection.Close")
        assert caught.value.channel == channel
        self.call(commands.Channel.CloseOk() if channel else commands.Connection.CloseOk(), channel)
        return caught.value

    def gone(self) -> bool:
        """Wait until the peer has closed the socket."""
        try:
            self.frame()
        except Gone:
            return True
        return False

    def heartbeat(self) -> None:
        """Wait for a heartbeat; discard earlier frames."""
        while True:
            received = self._whole()
            if received is None:
                self._read()
            elif received.kind == 8:
                return

    def silent(self) -> bool:
        """Return whether there is no unread input."""
        self.socket.setblocking(False)
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return not self._input
        finally:
            self.socket.settimeout(ANSWER_SECONDS)
        self._input += data
        return False

    def unread(self) -> bytes:
        """Return and clear the input that has not been parsed as frames, so that other code can use the socket."""
        rest = bytes(self._input)
        self._input.clear()
        return rest

    def _whole(self) -> Frame | None:
        if len(self._input) < 7:
            return None
        kind, channel, size = struct.unpack_from(">BHI", self._input)
        if len(self._input) < size + 8:
            return None
        assert self._input[size + 7] == 0xCE
        payload = bytes(self._input[7 : size + 7])
        del self._input[: size + 8]
        return Frame(kind, channel, payload)

    def _read(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Gone
        self._input += data

    # -- messages ------------------------------------------------------------------------------------------------

    def publish(
        self,
        exchange: str,
        key: str = "",
        table: Mapping[str, object] | Table | None = None,
        body: bytes = b"body",
        channel: int = 1,
        mandatory: bool = False,
        **properties: bytes | int,
    ) -> None:
        """Send a publish. If ``table`` is None, it has no header table."""
        if isinstance(table, Mapping):
            table = headers(table)
        frames = client.publish(
            channel,
            exchange.encode(),
            key.encode(),
            table,
            body,
            properties,
            mandatory=mandatory,
            frame_max=self.frame_max,
        )
        self.send(frames)

    def settle(self, channel: int = 1, tag: int | None = None) -> Settled:
        """Read until a publish is confirmed; the channel must be in confirm mode.

        Args:
            channel: channel.
            tag: the delivery tag that the ack or nack must have.
        """
        returned = []
        while True:
            received = self.expect("Basic.Return", "Basic.Ack", "Basic.Nack")
            assert received.channel == channel
            if received.name == "Basic.Return":
                returned.append(self.message(received))
                continue
            if tag is not None:
                assert received.arguments["delivery_tag"] == tag
            return Settled(received.name == "Basic.Ack", returned)

    def settle_all(self, count: int, channel: int = 1) -> None:
        """Read until the first ``count`` publishes of a channel are acked, in any order."""
        open_tags = set(range(1, count + 1))
        while open_tags:
            received = self.expect("Basic.Ack")
            assert received.channel == channel
            tag = received.arguments["delivery_tag"]
            assert isinstance(tag, int)
            assert tag in open_tags
            open_tags -= (
                {earlier for earlier in open_tags if earlier < tag} if received.arguments["multiple"] else set()
            )
            open_tags.discard(tag)

    def send_settled(self, exchange: str, key: str = "", *arguments: object, **more: object) -> Settled:
        """Publish on channel 1, which must be in confirm mode, and wait for the confirm."""
        self.publish(exchange, key, *arguments, **more)  # type: ignore[arg-type]
        return self.settle()

    def message(self, method: Frame) -> Message:
        """Read the content that follows a method frame."""
        header = self.expect_content("Header")
        size, flags = struct.unpack_from(">QH", header, 4)
        body = b""
        while len(body) < size:
            body += self.expect_content("Body")
        properties = header[14:]
        return Message(method.arguments, flags, properties, _entries(flags, properties), body)

    def expect_content(self, name: str) -> bytes:
        received = self.frame()
        assert received.name == name, received
        return received.payload

    def get(self, queue: str, channel: int = 1) -> Message | None:
        """Take a message from a queue; None if the queue is empty."""
        self.call(commands.Basic.Get(queue=queue, no_ack=True), channel)
        received = self.expect("Basic.GetOk", "Basic.GetEmpty")
        return self.message(received) if received.name == "Basic.GetOk" else None

    def next(self, queue: str) -> Message:
        """Wait for a message in a queue and take it."""
        end = time.monotonic() + ANSWER_SECONDS
        while (message := self.get(queue)) is None:
            assert time.monotonic() < end, f"no message arrived in queue {queue}"
            time.sleep(0.02)
        return message

    def take(self, queue: str, channel: int = 1) -> list[Message]:
        """Take all messages from a queue."""
        messages = []
        while (message := self.get(queue, channel)) is not None:
            messages.append(message)
        return messages

    def delivery(self) -> Message:
        """Read the next delivery."""
        return self.message(self.expect("Basic.Deliver"))

    def declare(self, queue: str = "", channel: int = 1, **more: bool) -> str:
        """Declare a queue and return its name; ``more`` are flags of pamqp's Queue.Declare."""
        declare = commands.Queue.Declare(queue=queue)
        for name, bit in more.items():
            setattr(declare, name, bit)
        answer = self.ask(declare, channel)
        return str(answer.arguments["queue"])


def _entries(flags: int, properties: bytes) -> bytes | None:
    if not flags & 0x2000:
        return None
    at = 0
    for flag in (0x8000, 0x4000):
        if flags & flag:
            at += 1 + properties[at]
    size = int.from_bytes(properties[at : at + 4], "big")
    return properties[at + 4 : at + 4 + size]


def until(holds: Callable[[], object], seconds: float = ANSWER_SECONDS, every: float = 0.02) -> None:
    """Wait until a condition holds; fail the test after the deadline.

    Args:
        every: interval between the first checks. Later, the interval is an eighth of the time waited, up to 0.25 s, so
            that the checks do not take the CPU from what the test waits for.
    """
    start = time.monotonic()
    while not holds():
        waited = time.monotonic() - start
        assert waited < seconds, "waited too long"
        time.sleep(min(max(every, waited / 8), 0.25))
