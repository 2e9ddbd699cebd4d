"""Frames: layout, limits, builders, and buffers that extract whole frames from a stream.

The handshake and the links to other brokers use `FrameBuffer`, which buffers received bytes until they are requested.
For speed, the relay reads frames in place and uses `PartialFrame`, which buffers only an incomplete frame.

A frame consists of its type (1 byte), its channel (2 bytes), the size of its payload (4 bytes), the payload, and the
frame-end octet (206). Source: AMQP 0-9-1 spec, 4.2.3 "General frame format".
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from oxproxy.errors import ProtocolError

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 206
#: the head of a frame: type, channel, size
FRAME_HEAD: Final = Struct(">BHI")
#: the fixed part of a content header frame: type, channel, size, class, weight, body size
CONTENT_HEAD: Final = Struct(">BHIHHQ")
#: number of bytes that a frame has in addition to its payload: head and frame-end
OVERHEAD: Final = 8
#: size of the shortest method frame in bytes
LEAST_METHOD_FRAME: Final = 12
#: size of the shortest content header frame in bytes
LEAST_HEADER_FRAME: Final = 22
U16: Final = Struct(">H")
U32: Final = Struct(">I")
U64: Final = Struct(">Q")
#: a whole Basic.Ack frame: type, channel, size, class and method, delivery tag, flags, frame-end
ACK_FRAME: Final = Struct(">BHIIQBB")
#: size of the payload of a Basic.Ack frame
ACK_BYTES: Final = 13
#: Number of bytes by which a frame may exceed frame-max, as on RabbitMQ (FRAME_SIZE_FUDGE in rabbit_reader). Some
#: clients, such as AMQPStorm, split bodies into parts of frame-max bytes, to which they add the head and the frame-end.
FRAME_SIZE_FUDGE: Final = 8
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
#: class id of content headers
BASIC: Final = 60

KINDS: Final = frozenset((METHOD, HEADER, BODY, HEARTBEAT))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def shortstr(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def check_head(kind: int, channel: int, size: int, frame_max: int, fudge: int = 0) -> None:
    """Reject an invalid frame as soon as its head is read, before its payload is buffered.

    Raises:
        ProtocolError: 501 for an unknown type or a frame larger than frame-max (spec, 4.2.3), as on RabbitMQ.
    """
    if kind not in KINDS:
        raise ProtocolError(501, f"unknown frame type {kind} on channel {channel}, expected 1, 2, 3 or 8")
    if size + OVERHEAD > frame_max + fudge:
        raise ProtocolError(
            501, f"frame of {size + OVERHEAD} bytes on channel {channel} is larger than frame_max {frame_max}"
        )


def body_frames(channel: int, body: bytes, frame_max: int) -> list[bytes]:
    """Split a body, or part of a body, into body frames."""
    piece = frame_max - OVERHEAD
    return [frame(BODY, channel, body[at : at + piece]) for at in range(0, len(body), piece)]


class RawFrame(NamedTuple):
    """One whole frame."""

    kind: int
    channel: int
    payload: bytes
    raw: bytes


class PartialFrame:
    """Buffers the parts of an incomplete frame, and joins them only once.

    A frame may be as large as frame-max, and a read returns about 100 KiB. Joining the buffer after each read would
    therefore take quadratic time.
    """

    __slots__ = ("_pieces", "_size", "_whole")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        #: number of bytes needed to continue: the size of the first frame, or of its head if the head is incomplete
        self._whole = 0

    def __len__(self) -> int:
        return self._size

    def keep(self, data: bytes) -> None:
        """Buffer the rest of a read; the buffer must be empty."""
        self._pieces.append(data)
        self._size = size = len(data)
        self._whole = FRAME_HEAD.size if size < FRAME_HEAD.size else FRAME_HEAD.unpack_from(data)[2] + OVERHEAD

    def join(self, data: bytes) -> bytes:
        """Add the bytes of a read; return all buffered bytes if processing can continue, b"" otherwise.

        Processing can continue once the first frame is complete or, if the frame's head was incomplete, once the head
        is complete.
        """
        self._pieces.append(data)
        self._size += len(data)
        return self.take() if self._size >= self._whole else b""

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return data


class FrameBuffer:
    """Extracts whole frames from received bytes.

    Args:
        limit_bytes: maximum number of buffered bytes (506 if exceeded), and maximum size of a frame (501 if exceeded,
            as soon as the length is known).
    """

    __slots__ = ("_limit_bytes", "_waiting")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting = bytearray()

    def __len__(self) -> int:
        return len(self._waiting)

    def feed(self, data: bytes) -> None:
        """Add received bytes; call `check_limit` after taking all whole frames."""
        self._waiting += data

    def peek(self, size: int) -> bytes:
        return bytes(self._waiting[:size])

    def take(self, size: int) -> bytes:
        taken = bytes(self._waiting[:size])
        del self._waiting[:size]
        return taken

    def clear(self) -> None:
        self._waiting.clear()

    def next_frame(self) -> RawFrame | None:
        """Return the next whole frame, or None if it is incomplete.

        Raises:
            ProtocolError: 501: the type is unknown, or the frame is too large or does not end with a frame-end.
        """
        waiting = self._waiting
        if len(waiting) < FRAME_HEAD.size:
            return None
        kind, channel, size = FRAME_HEAD.unpack_from(waiting)
        check_head(kind, channel, size, self._limit_bytes)
        whole = size + OVERHEAD
        if len(waiting) < whole:
            return None
        if waiting[whole - 1] != FRAME_END:
            text = f"frame on channel {channel} ends with {waiting[whole - 1]}, expected {FRAME_END}"
            raise ProtocolError(501, text)
        raw = self.take(whole)
        return RawFrame(kind, channel, raw[FRAME_HEAD.size : -1], raw)

    def check_limit(self) -> None:
        """Reject, with 506, a peer that has sent more bytes than may be buffered."""
        if len(self._waiting) > self._limit_bytes:
            text = f"{len(self._waiting)} bytes are buffered, expected at most {self._limit_bytes}"
            raise ProtocolError(506, text)
