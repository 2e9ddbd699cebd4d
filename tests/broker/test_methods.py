from __future__ import annotations

from dataclasses import replace

import pytest
from pamqp import base, commands, frame

from proxy.broker import methods
from proxy.relay.tokens import token
from proxy.values import Value
from tests.broker.world import bind_token, owned


def read(method: methods.Method) -> base.Frame:
    """What a peer reads from the method's bytes."""
    _, channel, found = frame.unmarshal(method.frame)
    assert channel == 0
    assert isinstance(found, base.Frame)
    return found


def test_a_queue_is_declared_durable_with_its_arguments() -> None:
    method = read(methods.DeclareQueue(b"late", ((b"x-message-ttl", Value("I", 60000)),)))
    assert isinstance(method, commands.Queue.Declare)
    assert dict(method) == {
        "ticket": 0, "queue": "late", "passive": False, "durable": True, "exclusive": False, "auto_delete": False,
        "nowait": False, "arguments": {"x-message-ttl": 60000},
    }  # fmt: skip


def test_a_carrier_is_a_durable_direct_exchange_with_our_mark() -> None:
    method = read(methods.declare_carrier(owned("documents", carrier=b"elsewhere", alternate=b"rest")))
    assert isinstance(method, commands.Exchange.Declare)
    assert dict(method) == {
        "ticket": 0, "exchange": "elsewhere", "exchange_type": "direct", "passive": False, "durable": True,
        "auto_delete": False, "internal": False, "nowait": False,
        "arguments": {"alternate-exchange": "rest", "x-open-exchange": True},
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_finding_declares_passively(kind: str) -> None:
    method = read(methods.Find((kind, b"there")))
    assert method[kind] == "there"
    assert method["passive"] is True
    assert method["nowait"] is False


def test_a_queue_is_bound_and_unbound_under_its_token() -> None:
    key = token("queue", b"q~1").decode()
    bind = read(bind_token(b"documents", ("queue", b"q~1")))
    unbind = read(replace(bind_token(b"documents", ("queue", b"q~1")), unbinds=True))
    assert isinstance(bind, commands.Queue.Bind)
    assert isinstance(unbind, commands.Queue.Unbind)
    for method in (bind, unbind):
        assert (method.queue, method.exchange, method.routing_key) == ("q~1", "documents", key)
        assert method.arguments == {}


def test_an_exchange_is_bound_and_unbound_under_its_token() -> None:
    key = token("exchange", "Käse".encode()).decode()
    bind = read(bind_token(b"documents", ("exchange", "Käse".encode())))
    unbind = read(replace(bind_token(b"documents", ("exchange", "Käse".encode())), unbinds=True))
    assert isinstance(bind, commands.Exchange.Bind)
    assert isinstance(unbind, commands.Exchange.Unbind)
    for method in (bind, unbind):
        assert (method.destination, method.source, method.routing_key) == ("Käse", "documents", key)
        assert not method.nowait


@pytest.mark.parametrize("name", [b"q", b"orders~2 (old)", "Käse".encode(), b"a" * 255])
def test_names_that_the_broker_takes_can_be_used(name: bytes) -> None:
    assert methods.unnameable(name) is None


@pytest.mark.parametrize(
    ("name", "cause"),
    [(b"", "empty"), (b"a" * 256, "255"), (b"\xff", "UTF-8"), ("ä".encode() * 71, "ASCII")],
)
def test_a_name_that_can_not_be_used_has_a_reason(name: bytes, cause: str) -> None:
    assert cause in (methods.unnameable(name) or "")


@pytest.mark.parametrize(
    ("code", "text", "kind", "says"),
    [
        (404, "NOT_FOUND - no queue 'q' in vhost '/'", "queue", "does not exist"),
        (404, "NOT_FOUND - no exchange 'c' in vhost '/'", "queue", "no carrier"),
        (404, "NOT_FOUND - no exchange 'x' in vhost '/'", "exchange", "does not exist"),
        (405, "RESOURCE_LOCKED", "queue", "exclusive queue of another connection"),
        (403, "ACCESS_REFUSED", "exchange", "write permission on this exchange"),
        (406, "PRECONDITION_FAILED", "queue", "406 PRECONDITION_FAILED"),
    ],
)
def test_a_refusal_becomes_a_reason_in_an_operators_words(code: int, text: str, kind: str, says: str) -> None:
    assert says in methods.reason(code, text, kind)
