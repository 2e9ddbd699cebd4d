from __future__ import annotations

import pytest

from tests import client
from tests.client import split
from tests.relay.address_table_wire import Linked, to
from tests.relay.wire import ack, closed


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_publish_goes_to_the_other_broker_only_and_is_acked_when_that_one_acks(count: int) -> None:
    wire = Linked()
    assert wire.produce(*[to("out/q", b"%d" % number) for number in range(count)]) == b""
    assert [(message.exchange, message.routing_key, message.body) for message in wire.remotes] == [
        (b"", b"q", b"%d" % number) for number in range(count)
    ]
    assert wire.producer() == b""
    for _ in range(count):
        wire.remotes.settle()
    acks = split(wire.producer())
    assert [frame.arguments["delivery_tag"] for frame in acks] == list(range(1, count + 1))
    assert wire.remotes.woken == count


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_remote_publish_does_not_depend_on_chunking(cut: int) -> None:
    whole, pieces = Linked(), Linked()
    data = to("out/q") * 4
    whole.produce(data)
    for at in range(0, len(data), cut):
        pieces.produce(data[at : at + cut])
    assert [(message.header, message.body) for message in pieces.remotes] == [
        (message.header, message.body) for message in whole.remotes
    ]
    assert len(whole.remotes) == 4


def test_a_publish_with_the_same_name_on_another_broker_is_sent_unchanged() -> None:
    wire = Linked()
    data = to("same/q")
    wire.produce(data, data)
    header = split(data)[1]
    assert [message.header for message in wire.remotes] == [header.payload] * 2


def test_mandatory_publishes_are_sent_equally_frame_by_frame() -> None:
    wire = Linked()
    wire.produce(to("out/q"), to("out/q", mandatory=True), to("out/q"))
    assert [message.mandatory for message in wire.remotes] == [False, True, False]
    assert len({message.header for message in wire.remotes}) == 1


def test_a_malformed_header_ends_the_connection_on_both_paths() -> None:
    wire = Linked()
    wire.produce(to("out/q"))
    method, header, body = split(to("out/q"))
    spoilt = client.frame(2, 1, header.payload[:14] + b"\xff\xff\xff\xff" + header.payload[18:])
    wire.produce(method.raw, spoilt, body.raw)
    assert closed(wire.producer())[:2] == (0, 502)
    assert len(wire.remotes) == 1


@pytest.mark.parametrize("properties", [b"\0\0\0\7\1nf\x7f\xc0\0\0", b"\0\0\0\6\1aA\0\0\0\1U", b"\0\0\0\0\1"])
@pytest.mark.parametrize("mandatory", [True, False])
def test_a_header_that_a_broker_cannot_decode_ends_only_the_producers_connection(
    properties: bytes, mandatory: bool
) -> None:
    wire = Linked()
    method, header, body = split(to("out/q", mandatory=mandatory))
    spoilt = client.frame(2, 1, header.payload[:12] + b"\x20\0" + properties)
    wire.produce(method.raw, spoilt, body.raw)
    assert closed(wire.producer())[:2] == (0, 502)
    assert wire.remotes == []


def test_remote_publishes_keep_their_order_among_local_ones() -> None:
    wire = Linked()
    for _ in range(2):
        left = wire.produce(to("out/q"), to("a", b"1"), to("out/q"), to("out/q"), to("b", b"2"))
        assert [frame.payload for frame in split(left) if frame.kind == 3] == [b"1", b"2"]
    assert len(wire.remotes) == 6
    assert [frame.arguments["delivery_tag"] for frame in split(wire.answer(ack(4, multiple=True)))] == [2, 5, 7, 10]


@pytest.mark.parametrize("confirm", [True, False])
def test_an_immediate_publish_is_refused_as_by_the_broker(confirm: bool) -> None:
    wire = Linked(confirm=confirm)
    method, header, body = split(to("out/q"))
    immediate = method.payload[:-1] + bytes((method.payload[-1] | 2,))
    wire.produce(client.frame(1, 1, immediate), header.raw, body.raw)
    assert closed(wire.producer())[:2] == (0, 540)
    assert wire.remotes == []
