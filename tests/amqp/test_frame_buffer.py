from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.amqp.frames import FrameBuffer, RawFrame
from proxy.errors import ProtocolError
from tests.client import frame

LIMIT = 4096
_frames = st.lists(st.tuples(st.sampled_from([1, 2, 3, 8]), st.integers(0, 65535), st.binary(max_size=50)), max_size=6)


def taken(buffer: FrameBuffer) -> list[RawFrame]:
    return list(iter(buffer.next_frame, None))


@given(_frames, st.integers(1, 20), st.binary(max_size=6))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    frames: list[tuple[int, int, bytes]], size: int, rest: bytes
) -> None:
    data = b"".join(frame(*one) for one in frames) + rest
    buffer = FrameBuffer(LIMIT)
    found = []
    for at in range(0, len(data), size):
        buffer.feed(data[at : at + size])
        found += taken(buffer)
    assert found == [RawFrame(*one, frame(*one)) for one in frames]
    assert buffer.peek(len(buffer)) == rest


def test_largest_frame_passes_and_one_byte_more_is_refused_by_its_head_alone() -> None:
    buffer = FrameBuffer(LIMIT)
    buffer.feed(frame(3, 1, bytes(LIMIT - 8)))
    assert len(taken(buffer)) == 1
    buffer.feed(frame(3, 1, bytes(LIMIT - 7))[:7])
    with pytest.raises(ProtocolError) as refused:
        buffer.next_frame()
    assert refused.value.reply_code == 501


@pytest.mark.parametrize("data", [b"\x09\x00\x00\x00\x00\x00\x00\xce", b"\x01\x00\x00\x00\x00\x00\x01a\xcf"])
def test_unknown_type_and_wrong_frame_end_are_a_501(data: bytes) -> None:
    buffer = FrameBuffer(LIMIT)
    buffer.feed(data)
    with pytest.raises(ProtocolError) as refused:
        buffer.next_frame()
    assert refused.value.reply_code == 501


def test_what_waits_is_limited() -> None:
    buffer = FrameBuffer(10)
    buffer.feed(bytes(10))
    buffer.check_limit()
    buffer.feed(b"x")
    with pytest.raises(ProtocolError) as refused:
        buffer.check_limit()
    assert refused.value.reply_code == 506


def test_bytes_are_looked_at_taken_and_forgotten() -> None:
    buffer = FrameBuffer(LIMIT)
    buffer.feed(b"AMQPrest")
    assert buffer.peek(4) == b"AMQP"
    assert buffer.take(4) == b"AMQP"
    assert buffer.take(9) == b"rest"
    buffer.feed(b"more")
    buffer.clear()
    assert len(buffer) == 0
