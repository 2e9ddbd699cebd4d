from __future__ import annotations

import pytest

from proxy.amqp.frames import HEARTBEAT_FRAME, body_frames, frame, shortstr
from tests import client
from tests.client import split


def test_frame_is_what_an_independent_client_builds() -> None:
    assert frame(1, 513, b"payload") == client.frame(1, 513, b"payload")
    assert HEARTBEAT_FRAME == client.HEARTBEAT


def test_shortstr_is_its_length_and_its_bytes() -> None:
    assert shortstr(b"") == b"\0"
    assert shortstr(b"k" * 255) == b"\xff" + b"k" * 255


@pytest.mark.parametrize(("size", "sizes"), [(0, []), (1, [1]), (8, [8]), (9, [8, 1]), (24, [8, 8, 8])])
def test_a_body_is_split_into_the_fewest_frames(size: int, sizes: list[int]) -> None:
    body = bytes(range(size))
    frames = split(b"".join(body_frames(5, body, 16)))
    assert [len(frame.payload) for frame in frames] == sizes
    assert {(frame.kind, frame.channel) for frame in frames} <= {(3, 5)}
    assert b"".join(frame.payload for frame in frames) == body
