"""Tests confirms and returns of publishes to other brokers, with and without copies on the sidecar's own broker."""

from __future__ import annotations

import pytest
from pamqp import commands

from oxproxy.amqp.properties import header_table
from oxproxy.amqp.tables import pick
from oxproxy.relay.remote_link import RemoteResult
from tests import client
from tests.client import names, split
from tests.producer import headers
from tests.relay.address_table_wire import Linked, to
from tests.relay.wire import REPORT, ack, address_of, closed, publish, routed, say


@pytest.mark.parametrize("result", [RemoteResult.NACKED, RemoteResult.LOST])
def test_every_result_except_an_ack_is_a_nack(result: RemoteResult) -> None:
    wire = Linked()
    wire.produce(to("out/q"))
    wire.remotes.settle(result)
    assert names(wire.producer()) == ["Basic.Nack"]


@pytest.mark.parametrize("home_first", [True, False])
def test_a_publish_of_several_copies_is_acked_when_all_are(home_first: bool) -> None:
    wire = Linked(routed("q", "away"))
    assert names(wire.produce(publish("k"))) == ["Basic.Publish", "Header", "Body"]
    if home_first:
        assert wire.answer(ack(1)) == b""
        wire.remotes.settle()
        assert names(wire.producer()) == ["Basic.Ack"]
    else:
        wire.remotes.settle()
        assert wire.producer() == b""
        assert names(wire.answer(ack(1))) == ["Basic.Ack"]


def test_one_lost_copy_is_a_nack() -> None:
    wire = Linked(routed("q", "away"))
    wire.produce(publish("k"))
    wire.remotes.settle(RemoteResult.LOST)
    assert names(wire.answer(ack(1))) == ["Basic.Nack"]


@pytest.mark.parametrize("returned_at_home", [True, False])
def test_a_return_is_sent_when_all_copies_are_returned(returned_at_home: bool) -> None:
    wire = Linked(routed("q", "away"))
    sent = split(wire.produce(publish("k", mandatory=True)))
    content = sent[1].raw + sent[2].raw
    wire.remotes.settle(RemoteResult.RETURNED)
    assert wire.producer() == b""
    if returned_at_home:
        output = wire.answer(say(1, commands.Basic.Return(312, "NO_ROUTE", "xo", "k")), content, ack(1))
        assert names(output) == ["Basic.Return", "Header", "Body", "Basic.Ack"]
    else:
        assert names(wire.answer(ack(1))) == ["Basic.Ack"]


def test_without_confirms_a_lost_message_is_only_counted_unless_it_is_mandatory() -> None:
    wire = Linked(confirm=False)
    wire.produce(to("out/q"), to("out/q", mandatory=True))
    wire.remotes.settle(RemoteResult.LOST)
    assert wire.producer() == b""
    wire.remotes.settle(RemoteResult.LOST)
    assert names(wire.producer()) == ["Basic.Return", "Header", "Body"]


def test_a_transaction_can_not_span_brokers() -> None:
    wire = Linked(confirm=False)
    wire.produce(say(1, commands.Tx.Select()))
    wire.answer(say(1, commands.Tx.SelectOk()))
    assert names(wire.produce(to("here/q"))) == ["Basic.Publish", "Header", "Body"]
    wire.produce(to("out/q"))
    assert closed(wire.refused())[1] == 406
    assert wire.remotes == []


def test_a_body_that_is_too_large_to_buffer_is_refused() -> None:
    wire = Linked()
    size = wire.relay.connection.terms.limits.replay_bytes + 1
    wire.produce(to("out/q", b"x" * size))
    assert closed(wire.refused())[1] == 311


@pytest.mark.parametrize("end", ["channel", "connection", "lost"])
def test_results_after_the_end_of_a_channel_are_ignored_and_its_publishers_closed(end: str) -> None:
    wire = Linked()
    wire.produce(to("out/q"), to("two"))
    if end == "channel":
        wire.produce(say(1, commands.Channel.Close(200, "", 0, 0)))
        wire.answer(say(1, commands.Channel.CloseOk()))
        wire.open(confirm=True)
    elif end == "connection":
        wire.produce(client.method(0, commands.Connection.Close(200, "", 0, 0)))
        wire.answer(client.method(0, commands.Connection.CloseOk()))
    else:
        wire.relay.ended()
    wire.producer()
    wire.remotes.settle()
    wire.remotes.settle()
    assert wire.producer() == b""
    assert wire.remotes.left == 2


def test_delivery_tags_of_both_brokers_are_distinguished() -> None:
    wire = Linked()
    wire.produce(to("a"), to("out/1"), to("b"), to("out/2"))
    wire.remotes[1].settled(RemoteResult.ACKED)
    assert [frame.arguments["delivery_tag"] for frame in split(wire.producer())] == [4]
    assert [frame.arguments["delivery_tag"] for frame in split(wire.answer(ack(2, multiple=True)))] == [1, 3]
    wire.remotes[0].settled(RemoteResult.NACKED)
    assert [(frame.name, frame.arguments["delivery_tag"]) for frame in split(wire.producer())] == [("Basic.Nack", 2)]
    assert wire.relay.connection.unsettled == 0


@pytest.mark.parametrize("confirm", [True, False])
def test_a_mandatory_publish_is_returned_with_its_original_address(confirm: bool) -> None:
    wire = Linked(confirm=confirm)
    data = to("out/q", mandatory=True)
    wire.produce(data)
    wire.remotes.settle(RemoteResult.RETURNED)
    back, header, body, *more = split(wire.producer())
    assert (back.name, address_of(back)) == ("Basic.Return", ("", "out/q"))
    assert [header.raw, body.raw] == [frame.raw for frame in split(data)[1:]]
    assert [frame.name for frame in more] == ["Basic.Ack"] * confirm


def test_a_confirm_waits_for_the_end_of_a_content_to_the_producer() -> None:
    wire = Linked()
    wire.produce(to("out/q"))
    header, body = split(client.content(1, None, b"x" * 10))
    wire.answer(say(1, commands.Basic.Deliver("c", 1, False, "", "q")), header.raw)
    wire.remotes.settle()
    assert wire.producer() == b""
    output = wire.answer(body.raw)
    assert names(output) == ["Body", "Basic.Ack"]


def _names_of(header: bytes) -> list[bytes]:
    whole = client.frame(2, 1, header)
    _, first, last = header_table(whole)
    return [name for name, _ in pick(whole, first, last, None)]


def test_another_broker_does_not_route_by_cc_and_bcc_of_a_publish_to_an_evaluated_exchange() -> None:
    wire = Linked(routed("away"))
    keys = headers({"CC": ["secret"], "BCC": ["other"]})
    for _ in range(2):  # the second publish takes the fast path
        wire.produce(publish("k", (*REPORT, *keys)))
    assert [_names_of(message.header) for message in wire.remotes] == [
        [b"type", b"x-original-cc", b"x-original-address"]
    ] * 2
    wire.produce(publish("out/q", keys, to=""))
    assert _names_of(wire.remotes[2].header) == [b"CC", b"BCC", b"x-original-address"]


def test_a_forged_original_address_is_removed_although_the_address_stays_the_same() -> None:
    wire = Linked()
    forged = headers({"x-original-address": {"exchange": "", "routing-key": "k"}, "a": 1})
    wire.produce(publish("same/x", forged, to=""), publish("same/x", headers({"a": 1}), to=""))
    assert [_names_of(message.header) for message in wire.remotes] == [[b"a"], [b"a"]]


def test_without_confirms_a_return_is_not_attributed_to_an_equal_publish_that_another_broker_routed() -> None:
    wire = Linked(routed("q", "away"), confirm=False)
    wire.produce(publish("k", mandatory=True))
    wire.remotes.settle(RemoteResult.ACKED)
    assert wire.producer() == b""
    sent = split(wire.produce(publish("k", mandatory=True)))
    home = wire.answer(say(1, commands.Basic.Return(312, "NO_ROUTE", "xo", "k")), sent[1].raw + sent[2].raw)
    assert home == b""
    wire.remotes.settle(RemoteResult.RETURNED)
    assert names(wire.producer()) == ["Basic.Return", "Header", "Body"]


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
