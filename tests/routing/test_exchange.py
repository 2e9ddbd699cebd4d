from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ProtocolError
from proxy.routing.bindings.binding import Binding, binding_hash
from proxy.routing.decision import Facts
from proxy.routing.exchange import Exchange
from proxy.routing.filters import HeadersFilter, PayloadFilter, read_filters
from proxy.values import EXCHANGE, QUEUE, Value
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


def test_an_existing_binding_changes_nothing() -> None:
    made = exchange(to_queue("a"), to_queue("b"))
    assert not made.bind(to_queue("a"))
    assert [binding.destination for binding in made.bindings] == [b"a", b"b"]
    assert [compiled.binding.destination for compiled in made.entries] == [b"b", b"a"]
    assert made.changes == 2


def test_a_binding_made_again_comes_first_among_its_ties() -> None:
    made = exchange(to_queue("a"), to_queue("b"))
    assert made.unbind(to_queue("a"))
    assert made.bind(to_queue("a"))
    assert [compiled.binding.destination for compiled in made.entries] == [b"a", b"b"]


def test_unbinding_needs_the_same_identity() -> None:
    made = exchange(to_queue("q", {"a": 1}))
    assert not made.unbind(to_queue("q"))
    assert not made.unbind(to_queue("q", {"a": 1.0}))
    assert made.unbind(replace(to_queue("q", {"a": 1}), id="another name", sequence=9))
    assert list(made.bindings) == []


def test_a_refused_binding_changes_nothing() -> None:
    made = exchange(to_queue("q", {"a": 1}))
    with pytest.raises(ProtocolError):
        made.bind(to_queue("r", {"b": 1, "x-nope": ""}))
    assert (made.changes, made.interest.headers) == (1, frozenset({b"a"}))
    assert made.destinations == {(QUEUE, b"q")}


def test_a_binding_without_an_id_is_identified_by_its_hash() -> None:
    made = exchange(replace(to_queue("a"), id="named"), to_queue("b"))
    named, hashed = sorted(id for _, id in decide(made).matched)[::-1]
    assert named == "named"
    assert len(hashed) == 10
    assert hashed == sorted(id for _, id in decide(exchange(to_queue("b"))).matched)[0]


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


def test_a_size_threshold_is_the_first_size_with_the_other_result() -> None:
    assert PayloadFilter(b"", 10, True, False).cut == 10
    assert PayloadFilter(b"", 10, False, False).cut == 11
    assert HeadersFilter(b"", 1, 1).silent is False


_PLAIN = to_queue("q1", {"a": 1, "b": "x"})


def _with(value: Value) -> Binding:
    return to_queue("q1", {"a": value})


@pytest.mark.parametrize(
    "other",
    [
        to_queue("q2", {"a": 1, "b": "x"}),
        to_exchange("q1", {"a": 1, "b": "x"}),
        to_queue("q1", {"a": 1, "b": "x"}, key="k"),
        to_queue("q1", {"a": 1}),
        to_queue("q1", {"a": 1, "b": "x", "x-match": "all"}),
        replace(_PLAIN, exchange=b"another"),
    ],
)
def test_every_declared_field_distinguishes_bindings(other: Binding) -> None:
    assert other.identity != _PLAIN.identity


def test_order_of_arguments_id_and_sequence_do_not_distinguish_bindings() -> None:
    assert replace(to_queue("q1", {"b": "x", "a": 1}), id="named", sequence=7).identity == _PLAIN.identity


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


def _unknown(key: str) -> str:
    return f"Unknown or invalid argument's key '<<\"{key}\">>'"


def test_a_huge_number_in_a_set_is_out_of_range() -> None:
    made = exchange(to_queue("q", {"x-match": "set " + "9" * 5000, "a": 1}))
    assert queues(made, facts(headers={"a": 1})) == []


@pytest.mark.parametrize(
    ("key", "element"), [("x-del-dest", ""), ("x-order", 100), ("x-goto-ontrue", 100), ("x-goto-onfalse", 100)]
)
def test_lists_are_refused_for_operators_with_a_single_value(key: str, element: Plain) -> None:
    assert refusal(to_queue("q", {key: many(element)})) == _unknown(key)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", ["x-open", "headers", "topic", "direct", "fanout"])
def test_infinity_and_nan_are_refused(number: float, kind: str) -> None:
    for entry in (value(number), Value("f", number), table(k=number), table(k=many(number))):
        text = refusal(to_queue("q", {"a": entry}), kind)
        assert text == "Argument 'a' holds a number that is infinite or NaN"


def test_infinity_and_nan_are_refused_in_a_list() -> None:
    text = refusal(to_queue("q", {"x-match": "any", "a": many(1, float("nan"))}))
    assert text == "Argument 'a' holds a number that is infinite or NaN"


def test_duplicate_arguments_are_both_operators() -> None:
    binding = to_queue("q")
    twice = ((b"x-?hkv= a", Value("I", 1)), (b"x-?hkv= a", Value("I", 2)))
    assert queues(exchange(replace(binding, arguments=twice)), facts(headers={"a": 1})) == []


@pytest.mark.parametrize(
    ("key", "pattern", "true"),
    [
        ("x-?dture", "^20261121 08", True),
        ("x-?dture", "^20261121 10", False),
        ("x-?dtu!re", "^20261121 10", True),
        ("x-?dtlre", "^20261121 10.* 6 47$", True),
        ("x-?dtl!re", "^20261121 10", False),
    ],
)
def test_clock_operators_read_universal_or_local_time(key: str, pattern: str, true: bool) -> None:
    made = Exchange(b"xo", "x-open", local_time=timezone(timedelta(hours=2)))
    made.bind(to_queue("q", {key: pattern}))
    assert (queues(made) == ["q"]) is true
