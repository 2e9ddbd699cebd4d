"""How do we become a client of another broker? The client's side of the handshake, up to OpenOk.

Logs in with SASL PLAIN. Knows no sockets; frames in, frames out. No text that leaves this module holds a password.

Source: AMQP 0-9-1 spec, 2.2.4 "The connection class"; RFC 4616; RabbitMQ "authentication_failure_close".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from proxy.amqp import methods
from proxy.amqp.method_arguments import read_close
from proxy.amqp.method_frames import connection_close_ok
from proxy.amqp.methods import NAMES, arguments, method_frame, method_of
from proxy.amqp.tables import encode_table
from proxy.values import Table, Value

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
#: Largest frame that we take and send, in bytes; a broker may say less.
FRAME_MAX = 131_072
#: Seconds, where the broker leaves it to us.
_HEARTBEAT = 60
_TOP_CHANNEL = 65535
_CAPABILITIES = (b"publisher_confirms", b"basic.nack", b"connection.blocked", b"authentication_failure_close")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who logs in where.

    Args:
        user: name.
        password: its password.
        vhost: the virtual host.
    """

    user: bytes
    password: bytes = field(repr=False)
    vhost: bytes


class RemoteLogin:
    """One login.

    Args:
        credentials: see Credentials.
        version: of this program, told to the broker.

    Attributes:
        to_send: frames for the broker.
        done: the connection is open.
        failure: why it will not be, None as long as it may.
        channel_max: highest channel number, once done.
        frame_max: largest frame in bytes, once done.
        heartbeat: interval in seconds, 0 for none, once done.
    """

    __slots__ = (
        "_credentials",
        "_expected",
        "_version",
        "channel_max",
        "done",
        "failure",
        "frame_max",
        "heartbeat",
        "to_send",
    )

    def __init__(self, credentials: Credentials, version: str) -> None:
        """Begin with the protocol header."""
        self._credentials: Final = credentials
        self._version = version
        self._expected = methods.CONNECTION_START
        self.to_send: list[bytes] = [PROTOCOL_HEADER]
        self.done = False
        self.failure: str | None = None
        self.channel_max = self.frame_max = self.heartbeat = 0

    def take(self, payload: bytes) -> None:
        """Take a method of channel 0.

        Args:
            payload: of the method frame.

        Raises:
            ProtocolError: it is malformed.
        """
        method = method_of(payload)
        if method == methods.CONNECTION_CLOSE:
            close = read_close(payload)
            self.failure = f"refused: {close.reply_code} {close.reply_text.decode(errors='replace')}"
            self.to_send.append(connection_close_ok())
        elif method != self._expected:
            self.failure = f"sent {NAMES[method]}, expected {NAMES[self._expected]}"
        elif method == methods.CONNECTION_START:
            self._start(payload)
        elif method == methods.CONNECTION_TUNE:
            self._tune(payload)
        else:
            arguments(payload)
            self.done = True

    def _start(self, payload: bytes) -> None:
        mechanisms = arguments(payload)[3]
        if not isinstance(mechanisms, bytes) or b"PLAIN" not in mechanisms.split():
            self.failure = "offers no SASL PLAIN"
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
