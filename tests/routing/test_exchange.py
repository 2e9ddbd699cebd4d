from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.errors import ProtocolError
from oxproxy.routing.bindings.binding import Binding, binding_hash
from oxproxy.routing.decision import Facts
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.filters import read_filters
from oxproxy.values import EXCHANGE, QUEUE, Value
from tests.routing.building import (
    Plain,
    arguments,
    decide,
    draw_last,
    exchange,
    facts,
    many,
    message,
    queues,
    refusal,
    table,
    to_exchange,
    to_queue,
    value,
)
from tests.routing.random_rules import BINDINGS, QUEUES, bind_valid, messages


def test_a_refused_binding_changes_nothing() -> None:
    made = exchange(to_queue("q", {"a": 1}))
    with pytest.raises(ProtocolError):
        made.bind(to_queue("r", {"b": 1, "x-nope": ""}))
    assert (made.changes, made.interest.headers) == (1, frozenset({b"a"}))
    assert made.destinations == {(QUEUE, b"q")}


def test_destinations_are_listed_while_a_binding_names_them() -> None:
    routed = to_queue("q", {"x-addq-ontrue": many("r", "s"), "x-adde-onfalse": "e"})
    made = exchange(routed, to_queue("r"), to_exchange("e"))
    everything = {(QUEUE, b"q"), (QUEUE, b"r"), (QUEUE, b"s"), (EXCHANGE, b"e")}
    assert made.destinations == everything
    assert made.next_names == {b"e"}
    made.unbind(routed)
    assert made.destinations == {(QUEUE, b"r"), (EXCHANGE, b"e")}
    made.unbind(to_exchange("e"))
    assert made.destinations == {(QUEUE, b"r")}
    assert made.next_names == set()


def test_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'x-delayed': expected one of x-open, fanout, direct, topic, headers"):
        Exchange(b"xo", "x-delayed")


@pytest.mark.parametrize("kind", BINDINGS)
@given(data=st.data())
def test_removed_bindings_leave_no_trace(kind: str, data: st.DataObject) -> None:
    """Binding and unbinding in sequence gives the same exchange as binding the remaining bindings only."""
    grown = Exchange(b"xo", kind)
    wanted = bind_valid(grown, data.draw(BINDINGS[kind]))
    if wanted:
        for binding in data.draw(st.lists(st.sampled_from(wanted), unique_by=lambda binding: binding.identity)):
            assert grown.unbind(binding)
            wanted.remove(binding)
            if data.draw(st.booleans()):
                assert grown.bind(binding)
                wanted.append(binding)
    fresh = Exchange(b"xo", kind)
    assert bind_valid(fresh, wanted) == wanted
    assert list(grown.bindings) == list(fresh.bindings) == wanted
    assert grown.interest == fresh.interest
    assert grown.destinations == fresh.destinations
    for seen in data.draw(st.lists(messages, max_size=3)):
        assert decide(grown, seen, QUEUES, draw_last) == decide(fresh, seen, QUEUES, draw_last)


def _breach(limits: dict[str, int], seen: Facts) -> str | None:
    """The error of the first violated limit."""
    return next(filter(None, (limit.breach(message(seen)) for limit in read_filters(arguments(limits)))), None)


def _heavy(**headers: Plain) -> Facts:
    return facts(headers=headers)


def test_very_deep_lists_do_not_exhaust_the_stack() -> None:
    deep = many()
    for _ in range(5000):
        deep = many(deep)
    assert _breach({"max-headers-depth": 10_000, "max-headers-size": 10**9}, _heavy(a=deep)) is None


@pytest.mark.parametrize("limit", ["max-headers-depth", "max-headers-size"])
def test_a_negative_headers_limit_rejects_every_message(limit: str) -> None:
    assert _breach({limit: -1}, facts()) == f"M{limit[1:].replace('-', ' ')} hit."


def test_headers_are_checked_in_the_order_of_their_names() -> None:
    limits = {"max-headers-depth": 1, "max-headers-size": 20}
    assert _breach(limits, _heavy(b=many(many()), a="x" * 30)) == "Max headers size hit."
    assert _breach(limits, _heavy(a=many(many()), b="x" * 30)) == "Max headers depth hit."


def test_depth_of_a_header_is_tested_before_its_size() -> None:
    limits = {"max-headers-depth": 1, "max-headers-size": 5}
    assert _breach(limits, _heavy(a=many("xxxxxxxxx", many()))) == "Max headers depth hit."


_PLAIN = to_queue("q1", {"a": 1, "b": "x"})


def _with(value: Value) -> Binding:
    return to_queue("q1", {"a": value})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Value("I", 1), Value("l", 1)),
        (Value("I", 1), Value("d", 1.0)),
        (Value("I", 1), Value("t", True)),
        (Value("f", 0.5), Value("d", 0.5)),
        (Value("S", b"x"), Value("x", b"x")),
        (Value("T", 1), Value("l", 1)),
        (many(1), Value("A", (Value("l", 1),))),
        (many(1, 2), many(2, 1)),
        (table(k=1), Value("F", ((b"k", Value("l", 1)),))),
        (table(k=1, j=2), table(j=2, k=1)),
        (table(), many()),
    ],
)
def test_types_of_values_distinguish_bindings(first: Value, second: Value) -> None:
    assert _with(first).identity != _with(second).identity


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Value("L", -1), Value("l", -1)),
        (Value("A", (Value("L", 1),)), Value("A", (Value("l", 1),))),
        (Value("F", ((b"k", Value("L", 1)),)), Value("F", ((b"k", Value("l", 1)),))),
    ],
)
def test_the_two_64_bit_field_types_are_equal(first: Value, second: Value) -> None:
    assert _with(first).identity == _with(second).identity


def test_the_hash_is_short_stable_and_independent_of_the_argument_order() -> None:
    hashes = {
        binding_hash(binding.destination_type, binding.destination, binding.routing_key, binding.arguments)
        for binding in (_PLAIN, to_queue("q1", {"b": "x", "a": 1}))
    }
    assert hashes == {"221a3c1d6d"}


def test_a_huge_number_in_a_set_is_out_of_range() -> None:
    made = exchange(to_queue("q", {"x-match": "set " + "9" * 5000, "a": 1}))
    assert queues(made, facts(headers={"a": 1})) == []


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", ["x-open", "headers", "topic", "direct", "fanout"])
def test_infinity_and_nan_are_refused(number: float, kind: str) -> None:
    for entry in (value(number), Value("f", number), table(k=number), table(k=many(number))):
        text = refusal(to_queue("q", {"a": entry}), kind)
        assert text == "Argument 'a' holds a number that is infinite or NaN"


def test_infinity_and_nan_are_refused_in_a_list() -> None:
    text = refusal(to_queue("q", {"x-match": "any", "a": many(1, float("nan"))}))
    assert text == "Argument 'a' holds a number that is infinite or NaN"
