"""Which of many topics does a routing key fit?

A tree of words, walked with the set of all places that the words so far can have led to, so that the work grows with
the words of the key and the places, never with the ways through them. What is found are lists of entries, kept in
order.

Source: AMQP 0-9-1 spec, 3.1.3.3; an empty key has no words, as in RabbitMQ's topic exchange.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from proxy.routing.bindings.compiled import Entry

_ONE_WORD = b"*"
_ANY_WORDS = b"#"


class _Node:
    __slots__ = ("any_words", "entries", "one_word", "repeats", "words")

    def __init__(self, repeats: bool = False) -> None:
        self.words: dict[bytes, _Node] = {}
        self.one_word: _Node | None = None
        self.any_words: _Node | None = None
        self.entries: list[Entry] = []
        #: Behind a `#`: any further word stays here.
        self.repeats = repeats

    @property
    def is_empty(self) -> bool:
        return not (self.words or self.entries or self.one_word or self.any_words)


class TopicTree:
    """Entries of bindings by topic."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        """No topics yet."""
        self._root: _Node = _Node()

    def __bool__(self) -> bool:
        """Whether there is any entry."""
        return not self._root.is_empty

    def add(self, pattern: bytes, entry: Entry) -> None:
        """Put an entry under a topic."""
        node = self._root
        for word in _words(pattern):
            node = _child(node, word)
        insort(node.entries, entry)

    def remove(self, pattern: bytes, entry: Entry) -> None:
        """Take an entry away again, and what only it needed."""
        path = [self._root]
        words = _words(pattern)
        for word in words:
            path.append(_child(path[-1], word))
        entries = path[-1].entries
        del entries[bisect_left(entries, entry)]
        for word, parent, child in reversed(list(zip(words, path, path[1:], strict=False))):
            if not child.is_empty:
                break
            _cut(parent, word)

    def find(self, key: bytes) -> list[list[Entry]]:
        """The lists of entries of all topics that the key fits."""
        places = _with_skipped({self._root: None})
        for word in _words(key):
            following: dict[_Node, None] = {}
            for node in places:
                if node.repeats:
                    following[node] = None
                if (child := node.words.get(word)) is not None:
                    following[child] = None
                if node.one_word is not None:
                    following[node.one_word] = None
            places = _with_skipped(following)
        return [node.entries for node in places if node.entries]


def _words(text: bytes) -> list[bytes]:
    return text.split(b".") if text else []


def _child(node: _Node, word: bytes) -> _Node:
    if word == _ONE_WORD:
        if node.one_word is None:
            node.one_word = _Node()
        return node.one_word
    if word == _ANY_WORDS:
        if node.any_words is None:
            node.any_words = _Node(repeats=True)
        return node.any_words
    child = node.words.get(word)
    if child is None:
        child = node.words[word] = _Node()
    return child


def _cut(node: _Node, word: bytes) -> None:
    if word == _ONE_WORD:
        node.one_word = None
    elif word == _ANY_WORDS:
        node.any_words = None
    else:
        del node.words[word]


def _with_skipped(places: dict[_Node, None]) -> dict[_Node, None]:
    """The places, and those behind a `#` that stands for no word."""
    for node in list(places):
        behind = node.any_words
        while behind is not None and behind not in places:
            places[behind] = None
            behind = behind.any_words
    return places
