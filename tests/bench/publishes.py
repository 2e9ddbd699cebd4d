"""Builds whole publishes in one buffer, before anything is timed.

All publishes in a ring have the same length, so the number of messages sent can be computed from a position in the byte
stream, and one strided assignment changes a field of all messages. Source: AMQP 0-9-1, 2.3.5 and 4.2 (frames, content
header), 4.2.5.5 (field tables).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

FRAME_END = b"\xce"
CONTENT_TYPE, HEADERS, DELIVERY_MODE, MESSAGE_ID, TIMESTAMP = 1 << 15, 1 << 13, 1 << 12, 1 << 7, 1 << 6
MIN_RING = 1_000
DISTINCT_RING = 1 << 16
"""Number of messages in a ring whose messages all differ. It can't be higher, since the index uses only two bytes of
the timestamp, and the turn uses the others."""
FIRST_TURN = 1_760_000_000 >> 16
"""Turn number of the first timestamp, in units of 65,536 seconds: a date in 2025."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of the messages of one case. Keys and kinds are used in turn, and have the same length."""

    exchange: str
    routing_keys: tuple[str, ...]
    kinds: tuple[str, ...]
    distinct: bool = False
    body_size_bytes: int = 100
    differs: tuple[str, ...] | None = None
    """Which of `FACTS` (and "amount") differ from message to message; all messages then have all of these fields. None:
    messages have none of these fields, and `distinct` applies."""


FACTS = ("message_id", "header", "key")
"""Differences between real messages: the message id, a header that no rule mentions, and the routing key."""
DIFFERENT = 50_000
"""Number of different messages that are sent in turn, which exceeds the size of every decision cache."""


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def short(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("B", len(raw)) + raw


def publish_method(exchange: str, routing_key: str) -> bytes:
    return frame(1, struct.pack(">HHH", 60, 40, 0) + short(exchange) + short(routing_key) + b"\0")


def text_entry(name: str, value: str) -> bytes:
    raw = value.encode()
    return short(name) + b"S" + struct.pack(">I", len(raw)) + raw


def header_table(kind: str) -> bytes:
    """Return four headers. The header used by rules is the third, so that it must be searched for."""
    entries = (
        text_entry("source", "billing-service")
        + short("attempt")
        + b"I"
        + struct.pack(">i", 1)
        + text_entry("kind", kind)
        + text_entry("region", "eu-west-1")
    )
    return struct.pack(">I", len(entries)) + entries


def content_header(kind: str, body_size_bytes: int, identity: bytes = b"") -> bytes:
    """Return the content header frame; `identity` is the encoded message id and timestamp, or empty."""
    flags = CONTENT_TYPE | HEADERS | DELIVERY_MODE | (MESSAGE_ID | TIMESTAMP if identity else 0)
    properties = short("application/json") + header_table(kind) + b"\x01" + identity
    return frame(2, struct.pack(">HHQH", 60, 0, body_size_bytes, flags) + properties)


def identity_bytes(turn: int, index: int) -> bytes:
    return short(f"{turn:08x}-{index:08x}") + struct.pack(">Q", (FIRST_TURN + turn) << 16 | index)


def real_publish(shape: Shape, index: int) -> bytes:
    """Return a publish as sent by applications: with message id, timestamp, and headers such as a trace id and amount.

    If keys differ, the routing key ends with the number of the message.
    """
    differs = shape.differs or ()
    number = {name: index if name in differs else 0 for name in (*FACTS, "amount")}
    key = shape.routing_keys[index % len(shape.routing_keys)]
    if "key" in differs:
        digits = f"{index:08}"
        key = key[: -len(digits)] + digits
    entries = (
        text_entry("source", "billing-service")
        + text_entry("traceparent", f"00-{number['header']:032x}-00f067aa0ba902b7-01")
        + short("amount")
        + b"I"
        + struct.pack(">i", number["amount"])
        + text_entry("kind", shape.kinds[index % len(shape.kinds)])
    )
    flags = CONTENT_TYPE | HEADERS | DELIVERY_MODE | MESSAGE_ID | TIMESTAMP
    properties = short("application/json") + struct.pack(">I", len(entries)) + entries + b"\x01"
    properties += identity_bytes(0, number["message_id"])
    header = frame(2, struct.pack(">HHQH", 60, 0, shape.body_size_bytes, flags) + properties)
    return publish_method(shape.exchange, key) + header + frame(3, bytes(shape.body_size_bytes))


class Ring:
    """A sequence of publishes that is sent repeatedly.

    `data` is the buffer, and `stride` is the length of one publish. `next_turn` must be called when the whole buffer
    has been sent. If the shape requires distinct messages, it gives each message a new message id and timestamp.
    """

    def __init__(self, shape: Shape, distinct_count: int = DISTINCT_RING, different_count: int = DIFFERENT) -> None:
        self.shape = shape
        cycle = math.lcm(len(shape.routing_keys), len(shape.kinds))
        self.count = distinct_count if shape.distinct else cycle * math.ceil(MIN_RING / cycle)
        self.turn = 0
        if shape.differs is not None:
            self.count = different_count if shape.differs else self.count
            self._lay([real_publish(shape, index) for index in range(self.count)])
            return
        body = frame(3, bytes(shape.body_size_bytes))
        methods = [publish_method(shape.exchange, key) for key in shape.routing_keys]
        messages = []
        for index in range(self.count):
            kind = shape.kinds[index % len(shape.kinds)]
            identity = identity_bytes(0, index) if shape.distinct else b""
            header = content_header(kind, shape.body_size_bytes, identity)
            messages.append(methods[index % len(methods)] + header + body)
        self._lay(messages)
        self._identity_offset = messages[0].find(identity_bytes(0, 0)) if shape.distinct else 0

    def _lay(self, messages: list[bytes]) -> None:
        self.stride = len(messages[0])
        if any(len(message) != self.stride for message in messages):
            raise ValueError("routing keys and kinds of one shape must be equally long")
        self.data = bytearray(b"".join(messages))

    def next_turn(self) -> None:
        if not self.shape.distinct:
            return
        old = identity_bytes(self.turn, 0)
        self.turn += 1
        new = identity_bytes(self.turn, 0)
        # Only bytes of the turn differ, and they are the same in all messages.
        for offset, (before, after) in enumerate(zip(old, new, strict=True), self._identity_offset):
            if before != after:
                self.data[offset :: self.stride] = bytes([after]) * self.count
