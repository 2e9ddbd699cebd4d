from __future__ import annotations

import pytest

from proxy.relay.publish.shapes import Shapes
from tests import client


def head(body: int, frame_max: int = 131072) -> bytes:
    return client.content_header(1, body)[:19]


def test_the_length_of_a_content_follows_from_the_fixed_part_of_its_header() -> None:
    content = client.content(1, None, b"body")
    header_bytes, content_bytes, body_head, body_size = Shapes(4096, 8)[content[:19]]
    assert content_bytes == len(content)
    assert content[header_bytes:].startswith(body_head)
    assert body_size == 4


def test_an_empty_body_has_no_frame() -> None:
    assert Shapes(4096, 8)[head(0)] == (22, 22, b"", 0)


@pytest.mark.parametrize("odd", [b"", head(0)[:18], head(5000), b"\x01" + head(4)[1:], client.frame(2, 1, b"x" * 12)])
def test_what_is_not_small_and_regular_is_odd_and_not_kept(odd: bytes) -> None:
    shapes = Shapes(4096, 8)
    assert shapes[odd[:19]] == (0, 0, b"", 0)
    assert not shapes


def test_so_many_are_remembered_and_no_more() -> None:
    shapes = Shapes(4096, 3)
    for size in range(10):
        assert shapes[head(size)][3] == size
        assert len(shapes) <= 3


def test_a_body_above_the_limit_is_left_to_the_path_that_can_refuse_it() -> None:
    shapes = Shapes(4096, 8, largest_body=100)
    assert shapes[head(100)][3] == 100
    assert shapes[head(101)] == (0, 0, b"", 0)
