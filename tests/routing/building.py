"""Short constructors for the routing tests: values, bindings, messages and decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

import pytest

from oxproxy.errors import ProtocolError
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.decision import Decision, Facts, QueueNames, Trace
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.message import Message
from oxproxy.routing.router import Router
from oxproxy.values import EXCHANGE, QUEUE, Table, Value

#: A value as written in tests: string, number or boolean, or a Value.
Plain = str | int | float | bool | Value

NOW = 1_795_248_000.0  # 2026-11-21T08:00:00Z


def value(plain: Plain) -> Value:
    match plain:
        case Value():
            return plain
        case bool():
            return Value("t", plain)
        case int():
            return Value("I" if -(2**31) <= plain < 2**31 else "l", plain)
        case float():
            return Value("d", plain)
    return Value("S", plain.encode())


def many(*elements: Plain) -> Value:
    return Value("A", tuple(map(value, elements)))


def table(**entries: Plain) -> Value:
    return Value("F", arguments(entries))


VOID = Value("V", None)


def arguments(entries: Mapping[str, Plain]) -> Table:
    return tuple((name.encode(), value(plain)) for name, plain in entries.items())


def to_queue(
    name: str, entries: Mapping[str, Plain] | None = None, key: str = "", sequence: int = 0, extensions: bool = False
) -> Binding:
    table = arguments(entries or {})
    return Binding(b"xo", QUEUE, name.encode(), key.encode(), table, sequence=sequence, extensions=extensions)


def to_exchange(name: str, entries: Mapping[str, Plain] | None = None, key: str = "") -> Binding:
    return Binding(b"xo", EXCHANGE, name.encode(), key.encode(), arguments(entries or {}))


def exchange(*bindings: Binding, kind: str = "x-open", name: str = "xo", alternate: str | None = None) -> Exchange:
    made = Exchange(name.encode(), kind, alternate=alternate.encode() if alternate else None)
    for binding in bindings:
        assert made.bind(binding)
    return made


def facts(
    key: str = "",
    headers: Mapping[str, Plain] | None = None,
    size: int = 1,
    properties: Mapping[str, str | int] | None = None,
) -> Facts:
    seen = {name: text.encode() if isinstance(text, str) else text for name, text in (properties or {}).items()}
    return Facts(key.encode(), arguments(headers or {}), seen, size)


def no_draw(_count: int) -> NoReturn:
    pytest.fail("unexpected random draw")


def draw_last(count: int) -> int:
    return count - 1


def queue_names(*names: str) -> QueueNames:
    return QueueNames(tuple(name.encode() for name in names), 1)


def message(of: Facts | None = None, names: QueueNames | None = None, draw: Callable[[int], int] = no_draw) -> Message:
    return Message(of or facts(), NOW, names or queue_names(), draw)


def decide(
    router: Router | Exchange,
    of: Facts | None = None,
    names: QueueNames | None = None,
    draw: Callable[[int], int] = no_draw,
    trace: Trace | None = None,
) -> Decision:
    if isinstance(router, Exchange):
        router = Router([router])
    return router.decide(next(iter(router.exchanges)), of or facts(), NOW, names or queue_names(), draw, trace)


def queues(
    router: Router | Exchange,
    of: Facts | None = None,
    names: QueueNames | None = None,
    draw: Callable[[int], int] = no_draw,
) -> list[str]:
    return [name.decode() for name in decide(router, of, names, draw).queues]


def refusal(binding: Binding, kind: str = "x-open") -> str:
    with pytest.raises(ProtocolError) as caught:
        exchange(binding, kind=kind)
    assert caught.value.reply_code == 406
    return caught.value.text.decode("latin-1")
