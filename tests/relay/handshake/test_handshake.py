from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands

from oxproxy.amqp.methods import NAMES, Argument, method_frame
from oxproxy.amqp.tables import encode_table
from oxproxy.relay.handshake.greeting import Tuning
from oxproxy.relay.handshake.machine import (
    PRODUCERS_TURN,
    WITHOUT_BROKER,
    Ending,
    Handshake,
    HandshakeSide,
    HandshakeState,
)
from oxproxy.values import Value
from tests.client import HEARTBEAT, PROTOCOL_HEADER, Frame, cut, frame, names, split
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
    P,
    U,
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


#: (state, side, method) -> next state. All other input is a protocol error of that side, or is buffered.
MOVES = {
    (State.AWAITING_START, U, "Connection.Start"): State.AWAITING_START_OK,
    (State.AWAITING_START_OK, P, "Connection.StartOk"): State.AWAITING_TUNE,
    (State.AWAITING_TUNE, U, "Connection.Secure"): State.AWAITING_SECURE_OK,
    (State.AWAITING_SECURE_OK, P, "Connection.SecureOk"): State.AWAITING_TUNE,
    (State.AWAITING_TUNE, U, "Connection.Tune"): State.AWAITING_TUNE_OK,
    (State.AWAITING_TUNE_OK, P, "Connection.TuneOk"): State.AWAITING_OPEN,
    (State.AWAITING_OPEN, P, "Connection.Open"): State.AWAITING_OPEN_OK,
    (State.AWAITING_OPEN_OK, U, "Connection.OpenOk"): State.OPEN,
    (State.REFUSING, P, "Connection.StartOk"): State.CLOSING,
    (State.CLOSING, P, "Connection.CloseOk"): State.CLOSED,
}

_EMPTY: dict[str, Argument] = {"shortstr": b"", "longstr": b"", "table": b"", "bit": False}


def _empty(method: int) -> bytes:
    kind = cast("type[base.Frame]", commands.INDEX_MAPPING[method])
    values = (_EMPTY.get(kind.amqp_type(argument), 0) for argument in kind.attributes())
    return method_frame(0, method, *values)


INPUTS = {name: _empty(method) for method, name in NAMES.items()} | {
    "method on channel 1": frame(1, 1, start_ok()[7:-1]),
    "content header": frame(2, 0, bytes(14)),
    "content body": frame(3, 1, b"body"),
    "heartbeat": HEARTBEAT,
    "heartbeat on channel 1": frame(8, 1, b""),
    "unknown method": frame(1, 0, b"\0\x0a\0\x63"),
    "no method": frame(1, 0, b"\0"),
    "unknown type": frame(9, 0, b""),
    "malformed StartOk": frame(1, 0, b"\0\x0a\0\x0b\0\0\0\x02\x01a"),
}
CODES = {
    "method on channel 1": 504,
    "content header": 505,
    "content body": 505,
    "heartbeat on channel 1": 505,
    "unknown method": 540,
    "no method": 502,
    "unknown type": 501,
}


def _expected_of_producer(state: HandshakeState, name: str) -> tuple[HandshakeState, int]:
    """The next state, and the reply code of the Connection.Close that the producer receives (0: none)."""
    if state not in PRODUCERS_TURN or (state, P, name) in MOVES or name == "heartbeat":
        return MOVES.get((state, P, name), state), 0
    if name == "Connection.Close":
        return State.CLOSED, 0
    if state is State.CLOSING:
        # Input that is not a sequence of frames ends the wait for close-ok; all other input is discarded.
        return (State.CLOSED if name == "unknown type" else State.CLOSING), 0
    if name == "malformed StartOk":
        return State.CLOSING, 502 if state in (State.AWAITING_START_OK, State.REFUSING) else 503
    return (State.CLOSED if name == "unknown type" else State.CLOSING), CODES.get(name, 503)


@pytest.mark.parametrize("state", [state for state in State if state is not State.AWAITING_HEADER])
def test_every_input_of_the_producer_in_every_state(state: HandshakeState) -> None:
    for name, data in INPUTS.items():
        handshake = at(state)
        handshake.receive_from_producer(data)
        next_state, code = _expected_of_producer(state, name)
        assert handshake.state is next_state, name
        frames = split(said_to_producer(handshake))
        closes = [frame.arguments["reply_code"] for frame in frames if frame.name == "Connection.Close"]
        if state is State.REFUSING and name == "Connection.StartOk":
            code = 403  # the broker's refusal, which was held until StartOk
        assert closes == ([code] if code else []), name
        assert handshake.close_after_flush_producer is (next_state is State.CLOSED)
        if next_state is state and state not in PRODUCERS_TURN and state is not State.CLOSED:
            assert handshake.leftover_producer == data, name


@pytest.mark.parametrize("state", State)
def test_every_input_of_the_broker_in_every_state(state: HandshakeState) -> None:
    for name, data in INPUTS.items():
        handshake = at(state)
        handshake.receive_from_upstream(data)
        waits_for_start_ok = state in (State.AWAITING_START, State.AWAITING_START_OK)
        if (state, U, name) in MOVES:
            next_state = MOVES[state, U, name]
        elif state in WITHOUT_BROKER or state is State.OPEN or name == "heartbeat":
            next_state = state
        else:
            next_state = State.REFUSING if waits_for_start_ok else State.CLOSING
        assert handshake.state is next_state, name
        if next_state in (State.REFUSING, State.CLOSING) and next_state is not state:
            handshake.receive_from_producer(start_ok() if waits_for_start_ok else b"")
            (closed,) = (frame for frame in split(said_to_producer(handshake)) if frame.name == "Connection.Close")
            assert closed.arguments["reply_code"] == (0 if name == "Connection.Close" else 320), name
            assert handshake.close_upstream
            assert said_to_upstream(handshake) == (CLOSE_OK if name == "Connection.Close" else b"")
            assert handshake.ending is not None
            assert handshake.ending.side is HandshakeSide.UPSTREAM


@given(st.lists(st.lists(st.integers(0, 999), max_size=6), min_size=len(CONVERSATION), max_size=len(CONVERSATION)))
def test_the_handshake_does_not_depend_on_chunking(cuts: list[list[int]]) -> None:
    whole, chunked = new(), new()
    for (side, data), where in zip(CONVERSATION, cuts, strict=True):
        last = b"behind" if data in (OPEN, OPEN_OK) else b""
        say(whole, side, data + last)
        for piece in cut(data + last, where):
            say(chunked, side, piece)
        assert said_to_producer(whole) == said_to_producer(chunked)
        assert said_to_upstream(whole) == said_to_upstream(chunked)
    assert whole.state is chunked.state is State.OPEN
    assert (whole.leftover_producer, whole.leftover_upstream) == (b"behind", b"behind")
    assert (chunked.leftover_producer, chunked.leftover_upstream) == (b"behind", b"behind")


_talk = [PROTOCOL_HEADER, start(), start_ok(), SECURE, SECURE_OK, tune(), tune_ok(), tune_ok(9, 4096, 0), OPEN, OPEN_OK]
_words = st.sampled_from([*_talk, close(), CLOSE_OK, *INPUTS.values()])
_events = st.lists(
    st.tuples(st.sampled_from([P, U, P, U, "lost P", "lost U", "failed U"]), _words | st.binary(max_size=30)),
    max_size=12,
)


def _happen(handshake: Handshake, side: str, data: bytes) -> None:
    if side == "lost P":
        handshake.producer_lost()
    elif side in ("lost U", "failed U"):
        handshake.upstream_lost(UNREACHABLE if side == "failed U" else None)
    else:
        say(handshake, side, data)


def _is_valid_sequence(methods: list[str]) -> bool:
    """Return whether a broker may send these methods: Start, any number of Secure, Tune, OpenOk; at most one close."""
    order = ["Connection.Start", "Connection.Secure", "Connection.Tune", "Connection.OpenOk"]
    ends = [name for name in methods if name not in order]
    spoken = methods[: len(methods) - len(ends)]
    steps = [order.index(name) for name in spoken if name in order]
    once = [name for name in spoken if name != "Connection.Secure"]
    return (
        len(steps) == len(spoken)
        and steps == sorted(steps)
        and once == [name for name in order if name != "Connection.Secure"][: len(once)]
        and ends in ([], ["Connection.Close"], ["Connection.CloseOk"], ["Connection.Close", "Connection.CloseOk"])
    )


@given(st.sampled_from(State), _events)
def test_for_any_input_both_sides_get_valid_methods_in_order(
    state: HandshakeState, events: list[tuple[str, bytes]]
) -> None:
    limit = 6000
    handshake = at(state, limit)
    for side, data in events:
        _happen(handshake, side, data)
        if handshake.state is not State.OPEN:
            assert len(handshake.leftover_producer) <= limit
            assert len(handshake.leftover_upstream) <= limit
    output = said_to_producer(handshake)
    if output != PROTOCOL_HEADER:
        assert _is_valid_sequence(_said_before(state) + names(output))
    passed = said_to_upstream(handshake).removeprefix(PROTOCOL_HEADER)
    assert set(names(passed)) <= {
        "Connection.StartOk", "Connection.SecureOk", "Connection.TuneOk", "Connection.Open", "Connection.CloseOk",
    }  # fmt: skip
    if handshake.state is State.CLOSED:
        assert handshake.close_after_flush_producer
        assert handshake.close_upstream
    assert (handshake.ending is not None) == (handshake.state in (State.REFUSING, State.CLOSING, State.CLOSED))


def _said_before(state: HandshakeState) -> list[str]:
    start_, secure, tune_ = ["Connection.Start"], ["Connection.Secure"], ["Connection.Tune"]
    return {
        State.AWAITING_HEADER: [],
        State.AWAITING_START: [],
        State.AWAITING_START_OK: start_,
        State.REFUSING: start_,
        State.AWAITING_TUNE: start_,
        State.AWAITING_SECURE_OK: start_ + secure,
        State.AWAITING_TUNE_OK: start_ + secure + tune_,
        State.AWAITING_OPEN: start_ + secure + tune_,
        State.AWAITING_OPEN_OK: start_ + secure + tune_,
        State.OPEN: start_ + secure + tune_ + ["Connection.OpenOk"],
        State.CLOSING: [*start_, "Connection.Close"],
        State.CLOSED: [*start_, "Connection.Close"],
    }[state]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_random_first_bytes_have_the_same_result_in_any_chunking(data: bytes, cuts: list[int]) -> None:
    whole, chunked = new(), new()
    whole.receive_from_producer(data)
    for piece in cut(data, cuts):
        chunked.receive_from_producer(piece)
    assert (whole.state, whole.to_producer, whole.to_upstream) == (
        chunked.state, chunked.to_producer, chunked.to_upstream,
    )  # fmt: skip
