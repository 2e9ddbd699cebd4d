"""How far has a pattern been read, and what is written of it?

The state that the readers of ``pattern_dialect`` and ``pattern_brackets`` share, and the items that they write:
literals, places, calls, groups, and quantifiers on them. Source: pcrepattern(3) of PCRE 8.44, "Repetition".
"""

from __future__ import annotations

import re
from functools import cache

from proxy.routing.pattern_cost import DECISION, STEP, Walk, straight
from proxy.routing.pattern_escapes import Escape, InvalidPattern, Reading, literal, next_character
from proxy.routing.pattern_groups import Groups, Item, Opening, Repeat

#: Options of a pattern that are not left to PCRE2: ``(?x)`` and ``(?X)``.
EXTENDED, STRICT = 1, 2
#: Bytes that end a comment, by the newline convention that the pattern begins with.
NEWLINES = {
    b"LF": rb"\n",
    b"CR": rb"\r",
    b"CRLF": rb"\r\n",
    b"ANY": rb"\r\n|[\n\x0b\x0c\r\x85]",
    b"ANYCRLF": rb"\r\n|[\r\n]",
}
_ANY_NEWLINE_UTF = rb"\r\n|[\n\x0b\x0c\r]|\xc2\x85|\xe2\x80[\xa8\xa9]"
_PROPERTY_STEP = 8 * STEP
#: Characters between two decisions where a repeat of one is written in blocks.
_BLOCK = 16
#: Limited repeats of a character up to this many are steps; longer ones count as a scan of the subject.
_SHORT_REPEAT = 256


@cache
def _spacing(newline: bytes, utf: bool) -> re.Pattern[bytes]:
    """Free spacing of ``(?x)``: blanks, and comments up to the end of their line."""
    line_end = _ANY_NEWLINE_UTF if utf and newline == b"ANY" else NEWLINES[newline]
    return re.compile(rb"(?:[\t-\r ]|#.*?(?:" + line_end + rb"|\Z))+", re.DOTALL)


class Writer:
    """A pattern that is being read and written anew.

    Attributes:
        text: the pattern.
        at: index of what is to be read next.
        out: PCRE2 text so far.
        item: what a quantifier would apply to, None where there is nothing.
        groups: the open groups.
        options: EXTENDED and STRICT, as far as they are on.
        utf: characters are UTF-8.
        step: what reading one character costs.
        newline: name of the newline convention.
        calls: a call was seen.
        verbs: a verb that says how to backtrack was seen.
        skips: a skip to a mark was seen.
        whole: something was seen whose meaning depends on the pattern being whole.
        recursion_tests: conditions ``R1`` and their index in the output.
    """

    def __init__(self, text: bytes, script: bytes, unrolled: bool) -> None:
        """Begin at the start; see ``translate`` for the arguments."""
        self.text = text
        self.at = 0
        self.out: list[bytes] = []
        self.item: Item | None = None
        self.groups = Groups()
        self.options = 0
        self.utf = False
        self.step = STEP
        self.newline = b"LF"
        self.calls = self.verbs = self.skips = self.whole = False
        self.recursion_tests: list[tuple[int, bytes]] = []
        self._script = script
        self._unrolled = unrolled

    def reading(self) -> Reading:
        """Where the next escape sequence or class is read."""
        strict = bool(self.options & STRICT)
        return Reading(self.text, self.utf, False, strict, self.groups.captures, self._script)

    def skip_spacing(self) -> bool:
        """Pass over free spacing of ``(?x)``; whether there was any."""
        if not self.options & EXTENDED or not (found := _spacing(self.newline, self.utf).match(self.text, self.at)):
            return False
        self.at = found.end()
        return True

    def skip_comment(self) -> bool:
        """Pass over one comment or free spacing; what stands before them can still be repeated."""
        if self.skip_spacing():
            return True
        if not self.text.startswith(b"(?#", self.at):
            return False
        end = self.text.find(b")", self.at)
        if end < 0:
            raise InvalidPattern("missing ) after a comment")
        self.at = end + 1
        return True

    def literals(self, run: bytes) -> None:
        """Letters and digits; only the last of them can be repeated."""
        if len(run) > 1:
            self.groups.item(Repeat.SINGLE, len(self.out), False, straight(self.step * (len(run) - 1)))
            self.out.append(run[:-1])
        self.single(run[-1:])

    def literal(self) -> None:
        """One character that stands for itself."""
        code, self.at = next_character(self.text, self.at, self.utf)
        self.single(literal(code, self.utf))

    def single(self, text: bytes) -> None:
        """Write an item that matches one character."""
        # Each property costs a look into the tables of Unicode.
        properties = text.count(b"\\p") + text.count(b"\\P")
        step = self.step + properties * _PROPERTY_STEP
        self.item = self.groups.item(Repeat.SINGLE, len(self.out), False, straight(step))
        self.out.append(text)

    def span(self, text: bytes, scans: int = 1, empty: bool = False) -> None:
        """Write an item that matches any number of characters without a decision.

        Args:
            text: the item.
            scans: cost of each character.
            empty: it can match nothing.
        """
        self.item = self.groups.item(Repeat.SPAN, len(self.out), empty, straight(self.step, scans))
        self.out.append(text)

    def place(self, text: bytes) -> None:
        """Something that matches a place and can't be repeated."""
        self.out.append(text)
        self.groups.item(Repeat.IGNORED, len(self.out), True, straight(STEP))
        self.item = None

    def reference(self, escape: Escape) -> None:
        """Write a reference back to what a group matched."""
        if self.groups.top.lookbehind:
            raise InvalidPattern("look-behind of variable length")
        self.span(escape.text, empty=True)

    def call(self, group: bytes) -> None:
        """A call of a group as a subroutine: in PCRE 8 an atomic one, nothing in it is tried again."""
        empty = self.groups.called(group)
        self.whole |= not group.strip(b"0")
        self.calls = True
        self.item = self.groups.item(Repeat.GROUP, len(self.out), empty, DECISION.then(straight(2 * STEP)))
        self.out.append(b"(?>(?" + group + b"))")

    def open(self, opening: Opening, text: bytes, length: int, name: bytes = b"") -> None:
        """Open a group: write `text` for the next `length` bytes."""
        self.at += length
        self.groups.open(opening, self.options, len(self.out), name)
        self.out.append(text)
        self.item = None

    def repeat(self, minimum: int, maximum: int | None) -> None:
        """Apply a quantifier to the last item; its suffix is still to be read."""
        self.skip_spacing()
        if self.text.startswith(b"(?#", self.at):  # one, and no spacing behind it, before the suffix
            self.skip_comment()
        suffix = self.text[self.at : self.at + 1]
        suffix = suffix if suffix in (b"+", b"?") else b""
        self.at += len(suffix)
        item, self.item = self.item, None
        if item is None:
            raise InvalidPattern("nothing to repeat")
        if item.repeat is Repeat.IGNORED or (item.repeat is Repeat.ASSERTION and minimum):
            return
        if item.repeat is Repeat.ASSERTION:
            maximum = 1 if maximum is None else min(1, maximum)
        if self._unrolled and item.repeat is Repeat.SINGLE and maximum is None:
            self._blocks(item, minimum, suffix)
            return
        self.groups.repeated(item, minimum, _walk(item, minimum, maximum))
        self.out.append(_quantifier(minimum, maximum) + suffix)

    def _blocks(self, item: Item, minimum: int, suffix: bytes) -> None:
        """An unlimited repeat of a character, so written that it comes to a decision every few characters.

        Full blocks, then the rest of one: the same lengths are tried in the same order, greedy or lazy.
        """
        text = b"".join(self.out[item.start :])
        exact = text + b"{%d}" % minimum if minimum else b""
        self.out[item.start :] = [exact, b"(?:%s{%d})*%s" % (text, _BLOCK, suffix)]
        self.out.append(b"%s{0,%d}%s" % (text, _BLOCK - 1, suffix))
        block = straight(item.walk.head[0] * _BLOCK // STEP)  # a character in a row costs less than an item
        self.groups.repeated(item, minimum, straight(item.walk.head[0] * minimum).then(DECISION).then(block.times(2)))


def _walk(item: Item, minimum: int, maximum: int | None) -> Walk:
    """The way through the repeats of an item."""
    if item.repeat in (Repeat.GROUP, Repeat.ASSERTION):
        return item.walk.repeated(minimum, maximum)
    if item.repeat is Repeat.SINGLE and maximum is not None and maximum <= _SHORT_REPEAT:
        return item.walk.times(maximum)
    return straight(item.walk.head[0], item.walk.head[1] + item.walk.head[0] // STEP)


def _quantifier(minimum: int, maximum: int | None) -> bytes:
    if maximum is None:
        return {0: b"*", 1: b"+"}.get(minimum, b"{%d,}" % minimum)
    return b"?" if (minimum, maximum) == (0, 1) else b"{%d,%d}" % (minimum, maximum)
