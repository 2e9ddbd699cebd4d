"""What applications declared survives the sidecar: another sidecar routes in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from oxproxy.values import Table, Value
from tests.broker.delivery.applications import Application, declared
from tests.broker.observed import Outside
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

STOP = {"x-stop-ontrue": ""}
Start = Callable[..., Sidecar]


@pytest.fixture
def start(broker: Broker) -> Iterator[Start]:
    """Start sidecars that share nothing but the broker."""
    with ExitStack() as stack:

        def begin(**settings: object) -> Sidecar:
            return stack.enter_context(Sidecar(broker, settings=settings))

        yield begin


# -- all types of arguments --------------------------------------------------------------------------------------------

#: One operator for each type that JSON loses, with a value that JSON changes.
TYPED: Mapping[str, Value] = {
    "wide": Value("l", 5),
    "narrow": Value("b", 5),
    "huge": Value("l", 2**53 + 1),
    "double": Value("d", 0.1),
    "single": Value("f", 0.10000000149011612),
    "stamp": Value("T", 1_700_000_000),
    "bytes": Value("S", b"\xff\xfe\x00"),
    "short": Value("x", b"\xc3("),
    "flag": Value("t", True),
    "void": Value("V", None),
    "nested": Value("F", ((b"z", Value("I", 1)), (b"a", Value("s", 2)))),
}
OPERATORS: Table = tuple((f"x-?hkv= {name}".encode(), value) for name, value in TYPED.items())
MESSAGE: Table = tuple((name.encode(), value) for name, value in TYPED.items())


def changed(name: str, value: Value) -> Table:
    return tuple((key, value if key == name.encode() else old) for key, old in MESSAGE)


#: Values that must not match, as close as possible to those above.
NEAR = {
    "huge": Value("d", float(2**53)),
    "double": Value("f", 0.10000000149011612),
    "single": Value("d", 0.1),
    "stamp": Value("T", 1_700_000_001),
    "bytes": Value("S", b"\xff\xfe"),
    "flag": Value("I", 1),
    "void": Value("S", b""),
    "nested": Value("F", ((b"a", Value("s", 2)), (b"z", Value("I", 1)))),
}


def test_types_and_bytes_of_arguments_survive(start: Start, vhost: str) -> None:
    first = start()
    with Application(first.port, vhost) as app:
        app.exchange("ox")
        app.queues("a")
        app.bind("a", "ox", OPERATORS)
        assert app.reached("ox", MESSAGE, "a") == ["a"]
    first.stop()
    with Application(start().port, vhost) as app:
        assert app.reached("ox", MESSAGE, "a") == ["a"]
        for name, value in NEAR.items():
            assert app.reached("ox", changed(name, value), "a") == [], name
        wrong_type = tuple((key, Value("I", 5) if key == b"x-?hkv= wide" else value) for key, value in OPERATORS)
        assert app.refused(app.unbinding("a", "ox", wrong_type)).text.endswith("binding arguments do not match")
        app.unbind("a", "ox", OPERATORS)
        assert app.reached("ox", MESSAGE, "a") == []


def test_stored_arguments_are_not_shown_to_clients(start: Start, vhost: str, outside: Outside) -> None:
    with Application(start().port, vhost) as app:
        app.exchange("ox")
        app.queues("a")
        app.bind("a", "ox", {"x-?hkex": "mine"})
        app.send_settled("ox", "k", {"mine": 1})
        [message] = app.take("a")
        assert set(message.headers) == {"mine"}
    kept = [
        binding
        for binding in outside.broker.api("GET", f"exchanges/{vhost}/ox/bindings/source")
        if binding["arguments"]
    ]
    assert [set(binding["arguments"]) for binding in kept] == [{"x-?hkex", "x-oxproxy", "x-oxproxy-signature"}]


@pytest.mark.parametrize("loud_first", [True, False])
def test_the_order_of_an_exchanges_arguments_survives(start: Start, vhost: str, loud_first: bool) -> None:
    limits = [(b"max-payload-size", Value("I", 3)), (b"max-payload-size-silent", Value("I", 2))]
    table = tuple(limits if loud_first else reversed(limits))
    first = start()
    with Application(first.port, vhost) as app:
        app.exchange("ox", table)
    first.stop()
    with Application(start().port, vhost) as app:
        app.exchange("ox", table)  # the same as before
        app.publish("ox", "k", body=b"1234")
        if loud_first:  # the limit declared last is checked first
            assert app.settle().acked
        else:
            assert app.closed().text.endswith("Max size payload hit.")


def test_the_order_of_declarations_survives(start: Start, vhost: str) -> None:
    names = [f"q{number}" for number in range(6)]
    first = start()
    with Application(first.port, vhost) as app:
        app.exchange("ox")
        app.queues(*names)
        for name in names:
            app.bind(name, "ox", STOP)
        app.unbind("q2", "ox", STOP)
        app.bind("q2", "ox", STOP)
    first.stop()
    with Application(start().port, vhost) as app:
        for expected in ("q2", "q5", "q4", "q3", "q1", "q0"):
            assert app.reached("ox", {}, *names) == [expected]
            app.unbind(expected, "ox", STOP)


def test_alternate_exchanges_chains_routes_and_auto_delete_survive(start: Start, vhost: str, outside: Outside) -> None:
    outside.make_exchange("spare", "fanout")
    outside.make_exchange("real", "topic")
    first = start()
    with Application(first.port, vhost) as app:
        app.queues("a", "b", "c", "fallback")
        app.bind("fallback", "spare")
        app.bind("c", "real", key="#")
        app.exchange("ox", {"alternate-exchange": "spare"})
        app.exchange("next", auto_delete=True)
        app.chain("next", "ox", {"x-?hkex": "next"})
        app.chain("real", "ox", {"x-?hkex": "real"})
        app.bind("a", "ox", {"x-?hkex": "a", "x-addq-ontrue": "b"})
        app.bind("b", "next", {"x-?hkex": "b"})
    first.stop()
    with Application(start().port, vhost) as app:
        names = ("a", "b", "c", "fallback")
        assert app.reached("ox", {"a": 1}, *names) == ["a", "b"]
        assert app.reached("ox", {"next": 1, "b": 1}, *names) == ["b"]
        assert app.reached("ox", {"real": 1}, *names) == ["c"]
        assert app.reached("ox", {"other": 1}, *names) == ["fallback"]
        app.unbind("b", "next", {"x-?hkex": "b"})

        assert app.refused(app.declaring("next", passive=True)).code == 404


def test_the_first_message_of_the_first_connection_is_routed(start: Start, vhost: str) -> None:
    first = start()
    with Application(first.port, vhost) as app:
        app.exchange("ox")
        app.queues("a", "b")
        app.bind("a", "ox", {"x-?hkv= to": "a"})
        app.bind("b", "ox", {"x-?hkv= to": "b"})
    first.stop()
    again = start()
    assert declared(again, vhost) == {"ox": 2}  # a ready sidecar has read them back
    with Application(again.port, vhost) as app:
        app.publish("ox", "k", {"to": "b"}, mandatory=True)
        assert app.settle() == (True, [])
        assert [len(app.take(queue)) for queue in ("a", "b")] == [0, 1]


# -- two sidecars on one broker ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"inventory": {"refresh": "1h"}, "declared": {"announce": True}}], ids=["refreshing", "announcing"]
)
def test_a_binding_made_through_one_sidecar_is_used_by_the_other(
    start: Start, vhost: str, settings: Mapping[str, object]
) -> None:
    first, second = start(**settings), start(**settings)
    with Application(first.port, vhost) as here, Application(second.port, vhost) as there:
        here.queues("a", "b")
        here.exchange("ox")
        here.bind("a", "ox", {"x-?hkex": "x"})

        def arrives() -> bool:
            there.publish("ox", "k", {"x": 1})
            frame = there.frame()
            if frame.name == "Channel.Close":
                there.open(confirm=True)
                return False
            return bool(there.take("a"))

        until(arrives)
        there.bind("b", "ox", {"x-?hkex": "x"})
        until(lambda: here.reached("ox", {"x": 1}, "b") == ["b"])
        here.unbind("b", "ox", {"x-?hkex": "x"})
        until(lambda: there.reached("ox", {"x": 1}, "b") == [])
        here.delete("ox")
        until(lambda: declared(second, vhost) == {})


def test_a_second_unbind_removes_a_copy_that_was_bound_through_another_sidecar(
    start: Start, vhost: str, outside: Outside
) -> None:
    late = {"inventory": {"refresh": "1h"}}
    first, second = start(**late), start(**late)

    def copies() -> int:
        rows = outside.broker.api("GET", f"exchanges/{vhost}/ox/bindings/source")
        return sum("x-oxproxy" in row["arguments"] for row in rows)

    with Application(first.port, vhost) as here, Application(second.port, vhost) as there:
        for app in (here, there):
            app.queues("a")
            app.exchange("ox")
        for app in (here, there):  # the second does not know of the first's binding
            app.bind("a", "ox", {"x-?hkex": "x"})
        assert copies() == 2
        for left in (1, 0):
            there.unbind("a", "ox", {"x-?hkex": "x"})
            assert copies() == left
