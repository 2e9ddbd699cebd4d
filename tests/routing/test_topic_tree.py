from __future__ import annotations

from datetime import UTC

import pytest

from proxy.routing.bindings.compiled import CompiledBinding
from proxy.routing.bindings.exchange_types import compile_topic
from proxy.routing.index import TopicTree
from tests.routing.building import to_queue


def _entry(number: int, pattern: bytes) -> CompiledBinding:
    compiled: CompiledBinding = compile_topic(to_queue("q", key=pattern.decode()), UTC)
    compiled.arrival = number
    return compiled


def _found(tree: TopicTree, key: bytes) -> set[bytes]:
    return {compiled.binding.routing_key for entries in tree.find(key) for compiled in entries}


@pytest.mark.parametrize("hashes", [5, 60])
def test_many_hashes_do_not_multiply_the_work(hashes: int) -> None:
    tree = TopicTree()
    pattern = b".".join([b"#", b"a"] * hashes)
    tree.add(pattern, _entry(0, pattern))
    assert _found(tree, b".".join([b"a"] * 200 + [b"b"])) == set()
    assert _found(tree, b".".join([b"a"] * 200)) == {pattern}
