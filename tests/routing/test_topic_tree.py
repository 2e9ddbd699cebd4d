from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.routing.bindings.compiled import CompiledBinding
from proxy.routing.bindings.exchange_types import compile_topic
from proxy.routing.bindings.operators import Topic
from proxy.routing.index import TopicTree
from tests.routing.building import to_queue

_WORDS = st.sampled_from((b"a", b"b", b"", b"*", b"#", b"a#"))
_patterns = st.lists(_WORDS, max_size=5).map(b".".join)
_keys = st.lists(st.sampled_from((b"a", b"b", b"", b"*", b"#")), max_size=6).map(b".".join)


def _entry(number: int, pattern: bytes) -> CompiledBinding:
    compiled: CompiledBinding = compile_topic(to_queue("q", key=pattern.decode()), UTC)
    compiled.arrival = number
    return compiled


def _found(tree: TopicTree, key: bytes) -> set[bytes]:
    return {compiled.binding.routing_key for entries in tree.find(key) for compiled in entries}


@given(patterns=st.lists(_patterns, max_size=8, unique=True), key=_keys)
def test_tree_finds_the_topics_that_match(patterns: list[bytes], key: bytes) -> None:
    tree = TopicTree()
    for number, pattern in enumerate(patterns):
        tree.add(pattern, _entry(number, pattern))
    assert _found(tree, key) == {pattern for pattern in patterns if Topic(pattern).matches(key)}


@given(patterns=st.lists(_patterns, max_size=8), data=st.data(), key=_keys)
def test_what_was_removed_leaves_nothing_behind(patterns: list[bytes], data: st.DataObject, key: bytes) -> None:
    tree = TopicTree()
    entries = [(pattern, _entry(number, pattern)) for number, pattern in enumerate(patterns)]
    for pattern, entry in entries:
        tree.add(pattern, entry)
    for pattern, entry in data.draw(st.permutations(entries)):
        assert tree
        tree.remove(pattern, entry)
    assert not tree
    assert tree.find(key) == []


def test_entries_of_one_topic_keep_their_order() -> None:
    tree = TopicTree()
    entries = [_entry(number, b"a.#") for number in range(5)]
    for entry in entries:
        tree.add(b"a.#", entry)
    [found] = tree.find(b"a.b")
    assert found == sorted(entries)


@pytest.mark.parametrize("hashes", [5, 60])
def test_many_hashes_do_not_multiply_the_work(hashes: int) -> None:
    tree = TopicTree()
    pattern = b".".join([b"#", b"a"] * hashes)
    tree.add(pattern, _entry(0, pattern))
    assert _found(tree, b".".join([b"a"] * 200 + [b"b"])) == set()
    assert _found(tree, b".".join([b"a"] * 200)) == {pattern}
