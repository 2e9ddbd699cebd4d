"""Tests every handshake state with every input from both sides, and arbitrary bytes in arbitrary chunks."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands

from proxy.amqp.methods import NAMES, Argument, method_frame
from proxy.relay.handshake.machine import (
    PRODUCERS_TURN,
    WITHOUT_BROKER,
    Handshake,
    HandshakeSide,
    HandshakeState,
)
from tests.client import HEARTBEAT, PROTOCOL_HEADER, cut, frame, names, split
from tests.relay.handshakes import (
    CLOSE_OK,
    CONVERSATION,
    OPEN,
    OPEN_OK,
    SECURE,
    SECURE_OK,
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
