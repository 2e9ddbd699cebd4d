"""What binds and unbinds ask for, as read from their frames."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.amqp import methods
from proxy.errors import ProtocolError
from proxy.relay.channel import Channel
from proxy.relay.declare.bindings import is_bind, read_bind_request
from proxy.relay.declare.injected_methods import answer, pass_on
from tests import client
from tests.client import exchange_bind, exchange_unbind, queue_bind, queue_unbind

ENTRIES = b"\x01at\x01"
MAKERS: dict[int, tuple[Callable[..., bytes], str, str]] = {
    methods.QUEUE_BIND: (queue_bind, "queue", "Queue.BindOk"),
    methods.QUEUE_UNBIND: (queue_unbind, "queue", "Queue.UnbindOk"),
    methods.EXCHANGE_BIND: (exchange_bind, "exchange", "Exchange.BindOk"),
    methods.EXCHANGE_UNBIND: (exchange_unbind, "exchange", "Exchange.UnbindOk"),
}


@pytest.mark.parametrize("method", MAKERS)
def test_all_four_are_read_and_answered_alike(method: int) -> None:
    make, kind, reply = MAKERS[method]
    channel = Channel(3)
    asked = read_bind_request(channel, make(3, b"to", b"from", b"key", ENTRIES))
    assert asked == (kind, b"to", b"from", b"key", False, ENTRIES, method)
    assert asked.receiver == (kind, b"to")
    assert client.names(answer(channel, method, asked.nowait)) == [reply]
    assert pass_on(channel, method, asked.nowait)
    assert len(channel.replies) == 1


def test_without_an_answer_nothing_is_said_and_nothing_awaited() -> None:
    channel = Channel(1)
    frame = methods.method_frame(1, methods.QUEUE_BIND, 0, b"to", b"from", b"", True, b"")
    asked = read_bind_request(channel, frame)
    assert asked.nowait
    assert answer(channel, methods.QUEUE_BIND, asked.nowait) == b""
    assert pass_on(channel, methods.QUEUE_BIND, asked.nowait)
    assert not channel.replies


@pytest.mark.parametrize(("key", "meant"), [(b"", b"last"), (b"own", b"own")])
def test_no_name_is_the_queue_declared_last_and_no_key_its_name(key: bytes, meant: bytes) -> None:
    channel = Channel(1)
    channel.last_queue = b"last"
    asked = read_bind_request(channel, queue_bind(1, b"", b"from", key, b""))
    assert (asked.destination, asked.routing_key) == (b"last", meant)


def test_only_binds_are_binds() -> None:
    for method, (make, _, _) in MAKERS.items():
        assert is_bind(make(1, b"to", b"from", b"", b"")) == (method in (methods.QUEUE_BIND, methods.EXCHANGE_BIND))


@given(st.binary(max_size=40))
def test_any_frame_is_read_or_refused(payload: bytes) -> None:
    frame = client.frame(1, 1, payload)
    is_bind(frame)
    with suppress(ProtocolError):
        read_bind_request(Channel(1), frame)
