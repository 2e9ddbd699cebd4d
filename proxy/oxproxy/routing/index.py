"""Selects which bindings of an exchange must be visited for a message.

A binding is indexed if it has no effect when it is false, and can be true only if a certain equality holds. The binding
is indexed by that equality, and is found by looking up the message's facts. All other bindings are always visited. The
result is in visiting order and may contain bindings that are false, since the index excludes only bindings that
certainly have no effect.

Topics are stored in a trie of words. A lookup processes the words of the routing key in order and computes the set of
all nodes that these words can reach. The cost is at most proportional to the number of words times the number of nodes,
regardless of the number of paths.

An empty key has no words, as in RabbitMQ's topic exchange. Sources: the open-exchange specification, section 1 (a visit
that changes nothing may be omitted); AMQP 0-9-1 spec, 3.1.3.3.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Final, TypeAlias, cast

from oxproxy.routing.bindings.compiled import ALWAYS_VISITED, CompiledBinding
from oxproxy.routing.bindings.operators import (
    ANY_WORDS,
    HEADER,
    ONE_WORD,
    PROPERTY,
    ROUTING_KEY,
    TOPIC,
    IndexKey,
    canonical,
    words_of,
)
from oxproxy.routing.message import Message, spelled_integer

_EXPIRATION: Final = "expiration"

_Bucket: TypeAlias = list[CompiledBinding]
#: Bindings by key. If a key has only one binding, the binding is stored without a list.
_Table: TypeAlias = dict[Hashable, CompiledBinding | _Bucket]


class _Node:
    __slots__ = ("entries", "following", "repeats")

    def __init__(self, repeats: bool = False) -> None:
        #: The next nodes, by the next word of the pattern. A wildcard in a pattern also matches the word `*` or `#` in
        #: a routing key, so one table is sufficient for wildcards and words.
        self.following: dict[bytes, _Node] = {}
        self.entries: _Bucket = []
        #: Whether the node is reached by `#`, so that every further word leads to the same node.
        self.repeats = repeats

    @property
    def is_empty(self) -> bool:
        return not (self.following or self.entries)


class TopicTree:
    """Bindings by topic."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node = _Node()

    def __bool__(self) -> bool:
        return not self._root.is_empty

    def add(self, pattern: bytes, entry: CompiledBinding) -> None:
        node = self._root
        for word in words_of(pattern):
            child = node.following.get(word)
            if child is None:
                child = node.following[word] = _Node(repeats=word == ANY_WORDS)
            node = child
        insort(node.entries, entry)

    def remove(self, pattern: bytes, entry: CompiledBinding) -> None:
        """Remove an entry, and the nodes that no other entry needs."""
        path = [self._root]
        words = words_of(pattern)
        for word in words:
            path.append(path[-1].following[word])
        entries = path[-1].entries
        del entries[bisect_left(entries, entry)]
        for word, parent, child in reversed(list(zip(words, path, path[1:], strict=False))):
            if not child.is_empty:
                break
            del parent.following[word]

    def find(self, key: bytes) -> list[_Bucket]:
        places = _with_skipped({self._root: None})
        for word in words_of(key):
            following: dict[_Node, None] = {}
            for node in places:
                if node.repeats:
                    following[node] = None
                if (child := node.following.get(word)) is not None:
                    following[child] = None
                if (child := node.following.get(ONE_WORD)) is not None:
                    following[child] = None
            places = _with_skipped(following)
        return [node.entries for node in places if node.entries]


def _with_skipped(places: dict[_Node, None]) -> dict[_Node, None]:
    """Add the nodes that are reached if the next `#` wildcards match no words."""
    for node in list(places):
        following = node.following.get(ANY_WORDS)
        while following is not None and following not in places:
            places[following] = None
            following = following.following.get(ANY_WORDS)
    return places


def _collect(buckets: list[_Bucket], bucket: CompiledBinding | _Bucket | None) -> None:
    if bucket is not None:
        buckets.append(bucket if isinstance(bucket, list) else [bucket])


class Index:
    """The bindings of one exchange, indexed by facts of a message."""

    __slots__ = ("_always", "_headers", "_properties", "_routing_keys", "_tables", "_topics")

    def __init__(self) -> None:
        self._always: _Bucket = []
        self._headers: dict[Hashable, _Table] = {}
        self._properties: dict[Hashable, _Table] = {}
        #: A message has only one routing key, so there is at most one table.
        self._routing_keys: dict[Hashable, _Table] = {}
        self._tables = {HEADER: self._headers, PROPERTY: self._properties, ROUTING_KEY: self._routing_keys}
        self._topics: TopicTree = TopicTree()

    def add(self, compiled: CompiledBinding) -> None:
        compiled.index_place = self._place_of(compiled)
        if compiled.index_place == ALWAYS_VISITED:
            insort(self._always, compiled)
            return
        for family, item, value in compiled.index_keys:
            if family == TOPIC:
                self._topics.add(cast("bytes", value), compiled)
                continue
            table = self._tables[family].setdefault(item, {})
            bucket = table.get(value)
            if bucket is None:
                table[value] = compiled
            elif isinstance(bucket, list):
                insort(bucket, compiled)
            else:
                table[value] = sorted((bucket, compiled))

    def remove(self, compiled: CompiledBinding) -> None:
        if compiled.index_place == ALWAYS_VISITED:
            del self._always[bisect_left(self._always, compiled)]
            return
        for family, item, value in compiled.index_keys:
            if family == TOPIC:
                self._topics.remove(cast("bytes", value), compiled)
                continue
            table = self._tables[family][item]
            bucket = table[value]
            if isinstance(bucket, list):
                del bucket[bisect_left(bucket, compiled)]
                if len(bucket) == 1:
                    table[value] = bucket[0]
            else:
                del table[value]
                if not table:
                    del self._tables[family][item]

    def candidates(self, message: Message) -> Sequence[CompiledBinding]:
        """Return all bindings that must be visited, in visiting order. The result must not be modified."""
        buckets = self._look_up(message)
        if not buckets:
            return self._always
        if len(buckets) == 1:
            hits = buckets[0]
        else:
            # A binding can be found by several facts but must be visited only once.
            hits = sorted(set(chain.from_iterable(buckets)))
        # Both lists are sorted, so sorting them together takes linear time.
        return sorted(self._always + hits) if self._always else hits

    def _look_up(self, message: Message) -> list[_Bucket]:
        buckets: list[_Bucket] = []
        for table in self._routing_keys.values():
            _collect(buckets, table.get(message.routing_key))
        if self._headers:
            # If several headers have the same name, all of them are used, since `eq` and `set` read all of them.
            for name, value in message.headers:
                named = self._headers.get(name)
                if named is not None:
                    _collect(buckets, named.get(canonical(value)))
        for known, table in self._properties.items():
            seen = message.properties.get(cast("str", known))
            if seen is not None:
                _collect(buckets, table.get(spelled_integer(seen) if known == _EXPIRATION else seen))
        if self._topics:
            buckets += self._topics.find(message.routing_key)
        return buckets

    def _place_of(self, compiled: CompiledBinding) -> int:
        required = compiled.match.required
        if not compiled.idle_when_false or not required:
            return ALWAYS_VISITED
        # Any of the groups is sufficient; the group with the fewest bindings is the most selective.
        crowds = [sum(map(self._crowd, index_keys)) for index_keys in required] if len(required) > 1 else [0]
        return crowds.index(min(crowds))

    def _crowd(self, index_key: IndexKey) -> int:
        family, item, value = index_key
        if family == TOPIC:
            return 1 << 62
        bucket = self._tables[family].get(item, {}).get(value)
        return 0 if bucket is None else len(bucket) if isinstance(bucket, list) else 1
