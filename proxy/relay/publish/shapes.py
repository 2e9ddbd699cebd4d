"""Length of the content after a publish, by the fixed part of its header frame; remembered, since few differ.

Source: AMQP 0-9-1 spec, 4.2.6 "Content framing".
"""

from __future__ import annotations

from typing import TypeAlias

from proxy.amqp.frames import BASIC, BODY, CONTENT_HEAD, FRAME_HEAD, HEADER, OVERHEAD

#: A publish up to this size is waited for until it is whole; a larger one streams frame by frame.
WHOLE_BYTES = 65536
#: payload of a content header without any property
LEAST_HEADER = 14

#: bytes of the header frame, of header and body frame together, head of the body frame, body bytes
Shape: TypeAlias = tuple[int, int, bytes, int]
#: content that only the frame-by-frame path can take
_ODD: Shape = (0, 0, b"", 0)


class Shapes(dict[bytes, Shape]):
    """Shapes by the fixed part of a header frame; asking for one that is not there works it out.

    Args:
        frame_max: largest frame in bytes.
        most: shapes remembered.
        largest_body: a larger one is not for the fast path, in bytes.
    """

    __slots__ = ("_frame_max", "_largest_body", "_most")

    def __init__(self, frame_max: int, most: int, largest_body: int = WHOLE_BYTES) -> None:
        """Start with none."""
        super().__init__()
        self._largest_body = largest_body
        self._most = most
        self._frame_max = frame_max

    def __missing__(self, head: bytes) -> Shape:
        """Work out how long the content is, if it is small and regular."""
        if len(head) < CONTENT_HEAD.size:
            return _ODD
        kind, number, size, class_id, _, body_size = CONTENT_HEAD.unpack(head)
        if (
            kind != HEADER
            or class_id != BASIC
            or size < LEAST_HEADER
            or size + body_size > WHOLE_BYTES
            or size + OVERHEAD > self._frame_max
            or body_size + OVERHEAD > self._frame_max
            or body_size > self._largest_body
        ):
            return _ODD
        if len(self) >= self._most:
            self.clear()
        header_bytes = size + OVERHEAD
        if body_size:
            body_head = FRAME_HEAD.pack(BODY, number, body_size)
            shape = (header_bytes, header_bytes + body_size + OVERHEAD, body_head, body_size)
        else:
            shape = (header_bytes, header_bytes, b"", 0)
        self[head] = shape
        return shape


def header_may_come(begun: bytes, head: bytes) -> bool:
    """Whether the few bytes that are there may become a content header frame.

    Args:
        begun: less than `CONTENT_HEAD` is long.
        head: what one on this channel begins with: type and channel at least.
    """
    if not head.startswith(begun[:3]):
        return False
    return len(begun) < FRAME_HEAD.size or bool(FRAME_HEAD.unpack_from(begun)[2] >= LEAST_HEADER)


def whole_may_come(data: bytes, header_at: int, end: int) -> bool:
    """Whether the publish whose header frame begins here is small enough to be taken whole."""
    if end - header_at < CONTENT_HEAD.size:
        return True
    _, _, size, _, _, body_size = CONTENT_HEAD.unpack_from(data, header_at)
    return bool(size + body_size <= WHOLE_BYTES)
