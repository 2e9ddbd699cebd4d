from __future__ import annotations

from dataclasses import replace
from datetime import UTC

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.bindings.exchange_types import compile_topic
from oxproxy.routing.decision import Facts
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.index import TopicTree
from tests.routing.building import decide, draw_last, exchange, facts, many, message, to_queue
from tests.routing.random_rules import BINDINGS, QUEUES, bind_valid, messages, visit_every_binding

#: More examples than usual, since the combinations that would show an error are rare.
_EXAMPLES = 150


def visited(of: Exchange, seen: Facts) -> list[str]:
    """The destinations of the bindings that are visited, in order."""
    return [compiled.binding.destination.decode() for compiled in of.file.candidates(message(seen))]


@pytest.mark.parametrize("kind", BINDINGS)
@settings(max_examples=_EXAMPLES)
@given(data=st.data())
def test_the_index_does_not_change_decisions(kind: str, data: st.DataObject) -> None:
    bindings = data.draw(BINDINGS[kind])
    indexed, naive = Exchange(b"xo", kind), Exchange(b"xo", kind)
    bind_valid(indexed, bindings)
    bind_valid(naive, bindings)
    visit_every_binding(naive)
    for seen in data.draw(st.lists(messages, min_size=1, max_size=4)):
        answers = [decide(router, seen, QUEUES, draw_last) for router in (indexed, naive)]
        # Bindings that are skipped run no regex search, so only the number of abandoned searches may differ.
        assert replace(answers[0], match_limit_hits=0) == replace(answers[1], match_limit_hits=0)


@pytest.mark.parametrize("kind", BINDINGS)
@settings(max_examples=_EXAMPLES)
@given(data=st.data())
def test_bindings_of_clients_and_of_a_file_are_visited_as_if_they_were_in_one_list(
    kind: str, data: st.DataObject
) -> None:
    """If a client's binding equals one in the file, that of the file is visited."""
    in_file, by_clients = data.draw(BINDINGS[kind]), data.draw(BINDINGS[kind])
    one, two = Exchange(b"xo", kind), Exchange(b"xo", kind)
    bind_valid(one, [*in_file, *by_clients])
    bind_valid(two, in_file)
    bind_valid(two, [replace(binding, owner="user") for binding in by_clients])
    assert two.interest == one.interest
    assert (two.destinations, two.next_names) == (one.destinations, one.next_names)
    for seen in data.draw(st.lists(messages, min_size=1, max_size=4)):
        answers = [decide(router, seen, QUEUES, draw_last) for router in (one, two)]
        # Budgets for regular expressions differ, since they are per owner.
        assert replace(answers[0], match_limit_hits=0) == replace(answers[1], match_limit_hits=0)


@given(bindings=BINDINGS["x-open"], seen=messages, data=st.data())
def test_removed_bindings_are_removed_from_the_index(bindings: list[Binding], seen: Facts, data: st.DataObject) -> None:
    made = Exchange(b"xo", "x-open")
    bound = bind_valid(made, bindings)
    for binding in data.draw(st.permutations(bound)):
        assert made.unbind(binding)
    assert visited(made, seen) == []
    index = made.file._index
    assert (index._routing_keys, index._headers, index._properties) == ({}, {}, {})
    assert not index._topics


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ({"x-?hkv= type": "NAME"}, facts(headers={"type": "q7"})),
        ({"type": "NAME"}, facts(headers={"type": "q7"})),
        ({"x-?rk=": "NAME"}, facts("q7")),
        ({"x-?rkta": "NAME"}, facts("q7")),
        ({"x-?pr= type": "NAME"}, facts(properties={"type": "q7"})),
        ({"x-match": "eq", "x-?hkv= type": "NAME"}, facts(headers={"type": "q7"})),
        ({"x-match": "set 1", "x-?hkv= type": "NAME"}, facts(headers={"type": "q7"})),
        ({"x-match": "set", "x-?rk=": "NAME"}, facts("q7")),
        ({"x-match": "any", "x-?hkv= type": "NAME", "x-?rk=": "NAME"}, facts("q7")),
    ],
)
def test_only_the_binding_with_the_matching_equality_is_visited(arguments: dict[str, str], seen: Facts) -> None:
    bindings = [
        to_queue(f"q{at}", {key: text.replace("NAME", f"q{at}") for key, text in arguments.items()}) for at in range(20)
    ]
    assert visited(exchange(*bindings), seen) == ["q7"]


@pytest.mark.parametrize(
    ("operator", "seen"),
    [
        ("x-?hkvin type", facts(headers={"type": "q7"})),
        ("x-?rkin", facts("q7")),
        ("x-?prin type", facts(properties={"type": "q7"})),
    ],
)
@pytest.mark.parametrize("match", ["all", "any", "eq", "set 1"])
def test_a_binding_with_a_list_is_visited_for_each_of_its_elements(operator: str, seen: Facts, match: str) -> None:
    bindings = [
        to_queue(f"q{at}", {"x-match": match, operator: many(f"q{at}", f"r{at}", "s")}, extensions=True)
        for at in range(20)
    ]
    assert visited(exchange(*bindings), seen) == ["q7"]


@pytest.mark.parametrize("hashes", [5, 60])
def test_many_hashes_take_linear_time(hashes: int) -> None:
    tree = TopicTree()
    pattern = b".".join([b"#", b"a"] * hashes)
    entry = compile_topic(to_queue("q", key=pattern.decode()), UTC)
    tree.add(pattern, entry)
    assert tree.find(b".".join([b"a"] * 200 + [b"b"])) == []
    assert tree.find(b".".join([b"a"] * 200)) == [[entry]]
