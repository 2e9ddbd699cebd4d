from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from oxproxy.relay.connection_state import AHEAD_MESSAGES, STREAMED_DELIVERIES, Phase
from oxproxy.relay.vhost import Delivery, VhostState
from oxproxy.values import Value
from tests.client import HEARTBEAT, content, cut, frame, method, split
from tests.relay.wire import (
    GOODBYE,
    GOODBYE_OK,
    REPORT,
    TUNING,
    QueueEvents,
    Wire,
    ack,
    chosen,
    closed,
    nack,
    publish,
    routed,
    say,
    several,
    with_tokens,
)

# -- a lost upstream --------------------------------------------------------------------------------------------------


def test_a_lost_upstream_is_reported_with_320_immediately() -> None:
    wire = Wire(routed("a")).open(confirm=True)
    wire.produce(publish())
    wire.relay.upstream_lost("upstream connection lost")
    assert closed(wire.producer()) == (0, 320, "CONNECTION_FORCED - upstream connection lost", (0, 0))
    assert wire.upstream() == b""
    assert wire.produce(publish(), GOODBYE_OK) == b""
    assert (wire.relay.connection.lifecycle.phase, wire.relay.connection.lifecycle.fault) == (Phase.CLOSED, None)


def test_a_held_connection_close_is_answered_if_the_upstream_is_lost() -> None:
    wire = Wire(chosen("new")).open()
    wire.produce(publish("new"), GOODBYE)
    wire.relay.upstream_lost("gone")
    assert wire.producer() == GOODBYE_OK
    assert wire.control() == b""


def test_a_close_of_the_sidecar_is_sent_to_both_sides_after_earlier_publishes() -> None:
    wire = Wire(routed("a")).open()
    message = publish()
    wire.relay.producer_sent(message, 0.0)
    wire.relay.connection.close(320, b"the proxy is shutting down")
    left = wire.upstream()
    assert left.startswith(with_tokens(message, "a"))
    assert closed(left[len(with_tokens(message, "a")) :])[:2] == (0, 200)
    assert closed(wire.producer()) == (0, 320, "CONNECTION_FORCED - the proxy is shutting down", (0, 0))
    assert wire.produce(GOODBYE_OK) == b""
    assert wire.relay.connection.lifecycle.phase is Phase.CLOSED


def test_unsettled_counts_unconfirmed_publishes() -> None:
    wire = Wire(several("e")).open(1, 2).open(3, confirm=True)
    wire.produce(publish(channel=1), publish(channel=3), publish(channel=3), publish(channel=3, to="other"))
    assert wire.relay.connection.unsettled == 3
    wire.answer(ack(2, True, channel=3), nack(5, channel=3))
    assert wire.relay.connection.unsettled == 1


def streams(wire: Wire) -> bool:
    return wire.relay.connection.streams


def ahead(*channels: int, of: VhostState | None = None) -> Wire:
    """A connection whose channels each have as many unconfirmed publishes as those of a streaming producer."""
    wire = Wire(of).open(*channels, confirm=True)
    for channel in channels:
        wire.produce(*(publish(channel=channel, to="other") for _ in range(AHEAD_MESSAGES)))
    return wire


def test_a_producer_with_many_unconfirmed_publishes_is_streaming() -> None:
    wire = ahead(1)
    assert streams(wire)
    wire.answer(ack(1))
    assert not streams(wire)
    wire.produce(publish(to="other"))
    assert streams(wire)
    wire.answer(nack(AHEAD_MESSAGES, multiple=True))
    assert not streams(wire)


def test_no_streaming_while_blocked_awaiting_a_reply_or_closing() -> None:
    wire = ahead(1)
    wire.answer(method(0, commands.Connection.Blocked("low on memory")))
    assert not streams(wire)
    wire.answer(method(0, commands.Connection.Unblocked()))
    assert streams(wire)
    wire.produce(method(1, commands.Queue.Declare(queue="q")))
    assert not streams(wire)
    wire.answer(method(1, commands.Queue.DeclareOk("q", 0, 0)))
    assert streams(wire)
    wire.produce(method(0, commands.Connection.Close(200, "", 0, 0)))
    assert not streams(wire)


def deliveries(count: int) -> bytes:
    delivery = method(1, commands.Basic.Deliver("c", 1, False, "x", "k")) + content(1, body=b"body")
    return delivery * count


def test_a_consumer_with_many_deliveries_per_read_is_streaming() -> None:
    wire = Wire().open(1)
    wire.answer(deliveries(STREAMED_DELIVERIES - 1))
    assert not streams(wire)
    wire.answer(deliveries(STREAMED_DELIVERIES))
    assert streams(wire)


# -- large frames ------------------------------------------------------------------------------------------------------


def cpu_seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


@pytest.mark.parametrize("side", ["producer", "broker"])
def test_a_large_frame_in_many_reads_is_joined_once(side: str) -> None:
    size = 32 << 20
    wire = Wire(tuning=replace(TUNING, frame_max_producer=size + 8, frame_max_upstream=size + 8)).open()
    data = publish(to="other", body=bytes(size), frame_max=size + 8)
    if side == "broker":
        data = method(1, commands.Basic.Deliver("me", 1, False, "", "k")) + content(
            1, None, bytes(size), frame_max=size + 8
        )
    pieces = [data[at : at + (64 << 10)] for at in range(0, len(data), 64 << 10)]
    receive = wire.relay.producer_sent if side == "producer" else wire.relay.broker_sent
    out = wire.relay.connection.to_upstream if side == "producer" else wire.relay.connection.for_producer

    def take() -> None:
        for piece in pieces:
            receive(piece, 0.0)

    once = min(cpu_seconds(lambda: b"".join(pieces)) for _ in range(3))
    assert cpu_seconds(take) < 40 * once  # joining the frame at each read would take 200 times as long
    assert b"".join(out) == data


# -- repeated Connection.Close -----------------------------------------------------------------------------------------


def test_repeated_connection_closes_are_answered_after_the_brokers_reply() -> None:
    wire = Wire().open(1, confirm=True)
    assert wire.produce(GOODBYE, GOODBYE, GOODBYE) == GOODBYE
    assert wire.producer() == b""
    delivery = method(1, commands.Basic.Deliver("me", 1, False, "", "k")) + content(1, None, b"body")
    assert wire.answer(delivery + GOODBYE_OK) == delivery + GOODBYE_OK * 3
    assert wire.produce(GOODBYE[:9]) + wire.produce(GOODBYE[9:]) == b""
    assert wire.producer() == GOODBYE_OK
    assert wire.relay.connection.lifecycle.producer_ends
    wire.produce(GOODBYE_OK)
    assert not wire.relay.connection.lifecycle.producer_ends


def test_repeated_connection_closes_are_answered_if_the_upstream_is_lost() -> None:
    wire = Wire().open(1)
    wire.produce(GOODBYE, GOODBYE)
    wire.relay.upstream_lost("lost")
    assert wire.producer() == GOODBYE_OK * 2


def test_a_repeated_connection_close_is_counted_while_the_first_waits() -> None:
    wire = Wire(routed("a", bound=())).open()
    assert wire.produce(publish(), GOODBYE, GOODBYE) == b""
    assert wire.control().endswith(GOODBYE)
    assert wire.answer(GOODBYE_OK) == GOODBYE_OK * 2


# -- errors of the producer --------------------------------------------------------------------------------------------

WRONG = say(1, commands.Channel.Open())
BLOCKED = say(0, commands.Connection.Blocked("memory"))


def test_replies_to_earlier_methods_precede_the_close_because_of_an_error() -> None:
    wire = Wire(routed("a")).open(confirm=True)
    left = wire.produce(publish(), publish(), WRONG, publish())
    assert [frame.name for frame in split(left)[::3]] == ["Basic.Publish", "Basic.Publish", "Connection.Close"]
    wire.relay.broker_sent(ack(1) + ack(2), 0.0)
    assert wire.sent() == ack(1) + ack(2)
    assert wire.produce(publish(), GOODBYE) == b""
    wire.relay.broker_sent(GOODBYE_OK + ack(3), 0.0)
    sent = wire.sent()
    assert closed(sent[: -len(GOODBYE_OK)])[:2] == (0, 504)
    assert sent.endswith(GOODBYE_OK)
    wire.produce(GOODBYE_OK)
    assert wire.relay.connection.lifecycle.phase is Phase.CLOSED


@pytest.mark.parametrize(
    "end",
    [
        lambda wire: wire.relay.broker_sent(BLOCKED, 0.0),
        lambda wire: wire.relay.broker_sent(GOODBYE, 0.0),
        lambda wire: wire.relay.broker_sent(b"not a frame", 0.0),
        lambda wire: wire.relay.upstream_lost("gone"),
        lambda wire: wire.relay.connection.end_refusal(),
    ],
    ids=["blocked", "closed", "malformed", "lost", "late"],
)
def test_an_error_is_reported_once_if_the_broker_does_not_answer_the_close(end: Callable[[Wire], None]) -> None:
    wire = Wire(routed("a")).open(confirm=True)
    wire.produce(publish(), WRONG)
    assert wire.sent() == b""
    end(wire)
    assert closed(wire.sent().removeprefix(BLOCKED))[:2] == (0, 504)
    end(wire)
    assert wire.sent() == b""


def test_an_error_is_reported_at_once_while_the_broker_blocks_publishes() -> None:
    wire = Wire(routed("a")).open(confirm=True)
    wire.answer(BLOCKED)
    wire.produce(publish(), WRONG)
    assert closed(wire.sent())[:2] == (0, 504)


def test_replies_precede_the_error_although_frames_are_held() -> None:
    wire = Wire(routed("a", bound=())).open(confirm=True)
    left = wire.produce(say(1, commands.Basic.Qos()), publish(), say(2, commands.Basic.Get(queue="a")))
    assert [frame.name for frame in split(left)] == ["Basic.Qos", "Connection.Close"]
    wire.relay.broker_sent(say(1, commands.Basic.QosOk()), 0.0)
    assert wire.sent() == say(1, commands.Basic.QosOk())
    wire.relay.broker_sent(GOODBYE_OK, 0.0)
    assert closed(wire.sent())[:2] == (0, 504)


# -- arbitrary bytes and frames ---------------------------------------------------------------------------------------

STATES = [
    lambda: routed("a", "b"),
    lambda: routed("a", delivery=Delivery.QUEUE),
    lambda: routed("a", carrier="carried", unmatched_pass=True),
    lambda: chosen("new", "old", bound=["old"]),
    lambda: several("e"),
]


def check_contents(data: bytes, unfinished: dict[int, int]) -> None:
    """Check that no frame interrupts a content on its channel.

    ``unfinished`` is the state for the bytes that follow: for each channel with an incomplete content, the number of
    missing body bytes, or -1 if the header is missing.
    """
    carrying = {"Basic.Publish", "Basic.Deliver", "Basic.GetOk", "Basic.Return"}
    for current in split(data):
        left = unfinished.get(current.channel)
        if current.kind == 1:
            assert left is None, f"{current.name} in the middle of a content"
            if current.name in carrying:
                unfinished[current.channel] = -1
        elif current.kind == 2:
            assert left == -1, "an unexpected content header"
            unfinished[current.channel] = int.from_bytes(current.payload[4:12], "big")
        elif current.kind == 3:
            assert left is not None
            assert 0 <= len(current.payload) <= left, "a body that is too long"
            unfinished[current.channel] = left - len(current.payload)
        if unfinished.get(current.channel) == 0:
            del unfinished[current.channel]


def drive(wire: Wire, steps: list[tuple[str, bytes]]) -> tuple[bytes, bytes]:
    """Pass input from both sides and replies of the control plane; return the output upstream and to the producer."""
    upstream = producer = b""
    for side, data in steps:
        if side == "producer":
            wire.relay.producer_sent(data, 0.0)
        elif side == "broker":
            wire.relay.broker_sent(data, 0.0)
        else:
            requests = list(wire.relay.connection.pending.requests)
            wire.relay.connection.pending.requests.clear()
            for request in requests:
                wire.relay.answer(request)
        upstream += wire.upstream()
        producer += wire.producer()
    wire.relay.ended()
    return upstream, producer


SIDES = st.sampled_from(["producer", "broker", "control"])


@given(st.lists(st.tuples(SIDES, st.binary(max_size=60)), max_size=12), st.sampled_from(STATES))
@settings(max_examples=150, deadline=None)
def test_random_bytes_raise_no_exception(steps: list[tuple[str, bytes]], of: Callable[[], VhostState]) -> None:
    wire = Wire(of(), events=QueueEvents(None)).open()
    upstream, _ = drive(wire, steps)
    split(upstream)


#: Valid and invalid frames of a producer.
PRODUCER: list[bytes] = [
    publish("old"), publish("new"), publish(channel=2), publish(to="amq.direct", body=b"x" * 50), publish(body=b""),
    publish("old", mandatory=True, channel=2), publish("x.o.p.e.n.x.q.1"), publish(headers=None, channel=2),
    publish(to="carried", headers=((b"CC", Value("A", (Value("S", b"x.o.p.e.n.x.q.1"),))),)),
    say(1, commands.Channel.Open()), say(2, commands.Channel.Open()), say(1, commands.Channel.CloseOk()),
    say(1, commands.Channel.Close(200, "bye", 0, 0)), say(2, commands.Channel.CloseOk()),
    say(1, commands.Confirm.Select()), say(2, commands.Confirm.Select()), say(1, commands.Tx.Select()),
    say(1, commands.Queue.Declare(0, "a")), say(2, commands.Queue.Declare(0, "a", exclusive=True)),
    say(1, commands.Queue.Declare(0, "a", nowait=True)), say(1, commands.Queue.Delete(0, "a")),
    say(1, commands.Queue.Bind(0, "a", "amq.topic", "k")), say(1, commands.Queue.Bind(0, "a", "xo", "")),
    say(1, commands.Exchange.Declare(0, "x2", "x-open")), say(1, commands.Exchange.Delete(0, "x2")),
    say(1, commands.Basic.Ack(1)), say(2, commands.Basic.Nack(0, True)), HEARTBEAT,
    GOODBYE, GOODBYE_OK,
]  # fmt: skip
BROKER: list[bytes] = [
    say(1, commands.Channel.OpenOk()), say(2, commands.Channel.OpenOk()), say(1, commands.Channel.CloseOk()),
    say(1, commands.Channel.Close(404, "NOT_FOUND", 60, 40)), say(2, commands.Channel.CloseOk()),
    say(2047, commands.Channel.OpenOk()), say(2047, commands.Queue.BindOk()),
    say(2047, commands.Channel.Close(403, "ACCESS_REFUSED", 50, 20)),
    say(1, commands.Queue.DeclareOk("a", 0, 0)), say(2, commands.Queue.DeclareOk("a", 0, 0)),
    say(1, commands.Queue.BindOk()), say(1, commands.Exchange.DeclareOk()), say(1, commands.Queue.DeleteOk(0)),
    say(1, commands.Confirm.SelectOk()), ack(1), ack(2), ack(3, True), nack(1), ack(4, True, channel=2), nack(0, True),
    method(0, commands.Connection.Blocked("x")), method(0, commands.Connection.Unblocked()), HEARTBEAT,
    GOODBYE, GOODBYE_OK,
]  # fmt: skip
CONTENTS: list[list[bytes]] = [
    [part.raw for part in split(whole)]
    for channel in (1, 2)
    for whole in (
        say(channel, commands.Basic.Deliver("c", 1, False, "xo", "k")) + content(channel, REPORT, b"x" * 30),
        say(channel, commands.Basic.GetOk(1, False, "", "a", 0)) + content(channel, None, b""),
        say(channel, commands.Basic.Return(312, "NO_ROUTE", "xo", "old"))
        + b"".join(frame(part.kind, channel, part.payload) for part in split(publish("old"))[1:]),
    )
]


@st.composite
def frame_by_frame(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """Frames from both sides in any order; the producer's publishes may arrive in pieces or be incomplete."""
    steps: list[tuple[str, bytes]] = []
    begun: list[Iterator[bytes]] = []
    for _ in range(draw(st.integers(0, 25))):
        what = draw(st.integers(0, 9))
        if what == 0:
            steps.append(("control", b""))
        elif what <= 4:
            steps.append(("broker", draw(st.sampled_from(BROKER))))
        elif what == 5 and begun:
            steps += [("producer", frame) for frame in [next(draw(st.sampled_from(begun)), b"")]]
        elif what == 6:
            begun.append(iter([frame.raw for frame in split(draw(st.sampled_from(PRODUCER[:8])))]))
        else:
            steps.append(("producer", draw(st.sampled_from(PRODUCER))))
    return steps


@given(frame_by_frame(), st.sampled_from(STATES))
@settings(max_examples=400, deadline=None)
def test_for_any_frames_the_broker_gets_complete_contents_without_exceptions(
    steps: list[tuple[str, bytes]], of: Callable[[], VhostState]
) -> None:
    wire = Wire(of(), events=QueueEvents(None)).open(1, 2)
    upstream, _ = drive(wire, steps)
    unfinished: dict[int, int] = {}
    check_contents(upstream, unfinished)
    assert all(frame.channel <= 2047 for frame in split(upstream))
    names = [frame.name for frame in split(upstream) if frame.channel == 0]
    assert names.count("Connection.Close") <= 1
    if "Connection.Close" in names:
        later = split(upstream)[[frame.name for frame in split(upstream)].index("Connection.Close") + 1 :]
        assert {frame.name for frame in later} <= {"Connection.CloseOk"}


@st.composite
def legal_broker(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """A broker that sends complete contents, interleaved between channels, and a producer that sends any frames."""
    steps: list[tuple[str, bytes]] = []
    sent: bytes
    under_way: dict[int, list[bytes]] = {}
    for _ in range(draw(st.integers(0, 30))):
        what = draw(st.integers(0, 5))
        if what == 0:
            steps.append(("control", b""))
        elif what <= 2:
            steps.append(("producer", draw(st.sampled_from(PRODUCER[:-2]))))
        elif what == 3:
            frames: list[bytes] = draw(st.sampled_from(CONTENTS))
            under_way.setdefault(split(frames[0])[0].channel, list(frames))
        elif what == 4:
            sent = draw(st.sampled_from(BROKER))
            if split(sent)[0].channel not in under_way:
                steps.append(("broker", sent))
        for channel in list(under_way):
            if draw(st.booleans()) and under_way[channel]:
                steps.append(("broker", under_way[channel].pop(0)))
            if not under_way[channel]:
                del under_way[channel]
    return steps + [("broker", content) for rest in under_way.values() for content in rest]


@given(legal_broker(), st.sampled_from(STATES))
@settings(max_examples=400, deadline=None)
def test_the_producer_always_gets_complete_contents(
    steps: list[tuple[str, bytes]], of: Callable[[], VhostState]
) -> None:
    """No method that the sidecar sends interrupts a delivery, get-ok or return."""
    wire = Wire(of(), events=QueueEvents(None)).open(1, 2)
    _, producer = drive(wire, steps)
    check_contents(producer, {})


@given(frame_by_frame(), st.sampled_from(STATES), st.lists(st.integers(0, 400), max_size=20))
@settings(max_examples=150, deadline=None)
def test_the_relay_does_not_depend_on_chunking(
    steps: list[tuple[str, bytes]], of: Callable[[], VhostState], cuts: list[int]
) -> None:
    pieces = [(side, piece) for side, data in steps for piece in cut(data, cuts) or [b""]]
    whole, in_pieces = (
        drive(Wire(of(), events=QueueEvents(None)).open(1, 2), conversation) for conversation in (steps, pieces)
    )
    assert [split(data) for data in in_pieces] == [split(data) for data in whole]


def test_a_lost_upstream_is_reported_once() -> None:
    wire = Wire().open()
    for _ in range(2):
        wire.relay.upstream_lost("gone")
    assert closed(wire.producer())[:2] == (0, 320)


def test_a_producer_that_closes_its_connection_is_not_closed_again() -> None:
    wire = Wire().open()
    wire.produce(GOODBYE)
    wire.relay.connection.close(320, b"the proxy is shutting down")
    assert wire.producer() == b""
    assert wire.answer(GOODBYE_OK) == GOODBYE_OK
