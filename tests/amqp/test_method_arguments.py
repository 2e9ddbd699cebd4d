from __future__ import annotations

from typing import NamedTuple, cast

import pytest
from pamqp import base, commands

from proxy.amqp import method_frames, methods
from proxy.amqp.methods import Argument, method_frame

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
