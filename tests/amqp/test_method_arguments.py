from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import pytest
from pamqp import base, commands

from proxy.amqp import method_frames as read
from proxy.amqp import methods
from proxy.amqp.methods import Argument, method_frame


class Read(Protocol):
    def _asdict(self) -> dict[str, Argument]: ...


#: Reader and the methods it reads.
READERS: list[tuple[Callable[[bytes], Read], int]] = [
    (read.read_close, methods.CONNECTION_CLOSE),
    (read.read_close, methods.CHANNEL_CLOSE),
    (read.read_exchange_declare, methods.EXCHANGE_DECLARE),
    (read.read_exchange_delete, methods.EXCHANGE_DELETE),
    (read.read_exchange_bind, methods.EXCHANGE_BIND),
    (read.read_exchange_bind, methods.EXCHANGE_UNBIND),
    (read.read_queue_declare, methods.QUEUE_DECLARE),
    (read.read_queue_declare_ok, methods.QUEUE_DECLARE_OK),
    (read.read_queue_bind, methods.QUEUE_BIND),
    (read.read_queue_delete, methods.QUEUE_DELETE),
    (read.read_publish, methods.BASIC_PUBLISH),
    (read.read_return, methods.BASIC_RETURN),
    (read.read_deliver, methods.BASIC_DELIVER),
    (read.read_get_ok, methods.BASIC_GET_OK),
    (read.read_ack, methods.BASIC_ACK),
    (read.read_nack, methods.BASIC_NACK),
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
@pytest.mark.parametrize(("reader", "method"), READERS)
def test_reader_gives_each_argument_under_its_own_name(reader: Callable[[bytes], Read], method: int, pick: int) -> None:
    kind = cast("type[base.Frame]", commands.INDEX_MAPPING[method])
    names = kind.attributes()
    values = {
        name: _SAMPLES[kind.amqp_type(name)][(at + pick) % len(_SAMPLES[kind.amqp_type(name)])]
        for at, name in enumerate(names)
    }
    found = reader(method_frame(3, method, *values.values())[7:-1])
    assert found._asdict() == {name: value for name, value in values.items() if name != "ticket"}


def test_unbind_reads_as_a_bind_that_waits() -> None:
    frame = method_frame(1, methods.QUEUE_UNBIND, 0, b"q", b"e", b"k", b"\x01aV")
    assert read.read_queue_unbind(frame[7:-1]) == read.QueueBind(b"q", b"e", b"k", False, b"\x01aV")
