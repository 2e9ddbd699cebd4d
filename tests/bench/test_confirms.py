from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from tests.bench.confirms import ConfirmCounter, ConfirmError


def ack(delivery_tag: int, multiple: bool = False) -> bytes:
    return frame.marshal(commands.Basic.Ack(delivery_tag, multiple), 1)


def counted(*parts: bytes) -> int:
    counter = ConfirmCounter()
    for part in parts:
        counter.feed(part)
    return counter.confirmed


@pytest.mark.parametrize(
    "method",
    [
        commands.Basic.Nack(2),
        commands.Basic.Return(312, "NO_ROUTE", "bench", "key"),
        commands.Channel.Close(404, "NOT_FOUND", 60, 40),
    ],
)
def test_anything_that_is_not_an_ack_is_an_error(method: commands.Basic.Nack) -> None:
    with pytest.raises(ConfirmError):
        counted(ack(1) + frame.marshal(method, 1))


@given(st.data())
def test_every_order_and_every_chunking_counts_each_publish_once(data: st.DataObject) -> None:
    tags = data.draw(st.permutations(range(1, 13)))
    stream = b""
    unsettled = set(tags)
    for tag in tags:
        if tag in unsettled:
            multiple = data.draw(st.booleans())
            stream += ack(tag, multiple)
            unsettled -= set(range(1, tag + 1)) if multiple else {tag}
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    edges = [0, *cuts, len(stream)]

    parts = [stream[start:end] for start, end in itertools.pairwise(edges)]

    assert counted(*parts) == 12
