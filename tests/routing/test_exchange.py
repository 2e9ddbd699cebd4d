from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ProtocolError
from proxy.routing.exchange import Exchange
from proxy.values import EXCHANGE, QUEUE
from tests.routing.building import decide, draw_last, exchange, many, to_exchange, to_queue
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
