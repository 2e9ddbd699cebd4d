from __future__ import annotations

import pytest

from proxy.routing.pattern_classes import is_posix, read_class, word_edge
from proxy.routing.pattern_escapes import InvalidPattern, Reading


def read(text: bytes, utf: bool = False) -> tuple[bytes, int]:
    return read_class(Reading(text, utf, False, False, 0, b""), 1)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (b"[abc]", b"[abc]"),
        (b"[^a-c]", b"[^a-c]"),
        (b"[]a]", rb"[\x5da]"),
        (b"[^]a]", rb"[^\x5da]"),
        (b"[a-]", rb"[a\x2d]"),
        (b"[-a]", rb"[\x2da]"),
        (rb"[\d-z]", rb"[\d\x2dz]"),
        (b"[[:alpha:]-z]", rb"[[:alpha:]\x2dz]"),
        (b"[[:^digit:]]", b"[[:^digit:]]"),
        (rb"[\B-z]", b"[B-z]"),
        (rb"[\x41-\x{43}]", b"[A-C]"),
        (rb"[a\Q-\Ez]", rb"[a\x2dz]"),
        (rb"[\Qa\E-z]", b"[a-z]"),
        (rb"[a-\Qz\E]", b"[a-z]"),
        (rb"[\E^a]", b"[^a]"),
        (rb"[\Q\E]a]", rb"[\x5da]"),
        (b"[[a]", rb"[\x5ba]"),
        (b"[[:]", rb"[\x5b\x3a]"),
    ],
)
def test_a_class_is_written_anew(text: bytes, written: bytes) -> None:
    assert read(text + b"rest") == (written, len(text))


@pytest.mark.parametrize(
    "text", rb"[ [] [^] [b-a] [a-\d] [a-\B] [a-[:digit:]] [[:foo:]] [[.a.]] [[=a=]] [\N] [\x{100}] [\Qa]".split()
)
def test_what_is_no_class_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidPattern):
        read(text)


def test_members_are_characters_of_utf_8_where_the_pattern_says_so() -> None:
    assert read("[é]".encode(), utf=True)[0] == rb"[\x{e9}]"
    assert read("[é]".encode())[0] == rb"[\xc3\xa9]"


def test_edges_of_words_and_posix_shapes_are_known() -> None:
    assert word_edge(b"[[:<:]]a", 0) == rb"\b(?=\w)"
    assert word_edge(b"[[:alpha:]]", 0) is None
    assert is_posix(b"[:alpha:]", 0)
    assert is_posix(b"[.x.]", 0)
    assert not is_posix(b"[:alpha]", 0)
