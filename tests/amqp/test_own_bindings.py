"""Tokens bound with a producer's own rights, on the channel that it never sees."""

from __future__ import annotations

from pamqp import commands

from proxy.amqp import methods
from proxy.amqp.own_bindings import bind_frame, bind_step, bind_tokens, unbind_step
from proxy.amqp.tokens import token
from proxy.amqp.vhost import Destination
from tests.amqp.relaying import OWN, Wire, routed, say
from tests.client import names, split

QUEUE: Destination = ("queue", b"mine")
OTHER: Destination = ("exchange", b"theirs")


def test_queues_and_exchanges_are_bound_under_their_tokens() -> None:
    queue, exchange = split(bind_frame(3, b"xo", QUEUE) + bind_frame(3, b"xo", OTHER))
    assert (queue.name, exchange.name) == ("Queue.Bind", "Exchange.Bind")
    assert queue.arguments["routing_key"] == token(*QUEUE).decode()
    assert exchange.arguments["routing_key"] == token(*OTHER).decode()


def test_each_method_says_what_answers_it() -> None:
    assert bind_step(1, b"xo", QUEUE)[1] == methods.QUEUE_BIND_OK
    assert bind_step(1, b"xo", OTHER)[1] == methods.EXCHANGE_BIND_OK
    assert unbind_step(1, b"xo", QUEUE)[1] == methods.QUEUE_UNBIND_OK
    assert unbind_step(1, b"xo", OTHER)[1] == methods.EXCHANGE_UNBIND_OK


def test_what_is_bound_counts_as_bound_and_what_is_refused_has_a_reason() -> None:
    wire = Wire(routed("a")).open()
    conversation = wire.relay._conversation
    owned = wire.state.exchanges[b"xo"]
    refused: dict[Destination, str] = {}
    ended = []
    bind_tokens(conversation, [(owned, QUEUE), (owned, OTHER)], lambda: ended.append(True), refused)
    assert names(wire.upstream()) == ["Channel.Open"]
    wire.answer(say(OWN, commands.Channel.OpenOk()))
    assert names(wire.upstream()) == ["Queue.Bind"]
    wire.answer(say(OWN, commands.Queue.BindOk()))
    assert names(wire.upstream()) == ["Exchange.Bind"]
    assert not ended
    assert wire.answer(say(OWN, commands.Channel.Close(403, "ACCESS_REFUSED - no", 40, 30))) == b""
    assert ended == [True]
    assert QUEUE in owned.bound
    assert OTHER not in owned.bound
    assert "ACCESS_REFUSED" in refused[OTHER]
