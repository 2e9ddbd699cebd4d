"""What does a character class of a PCRE 8 pattern hold, and how is it said in PCRE2?

Reads from the opening to the closing bracket. Every member is written anew, so that nothing depends on how PCRE2
reads a hyphen or a bracket. Source: pcrepattern(3) of PCRE 8.44, "Square brackets and character classes".
"""

from __future__ import annotations

import re

from proxy.routing.pattern_escapes import Escape, InvalidPattern, Kind, Reading, literal, next_character, read_escape

_POSIX = re.compile(rb"\[:(\^?)([a-z]*):\]")
_POSIX_NAMES = frozenset(b"alpha lower upper alnum ascii blank cntrl digit graph print punct space word xdigit".split())
#: What PCRE 8 takes for the beginning of a POSIX class, element or equivalent, known or not.
_POSIX_SHAPE = re.compile(rb"\[([:.=])(?:\\[\]\\]|(?!\[\1|\]|\1\]).)*\1\]", re.DOTALL)
_WORD_EDGES = {b"[[:<:]]": rb"\b(?=\w)", b"[[:>:]]": rb"\b(?<=\w)"}


def word_edge(text: bytes, at: int) -> bytes | None:
    """PCRE2 text of the assertion that ``[[:<:]]`` and ``[[:>:]]`` stand for, None where `at` has neither."""
    return _WORD_EDGES.get(text[at : at + 7])


def is_posix(text: bytes, at: int) -> bool:
    """Whether a POSIX class, element or equivalent stands at `at`; outside a class it is an error."""
    return _POSIX_SHAPE.match(text, at) is not None


class _ClassReader:
    """One class, member by member."""

    def __init__(self, reading: Reading, at: int) -> None:
        self._reading = reading._replace(in_class=True)
        self._text = reading.text
        self._quoted = False
        self.at = at
        self._out: list[bytes] = []

    def read(self) -> bytes:
        opening = self._opening()
        if self._text[self.at : self.at + 1] == b"]":  # a bracket that comes first is a member
            self._range_or_character(0x5D, self.at + 1)
        while True:
            member = self._next()
            if member is None:
                return opening + b"".join(self._out) + b"]"
            if member.kind in (Kind.CHARACTER, Kind.LETTER):
                self._range_or_character(member.code, member.end)
            else:
                self._out.append(member.text)
                self.at = member.end

    def _opening(self) -> bytes:
        """The bracket and the caret, with ``\\E`` and empty quotes ignored among them."""
        negative = False
        while True:
            if self._text.startswith(rb"\E", self.at):
                self.at += 2
            elif self._text.startswith(rb"\Q\E", self.at):
                self.at += 4
            elif not negative and self._text.startswith(b"^", self.at):
                negative = True
                self.at += 1
            else:
                return b"[^" if negative else b"["

    def _next(self) -> Escape | None:
        """The next member; None at the closing bracket, which is then passed."""
        while True:
            if self.at >= len(self._text):
                raise InvalidPattern("missing ] of a character class")
            if self._quoted:
                if not self._text.startswith(rb"\E", self.at):
                    return self._plain()
                self._quoted = False
                self.at += 2
                continue
            byte = self._text[self.at : self.at + 1]
            if byte == b"]":
                self.at += 1
                return None
            if byte == b"[" and is_posix(self._text, self.at):
                return self._posix()
            if byte != b"\\":
                return self._plain()
            escape = read_escape(self._reading, self.at + 1)
            if escape.kind not in (Kind.QUOTE, Kind.END_QUOTE):
                return escape
            self._quoted = escape.kind is Kind.QUOTE
            self.at = escape.end

    def _plain(self) -> Escape:
        code, end = next_character(self._text, self.at, self._reading.utf)
        return Escape(Kind.CHARACTER, end, code=code)

    def _posix(self) -> Escape:
        found = _POSIX.match(self._text, self.at)
        if found is None or found[2] not in _POSIX_NAMES:
            raise InvalidPattern("unknown POSIX class")
        return Escape(Kind.TYPE, found.end(), found[0])

    def _range_or_character(self, first: int, end: int) -> None:
        """A character that is read already, and the range that it may begin."""
        self.at = end
        last = self._range_end()
        self._out.append(literal(first, self._reading.utf))
        if last is None:
            return
        if last < first:
            raise InvalidPattern("range out of order in a character class")
        self._out.append(b"-" + literal(last, self._reading.utf))

    def _range_end(self) -> int | None:
        """The last character of the range whose first one has just been passed, None where there is no range."""
        while self._text.startswith(rb"\E", self.at):
            self._quoted = False
            self.at += 2
        if self._quoted or not self._text.startswith(b"-", self.at):
            return None
        hyphen = self.at
        self.at += 1
        member = self._next()
        if member is None:  # a hyphen that comes last is a member
            self.at = hyphen
            return None
        if member.kind is not Kind.CHARACTER:
            raise InvalidPattern("invalid range in a character class")
        self.at = member.end
        return member.code


def read_class(reading: Reading, at: int) -> tuple[bytes, int]:
    """Read the class whose opening bracket stands before `at`.

    Returns:
        PCRE2 text, and the index behind the closing bracket.

    Raises:
        InvalidPattern: PCRE 8 does not take it.
    """
    reader = _ClassReader(reading, at)
    return reader.read(), reader.at
