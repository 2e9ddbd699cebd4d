from __future__ import annotations

from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands

from proxy.amqp import method_frames, methods
from proxy.amqp import method_frames as frames
from proxy.amqp.methods import Argument, arguments, method_frame, method_of

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
