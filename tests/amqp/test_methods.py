from __future__ import annotations

from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands

from proxy.amqp import method_frames, methods
from proxy.amqp import method_frames as frames
from proxy.amqp.frames import FRAME_END, METHOD
from proxy.amqp.methods import Argument, arguments, method_frame, method_of
from proxy.amqp.tables import encode_table
from proxy.errors import LocalProtocolError, ProtocolError, Scope
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


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\x3c\0"])
def test_payload_without_ids_is_a_502(payload: bytes) -> None:
    assert refusal(lambda: method_of(payload)) == (502, Scope.CONNECTION)


def test_unknown_method_is_a_540_with_its_ids() -> None:
    with pytest.raises(ProtocolError) as refused:
        method_of(b"\0\x3c\0\x63")
    error = refused.value
    assert (error.reply_code, error.class_id, error.method_id) == (540, 60, 99)


def test_malformed_table_among_the_arguments_is_a_502_with_the_ids_of_the_method() -> None:
    payload = b"\0\x32\0\x0a" + b"\0\0\x01q\x02\0\0\0\x03\x01aZ"
    with pytest.raises(ProtocolError) as refused:
        arguments(payload)
    error = refused.value
    assert (error.reply_code, error.class_id, error.method_id) == (502, 50, 10)


@given(st.sampled_from(sorted(methods.NAMES)), st.binary(max_size=40))
def test_random_arguments_are_read_or_refused(method: int, rest: bytes) -> None:
    assert refusal(lambda: arguments(method.to_bytes(4, "big") + rest)) in (None, (502, Scope.CONNECTION))


def test_bits_share_an_octet_lowest_first() -> None:
    frame = method_frame(1, methods.QUEUE_DECLARE, 0, b"q", True, False, True, False, True, b"")
    assert payload_of(frame)[4:] == b"\0\0\x01q\x15\0\0\0\0"


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


def test_replies_pair_requests_with_their_answers() -> None:
    assert methods.REPLIES[METHODS["Basic.Get"]] == {METHODS["Basic.GetOk"], METHODS["Basic.GetEmpty"]}
    assert methods.REPLIES[methods.CHANNEL_CLOSE] == {methods.CHANNEL_CLOSE_OK}
    assert methods.REPLIES[METHODS["Connection.UpdateSecret"]] == {METHODS["Connection.UpdateSecretOk"]}
    assert methods.BASIC_PUBLISH not in methods.REPLIES
    assert all(methods.REPLIES.values())


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


TABLE = b"\x01aV"


@pytest.mark.parametrize(
    ("frame", "channel", "method", "values"),
    [
        (frames.connection_close(320, b"gone", 10, 40), 0, methods.CONNECTION_CLOSE, (320, b"gone", 10, 40)),
        (frames.connection_close_ok(), 0, methods.CONNECTION_CLOSE_OK, ()),
        (frames.channel_open(7), 7, methods.CHANNEL_OPEN, (b"",)),
        (frames.channel_close(7, 406, b"no", 60, 40), 7, methods.CHANNEL_CLOSE, (406, b"no", 60, 40)),
        (frames.channel_close_ok(7), 7, methods.CHANNEL_CLOSE_OK, ()),
        (
            frames.exchange_declare(1, b"e", b"direct", TABLE, passive=True),
            1, methods.EXCHANGE_DECLARE, (0, b"e", b"direct", True, True, False, False, False, TABLE),
        ),
        (frames.exchange_delete(1, b"e", if_unused=True), 1, methods.EXCHANGE_DELETE, (0, b"e", True, False)),
        (
            frames.bind(1, ("exchange", b"d"), b"s", b"k"),
            1, methods.EXCHANGE_BIND, (0, b"d", b"s", b"k", False, b""),
        ),
        (
            frames.unbind(1, ("exchange", b"d"), b"s", b"k", TABLE),
            1, methods.EXCHANGE_UNBIND, (0, b"d", b"s", b"k", False, TABLE),
        ),
        (
            frames.bind(1, ("queue", b"q"), b"e", b"k", TABLE),
            1, methods.QUEUE_BIND, (0, b"q", b"e", b"k", False, TABLE),
        ),
        (
            frames.queue_declare(1, b"q", TABLE),
            1, methods.QUEUE_DECLARE, (0, b"q", False, True, False, False, False, TABLE),
        ),
        (
            frames.look_for(1, ("queue", b"q")),
            1, methods.QUEUE_DECLARE, (0, b"q", True, False, False, False, False, b""),
        ),
        (
            frames.look_for(1, ("exchange", b"e")),
            1, methods.EXCHANGE_DECLARE, (0, b"e", b"direct", True, False, False, False, False, b""),
        ),
        (frames.bind(1, ("queue", b"q"), b"e", b"k"), 1, methods.QUEUE_BIND, (0, b"q", b"e", b"k", False, b"")),
        (
            frames.bind(1, ("exchange", b"d"), b"s", b"k", TABLE),
            1, methods.EXCHANGE_BIND, (0, b"d", b"s", b"k", False, TABLE),
        ),
        (
            frames.unbind(1, ("exchange", b"d"), b"s", b"k"),
            1, methods.EXCHANGE_UNBIND, (0, b"d", b"s", b"k", False, b""),
        ),
        (frames.unbind(1, ("queue", b"q"), b"e", b"k"), 1, methods.QUEUE_UNBIND, (0, b"q", b"e", b"k", b"")),
        (
            frames.basic_publish(1, b"e", b"k", mandatory=True),
            1, methods.BASIC_PUBLISH, (0, b"e", b"k", True, False),
        ),
        (
            frames.basic_return(1, 312, b"NO_ROUTE", b"e", b"k"),
            1, methods.BASIC_RETURN, (312, b"NO_ROUTE", b"e", b"k"),
        ),
        (frames.confirm_select(1), 1, methods.CONFIRM_SELECT, (False,)),
    ],
)  # fmt: skip
def test_frames_contain_their_method_and_arguments(
    frame: bytes, channel: int, method: int, values: tuple[Argument, ...]
) -> None:
    assert frame[:3] == b"\x01" + channel.to_bytes(2, "big")
    assert (method_of(frame[7:-1]), arguments(frame[7:-1])) == (method, values)


@pytest.mark.parametrize(
    ("frame", "reply"),
    [
        (frames.bind(1, ("queue", b"q"), b"e", b"k"), methods.QUEUE_BIND_OK),
        (frames.unbind(1, ("exchange", b"d"), b"s", b"k"), methods.EXCHANGE_UNBIND_OK),
        (frames.look_for(1, ("queue", b"q")), methods.QUEUE_DECLARE_OK),
        (frames.exchange_delete(1, b"e"), methods.EXCHANGE_DELETE_OK),
    ],
)
def test_each_request_of_the_sidecar_has_one_reply(frame: bytes, reply: int) -> None:
    assert methods.reply_to(frame) == reply


def test_reply_text_begins_with_the_name_of_its_code() -> None:
    assert frames.reply_text(406, b"Max size payload hit.") == b"PRECONDITION_FAILED - Max size payload hit."
    assert frames.reply_text(299, b"strange") == b"strange"


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


def test_a_reply_text_that_is_not_utf8_is_truncated() -> None:
    assert frames.reply_text(0, b"\x80" * 300) == b"\x80" * 252 + b"..."


#: Named tuples, each with a method that is decoded into it.
FIELDS: list[tuple[type[NamedTuple], int]] = [
    (method_frames.Close, methods.CONNECTION_CLOSE),
    (method_frames.Close, methods.CHANNEL_CLOSE),
    (method_frames.ExchangeDeclare, methods.EXCHANGE_DECLARE),
    (method_frames.ExchangeDelete, methods.EXCHANGE_DELETE),
    (method_frames.ExchangeBind, methods.EXCHANGE_BIND),
    (method_frames.ExchangeBind, methods.EXCHANGE_UNBIND),
    (method_frames.QueueDeclare, methods.QUEUE_DECLARE),
    (method_frames.QueueDeclareOk, methods.QUEUE_DECLARE_OK),
    (method_frames.QueueBind, methods.QUEUE_BIND),
    (method_frames.QueueUnbind, methods.QUEUE_UNBIND),
    (method_frames.QueueDelete, methods.QUEUE_DELETE),
    (method_frames.Publish, methods.BASIC_PUBLISH),
    (method_frames.Return, methods.BASIC_RETURN),
    (method_frames.Deliver, methods.BASIC_DELIVER),
    (method_frames.GetOk, methods.BASIC_GET_OK),
    (method_frames.Ack, methods.BASIC_ACK),
    (method_frames.Nack, methods.BASIC_NACK),
]

_SAMPLES: dict[str, list[Argument]] = {
    "bit": [True, False],
    "octet": [7],
    "short": [312],
    "long": [70000],
    "longlong": [2**40],
    "shortstr": [b"a\xff", b""],
    "longstr": [b"text"],
    "table": [b"\x01aV"],
}


@pytest.mark.parametrize("pick", [0, 1])
@pytest.mark.parametrize(("fields", "method"), FIELDS)
def test_each_argument_is_read_into_its_field(fields: type[NamedTuple], method: int, pick: int) -> None:
    kind = cast("type[base.Frame]", commands.INDEX_MAPPING[method])
    names = kind.attributes()
    values = {
        name: _SAMPLES[kind.amqp_type(name)][(at + pick) % len(_SAMPLES[kind.amqp_type(name)])]
        for at, name in enumerate(names)
    }
    result = method_frames.read_method(fields, method_frame(3, method, *values.values())[7:-1])
    assert result._asdict() == {name: value for name, value in values.items() if name != "ticket"}
