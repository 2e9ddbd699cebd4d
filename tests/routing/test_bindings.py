from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.routing.bindings.binding import Binding, binding_hash
from proxy.values import Value
from tests.routing.building import many, table, to_exchange, to_queue

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
