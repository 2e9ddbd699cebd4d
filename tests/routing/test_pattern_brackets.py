from __future__ import annotations

import pytest

from proxy.routing.pattern_dialect import translate
from proxy.routing.pattern_escapes import InvalidPattern


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        (b"(?P<n>a)(?P=n)(?P>n)", rb"(?<n>a)\k{n}(?>(?&n))"),
        (b"(?'n'a)(?&n)", b"(?<n>a)(?>(?&n))"),
        (b"(a)(?1)(?-1)(?+1)(b)", b"(a)(?>(?1))(?>(?-1))(?>(?+1))(b)"),
        (b"a(?R)?", b"a(?>(?0))?"),
        (b"(?|(a)|(b))", b"(?|(a)|(b))"),
        (b"(?>a)(?:b)(?=c)(?!d)(?<=e)(?<!f)", b"(?>a)(?:b)(?=c)(?!d)(?<=e)(?<!f)"),
        (b"a(?!)", b"a(?!(?:))"),
        (b"(?C1)a(?C)", b"a"),
        (b"(a)(?(1)b|c)", b"(a)(?(1)b|c)"),
        (b"(?(?C9)(?=a)b)", b"(?(?=a)b)"),
        (b"(?'n'a)(?('n')b)(?(<n>)c)(?(n)d)", b"(?<n>a)(?(<n>)b)(?(<n>)c)(?(n)d)"),
        (b"(?(R1)a|b)", b"(?(?!(?:))a|b)"),
        (b"(?(R1)a|b)(c)", b"(?(R1)a|b)(c)"),
        (b"(?(DEFINE)(a))*b", b"(?(DEFINE)(a))b"),
        (b"(?i)a(?-i)b(?im-s:c)", b"(?i)a(?-i)b(?im-s:c)"),
        (b"(?xi) a (?-x) b", rb"(?i)a\x20b"),
        (b"(?i-s-i)a", b"(?-is)a"),
        (b"(?-)a(?)b", b"ab"),
        (b"(?:(?x) a )| b", rb"(?:a)|\x20b"),
        (b"(*F)(*FAIL)(*ACCEPT)a(*:m)", b"(*F)(*FAIL)(*ACCEPT)a(*:m)"),
        (b"(*PRUNE:)(*SKIP:x)", b"(*PRUNE)(*SKIP:x)"),
    ],
)
def test_what_a_bracket_begins_is_written_anew(pattern: bytes, written: bytes) -> None:
    assert translate(pattern).body == written


NOTHING = b"""
(? (?z) (?^)a (?n) (?P (?Pz) (?P<1>a) (?P>) (?& (?&1) (?<n (?'n (?R (?R1) (?1 (?+a) (?C256) (?Ca) (?( (?() (?(1a)a)
(?(?a)b) (?(VERSION>=1)a) (?(*F)a) (*FOO) (*ACCEPT (*ACCEPT:x) (*:) (*MARK) (*f) (*) (?i (?# (?(?=a)*b) (?i)* (*F)*
(?C)* ((?1)) (?R) ) (
"""


@pytest.mark.parametrize("pattern", NOTHING.split())
def test_what_begins_nothing_is_refused(pattern: bytes) -> None:
    with pytest.raises(InvalidPattern):
        translate(pattern)


def test_options_end_with_their_group_and_go_on_behind_a_bar() -> None:
    assert translate(b"((?x) a | b ) c").body == rb"(a|b)\x20c"


def test_verbs_and_recursion_are_reported() -> None:
    assert translate(b"a(*COMMIT)b").verbs
    assert not translate(b"a(*ACCEPT)b(*F)").verbs
    assert translate(b"a(*SKIP:x)").skips_to_marks
    assert not translate(b"a(*SKIP)").skips_to_marks
    assert translate(b"a(?0)?").whole
    assert not translate(b"(a)(?1)").whole
