"""Mutates AMQP frames: bits, lengths, channels, frame types, whole frames, and their order."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

from tests.client import frame, split

_INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0xCE, 0x41, 0x46, 0x53)
_CHANNELS = (0, 1, 2, 7, 2046, 2047, 65535)
_SIZES = (0, 1, 7, 8, 4096, 131064, 131065, 2**31 - 1, 2**32 - 1)


def mutated(frames: Sequence[bytes], draw: random.Random) -> tuple[bytes, int]:
    """Return frames with some of them mutated, and the number of mutations.

    Most mutations keep the framing, so that the fields of methods, headers and tables are reached.
    """
    pieces = list(frames)
    chosen = draw.sample(range(len(pieces)), min(len(pieces), draw.choice((1, 1, 1, 2, 4))))
    for at in chosen:
        (mutation,) = draw.choices(list(_MUTATIONS), list(_MUTATIONS.values()))
        pieces[at] = mutation(pieces[at], draw)
    if draw.random() < 0.1:
        draw.shuffle(pieces)
    if draw.random() < 0.1:
        pieces.insert(draw.randrange(len(pieces) + 1), draw.choice(pieces))
    return b"".join(pieces), len(chosen)


def cut(data: bytes, draw: random.Random) -> list[bytes]:
    """Cut bytes at random positions, as TCP does."""
    edges = sorted(draw.randrange(len(data) + 1) for _ in range(draw.choice((0, 0, 1, 3))))
    return [data[start:stop] for start, stop in zip((0, *edges), (*edges, len(data)), strict=True)]


def _payload(raw: bytes, draw: random.Random) -> bytes:
    """Change bytes of the payload; the length stays."""
    data = bytearray(raw)
    if len(data) > 8:
        for _ in range(draw.choice((1, 1, 2, 5))):
            data[draw.randrange(7, len(data) - 1)] = draw.choice((draw.randrange(256), draw.choice(_INTERESTING)))
    return bytes(data)


def _resized(raw: bytes, draw: random.Random) -> bytes:
    """Remove or add bytes of the payload, with the right frame size."""
    kind, channel, size = struct.unpack_from(">BHI", raw)
    payload = raw[7 : 7 + size]
    at = draw.randrange(len(payload) + 1)
    if draw.random() < 0.5:
        payload = payload[:at] + payload[at + draw.choice((1, 4, 100)) :]
    else:
        payload = payload[:at] + draw.randbytes(draw.choice((1, 4, 100))) + payload[at:]
    return frame(kind, channel, payload)


def _length(raw: bytes, draw: random.Random) -> bytes:
    """Replace four bytes of the payload by a length: of a table, a string or a body."""
    data = bytearray(raw)
    if len(data) > 12:
        at = draw.randrange(7, len(data) - 4)
        data[at : at + 4] = struct.pack(">I", draw.choice(_SIZES))
    return bytes(data)


def _channel(raw: bytes, draw: random.Random) -> bytes:
    return raw[:1] + struct.pack(">H", draw.choice(_CHANNELS)) + raw[3:]


def _kind(raw: bytes, draw: random.Random) -> bytes:
    return bytes((draw.choice((0, 1, 2, 3, 4, 8, 65, 255)),)) + raw[1:]


def _method(raw: bytes, draw: random.Random) -> bytes:
    """Replace class and method."""
    if raw[0] != 1 or len(raw) < 12:
        return _payload(raw, draw)
    ids = draw.choice((10, 20, 40, 50, 60, 85, 90, draw.randrange(65536))), draw.randrange(0, 130)
    return raw[:7] + struct.pack(">HH", *ids) + raw[11:]


def _size(raw: bytes, draw: random.Random) -> bytes:
    """Replace the frame size, so that the framing is lost."""
    return raw[:3] + struct.pack(">I", draw.choice(_SIZES)) + raw[7:]


def _end(raw: bytes, draw: random.Random) -> bytes:
    return raw[:-1] + bytes((draw.randrange(256),))


def _removed(_raw: bytes, _draw: random.Random) -> bytes:
    return b""


def _repeated(raw: bytes, draw: random.Random) -> bytes:
    return raw * draw.choice((2, 2, 3, 20))


def _noise(raw: bytes, draw: random.Random) -> bytes:
    """Random bytes, or another protocol."""
    return draw.choice((draw.randbytes(len(raw)), b"AMQP\x00\x00\x09\x01", b"GET / HTTP/1.1\r\n\r\n"))


_MUTATIONS: dict[Callable[[bytes, random.Random], bytes], int] = {
    _payload: 30,
    _resized: 10,
    _length: 10,
    _channel: 8,
    _kind: 4,
    _method: 8,
    _size: 2,
    _end: 2,
    _removed: 6,
    _repeated: 6,
    _noise: 1,
}


def frames_of(data: bytes) -> list[bytes]:
    return [each.raw for each in split(data)]
