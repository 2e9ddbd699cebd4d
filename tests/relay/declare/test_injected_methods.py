"""Methods of ours on a client's channel: the client's frames wait, and it gets one answer."""

from __future__ import annotations

from functools import partial

from pamqp import commands

from proxy.relay.declare.injected_methods import inject, inject_and_reply, is_held
from tests.client import queue_bind, split
from tests.relay.wire import Wire, publish, say

FIRST, SECOND = queue_bind(1, b"a", b"e", b"1"), queue_bind(1, b"a", b"e", b"2")
BIND_OK = say(1, commands.Queue.BindOk())
ANSWER = say(1, commands.Exchange.DeclareOk())


def running(*steps: bytes, answer: bytes = ANSWER) -> Wire:
    wire = Wire().open()
    connection = wire.relay.connection
    channel = connection.channels[1]
    inject_and_reply(connection, channel, steps, lambda: answer)
    return wire


def test_all_methods_leave_at_once_and_the_last_answer_ends_it() -> None:
    wire = running(FIRST, SECOND)
    assert wire.upstream() == FIRST + SECOND
    assert wire.answer(BIND_OK) == b""
    assert wire.answer(BIND_OK) == ANSWER


def test_the_clients_frames_wait_and_then_leave_in_order() -> None:
    wire = running(FIRST)
    wire.upstream()
    messages = [publish(f"k{number}", to="amq.direct") for number in range(3)]
    assert wire.produce(*messages) == b""
    assert wire.answer(BIND_OK) == ANSWER
    assert wire.upstream() == b"".join(messages)


def test_other_channels_do_not_wait() -> None:
    wire = running(FIRST).open(2)
    message = publish(channel=2, to="amq.direct")
    assert wire.produce(message) == message


def test_without_methods_the_client_gets_its_answer_behind_those_it_waits_for() -> None:
    wire = Wire().open()
    wire.produce(say(1, commands.Basic.Qos(prefetch_count=1)))
    connection = wire.relay.connection
    inject_and_reply(connection, connection.channels[1], [], lambda: ANSWER)
    (frame,) = split(wire.upstream())
    assert (frame.name, frame.arguments["passive"]) == ("Exchange.Declare", True)
    qos_ok = say(1, commands.Basic.QosOk())
    assert wire.answer(qos_ok) == qos_ok
    assert wire.answer(ANSWER) == ANSWER


def test_what_follows_may_run_further_methods() -> None:
    wire = Wire().open()
    connection = wire.relay.connection
    channel = connection.channels[1]
    steps = [FIRST]
    again = partial(inject_and_reply, connection, channel, [SECOND], lambda: ANSWER)
    inject(connection, channel, steps, again)
    assert wire.upstream() == FIRST
    assert wire.answer(BIND_OK) == b""
    assert wire.upstream() == SECOND
    assert wire.answer(BIND_OK) == ANSWER


def test_a_channel_is_held_until_it_goes_on_or_ends() -> None:
    wire = running(FIRST)
    connection = wire.relay.connection
    channel = connection.channels[1]
    assert is_held(channel)
    wire.answer(say(1, commands.Channel.Close(403, "ACCESS_REFUSED - no", 50, 20)))
    assert not is_held(channel)


def test_a_refusal_is_the_brokers_own_and_ends_the_wait() -> None:
    wire = running(FIRST)
    wire.upstream()
    wire.produce(publish(to="amq.direct"))
    refusal = say(1, commands.Channel.Close(403, "ACCESS_REFUSED - no", 50, 20))
    assert wire.answer(refusal) == refusal
    assert wire.produce(say(1, commands.Channel.CloseOk())) == say(1, commands.Channel.CloseOk())
    assert wire.upstream() == b""
