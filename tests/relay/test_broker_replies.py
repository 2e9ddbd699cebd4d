from __future__ import annotations

import pytest
from pamqp import commands

from proxy.relay.connection_state import EnsureDestination, Phase
from proxy.relay.tokens import token
from tests.client import method, names, split
from tests.relay.wire import (
    DECLARE,
    DECLARED,
    GOODBYE,
    GOODBYE_OK,
    OWN,
    OWN_BIND_OK,
    OWN_OPEN_OK,
    QueueEvents,
    Wire,
    ack,
    chosen,
    owned,
    publish,
    routed,
    say,
    state,
    with_tokens,
)
from tests.routing.building import exchange, to_queue

FORCED = method(0, commands.Connection.Close(320, "CONNECTION_FORCED - broker forced connection closure", 0, 0))


# -- tokens of declared queues ----------------------------------------------------------------------------------------


def test_a_queue_that_rules_name_gets_its_tokens_before_the_declare_ok() -> None:
    wire = Wire(routed("q"), events=QueueEvents([b"q"])).open()
    wire.produce(DECLARE)
    assert wire.answer(DECLARED) == b""
    assert wire.events == [("declared", ("queue", b"q"), False)]
    wire.relay.answer(wire.request())
    assert wire.producer() == DECLARED


def exclusive(wire: Wire, queue: str = "q") -> Wire:
    """Declare an exclusive queue; its declare-ok is held, and the sidecar's own channel is open."""
    wire.open()
    wire.produce(say(1, commands.Queue.Declare(0, queue, exclusive=True)))
    assert wire.answer(say(1, commands.Queue.DeclareOk(queue, 0, 0))) == b""
    assert names(wire.upstream()) == ["Channel.Open"]
    assert wire.answer(OWN_OPEN_OK) == b""
    return wire


def test_an_exclusive_queue_is_bound_on_the_sidecars_channel_before_declare_ok() -> None:
    wire = exclusive(Wire(routed("q", bound=()), events=QueueEvents([b"q"])))
    (bind,) = split(wire.upstream())
    assert (bind.channel, bind.arguments["queue"], bind.arguments["exchange"]) == (OWN, "q", "xo")
    assert bind.arguments["routing_key"] == token("queue", b"q").decode()
    assert wire.answer(OWN_BIND_OK) == DECLARED
    message = publish()
    assert wire.produce(message) == with_tokens(message, "q")


def test_an_exclusive_queue_is_bound_to_every_carrier_that_names_it() -> None:
    first, second = exchange(to_queue("q"), name="one"), exchange(to_queue("q"), name="other")
    third = exchange(to_queue("else"), name="third")
    of = state(*((made, owned(made, bound=())) for made in (first, second, third)))
    wire = exclusive(Wire(of, events=QueueEvents([b"q"])))
    assert split(wire.upstream())[0].arguments["exchange"] == "one"
    assert wire.answer(OWN_BIND_OK) == b""
    assert split(wire.upstream())[0].arguments["exchange"] == "other"
    assert wire.answer(OWN_BIND_OK) == DECLARED


def test_a_refused_bind_of_the_sidecar_is_a_missing_destination() -> None:
    wire = exclusive(Wire(routed("q", bound=()), events=QueueEvents([b"q"])))
    wire.upstream()
    refusal = commands.Channel.Close(403, "ACCESS_REFUSED - no", 50, 20)
    assert wire.answer(say(OWN, refusal)) == DECLARED
    assert wire.state.missing == {("queue", b"q"): "403 ACCESS_REFUSED - no"}
    assert names(wire.upstream()) == ["Channel.CloseOk"]
    message = publish()
    assert wire.produce(message) == message


def test_a_passive_declare_of_a_bound_queue_is_answered_immediately() -> None:
    wire = Wire(routed("q"), events=QueueEvents([b"q"])).open()
    wire.produce(say(1, commands.Queue.Declare(0, "q", passive=True, exclusive=True)))
    assert wire.answer(DECLARED) == DECLARED
    assert (wire.relay.connection.pending.requests, wire.upstream()) == ([], b"")


def test_replies_are_matched_to_requests_in_order() -> None:
    wire = Wire(routed("q"), events=QueueEvents([b"q"])).open()
    bind, delete = say(1, commands.Queue.Bind(0, "x", "e", "k")), say(1, commands.Queue.Delete(0, "x"))
    assert wire.produce(bind, DECLARE, delete) == bind + DECLARE
    bound = say(1, commands.Queue.BindOk(), commands.Basic.QosOk())
    assert wire.answer(bound, DECLARED) == bound
    assert wire.events == [("declared", ("queue", b"q"), False)]
    assert wire.control() == delete
    deleted = say(1, commands.Queue.DeleteOk(0))
    assert wire.answer(deleted) == DECLARED + deleted
    assert wire.events[1:] == [("deleted", b"x")]


# -- confirms and returns ---------------------------------------------------------------------------------------------


def test_a_confirm_is_timed() -> None:
    wire = Wire().open(confirm=True)
    wire.now = 5.0
    wire.produce(publish(), publish())
    wire.now = 5.003
    wire.answer(ack(2, True))
    assert wire.counters.confirm_seconds.total_seconds == pytest.approx(0.003)


# -- closing the connection -------------------------------------------------------------------------------------------


def test_a_close_of_the_broker_and_its_close_ok_are_forwarded_unchanged() -> None:
    wire = Wire().open()
    assert wire.answer(FORCED) == FORCED
    assert wire.counters.relays["/"].channels == 0
    assert wire.produce(publish(), GOODBYE_OK) == GOODBYE_OK
    assert wire.relay.connection.lifecycle.phase is Phase.CLOSED


def test_a_close_of_the_broker_during_a_held_connection_close_ends_both_sides() -> None:
    wire = Wire(chosen("new")).open()
    assert wire.produce(publish("new"), GOODBYE) == b""
    assert wire.answer(FORCED) == GOODBYE_OK
    assert wire.upstream() == GOODBYE_OK
    assert wire.relay.connection.lifecycle.phase is Phase.CLOSED


# -- blocked ----------------------------------------------------------------------------------------------------------


def test_blocked_and_unblocked_reach_the_producer_and_the_gauge() -> None:
    wire = Wire()
    counters = wire.counters.relays["/"]
    blocked, unblocked = (
        method(0, commands.Connection.Blocked("low on memory")),
        method(0, commands.Connection.Unblocked()),
    )
    gauge = []
    for frame in (blocked, blocked, unblocked, unblocked, blocked):
        assert wire.answer(frame) == frame
        gauge.append(counters.upstream_blocked)
    wire.relay.ended()
    wire.relay.ended()
    assert [*gauge, counters.upstream_blocked] == [1, 1, 0, 0, 1, 0]


def test_an_unexpected_close_ok_is_ignored() -> None:
    wire = Wire().open()
    message = publish(to="other")
    size = len(message) - len(b"body") - 8  # all frames except the body frame
    begun = wire.produce(message[:size])
    assert wire.answer(say(1, commands.Channel.CloseOk())) == b""
    assert begun + wire.produce(message[size:]) == message


def test_a_queue_that_the_broker_named_is_known_by_that_name() -> None:
    wire = Wire(routed("amq.gen-1"), events=QueueEvents([b"amq.gen-1"])).open()
    wire.produce(say(1, commands.Queue.Declare(0, "")))
    wire.answer(say(1, commands.Queue.DeclareOk("amq.gen-1", 0, 0)))
    request = wire.request()
    assert isinstance(request, EnsureDestination)
    assert request.destination == ("queue", b"amq.gen-1")
