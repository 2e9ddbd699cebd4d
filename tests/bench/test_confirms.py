from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame, heartbeat

from tests.bench.confirms import ConfirmCounter, ConfirmError


def ack(delivery_tag: int, multiple: bool = False) -> bytes:
    return frame.marshal(commands.Basic.Ack(delivery_tag, multiple), 1)


def counted(*parts: bytes) -> int:
    counter = ConfirmCounter()
    for part in parts:
        counter.feed(part)
    return counter.confirmed


def test_single_acks_count_one_each_in_any_order() -> None:
    assert counted(ack(3) + ack(1)) == 2
    assert counted(ack(3) + ack(1) + ack(2)) == 3


def test_a_multiple_ack_counts_everything_up_to_it_once() -> None:
    assert counted(ack(2) + ack(7) + ack(5, multiple=True)) == 6
    assert counted(ack(5, multiple=True) + ack(6)) == 6


def test_an_ack_that_comes_in_two_pieces_counts_when_it_is_whole() -> None:
    whole = ack(1)
    counter = ConfirmCounter()

    counter.feed(whole[:9])
    before = counter.confirmed
    counter.feed(whole[9:])

    assert (before, counter.confirmed) == (0, 1)


def test_heartbeats_between_acks_are_stepped_over() -> None:
    beat = heartbeat.Heartbeat().marshal()

    assert counted(ack(1) + beat + ack(2) + beat) == 2


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
