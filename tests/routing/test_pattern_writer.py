from __future__ import annotations

import pytest

from proxy.routing.pattern_escapes import InvalidPattern
from proxy.routing.pattern_writer import EXTENDED, Writer


def repeated(text: bytes, minimum: int, maximum: int | None, suffix: bytes = b"", unrolled: bool = False) -> bytes:
    writer = Writer(suffix, b"", unrolled)
    writer.single(text)
    writer.repeat(minimum, maximum)
    return b"".join(writer.out)


@pytest.mark.parametrize(
    ("minimum", "maximum", "suffix", "written"),
    [
        (0, None, b"", b"a*"),
        (1, None, b"?", b"a+?"),
        (0, 1, b"+", b"a?+"),
        (3, 3, b"", b"a{3,3}"),
        (2, None, b"", b"a{2,}"),
    ],
)
def test_a_quantifier_is_written(minimum: int, maximum: int | None, suffix: bytes, written: bytes) -> None:
    assert repeated(b"a", minimum, maximum, suffix) == written


@pytest.mark.parametrize(
    ("minimum", "suffix", "written"),
    [
        (0, b"", b"(?:a{16})*a{0,15}"),
        (1, b"?", b"a{1}(?:a{16})*?a{0,15}?"),
        (40, b"+", b"a{40}(?:a{16})*+a{0,15}+"),
    ],
)
def test_an_unrolled_repeat_comes_to_a_decision_every_few_characters(
    minimum: int, suffix: bytes, written: bytes
) -> None:
    assert repeated(b"a", minimum, None, suffix, unrolled=True) == written


def test_limited_repeats_are_not_unrolled() -> None:
    assert repeated(b"a", 2, 5, unrolled=True) == b"a{2,5}"


def test_unrolling_shortens_the_way_to_the_next_decision() -> None:
    plain, unrolled = Writer(b"", b"", False), Writer(b"", b"", True)
    for writer in (plain, unrolled):
        writer.single(b"a")
        writer.repeat(0, None)
    assert plain.groups.top.walk.longest[1] == 1
    assert unrolled.groups.top.walk.longest[1] == 0


def test_there_must_be_something_to_repeat() -> None:
    writer = Writer(b"", b"", False)
    writer.place(b"^")
    with pytest.raises(InvalidPattern):
        writer.repeat(0, 1)


def test_only_the_last_letter_of_a_run_is_repeated() -> None:
    writer = Writer(b"", b"", False)
    writer.literals(b"abc")
    assert writer.item is not None
    assert writer.out[writer.item.start :] == [b"c"]


@pytest.mark.parametrize(
    ("text", "newline", "left"),
    [
        (b" \t# x\n b", b"LF", b"b"),
        (b"# x\rb", b"CR", b"b"),
        (b"# x\rb", b"LF", b""),
        (b"# x\r\nb", b"CRLF", b"b"),
        (b"# x\x85b", b"ANY", b"b"),
        (b"# x", b"ANYCRLF", b""),
    ],
)
def test_free_spacing_is_passed_over(text: bytes, newline: bytes, left: bytes) -> None:
    writer = Writer(text, b"", False)
    assert not writer.skip_spacing()
    writer.options = EXTENDED
    writer.newline = newline
    assert writer.skip_spacing()
    assert text[writer.at :] == left


def test_a_comment_must_end() -> None:
    writer = Writer(b"(?#a)b(?#", b"", False)
    assert writer.skip_comment()
    assert writer.at == 5
    writer.at = 6
    with pytest.raises(InvalidPattern):
        writer.skip_comment()
