"""How is a PCRE 8 pattern said in PCRE2, and how much work can it be?

RabbitMQ's Erlang has PCRE 8.44, this process PCRE2. The pattern is read once, by the rules of the former, and
written anew in the part of the language on which all versions of PCRE2 agree with it: comments, quotes and free
spacing are gone, every literal is unmistakable, and a subroutine call is atomic, as it was in PCRE 8.

What is left to PCRE2 itself: whether groups that are referred to exist, names are unique and look-behind has a
fixed length. Source: pcrepattern(3) of PCRE 8.44; pcre2compat(3).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from proxy.routing.pattern_brackets import open_bracket
from proxy.routing.pattern_classes import is_posix, read_class, word_edge
from proxy.routing.pattern_cost import DECISION, STEP
from proxy.routing.pattern_escapes import COUNT, Escape, InvalidPattern, Kind, read_escape
from proxy.routing.pattern_groups import Repeat
from proxy.routing.pattern_writer import NEWLINES, Writer

_START = re.compile(
    rb"\(\*(?:(UTF8?|UCP|NO_AUTO_POSSESS|NO_START_OPT|CR|LF|CRLF|ANY|ANYCRLF|BSR_ANYCRLF|BSR_UNICODE)"
    rb"|(LIMIT_MATCH|LIMIT_RECURSION)=([0-9]*))\)"
)
_RUN = re.compile(rb"[0-9A-Za-z_]+")
_LONGEST_REPEAT = 65535
#: Finding the end of what \\X matches costs a look into several tables a character.
_GRAPHEME_SCANS = 16
_UTF_STEP = 3 * STEP
_WIDE = frozenset({b"UTF", b"UTF8", b"UCP"})
_SIGNS: dict[bytes, tuple[int, int | None]] = {b"*": (0, None), b"+": (1, None), b"?": (0, 1)}


class Translation(NamedTuple):
    """A pattern in PCRE2's words.

    Args:
        start: the settings at its beginning.
        body: the rest.
        steps: cost of the longest way between two decisions; see ``pattern_cost``.
        scans: how often that way may walk over the whole subject.
        verbs: it says how to backtrack; where a match may begin must be left to the library.
        skips_to_marks: it has ``(*SKIP:name)``, which tries a start again for each that is not found.
        whole: its meaning depends on being the whole pattern (recursion into it, newline conventions).
    """

    start: bytes
    body: bytes
    steps: int
    scans: int
    verbs: bool
    skips_to_marks: bool
    whole: bool


def _next(writer: Writer) -> None:
    if run := _RUN.match(writer.text, writer.at):
        writer.at = run.end()
        writer.literals(run[0])
        return
    byte = writer.text[writer.at : writer.at + 1]
    _ITEMS.get(byte, Writer.literal)(writer)


def _anchor(writer: Writer) -> None:
    writer.place(writer.text[writer.at : writer.at + 1])
    writer.at += 1


def _dot(writer: Writer) -> None:
    writer.at += 1
    writer.single(b".")


def _class(writer: Writer) -> None:
    if edge := word_edge(writer.text, writer.at):
        writer.at += 7
        writer.item = writer.groups.item(Repeat.ASSERTION, len(writer.out) + 1, True, DECISION)
        writer.out += [edge[:2], edge[2:]]
        return
    if is_posix(writer.text, writer.at):
        raise InvalidPattern("POSIX classes stand within a class only")
    text, writer.at = read_class(writer.reading(), writer.at + 1)
    writer.single(text)


def _escape(writer: Writer) -> None:
    escape = read_escape(writer.reading(), writer.at + 1)
    writer.at = escape.end
    _ESCAPES[escape.kind](writer, escape)


def _escaped_single(writer: Writer, escape: Escape) -> None:
    if escape.text == rb"\X":
        writer.span(escape.text, scans=_GRAPHEME_SCANS)
    else:
        writer.single(escape.text)


def _escaped_place(writer: Writer, escape: Escape) -> None:
    # \K moves the reported start of a match, which nobody asks for; newer libraries refuse it in assertions.
    writer.place(b"" if escape.text == rb"\K" else escape.text)


def _called(writer: Writer, escape: Escape) -> None:
    writer.call(escape.text)


def _quote(writer: Writer, escape: Escape) -> None:
    end = writer.text.find(rb"\E", writer.at)
    stop = len(writer.text) if end < 0 else end
    while writer.at < stop:
        writer.literal()
    writer.at = min(stop + 2, len(writer.text))


def _end_quote(writer: Writer, escape: Escape) -> None:
    """``\\E`` without ``\\Q`` means nothing."""


def _braces(writer: Writer) -> None:
    found = COUNT.match(writer.text, writer.at)
    if found is None:
        writer.literal()
        return
    least, comma, most = found.groups()
    if max(len(least.lstrip(b"0")), len((most or b"").lstrip(b"0"))) > len(str(_LONGEST_REPEAT)):
        raise InvalidPattern("number too big in a quantifier")
    minimum = int(least)
    maximum = int(most) if most else None if comma else minimum
    if max(minimum, maximum or 0) > _LONGEST_REPEAT:
        raise InvalidPattern("number too big in a quantifier")
    if maximum is not None and maximum < minimum:
        raise InvalidPattern("numbers out of order in a quantifier")
    writer.at = found.end()
    writer.repeat(minimum, maximum)


def _sign(writer: Writer) -> None:
    minimum, maximum = _SIGNS[writer.text[writer.at : writer.at + 1]]
    writer.at += 1
    writer.repeat(minimum, maximum)


def _bar(writer: Writer) -> None:
    writer.at += 1
    writer.out.append(b"|")
    writer.groups.branch()
    writer.item = None


def _close(writer: Writer) -> None:
    writer.at += 1
    level, writer.item = writer.groups.close()
    writer.options = level.options
    writer.out.append(b")")


def _settings(writer: Writer) -> bytes:
    settings: list[bytes] = []
    limits: dict[bytes, int] = {}
    while found := _START.match(writer.text, writer.at):
        if (name := found[1]) is None:
            number = int(found[3][-12:] or b"0")
            if number > 0xFFFFFFFF or len(found[3]) > 12:
                break
            limits[found[2]] = min(number, limits.get(found[2], number))
        elif name in NEWLINES:
            writer.newline = name
            writer.whole = True
        writer.utf |= name in (b"UTF", b"UTF8")
        if name in _WIDE:
            writer.step = _UTF_STEP
        if name is not None:
            settings.append(b"(*%s)" % (b"UTF" if name == b"UTF8" else name))
        writer.at = found.end()
    for name, number in limits.items():
        settings.append(b"(*%s=%d)" % (b"LIMIT_DEPTH" if name == b"LIMIT_RECURSION" else name, number))
    if writer.utf:
        try:
            writer.text.decode()
        except UnicodeDecodeError as error:
            raise InvalidPattern("invalid UTF-8") from error
    return b"".join(settings)


_ITEMS: dict[bytes, Callable[[Writer], None]] = {
    b"\\": _escape,
    b"^": _anchor,
    b"$": _anchor,
    b".": _dot,
    b"[": _class,
    b"{": _braces,
    b"*": _sign,
    b"+": _sign,
    b"?": _sign,
    b"|": _bar,
    b"(": open_bracket,
    b")": _close,
}
_ESCAPES: dict[Kind, Callable[[Writer, Escape], None]] = {
    Kind.CHARACTER: _escaped_single,
    Kind.TYPE: _escaped_single,
    Kind.SINGLE: _escaped_single,
    Kind.ASSERTION: _escaped_place,
    Kind.REFERENCE: Writer.reference,
    Kind.CALL: _called,
    Kind.QUOTE: _quote,
    Kind.END_QUOTE: _end_quote,
}


def translate(pattern: bytes, script: bytes = b"", unrolled: bool = False) -> Translation:
    """Say a PCRE 8 pattern in PCRE2.

    Args:
        pattern: as given to RabbitMQ.
        script: what the library wants in front of the name of a script so that script extensions don't count.
        unrolled: write repeats of single characters so that they come to decisions, which the limit counts.

    Raises:
        InvalidPattern: PCRE 8 would not compile it.
    """
    writer = Writer(pattern.partition(b"\0")[0], script, unrolled)  # PCRE 8 reads a C string
    start = _settings(writer)
    while writer.at < len(writer.text):
        if not writer.skip_comment():
            _next(writer)
    groups, top = writer.groups, writer.groups.top
    if len(groups.levels) > 1:
        raise InvalidPattern("missing )")
    for at, condition in writer.recursion_tests:
        # PCRE2 wants the group to exist; PCRE 8 finds the condition false.
        if not groups.numbered_or_false(condition):
            writer.out[at] = b"(?(?!(?:))"
    body = b"".join(writer.out)
    steps, scans = top.through().longest
    returns = 1 + writer.calls  # a way may go on behind a call, once for each that was made
    return Translation(start, body, steps * returns, scans * returns, writer.verbs, writer.skips, writer.whole)
