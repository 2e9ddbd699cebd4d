"""How is a stream of bytes cut into AMQP frames? Constants, structs and builders; no state.

AMQP 0-9-1 spec, 4.2.3: type (1 byte), channel (2), size (4), payload, frame-end (206).
"""

from __future__ import annotations

from struct import Struct

from proxy.errors import ProtocolError

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 206
#: type, channel, size
FRAME_HEAD = Struct(">BHI")
#: type, channel, size, class, weight, body size: the fixed part of a content header frame
CONTENT_HEAD = Struct(">BHIHHQ")
#: bytes of a frame around its payload: head and frame-end
OVERHEAD = 8
U16 = Struct(">H")
U32 = Struct(">I")
U64 = Struct(">Q")
#: Bytes above frame-max that RabbitMQ tolerates in a frame (FRAME_SIZE_FUDGE of its rabbit_reader), and so do we: there
#: are clients, such as AMQPStorm, that cut bodies into pieces of frame-max.
FRAME_SIZE_FUDGE = 8
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
BASIC = 60

#: frame types
KINDS = frozenset((METHOD, HEADER, BODY, HEARTBEAT))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Build one frame around a payload."""
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def shortstr(text: bytes) -> bytes:
    """Encode a short string (at most 255 bytes)."""
    return bytes((len(text),)) + text


def check_head(kind: int, channel: int, size: int, frame_max: int, fudge: int = 0) -> None:
    """Refuse a frame as soon as its head is read, before anything of it is buffered.

    Args:
        kind: frame type.
        channel: channel number.
        size: announced payload size in bytes.
        frame_max: largest whole frame agreed on, in bytes.
        fudge: bytes above it that are tolerated.

    Raises:
        ProtocolError: 501 for an unknown type or a frame above frame-max (spec, 4.2.3; RabbitMQ answers the same).
    """
    if kind not in KINDS:
        raise ProtocolError(501, f"unknown frame type {kind} on channel {channel}, expected 1, 2, 3 or 8")
    if size + OVERHEAD > frame_max + fudge:
        raise ProtocolError(
            501, f"frame of {size + OVERHEAD} bytes on channel {channel} is larger than frame_max {frame_max}"
        )


def body_frames(channel: int, body: bytes, frame_max: int) -> list[bytes]:
    """Cut a body (or a piece of one) into body frames.

    Args:
        channel: channel number.
        body: bytes to send, possibly empty (then no frame).
        frame_max: largest whole frame in bytes.
    """
    piece = frame_max - OVERHEAD
    return [frame(BODY, channel, body[at : at + piece]) for at in range(0, len(body), piece)]
