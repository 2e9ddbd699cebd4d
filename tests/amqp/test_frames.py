from __future__ import annotations

import pytest

from proxy.amqp.frames import HEARTBEAT_FRAME, KINDS, OVERHEAD, body_frames, check_head, frame, shortstr
from proxy.errors import ProtocolError, Scope
from tests import client
from tests.client import split


def test_frame_is_what_an_independent_client_builds() -> None:
    assert frame(1, 513, b"payload") == client.frame(1, 513, b"payload")
    assert HEARTBEAT_FRAME == client.HEARTBEAT


def test_shortstr_is_its_length_and_its_bytes() -> None:
    assert shortstr(b"") == b"\0"
    assert shortstr(b"k" * 255) == b"\xff" + b"k" * 255


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_frame_of_maximum_size_is_accepted(kind: int) -> None:
    check_head(kind, 1, 4096 - OVERHEAD, 4096)


def test_a_frame_one_byte_larger_is_refused_at_its_header() -> None:
    with pytest.raises(ProtocolError, match="4097 bytes on channel 7 is larger than frame_max 4096") as caught:
        check_head(3, 7, 4096 - OVERHEAD + 1, 4096)
    assert (caught.value.reply_code, caught.value.scope) == (501, Scope.CONNECTION)


@pytest.mark.parametrize("kind", [0, 4, 5, 7, 9, 65, 255])
def test_unknown_frame_type_is_a_frame_error(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"unknown frame type {kind}") as caught:
        check_head(kind, 1, 0, 4096)
    assert caught.value.reply_code == 501


@pytest.mark.parametrize(("size", "sizes"), [(0, []), (1, [1]), (8, [8]), (9, [8, 1]), (24, [8, 8, 8])])
def test_a_body_is_split_into_the_fewest_frames(size: int, sizes: list[int]) -> None:
    body = bytes(range(size))
    frames = split(b"".join(body_frames(5, body, 16)))
    assert [len(frame.payload) for frame in frames] == sizes
    assert {(frame.kind, frame.channel) for frame in frames} <= {(3, 5)}
    assert b"".join(frame.payload for frame in frames) == body
