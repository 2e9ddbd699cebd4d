from __future__ import annotations

import pytest

from proxy.amqp.tables import encode_table
from proxy.relay.handshake.greeting import Tuning
from proxy.relay.handshake.machine import Ending, Handshake, HandshakeSide, HandshakeState
from proxy.values import Value
from tests.client import PROTOCOL_HEADER, Frame, frame, names, split
from tests.relay.handshakes import (
    CLIENT_PROPERTIES,
    CLOSE_OK,
    CONVERSATION,
    OPEN,
    OPEN_OK,
    OURS,
    SECURE,
    SECURE_OK,
    SERVER_PROPERTIES,
    UNREACHABLE,
    at,
    close,
    new,
    said_to_producer,
    said_to_upstream,
    say,
    start,
    start_ok,
    tune,
    tune_ok,
)

State = HandshakeState


def only(data: bytes) -> Frame:
    (frame,) = split(data)
    return frame


def is_over(handshake: Handshake) -> bool:
    assert handshake.close_after_flush_producer is (handshake.state is State.CLOSED)
    return handshake.close_after_flush_producer


def refusal(handshake: Handshake) -> tuple[object, ...]:
    """Return reply code, text, class id and method id of the only Connection.Close sent to the producer."""
    closed = only(said_to_producer(handshake))
    assert closed.name == "Connection.Close"
    return tuple(closed.arguments.values())


def test_a_complete_handshake_forwards_each_frame_once() -> None:
    handshake = new()
    forwarded = []
    for side, data in CONVERSATION:
        say(handshake, side, data)
        forwarded.append((said_to_upstream(handshake), said_to_producer(handshake)))
    assert handshake.state is State.OPEN
    assert forwarded[0] == (PROTOCOL_HEADER, b"")
    assert forwarded[1] == (b"", start(SERVER_PROPERTIES + encode_table(OURS[:1])))
    assert forwarded[2] == (start_ok(CLIENT_PROPERTIES + encode_table(OURS)), b"")
    assert forwarded[3] == (b"", SECURE)
    assert forwarded[4] == (SECURE_OK, b"")
    assert forwarded[5] == (b"", tune(channel_max=2046))
    assert forwarded[6] == (tune_ok(channel_max=2047), b"")
    assert forwarded[7] == (OPEN, b"")
    assert forwarded[8] == (b"", OPEN_OK)
    assert (handshake.vhost, handshake.user, handshake.client_name) == ("sales", "guest", "orders")
    assert not handshake.close_after_flush_producer
    assert not handshake.close_upstream
    assert handshake.ending is None


@pytest.mark.parametrize(
    ("header", "seen"),
    [
        (b"AMQP\x00\x01\x00\x00", "protocol header AMQP 0 1 0 0"),
        (b"AMQP\x03\x01\x00\x00", "protocol header AMQP 3 1 0 0"),
        (b"AMQP\x00\x00\x09\x02", "protocol header AMQP 0 0 9 2"),
        (b"AMQP\x01\x01\x08\x00", "protocol header AMQP 1 1 8 0"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"\x00", "not AMQP"),
        (b"AMQ:", "not AMQP"),
        (b"\x16", "TLS on a port without TLS"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS on a port without TLS"),
    ],
)
def test_a_wrong_protocol_header_is_answered_with_the_supported_one_and_closed(header: bytes, seen: str) -> None:
    handshake = new()
    handshake.receive_from_producer(header)
    assert handshake.to_producer == [PROTOCOL_HEADER]
    assert handshake.close_after_flush_producer
    assert not handshake.wants_upstream
    assert handshake.ending == Ending(HandshakeSide.PRODUCER, 0, f"{seen}, expected the protocol header AMQP 0 0 9 1")


@pytest.mark.parametrize("header", [PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"], ids=["0-9-1", "0-9"])
def test_the_upstream_is_requested_when_the_header_is_complete_and_gets_0_9_1(header: bytes) -> None:
    handshake = new()
    for byte in header:
        assert not handshake.wants_upstream
        handshake.receive_from_producer(bytes((byte,)))
    assert handshake.wants_upstream
    assert (handshake.to_upstream, handshake.to_producer) == ([PROTOCOL_HEADER], [])


def test_input_after_the_handshake_is_kept_for_the_relay() -> None:
    handshake = at(State.AWAITING_OPEN)
    handshake.receive_from_producer(OPEN + b"pipelined")
    assert handshake.leftover_producer == b"pipelined"
    handshake.receive_from_upstream(OPEN_OK + b"blocked")
    assert handshake.state is State.OPEN
    handshake.receive_from_producer(b" more")
    assert (handshake.leftover_producer, handshake.leftover_upstream) == (b"pipelined more", b"blocked")


def test_a_producer_may_send_all_its_handshake_frames_at_once() -> None:
    handshake = new()
    handshake.receive_from_producer(PROTOCOL_HEADER + start_ok() + tune_ok() + OPEN + b"publish")
    handshake.receive_from_upstream(start())
    handshake.receive_from_upstream(tune())
    handshake.receive_from_upstream(OPEN_OK)
    assert handshake.state is State.OPEN
    assert names(b"".join(handshake.to_upstream)[8:]) == [
        "Connection.StartOk", "Connection.TuneOk", "Connection.Open",
    ]  # fmt: skip
    assert names(b"".join(handshake.to_producer)) == [
        "Connection.Start", "Connection.Tune", "Connection.OpenOk",
    ]  # fmt: skip
    assert handshake.leftover_producer == b"publish"


def test_producer_at_4096_is_accepted_by_a_broker_whose_floor_is_8192() -> None:
    handshake = at(State.AWAITING_START)
    version = encode_table(((b"product", Value("S", b"RabbitMQ")), (b"version", Value("S", b"4.1.2"))))
    for side, data in (
        ("upstream", start(version)), ("producer", start_ok()), ("upstream", tune()), ("producer", tune_ok(5, 4096, 0))
    ):  # fmt: skip
        say(handshake, side, data)
    assert handshake.tuning == Tuning(5, 6, 4096, 8192, 0, 60)
    assert split(said_to_upstream(handshake))[-1].raw == tune_ok(6, 8192, 60)


def test_tune_ok_above_the_offer_is_a_530_with_the_text_of_rabbitmq() -> None:
    handshake = at(State.AWAITING_TUNE_OK)
    handshake.receive_from_producer(tune_ok(2047))
    assert refusal(handshake) == (
        530, "NOT_ALLOWED - negotiated channel_max = 2047 is higher than the maximum allowed value (2046)", 10, 30,
    )  # fmt: skip
    assert handshake.state is State.CLOSING
    assert handshake.close_upstream
    assert handshake.to_upstream == []


@pytest.mark.parametrize(
    "state", [State.AWAITING_TUNE, State.AWAITING_TUNE_OK, State.AWAITING_OPEN, State.AWAITING_OPEN_OK]
)
def test_close_of_the_broker_reaches_the_producer_byte_for_byte(state: State) -> None:
    handshake = at(state)
    refused = close(530, "NOT_ALLOWED - vhost sales not found", 10, 40)
    handshake.receive_from_upstream(refused)
    assert said_to_producer(handshake) == refused
    assert said_to_upstream(handshake) == CLOSE_OK
    assert handshake.close_upstream
    assert handshake.ending == Ending(HandshakeSide.UPSTREAM, 530, "NOT_ALLOWED - vhost sales not found")
    assert not is_over(handshake)
    handshake.receive_from_producer(CLOSE_OK)
    assert is_over(handshake)


def test_an_unreachable_broker_is_reported_with_320_after_start_ok() -> None:
    handshake = at(State.AWAITING_START)
    handshake.upstream_lost(UNREACHABLE)
    own = only(said_to_producer(handshake))
    assert own.name == "Connection.Start"
    properties = own.arguments["server_properties"]
    assert isinstance(properties, dict)
    assert properties["capabilities"]["authentication_failure_close"] is True
    assert properties["oxproxy"] == "1.2.3"
    handshake.receive_from_producer(start_ok())
    assert refusal(handshake) == (320, "CONNECTION_FORCED - upstream unavailable: connection refused", 0, 0)
    assert handshake.close_upstream
    assert handshake.to_upstream == []
    assert (handshake.user, handshake.client_name) == ("guest", "orders")
    handshake.receive_from_producer(CLOSE_OK)
    assert handshake.close_after_flush_producer


def test_refused_login_without_the_capability_is_a_closed_socket_as_at_the_broker() -> None:
    handshake = at(State.AWAITING_START_OK)
    handshake.receive_from_producer(start_ok(entries=b""))
    handshake.upstream_lost(None)
    assert handshake.to_producer == []
    assert handshake.close_after_flush_producer
    assert handshake.ending is not None
    assert handshake.ending.side is HandshakeSide.UPSTREAM


def test_a_dropped_login_despite_the_capability_is_a_lost_upstream() -> None:
    handshake = at(State.AWAITING_TUNE)
    handshake.upstream_lost(None)
    assert refusal(handshake) == (320, "CONNECTION_FORCED - upstream connection lost", 0, 0)


def test_the_upstream_is_closed_when_the_producer_disconnects() -> None:
    handshake = at(State.AWAITING_TUNE_OK)
    handshake.producer_lost()
    assert handshake.close_upstream
    assert handshake.state is State.CLOSED
    assert handshake.ending == Ending(HandshakeSide.PRODUCER, 0, "disconnected while waiting for Connection.TuneOk")


def deep(levels: int) -> Value:
    value = Value("A", ())
    for _ in range(levels):
        value = Value("A", (value,))
    return value


@pytest.mark.parametrize(
    ("state", "data", "code", "method"),
    [
        (State.AWAITING_START_OK, b"\x01\x00\x00\x00\x02\x00\x00", 501, (0, 0)),
        (State.AWAITING_START_OK, start_ok()[:-1] + b"\xcd", 501, (0, 0)),
        (State.AWAITING_TUNE_OK, frame(1, 0, tune_ok()[7:-2]), 502, (10, 31)),
        (State.AWAITING_START_OK, start_ok(encode_table(((b"capabilities", deep(200)),))), 502, (10, 11)),
    ],
    ids=["the length of a frame is too large", "wrong frame end", "arguments are cut short", "a table is too deep"],
)
def test_malformed_bytes_are_refused_with_the_ids_of_the_method_that_they_belong_to(
    state: State, data: bytes, code: int, method: tuple[int, int]
) -> None:
    handshake = at(state)
    handshake.receive_from_producer(data)
    seen, _, *ids = refusal(handshake)
    assert (seen, tuple(ids)) == (code, method)
    assert handshake.close_after_flush_producer is (code == 501)


def test_input_during_a_pending_broker_reply_is_limited() -> None:
    handshake = at(State.AWAITING_TUNE, 5000)
    handshake.receive_from_producer(bytes(5000))
    assert handshake.state is State.AWAITING_TUNE
    handshake.receive_from_producer(b"x")
    assert refusal(handshake)[0] == 506
    assert handshake.close_after_flush_producer
    assert handshake.close_upstream


def test_the_password_is_not_kept_after_it_is_sent() -> None:
    handshake = at(State.AWAITING_TUNE)
    seen: list[object] = []
    todo: list[object] = [handshake]
    while todo:
        item = todo.pop()
        seen.append(item)
        if isinstance(item, (list, tuple, frozenset)):
            todo.extend(item)
        todo.extend(vars(item).values() if hasattr(item, "__dict__") and not isinstance(item, type) else ())
        todo.extend(getattr(item, name) for name in getattr(item, "__slots__", ()) if hasattr(item, name))
    assert len(seen) > 20
    assert not any("s3cret" in repr(item) for item in seen)


@pytest.mark.parametrize("state", [State.OPEN, State.CLOSED, State.CLOSING, State.REFUSING, State.AWAITING_HEADER])
def test_losing_an_unneeded_upstream_changes_nothing(state: State) -> None:
    handshake = at(state)
    handshake.upstream_lost(UNREACHABLE)
    assert handshake.state is state
    assert handshake.to_producer == []


def test_start_keeps_the_brokers_bytes_and_adds_the_version() -> None:
    handshake = at(State.AWAITING_START)
    handshake.receive_from_upstream(start())
    assert said_to_producer(handshake) == start(SERVER_PROPERTIES + encode_table(OURS[:1]))
