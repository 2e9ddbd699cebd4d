from __future__ import annotations

import ctypes

import pytest

from proxy.routing import pattern_library
from proxy.routing.pattern_library import NO_OPTIONS, SIZES, MissingLibraryError, library


def test_tables_have_the_layout_of_the_library() -> None:
    tables = pattern_library.latin1_tables()
    own = pattern_library.library().default_tables()
    assert len(tables) == len(own) == 1088
    assert tables[:128] == own[:128]
    assert tables[256:384] == own[256:384]
    assert [tables[start : start + 16] for start in range(512, 832, 32)] == [
        own[start : start + 16] for start in range(512, 832, 32)
    ]
    assert tables[832:960] == own[832:960]


def test_a_missing_library_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_library, "_LIBRARY", "libno-such-library.so.0")
    with pytest.raises(MissingLibraryError, match="libpcre2-8-0"):
        pattern_library.Library()


def found(text: bytes, subject: bytes, limit: int) -> int:
    pcre2 = library()
    code = pcre2.compile(text, 0)
    assert not isinstance(code, str)
    data, context = pcre2.new_match_data(), pcre2.match_context(limit, 1000, 1000)
    result: int = pcre2.match(code, subject, ctypes.c_size_t(len(subject)), SIZES[0], NO_OPTIONS, data, context)
    pcre2.free_match_data(data)
    pcre2.free(code)
    return result


def test_a_match_a_mismatch_and_a_limit_have_their_codes() -> None:
    assert found(b"b", b"abc", 10) >= 0
    assert found(b"x", b"abc", 10) == -1
    assert found(b"(a+)+$", b"a" * 40 + b"b", 10) in pattern_library.LIMITS


def test_what_does_not_compile_is_said_in_words() -> None:
    assert library().compile(b"(", 0) == "missing closing parenthesis"


def test_code_tells_what_is_known_of_it() -> None:
    pcre2 = library()
    anchored, free, captures = (pcre2.compile(text, 0) for text in (b"^a", b"a", b"(a)(b)(c)"))
    assert not isinstance(anchored, str)
    assert not isinstance(free, str)
    assert not isinstance(captures, str)
    assert pcre2.is_anchored(anchored)
    assert not pcre2.is_anchored(free)
    assert pcre2.begins_with_character(free)
    assert pcre2.frame_bytes(captures) > pcre2.frame_bytes(free)
    for code in (anchored, free, captures):
        pcre2.free(code)


def test_contexts_with_equal_limits_are_shared() -> None:
    pcre2 = library()
    assert pcre2.match_context(8, 9, 10) is pcre2.match_context(8, 9, 10)
