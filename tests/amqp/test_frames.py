from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.amqp.frames import FrameBuffer, RawFrame
from oxproxy.errors import ProtocolError, Scope
from tests.amqp.test_tables import refusal
from tests.client import frame

LIMIT = 4096
_frames = st.lists(st.tuples(st.sampled_from([1, 2, 3, 8]), st.integers(0, 65535), st.binary(max_size=50)), max_size=6)


def taken(buffer: FrameBuffer) -> list[RawFrame]:
    return list(iter(buffer.next_frame, None))


@given(_frames, st.integers(1, 20), st.binary(max_size=6))
def test_frames_are_read_in_any_chunking(frames: list[tuple[int, int, bytes]], size: int, rest: bytes) -> None:
    data = b"".join(frame(*parts) for parts in frames) + rest
    buffer = FrameBuffer(LIMIT)
    read_frames = []
    for at in range(0, len(data), size):
        buffer.feed(data[at : at + size])
        read_frames += taken(buffer)
    assert read_frames == [RawFrame(*parts, frame(*parts)) for parts in frames]
    assert buffer.peek(len(buffer)) == rest


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (frame(3, 7, bytes(LIMIT - 7))[:7], "4097 bytes on channel 7 is larger than frame_max 4096"),
        *((bytes((kind,)) + bytes(6) + b"\xce", f"unknown frame type {kind} ") for kind in (0, 4, 5, 7, 9, 65, 255)),
        (b"\x01\x00\x00\x00\x00\x00\x01a\xcf", "ends with 207, expected 206"),
    ],
)
def test_invalid_frames_are_refused(data: bytes, text: str) -> None:
    buffer = FrameBuffer(LIMIT)
    buffer.feed(data)
    with pytest.raises(ProtocolError, match=text) as caught:
        taken(buffer)
    assert (caught.value.reply_code, caught.value.scope) == (501, Scope.CONNECTION)
    assert len(buffer) > 0


def test_buffered_input_is_limited() -> None:
    buffer = FrameBuffer(10)
    buffer.feed(bytes(10))
    buffer.check_limit()
    buffer.feed(b"x")
    assert refusal(buffer.check_limit) == (506, Scope.CONNECTION)


def test_bytes_are_peeked_taken_and_discarded() -> None:
    buffer = FrameBuffer(LIMIT)
    buffer.feed(b"AMQPrest")
    assert buffer.peek(4) == b"AMQP"
    assert buffer.take(4) == b"AMQP"
    assert buffer.take(9) == b"rest"
    buffer.feed(b"more")
    buffer.clear()
    assert len(buffer) == 0
