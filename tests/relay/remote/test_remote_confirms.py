from __future__ import annotations

import pytest
from pamqp import commands

from proxy.relay.remote.lane import RemoteResult
from tests import client
from tests.client import names, split
from tests.relay.address_table_wire import Linked, to
from tests.relay.wire import ack, address_of, say


def test_tags_of_both_brokers_are_told_apart() -> None:
    wire = Linked()
    wire.produce(to("a"), to("out/1"), to("b"), to("out/2"))
    wire.remotes[1].settled(RemoteResult.ACKED, "")
    assert [frame.arguments["delivery_tag"] for frame in split(wire.producer())] == [4]
    assert [frame.arguments["delivery_tag"] for frame in split(wire.answer(ack(2, multiple=True)))] == [1, 3]
    wire.remotes[0].settled(RemoteResult.NACKED, "")
    assert [(frame.name, frame.arguments["delivery_tag"]) for frame in split(wire.producer())] == [("Basic.Nack", 2)]
    assert wire.relay.connection.unsettled == 0


@pytest.mark.parametrize("confirm", [True, False])
def test_a_mandatory_publish_comes_back_as_it_was_addressed(confirm: bool) -> None:
    wire = Linked(confirm=confirm)
    data = to("out/q", mandatory=True)
    wire.produce(data)
    wire.remotes.settle(RemoteResult.RETURNED)
    back, header, body, *more = split(wire.producer())
    assert (back.name, address_of(back)) == ("Basic.Return", ("", "out/q"))
    assert [header.raw, body.raw] == [frame.raw for frame in split(data)[1:]]
    assert [frame.name for frame in more] == ["Basic.Ack"] * confirm


def test_a_confirm_waits_for_the_end_of_a_content_on_its_way_to_the_producer() -> None:
    wire = Linked()
    wire.produce(to("out/q"))
    header, body = split(client.content(1, None, b"x" * 10))
    wire.answer(say(1, commands.Basic.Deliver("c", 1, False, "", "q")), header.raw)
    wire.remotes.settle()
    assert wire.producer() == b""
    told = wire.answer(body.raw)
    assert names(told) == ["Body", "Basic.Ack"]
