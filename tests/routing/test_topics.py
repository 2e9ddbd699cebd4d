from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.routing.bindings.operators import Topic


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (b"stock", [b"stock"], [b"", b"stock.", b"STOCK", b"stock.eu"]),
        (b"stock.*", [b"stock.eu", b"stock."], [b"stock", b"stock.eu.nyse"]),
        (b"stock.#", [b"stock", b"stock.eu", b"stock..nyse"], [b"eu.stock", b"stock#"]),
        (b"#", [b"", b"stock", b"..", b"a.b.c"], []),
        (b"*", [b"stock", b"stock#"], [b"", b"a.b", b"."]),
        (b"#.#", [b"", b"a", b"a.b"], []),
        (b"#.eu.#", [b"eu", b"x.y.eu.z.w", b"stock.eu"], [b"stock", b"eu-west"]),
        (b"#.stock.#.eu.#", [b"stock.eu", b"stock.eu.stock.eu"], [b"eu.stock"]),
        (b"stock.*.#.nyse", [b"stock.eu.nyse", b"stock..nyse"], [b"stock.nyse"]),
        (b"#.stock.#.stock", [b"stock.stock", b"stock.eu.stock"], [b"stock"]),
        (b"#.a.b.#.b.c", [b"a.b.b.c", b"a.b.a.b.b.c"], [b"a.b.c"]),
        (b"", [b""], [b"a", b"."]),
        (b"stock..nyse", [b"stock..nyse"], [b"stock.nyse"]),
        (b"stock+", [b"stock+"], [b"stock", b"stockk"]),
        (b"stock#", [b"stock#"], [b"stock"]),
    ],
)
def test_topic_patterns_match_words(pattern: bytes, matching: list[bytes], other: list[bytes]) -> None:
    topic = Topic(pattern)
    assert [key for key in matching if not topic.matches(key)] == []
    assert [key for key in other if topic.matches(key)] == []


def test_case_can_be_ignored() -> None:
    assert Topic(b"Stock.*", ignore_case=True).matches(b"sTOCK.eu")
    assert Topic(b"\xc9t\xe9", ignore_case=True).matches(b"\xe9T\xc9")
    assert not Topic("é".encode(), ignore_case=True).matches("É".encode())


def reference(pattern: list[bytes], words: list[bytes]) -> bool:
    """The definition of topic matching, as a recursive function."""
    if not pattern:
        return not words
    if pattern[0] == b"#":
        return any(reference(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in (b"*", words[0]) and reference(pattern[1:], words[1:])


WORDS = st.lists(st.sampled_from([b"a", b"b", b"", b"ab"]), max_size=7).filter(lambda words: words != [b""])
PATTERNS = st.lists(st.sampled_from([b"a", b"b", b"*", b"#", b"", b"ab"]), max_size=7).filter(
    lambda words: words != [b""]
)


@settings(max_examples=300, deadline=None)
@given(PATTERNS, WORDS)
def test_topic_matching_follows_the_definition(pattern: list[bytes], words: list[bytes]) -> None:
    assert Topic(b".".join(pattern)).matches(b".".join(words)) is reference(pattern, words)


def test_many_wildcards_take_linear_time() -> None:
    assert not Topic(b"#.a." * 60 + b"b").matches(b".".join([b"a"] * 127))
