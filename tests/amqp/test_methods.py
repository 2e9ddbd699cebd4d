from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands

from oxproxy.amqp import method_frames as frames
from oxproxy.amqp import methods
from oxproxy.amqp.frames import FRAME_END, METHOD
from oxproxy.amqp.methods import Argument, arguments, method_frame, method_of
from oxproxy.amqp.tables import encode_table
from oxproxy.errors import LocalProtocolError, ProtocolError, Scope
from tests.amqp.test_tables import refusal
from tests.relay.contents import tables

CONSTANTS = {
    name: number
    for name, number in vars(methods).items()
    if name[0].isalpha() and isinstance(number, int) and number >> 16
}

METHODS = {name: number for number, name in methods.NAMES.items()}

_kinds: dict[str, st.SearchStrategy[int] | st.SearchStrategy[bytes]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 2**8 - 1),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "shortstr": st.binary(max_size=255),
    "longstr": st.binary(max_size=300),
    "table": tables().map(encode_table),
}


def _calls_of(method: int) -> st.SearchStrategy[tuple[int, tuple[Argument, ...]]]:
    kind = cast("type[base.Frame]", commands.INDEX_MAPPING[method])
    values = st.tuples(*(_kinds[kind.amqp_type(argument)] for argument in kind.attributes()))
    return values.map(lambda drawn: (method, drawn))


calls = st.sampled_from(sorted(methods.NAMES)).flatmap(_calls_of)


def payload_of(frame: bytes) -> bytes:
    assert frame[0] == METHOD
    assert int.from_bytes(frame[3:7], "big") == len(frame) - 8
    assert frame[-1] == FRAME_END
    return frame[7:-1]


def test_constants_are_the_numbers_of_their_methods() -> None:
    named = {name.replace("_", "").lower(): number for name, number in CONSTANTS.items()}
    numbers = {name.replace(".", "").lower(): number for name, number in METHODS.items()}
    assert named.items() <= numbers.items()


@given(calls, st.integers(0, 65535))
def test_arguments_of_every_method_survive_a_round_trip(call: tuple[int, tuple[Argument, ...]], channel: int) -> None:
    method, values = call
    frame = method_frame(channel, method, *values)
    assert int.from_bytes(frame[1:3], "big") == channel
    payload = payload_of(frame)
    assert method_of(payload) == method
    assert arguments(payload) == values


@given(calls)
def test_truncated_methods_and_trailing_bytes_are_a_502_with_the_method_ids(
    call: tuple[int, tuple[Argument, ...]],
) -> None:
    method, values = call
    payload = payload_of(method_frame(1, method, *values))
    for wrong in [payload[:end] for end in range(4, len(payload))] + [payload + b"\0"]:
        with pytest.raises(ProtocolError) as refused:
            arguments(wrong)
        error = refused.value
        assert (error.reply_code, error.scope) == (502, Scope.CONNECTION)
        assert (error.class_id << 16 | error.method_id) == method


def test_malformed_table_among_the_arguments_is_a_502_with_the_ids_of_the_method() -> None:
    payload = b"\0\x32\0\x0a" + b"\0\0\x01q\x02\0\0\0\x03\x01aZ"
    with pytest.raises(ProtocolError) as refused:
        arguments(payload)
    error = refused.value
    assert (error.reply_code, error.class_id, error.method_id) == (502, 50, 10)


@given(st.sampled_from(sorted(methods.NAMES)), st.binary(max_size=40))
def test_random_arguments_are_read_or_refused(method: int, rest: bytes) -> None:
    assert refusal(lambda: arguments(method.to_bytes(4, "big") + rest)) in (None, (502, Scope.CONNECTION))


@pytest.mark.parametrize(
    "values",
    [(), (b"a", b"b"), ("text",), (1,), (b"x" * 256,)],
    ids=["too few", "too many", "text", "number", "long"],
)
def test_encoding_invalid_arguments_is_a_local_protocol_error(values: tuple[Argument, ...]) -> None:
    with pytest.raises(LocalProtocolError, match=r"Basic\.ConsumeOk"):
        method_frame(1, METHODS["Basic.ConsumeOk"], *values)


def test_encoding_a_number_that_is_too_large_is_a_local_protocol_error() -> None:
    with pytest.raises(LocalProtocolError):
        method_frame(1, methods.BASIC_ACK, 2**64, False)


def test_methods_of_producers_and_of_brokers_are_distinguished() -> None:
    from_producer = {name for method, name in methods.NAMES.items() if method not in methods.ONLY_FROM_BROKER}
    assert from_producer == {
        "Connection.StartOk", "Connection.SecureOk", "Connection.TuneOk", "Connection.Open",
        "Connection.Close", "Connection.CloseOk", "Connection.UpdateSecret",
        "Channel.Open", "Channel.Flow", "Channel.FlowOk", "Channel.Close", "Channel.CloseOk",
        "Exchange.Declare", "Exchange.Delete", "Exchange.Bind", "Exchange.Unbind",
        "Queue.Declare", "Queue.Bind", "Queue.Purge", "Queue.Delete", "Queue.Unbind",
        "Basic.Qos", "Basic.Consume", "Basic.Cancel", "Basic.CancelOk", "Basic.Publish", "Basic.Get",
        "Basic.Ack", "Basic.Nack", "Basic.Reject", "Basic.Recover", "Basic.RecoverAsync",
        "Confirm.Select", "Tx.Select", "Tx.Commit", "Tx.Rollback",
    }  # fmt: skip


def test_long_reply_text_is_cut_between_characters() -> None:
    for padding in range(4):
        text = b"x" * padding + "\N{EURO SIGN}".encode() * 100
        cut = frames.reply_text(403, text)
        assert cut.startswith(b"ACCESS_REFUSED - ")
        assert cut.endswith("\N{EURO SIGN}...".encode())
        assert 252 <= len(cut) <= 255


@given(st.integers(0, 600), st.text(max_size=300))
def test_a_reply_text_fits_and_is_valid_utf8(reply_code: int, text: str) -> None:
    cut = frames.reply_text(reply_code, text.encode())
    assert len(cut) <= 255
    assert cut.decode().rstrip(".")[:200] in f"{frames.REPLY_NAMES.get(reply_code, b'').decode()} - {text}"


def test_reply_texts_begin_with_the_names_that_rabbitmq_uses() -> None:
    texts = [frames.reply_text(code, b"text") for code in (200, 312, 406, 541, 999)]
    assert texts == [
        b"REPLY_SUCCESS - text",
        b"NO_ROUTE - text",
        b"PRECONDITION_FAILED - text",
        b"INTERNAL_ERROR - text",
        b"text",
    ]


def test_a_reply_text_that_is_not_utf8_is_truncated() -> None:
    assert frames.reply_text(0, b"\x80" * 300) == b"\x80" * 252 + b"..."
