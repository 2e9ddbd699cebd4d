"""Matches a routing key with a topic, for topic exchanges and for the ``rkta`` operators.

Words stand between dots; ``*`` is exactly one word, ``#`` any number of them.
Sources: AMQP 0-9-1 spec, 3.1.3.3; the open-exchange specification, section 5, for what ``rkta`` refuses.
"""

from __future__ import annotations

from functools import lru_cache

from proxy.routing.bindings.patterns import InvalidPattern, compile_pattern, latin1_tables

_ANY_WORDS = b"#"
_ONE_WORD = b"*"
#: The folding of the regular expressions, byte by byte: Latin-1. Two texts in UTF-8 become equal by it only
#: where they differ in ASCII case alone.
_FOLD = latin1_tables()[:256]


class InvalidTopic(ValueError):  # noqa: N818 - reads as a verdict on a topic, not as a fault of ours
    """A topic that the ``rkta`` operators refuse."""


def _words(text: bytes) -> list[bytes]:
    # The broker reads the empty text as no word at all, so that `*` does not match the empty routing key.
    return text.split(b".") if text else []


def _run_matches(run: tuple[bytes, ...], words: list[bytes], start: int) -> bool:
    return all(
        expected in (_ONE_WORD, word) for expected, word in zip(run, words[start : start + len(run)], strict=True)
    )


class Topic:
    """A compiled topic; any pattern is one, since the topic exchange refuses none.

    Args:
        pattern: words between dots.
        ignore_case: compare letters without case (``rktaci``), as Latin-1.
    """

    __slots__ = ("_first", "_ignore_case", "_last", "_least", "_middle", "pattern")

    def __init__(self, pattern: bytes, ignore_case: bool = False) -> None:
        """Split the pattern at its ``#`` into runs of words."""
        self.pattern = pattern
        self._ignore_case = ignore_case
        words = _words(pattern.translate(_FOLD) if ignore_case else pattern)
        runs: list[tuple[bytes, ...]] = []
        run: list[bytes] = []
        for word in words:
            if word == _ANY_WORDS:
                runs.append(tuple(run))
                run = []
            else:
                run.append(word)
        self._first = tuple(run) if not runs else runs[0]
        self._last = tuple(run) if runs else None
        self._middle = tuple(part for part in runs[1:] if part)
        self._least = sum(word != _ANY_WORDS for word in words)

    def matches(self, key: bytes) -> bool:
        """Whether the routing key fits. Work grows with the product of the lengths at worst, never faster."""
        if self._ignore_case:
            key = key.translate(_FOLD)
        words = _words(key)
        count = len(words)
        if self._last is None:
            return count == self._least and _run_matches(self._first, words, 0)
        if count < self._least or not _run_matches(self._first, words, 0):
            return False
        end = count - len(self._last)
        if not _run_matches(self._last, words, end):
            return False
        # Between two `#` the leftmost place is as good as any other, so that nothing has to be tried again.
        position = len(self._first)
        for run in self._middle:
            while position + len(run) <= end and not _run_matches(run, words, position):
                position += 1
            position += len(run)
            if position > end:
                return False
        return True


def check_open_topic(pattern: bytes, ignore_case: bool = False) -> None:
    """Refuse what the open exchange refuses as a topic.

    The plugin turns a topic into a regular expression without quoting, and refuses the topic when the result
    is not valid. Ours matches as a topic exchange does, but a topic that was refused stays refused.

    Raises:
        InvalidTopic: the topic is empty, or its rewrite is not a regular expression.
    """
    if not pattern:
        raise InvalidTopic("empty topic")
    rewritten = pattern.replace(b"*", rb"(\w+)").replace(b"#.", rb"(\w+.)*", 1).replace(b".#", rb"(.\w+)*", 1)
    rewritten = rewritten.replace(b".", rb"\.").replace(b"#", b".*", 1)
    try:
        compile_pattern((b"^(?i)" if ignore_case else b"^") + rewritten + b"$")
    except InvalidPattern as error:
        raise InvalidTopic(f"not a topic: {error}") from error


@lru_cache(maxsize=4096)
def open_topic(pattern: bytes, ignore_case: bool = False) -> Topic:
    """The topic of an ``rkta`` operator.

    Raises:
        InvalidTopic: see ``check_open_topic``.
    """
    check_open_topic(pattern, ignore_case)
    return Topic(pattern, ignore_case)
