"""A blocking connection to a broker: handshake, channel 1, synchronous methods.

Used only for preparation, not while anything is timed; the generator then takes over the socket. Source: AMQP 0-9-1,
2.2.4 (connection negotiation).
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import TypeVar

from pamqp import base, commands, frame, header

FRAME_MAX_BYTES = 131_072
DEADLINE_SECONDS = 20.0
HEARTBEAT = 8
PROTOCOL_HEADER = header.ProtocolHeader().marshal()

Answer = TypeVar("Answer", bound=base.Frame)


class LinkError(Exception):
    """The other side closed the connection or the channel, or answered with another method."""


class Link:
    """One connection with channel 1 open; `confirms` puts the channel into confirm mode."""

    def __init__(self, host: str, port: int, *, confirms: bool = False) -> None:
        self._buffer = b""
        self.socket = socket.create_connection((host, port), timeout=DEADLINE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._open()
            if confirms:
                self.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        except BaseException:
            self.socket.close()
            raise

    def _open(self) -> None:
        self.socket.sendall(PROTOCOL_HEADER)
        self.expect(commands.Connection.Start)
        start_ok = commands.Connection.StartOk(
            client_properties={"product": "oxproxy bench"}, mechanism="PLAIN", response="\0guest\0guest"
        )
        tune = self.call(start_ok, commands.Connection.Tune, channel=0)
        frame_max = min(tune.frame_max or FRAME_MAX_BYTES, FRAME_MAX_BYTES)
        # No heartbeats, since the socket is not read between two rounds.
        self.send(commands.Connection.TuneOk(tune.channel_max, frame_max, 0), channel=0)
        self.call(commands.Connection.Open("/"), commands.Connection.OpenOk, channel=0)
        self.call(commands.Channel.Open(), commands.Channel.OpenOk)

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def take_rest(self) -> bytes:
        """Return the received bytes that have not been processed yet."""
        rest, self._buffer = self._buffer, b""
        return rest

    def close(self) -> None:
        self.socket.close()

    def send(self, method: base.Frame, channel: int = 1) -> None:
        self.socket.sendall(frame.marshal(method, channel))

    def call(self, method: base.Frame, answer: type[Answer], channel: int = 1) -> Answer:
        self.send(method, channel)
        return self.expect(answer)

    def expect(self, answer: type[Answer]) -> Answer:
        """Return the next method, which must be an `answer`."""
        seen = self.next_frame()
        if not isinstance(seen, answer):
            wanted = answer.__name__
            if isinstance(seen, commands.Connection.Close | commands.Channel.Close):
                raise LinkError(f"expected {wanted}, saw {seen.reply_code} {seen.reply_text}")
            raise LinkError(f"expected {wanted}, saw {type(seen).__name__}")
        return seen

    def next_frame(self) -> object:
        """Return the next frame other than a heartbeat, decoded."""
        while True:
            if len(self._buffer) >= 7:
                size = int.from_bytes(self._buffer[3:7], "big") + 8
                if len(self._buffer) >= size:
                    raw, self._buffer = self._buffer[:size], self._buffer[size:]
                    if raw[0] != HEARTBEAT:
                        return frame.unmarshal(raw)[2]
                    continue
            data = self.socket.recv(65_536)
            if not data:
                raise LinkError("the other side closed the socket")
            self._buffer += data
