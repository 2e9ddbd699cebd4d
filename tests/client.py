"""Builds AMQP frames from names and values, and decodes frames. It has no sockets and no state.

This module is independent of oxproxy.amqp: pamqp encodes methods, and this module encodes contents. oxproxy.amqp
encodes only tables that pamqp cannot encode: header tables, and arguments of binds, which are passed as encoded
entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple, cast

from pamqp import base, commands
from pamqp import frame as pamqp_frame

from oxproxy.amqp import methods
from oxproxy.amqp.method_frames import bind, unbind
from oxproxy.amqp.methods import method_frame
from oxproxy.amqp.tables import encode_table
from oxproxy.values import EXCHANGE, QUEUE, Table

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
KINDS = {2: "Header", 3: "Body", 8: "Heartbeat"}

#: Properties in wire order (AMQP 0-9-1 spec, 4.2.6.1 and 1.8), with the struct code of numbers.
PROPERTIES = (
    ("content_type", ""), ("content_encoding", ""), ("headers", ""), ("delivery_mode", "B"),
    ("priority", "B"), ("correlation_id", ""), ("reply_to", ""), ("expiration", ""), ("message_id", ""),
    ("timestamp", "Q"), ("type", ""), ("user_id", ""), ("app_id", ""), ("cluster_id", ""),
)  # fmt: skip


class Frame(NamedTuple):
    """A frame as sent on the wire."""

    kind: int
    channel: int
    payload: bytes

    @property
    def name(self) -> str:
        """``Basic.Publish``, ``Header``, ``Body`` or ``Heartbeat``."""
        if self.kind == 1:
            return str(_KINDS_OF_METHODS[int.from_bytes(self.payload[:4], "big")].name)
        return KINDS[self.kind]

    @property
    def raw(self) -> bytes:
        return frame(*self)

    @property
    def method(self) -> base.Frame:
        """The decoded method."""
        decoded = pamqp_frame.unmarshal(self.raw)[2]
        assert isinstance(decoded, base.Frame)
        return decoded

    @property
    def arguments(self) -> dict[str, object]:
        return dict(self.method)


_KINDS_OF_METHODS = cast("dict[int, type[base.Frame]]", commands.INDEX_MAPPING)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, command: base.Frame) -> bytes:
    """A method frame, e.g. ``method(1, commands.Queue.Bind(queue="q", exchange="e"))``."""
    return frame(1, channel, struct.pack(">I", command.index) + command.marshal())


def publish(
    channel: int,
    exchange: bytes,
    key: bytes,
    headers: Table | None = None,
    body: bytes = b"",
    properties: dict[str, bytes | int] | None = None,
    *,
    mandatory: bool = False,
    frame_max: int = 131072,
) -> bytes:
    """Method, content header and body frames of a publish. If ``headers`` is None, it has no header table."""
    names = b"".join(bytes((len(name),)) + name for name in (exchange, key))
    start = frame(1, channel, struct.pack(">HHH", 60, 40, 0) + names + bytes((mandatory,)))
    return start + content(channel, headers, body, properties, frame_max=frame_max)


def content(
    channel: int,
    headers: Table | None = None,
    body: bytes = b"",
    properties: dict[str, bytes | int] | None = None,
    *,
    frame_max: int = 131072,
) -> bytes:
    """Content header and body frames, as they follow publish, deliver, return or get-ok."""
    entries = None if headers is None else encode_table(headers)
    size = frame_max - 8
    bodies = (frame(3, channel, body[at : at + size]) for at in range(0, len(body), size))
    return content_header(channel, len(body), entries, properties) + b"".join(bodies)


def content_header(
    channel: int,
    body_size_bytes: int,
    entries: bytes | None = None,
    properties: dict[str, bytes | int] | None = None,
) -> bytes:
    """A content header frame. ``entries`` is the encoded header table without its length."""
    flags, encoded = encode_properties(properties or {}, entries)
    return frame(2, channel, struct.pack(">HHQH", 60, 0, body_size_bytes, flags) + encoded)


def encode_properties(properties: dict[str, bytes | int], entries: bytes | None = None) -> tuple[int, bytes]:
    """Return the property flags and the encoded properties."""
    flags, encoded = 0, b""
    for bit, (name, code) in enumerate(PROPERTIES):
        value = properties.get(name, entries if name == "headers" else None)
        if value is None:
            continue
        flags |= 0x8000 >> bit
        if isinstance(value, int):
            encoded += struct.pack(">" + code, value)
        else:
            encoded += struct.pack(">I" if name == "headers" else ">B", len(value)) + value
    return flags, encoded


def split(data: bytes) -> list[Frame]:
    """Split bytes into frames; incomplete or invalid frames fail the test."""
    frames = []
    while data:
        kind, channel, size = struct.unpack_from(">BHI", data)
        assert data[7 + size] == 0xCE, data
        frames.append(Frame(kind, channel, data[7 : 7 + size]))
        data = data[8 + size :]
    return frames


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Cut bytes at these positions, each modulo their length + 1."""
    edges = sorted({0, len(data), *(position % (len(data) + 1) for position in cuts)})
    return [data[left:right] for left, right in pairwise(edges)]


def names(data: bytes) -> list[str]:
    """Names of the frames, e.g. ``["Basic.Return", "Header", "Body", "Basic.Ack"]``."""
    return [frame.name for frame in split(data)]


def queue_bind(
    channel: int, queue: bytes, source: bytes, key: bytes, entries: bytes = b"", *, nowait: bool = False
) -> bytes:
    return bind(channel, (QUEUE, queue), source, key, entries, nowait=nowait)


def queue_unbind(channel: int, queue: bytes, source: bytes, key: bytes, entries: bytes = b"") -> bytes:
    return unbind(channel, (QUEUE, queue), source, key, entries)


def exchange_bind(
    channel: int, exchange: bytes, source: bytes, key: bytes, entries: bytes = b"", *, nowait: bool = False
) -> bytes:
    return bind(channel, (EXCHANGE, exchange), source, key, entries, nowait=nowait)


def exchange_unbind(
    channel: int, exchange: bytes, source: bytes, key: bytes, entries: bytes = b"", *, nowait: bool = False
) -> bytes:
    return method_frame(channel, methods.EXCHANGE_UNBIND, 0, exchange, source, key, nowait, entries)
