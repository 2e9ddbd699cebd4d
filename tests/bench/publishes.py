"""Builds whole publishes in one buffer, before anything is timed.

All publishes in a ring have the same length, so the number of messages sent can be computed from a position in the byte
stream, and one strided assignment changes a field of all messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from oxproxy.values import Table, Value
from tests import client
from tests.producer import headers

MIN_RING = 1_000
DISTINCT_RING = 1 << 16
"""Number of messages in a ring whose messages all differ. It can't be higher, since the index uses only two bytes of
the timestamp, and the turn uses the others."""
FIRST_TURN = 1_760_000_000 >> 16
"""Turn number of the first timestamp, in units of 65,536 seconds: a date in 2025."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of the messages of one case. Keys and kinds are used in turn, and all have the same length."""

    exchange: str
    routing_keys: tuple[str, ...]
    kinds: tuple[str, ...]
    distinct: bool = False
    body_size_bytes: int = 100
    differs: tuple[str, ...] | None = None
    """Which of `FACTS` (and "amount") differ from message to message; all messages then have all of these fields. None:
    messages have none of these fields, and `distinct` applies."""
    tokens: tuple[str, ...] = ()
    """Tokens sent in `BCC`, one for each kind, as the sidecar sends them; empty: no `BCC`."""


FACTS = ("message_id", "header", "key")
"""Differences between real messages: the message id, a header that no rule mentions, and the routing key."""
DIFFERENT = 50_000
"""Number of different messages that are sent in turn, which exceeds the size of every decision cache."""


def plain_headers(kind: str) -> Table:
    """Return four headers. The header used by rules is the third, so that it must be searched for."""
    return headers({"source": "billing-service", "attempt": 1, "kind": kind, "region": "eu-west-1"})


def bcc(keys: Iterable[bytes]) -> Table:
    return ((b"BCC", Value("A", tuple(Value("S", key) for key in keys))),)


def identity(turn: int, index: int) -> dict[str, bytes | int]:
    """Return the message id and the timestamp of a message."""
    return {"message_id": b"%08x-%08x" % (turn, index), "timestamp": (FIRST_TURN + turn) << 16 | index}


def publish(shape: Shape, key: str, table: Table, **more: bytes | int) -> bytes:
    """Return the frames of one publish; `more` are properties in addition to those that all messages have."""
    properties = {"content_type": b"application/json", "delivery_mode": 1, **more}
    return client.publish(1, shape.exchange.encode(), key.encode(), table, bytes(shape.body_size_bytes), properties)


def plain_publish(shape: Shape, index: int) -> bytes:
    key, kind = shape.routing_keys[index % len(shape.routing_keys)], shape.kinds[index % len(shape.kinds)]
    table = plain_headers(kind)
    if shape.tokens:
        table += bcc([shape.tokens[index % len(shape.tokens)].encode()])
    return publish(shape, key, table, **(identity(0, index) if shape.distinct else {}))


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
    table = {
        "source": "billing-service",
        "traceparent": f"00-{number['header']:032x}-00f067aa0ba902b7-01",
        "amount": number["amount"],
        "kind": shape.kinds[index % len(shape.kinds)],
    }
    return publish(shape, key, headers(table), **identity(0, number["message_id"]))


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
        if shape.differs:
            self.count = different_count
        make = plain_publish if shape.differs is None else real_publish
        messages = [make(shape, index) for index in range(self.count)]
        self.stride = len(messages[0])
        if any(len(message) != self.stride for message in messages):
            raise ValueError("routing keys and kinds of one shape must be equally long")
        self.data = bytearray(b"".join(messages))
        self._identity_offset = messages[0].find(self._identity()) if shape.distinct else 0

    def _identity(self) -> bytes:
        """Return the bytes of the first message's id and timestamp, which are adjacent."""
        return client.encode_properties(identity(self.turn, 0))[1]

    def next_turn(self) -> None:
        if not self.shape.distinct:
            return
        old = self._identity()
        self.turn += 1
        new = self._identity()
        # `old` and `new` differ only in bytes of the turn, which are the same in all messages.
        for offset, (before, after) in enumerate(zip(old, new, strict=True), self._identity_offset):
            if before != after:
                self.data[offset :: self.stride] = bytes([after]) * self.count
