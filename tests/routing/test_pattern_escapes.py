from __future__ import annotations

import pytest

from proxy.routing.pattern_escapes import (
    Escape,
    InvalidPattern,
    Kind,
    Reading,
    literal,
    next_character,
    read_escape,
)


def read(text: bytes, in_class: bool = False, utf: bool = False, strict: bool = False, groups: int = 0) -> Escape:
    return read_escape(Reading(text, utf, in_class, strict, groups, b"sc:"), 1)


@pytest.mark.parametrize(
    ("text", "kind", "written", "rest"),
    [
        (rb"\d+", Kind.TYPE, rb"\d", b"+"),
        (rb"\pL+", Kind.TYPE, rb"\p{L}", b"+"),
        (rb"\P{^Greek}", Kind.TYPE, rb"\p{sc:Greek}", b""),
        (rb"\p{L&}", Kind.TYPE, rb"\p{L&}", b""),
        (rb"\R", Kind.SINGLE, rb"\R", b""),
        (rb"\N{3}", Kind.SINGLE, rb"\N", b"{3}"),
        (rb"\b", Kind.ASSERTION, rb"\b", b""),
        (rb"\x4", Kind.CHARACTER, rb"\x04", b""),
        (rb"\x414", Kind.CHARACTER, b"A", b"4"),
        (rb"\x{e9}", Kind.CHARACTER, rb"\xe9", b""),
        (rb"\x", Kind.CHARACTER, rb"\x00", b""),
        (rb"\o{101}", Kind.CHARACTER, b"A", b""),
        (rb"\cz", Kind.CHARACTER, rb"\x1a", b""),
        (rb"\e", Kind.CHARACTER, rb"\x1b", b""),
        (rb"\i", Kind.CHARACTER, b"i", b""),
        (rb"\-", Kind.CHARACTER, rb"\x2d", b""),
        (rb"\7", Kind.REFERENCE, rb"\g{7}", b""),
        (rb"\8", Kind.CHARACTER, b"8", b""),
        (rb"\81", Kind.CHARACTER, b"8", b"1"),
        (rb"\0123", Kind.CHARACTER, rb"\x0a", b"3"),
        (rb"\101", Kind.CHARACTER, b"A", b""),
        (rb"\g{12}", Kind.REFERENCE, rb"\g{12}", b""),
        (rb"\g{n}", Kind.REFERENCE, rb"\k{n}", b""),
        (rb"\k'n'", Kind.REFERENCE, rb"\k{n}", b""),
        (rb"\g<n>", Kind.CALL, b"&n", b""),
        (rb"\g'-1'", Kind.CALL, b"-1", b""),
        (rb"\Q", Kind.QUOTE, rb"\Q", b""),
    ],
)
def test_an_escape_sequence_is_written_anew(text: bytes, kind: Kind, written: bytes, rest: bytes) -> None:
    escape = read(text)
    assert (escape.kind, escape.text, text[escape.end :]) == (kind, written, rest)


def test_a_number_is_a_reference_where_there_are_so_many_groups() -> None:
    assert read(rb"\10", groups=10).text == rb"\g{10}"
    assert read(rb"\10", groups=9).code == 0o10
    assert read(rb"\g{-2}", groups=5).text == rb"\g{4}"
    with pytest.raises(InvalidPattern):
        read(rb"\g{-2}", groups=1)


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        (rb"\b", Kind.CHARACTER, 0x08),
        (rb"\1", Kind.CHARACTER, 0x01),
        (rb"\g", Kind.CHARACTER, 0x67),
        (rb"\R", Kind.LETTER, 0x52),
        (rb"\k", Kind.LETTER, 0x6B),
        (rb"\Z", Kind.LETTER, 0x5A),
    ],
)
def test_in_a_class_what_means_nothing_there_is_its_letter(text: bytes, kind: Kind, code: int) -> None:
    escape = read(text, in_class=True)
    assert (escape.kind, escape.code) == (kind, code)


@pytest.mark.parametrize("text", [rb"\i", rb"\y", rb"\J"])
def test_unknown_letters_are_errors_where_the_pattern_is_strict(text: bytes) -> None:
    with pytest.raises(InvalidPattern):
        read(text, strict=True)


@pytest.mark.parametrize(
    "text",
    rb"\ \L \l \U \u \x{} \x{g} \x{100} \400 \o \o{8} \c \g \g{} \g{+1} \g<1 \k \k<1a> \p \p{greek} \N{U+1}".split(),
)
def test_malformed_sequences_are_errors(text: bytes) -> None:
    with pytest.raises(InvalidPattern):
        read(text)


def test_characters_above_latin_1_exist_in_utf_8_only() -> None:
    assert read(rb"\x{20ac}", utf=True).text == rb"\x{20ac}"
    assert read("\\€".encode(), utf=True).text == rb"\x{20ac}"
    assert read("\\€".encode()).text == rb"\xe2"
    for surrogate_or_too_big in (rb"\x{d800}", rb"\x{110000}"):
        with pytest.raises(InvalidPattern):
            read(surrogate_or_too_big, utf=True)


def test_a_literal_means_itself_everywhere() -> None:
    assert [literal(ord(c), False) for c in "aZ9_-]^ "] == [
        b"a",
        b"Z",
        b"9",
        b"_",
        rb"\x2d",
        rb"\x5d",
        rb"\x5e",
        rb"\x20",
    ]


def test_a_character_is_a_byte_or_a_sequence_of_utf_8() -> None:
    assert next_character("é€𝄞".encode(), 0, False) == (0xC3, 1)
    assert next_character("é€𝄞".encode(), 0, True) == (0xE9, 2)
    assert next_character("é€𝄞".encode(), 2, True) == (0x20AC, 5)
    assert next_character("é€𝄞".encode(), 5, True) == (0x1D11E, 9)
