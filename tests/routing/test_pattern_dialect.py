from __future__ import annotations

import pytest

from proxy.routing.pattern_dialect import translate
from proxy.routing.pattern_escapes import InvalidPattern


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        (b"abc", b"abc"),
        (b"a.b-c", rb"a.b\x2dc"),
        (b"\xe9", rb"\xe9"),
        (b"a{,3}", rb"a\x7b\x2c3\x7d"),
        (b"a{2", rb"a\x7b2"),
        (b"a{2}{", rb"a{2,2}\x7b"),
        (b"a{02,}", b"a{2,}"),
        (rb"\Qa.b\E+", rb"a\x2eb+"),
        (rb"\Qa.", rb"a\x2e"),
        (rb"a\Q\E*", b"a*"),
        (rb"a\E*", b"a*"),
        (b"a(?#x)*", b"a*"),
        (b"a*(?#x)+", b"a*+"),
        (rb"foo\Kbar", b"foobar"),
        (rb"[[:<:]]a[[:>:]]*", rb"\b(?=\w)a\b(?<=\w)?"),
        (b"(?=a)+b", b"(?=a)b"),
        (b"(?=a){3}b", b"(?=a)b"),
        (b"(?=a)*?b", b"(?=a)??b"),
        (b"a|b|", b"a|b|"),
        (b"^a$", b"^a$"),
        (b"a\0(", b"a"),
    ],
)
def test_a_pattern_is_written_anew(pattern: bytes, written: bytes) -> None:
    said = translate(pattern)
    assert (said.start, said.body) == (b"", written)


@pytest.mark.parametrize(
    ("pattern", "start", "body"),
    [
        (b"(*UTF8)(*UCP)^.$", b"(*UTF)(*UCP)", b"^.$"),
        (b"(*UTF8)\xc3\xa9+", b"(*UTF)", rb"\x{e9}+"),
        (b"(*LIMIT_MATCH=5)(*LIMIT_MATCH=9)a", b"(*LIMIT_MATCH=5)", b"a"),
        (b"(*LIMIT_MATCH=)a", b"(*LIMIT_MATCH=0)", b"a"),
        (b"(*LIMIT_RECURSION=7)a", b"(*LIMIT_DEPTH=7)", b"a"),
        (b"(*NO_START_OPT)(*ANYCRLF)a", b"(*NO_START_OPT)(*ANYCRLF)", b"a"),
    ],
)
def test_settings_stand_at_the_start(pattern: bytes, start: bytes, body: bytes) -> None:
    said = translate(pattern)
    assert (said.start, said.body) == (start, body)


@pytest.mark.parametrize(
    "pattern",
    [
        b"(*UTF8)\xff",
        b"(*UTF16)a",
        *rb"* +a ? {1} a** a{1}{2} a{65536} a{3,2} a|* ^* \b* a*(?#)(?#)+ (a [:alpha:] a(*UTF8) (?<=(a)\1)b".split(),
    ],
)
def test_what_pcre_8_does_not_know_is_refused(pattern: bytes) -> None:
    with pytest.raises(InvalidPattern):
        translate(pattern)


def test_a_newline_convention_binds_a_pattern_to_its_start() -> None:
    assert translate(b"(*ANYCRLF)a").whole
    assert not translate(b"(*BSR_ANYCRLF)a").whole


def test_the_cost_of_a_pattern_is_its_longest_way_without_a_decision() -> None:
    assert translate(b"abcdef").steps > translate(b"abc").steps
    assert translate(b"(?:abc)*").steps == translate(b"(?:abc)*(?:abc)*(?:abc)*").steps
    assert translate(b"(?:abc){9}").steps > 3 * translate(b"(?:abc){3}").steps - 10
    assert (translate(b"a*b*").scans, translate(b"a*b*", unrolled=True).scans) == (2, 0)
    assert translate(rb"(a)\1", unrolled=True).scans == 1
    assert translate(rb"\p{L}*").scans > translate(rb"\d*").scans
