from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from oxproxy.routing.bindings.operators import Topic


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
