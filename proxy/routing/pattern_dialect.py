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
from functools import cache
from typing import NamedTuple

from proxy.routing.pattern_classes import is_posix, read_class, word_edge
from proxy.routing.pattern_escapes import (
    COUNT,
    NAME,
    Escape,
    InvalidPattern,
    Kind,
    Reading,
    literal,
    next_character,
    read_escape,
)
from proxy.routing.pattern_groups import Groups, Item, Opening, Repeat

_EXTENDED, _STRICT = 1, 2
_OWN_OPTIONS = {0x78: _EXTENDED, 0x58: _STRICT}  # x X: not known to PCRE2 in this sense, done here
_SHARED_OPTIONS = b"imsUJ"
_START = re.compile(
    rb"\(\*(?:(UTF8?|UCP|NO_AUTO_POSSESS|NO_START_OPT|CR|LF|CRLF|ANY|ANYCRLF|BSR_ANYCRLF|BSR_UNICODE)"
    rb"|(LIMIT_MATCH|LIMIT_RECURSION)=([0-9]*))\)"
)
#: Bytes that end a comment, by the newline convention that the pattern begins with.
_NEWLINES = {
    b"LF": rb"\n",
    b"CR": rb"\r",
    b"CRLF": rb"\r\n",
    b"ANY": rb"\r\n|[\n\x0b\x0c\r\x85]",
    b"ANYCRLF": rb"\r\n|[\r\n]",
}
_ANY_NEWLINE_UTF = rb"\r\n|[\n\x0b\x0c\r]|\xc2\x85|\xe2\x80[\xa8\xa9]"
_VERB = re.compile(rb"\(\*([A-Za-z\xaa\xb5\xba\xc0-\xd6\xd8-\xf6\xf8-\xff]*)(?::([^)]*))?\)", re.DOTALL)
_VERB_SHAPE = re.compile(rb"\(\*[:A-Za-z\xaa\xb5\xba\xc0-\xd6\xd8-\xf6\xf8-\xff]")
_PLAIN_VERBS = frozenset({b"ACCEPT", b"COMMIT", b"F", b"FAIL"})
_NAMED_VERBS = frozenset({b"PRUNE", b"SKIP", b"THEN"})
_MARKS = frozenset({b"", b"MARK"})
_RUN = re.compile(rb"[0-9A-Za-z_]+")
_CALLOUT = re.compile(rb"C([0-9]*)\)")
_NUMBERED_CALL = re.compile(rb"(R|[+-]?[0-9]+)\)")
_NAMED_CALL = re.compile(rb"(?:&|P>)(" + NAME.pattern + rb")\)")
_NAMED_REFERENCE = re.compile(rb"P=(" + NAME.pattern + rb")\)")
_NAMED_GROUP = re.compile(rb"(?:P?<(" + NAME.pattern + rb")>|'(" + NAME.pattern + rb")')")
_CONDITION_ASSERTION = re.compile(rb"\((?:\?C([0-9]*)\)\()?(?=\?(?:=|!|<=|<!))")
_CONDITION = re.compile(
    rb"\((?:([+-]?[0-9]+)|(R&" + NAME.pattern + rb")|<(" + NAME.pattern + rb")>|'(" + NAME.pattern + rb")'"
    rb"|(" + NAME.pattern + rb"))\)"
)
_RECURSION_TEST = re.compile(rb"R[0-9]+")
_OPTIONS = re.compile(rb"([imsxUJX-]*)([:)])")
_LONGEST_REPEAT = 65535
_UNROLLED_LIMIT = 16
_UTF_STEP = 4


class Translation(NamedTuple):
    """A pattern in PCRE2's words.

    Args:
        start: the settings at its beginning.
        body: the rest.
        steps: items that one straight run through it visits at most.
        scans: items that may walk over the whole subject in one go.
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


@cache
def _spacing(newline: bytes, utf: bool) -> re.Pattern[bytes]:
    """Free spacing of ``(?x)``: blanks, and comments up to the end of their line."""
    line_end = _ANY_NEWLINE_UTF if utf and newline == b"ANY" else _NEWLINES[newline]
    return re.compile(rb"(?:[\t-\r ]|#.*?(?:" + line_end + rb"|\Z))+", re.DOTALL)


class _Translator:
    """Reads a pattern item by item and writes it anew."""

    def __init__(self, text: bytes, script: bytes, unrolled: bool) -> None:
        self._text = text
        self._script = script
        self._unrolled = unrolled
        self._at = 0
        self._out: list[bytes] = []
        self._item: Item | None = None
        self._groups = Groups()
        self._options = 0
        self._utf = False
        self._step = 1
        self._verbs = self._skips = self._whole = False
        self._newline = b"LF"
        self._recursion_tests: list[tuple[int, bytes]] = []
        self._spacing = _spacing(b"LF", False)

    def translate(self) -> Translation:
        start = self._settings()
        self._spacing = _spacing(self._newline, self._utf)
        while self._at < len(self._text):
            if not self._skip_comment():
                self._next()
        if len(self._groups.levels) > 1:
            raise InvalidPattern("missing )")
        for at, condition in self._recursion_tests:
            # PCRE2 wants the group to exist; PCRE 8 finds the condition false.
            if not self._groups.numbered_or_false(condition):
                self._out[at] = b"(?(?!(?:))"
        top = self._groups.top
        body = b"".join(self._out)
        return Translation(start, body, top.steps, top.scans, self._verbs, self._skips, self._whole)

    # -- settings at the start

    def _settings(self) -> bytes:
        settings: list[bytes] = []
        limits: dict[bytes, int] = {}
        while found := _START.match(self._text, self._at):
            if (name := found[1]) is None:
                number = int(found[3][-12:] or b"0")
                if number > 0xFFFFFFFF or len(found[3]) > 12:
                    break
                limits[found[2]] = min(number, limits.get(found[2], number))
            elif name in _NEWLINES:
                self._newline = name
                self._whole = True
            self._utf |= name in (b"UTF", b"UTF8")
            if name is not None:
                settings.append(b"(*%s)" % (b"UTF" if name == b"UTF8" else name))
            self._at = found.end()
        for name, number in limits.items():
            settings.append(b"(*%s=%d)" % (b"LIMIT_DEPTH" if name == b"LIMIT_RECURSION" else name, number))
        if self._utf:
            self._step = _UTF_STEP
            try:
                self._text.decode()
            except UnicodeDecodeError as error:
                raise InvalidPattern("invalid UTF-8") from error
        return b"".join(settings)

    # -- items

    def _skip_spacing(self) -> bool:
        if not self._options & _EXTENDED or not (found := self._spacing.match(self._text, self._at)):
            return False
        self._at = found.end()
        return True

    def _skip_comment(self) -> bool:
        """Pass over one comment or free spacing; what stands before them can still be repeated."""
        if self._skip_spacing():
            return True
        if not self._text.startswith(b"(?#", self._at):
            return False
        end = self._text.find(b")", self._at)
        if end < 0:
            raise InvalidPattern("missing ) after a comment")
        self._at = end + 1
        return True

    def _next(self) -> None:
        if run := _RUN.match(self._text, self._at):
            self._at = run.end()
            self._literals(run[0])
            return
        byte = self._text[self._at : self._at + 1]
        _ITEMS.get(byte, _Translator._literal)(self)

    def _literals(self, run: bytes) -> None:
        """Letters and digits; only the last of them can be repeated."""
        if len(run) > 1:
            self._groups.item(Repeat.SINGLE, len(self._out), False, self._step * (len(run) - 1))
            self._out.append(run[:-1])
        self._single(run[-1:])

    def _literal(self) -> None:
        code, self._at = next_character(self._text, self._at, self._utf)
        self._single(literal(code, self._utf))

    def _single(self, text: bytes, scans: int = 0, empty: bool = False) -> None:
        self._item = self._groups.item(Repeat.SINGLE, len(self._out), empty, self._step, scans)
        self._out.append(text)

    def _place(self, text: bytes) -> None:
        """Something that matches a place and can't be repeated."""
        self._out.append(text)
        self._groups.item(Repeat.IGNORED, len(self._out), True, 1)
        self._item = None

    def _anchor(self) -> None:
        self._place(self._text[self._at : self._at + 1])
        self._at += 1

    def _dot(self) -> None:
        self._at += 1
        self._single(b".")

    def _reading(self) -> Reading:
        strict = bool(self._options & _STRICT)
        return Reading(self._text, self._utf, False, strict, self._groups.captures, self._script)

    def _class(self) -> None:
        if edge := word_edge(self._text, self._at):
            self._at += 7
            self._item = self._groups.item(Repeat.ASSERTION, len(self._out) + 1, True, 2)
            self._out += [edge[:2], edge[2:]]
            return
        if is_posix(self._text, self._at):
            raise InvalidPattern("POSIX classes stand within a class only")
        text, self._at = read_class(self._reading(), self._at + 1)
        self._single(text)

    # -- escape sequences

    def _escape(self) -> None:
        escape = read_escape(self._reading(), self._at + 1)
        self._at = escape.end
        _ESCAPES[escape.kind](self, escape)

    def _escaped_single(self, escape: Escape) -> None:
        # \X and \R may walk over many characters, and neither does so by decisions that the matcher counts.
        self._single(escape.text, scans=escape.text in (rb"\X", rb"\R"))

    def _escaped_place(self, escape: Escape) -> None:
        # \K moves the reported start of a match, which nobody asks for; newer libraries refuse it in assertions.
        self._place(b"" if escape.text == rb"\K" else escape.text)

    def _reference(self, escape: Escape) -> None:
        if self._groups.top.lookbehind:
            raise InvalidPattern("look-behind of variable length")
        self._single(escape.text, scans=1, empty=True)

    def _called(self, escape: Escape) -> None:
        self._call(escape.text)

    def _quote(self, escape: Escape) -> None:
        end = self._text.find(rb"\E", self._at)
        stop = len(self._text) if end < 0 else end
        while self._at < stop:
            self._literal()
        self._at = min(stop + 2, len(self._text))

    def _end_quote(self, escape: Escape) -> None:
        """``\\E`` without ``\\Q`` means nothing."""

    # -- quantifiers

    def _brace(self) -> None:
        found = COUNT.match(self._text, self._at)
        if found is None:
            self._literal()
            return
        minimum = int(found[1][-9:])
        maximum = int(found[3][-9:]) if found[3] else None if found[2] else minimum
        if max(len(found[1].lstrip(b"0")), len((found[3] or b"").lstrip(b"0"))) > 5 or (
            max(minimum, maximum or 0) > _LONGEST_REPEAT
        ):
            raise InvalidPattern("number too big in a quantifier")
        if maximum is not None and maximum < minimum:
            raise InvalidPattern("numbers out of order in a quantifier")
        self._at = found.end()
        self._repeat(minimum, maximum)

    def _star(self) -> None:
        minimum, maximum = {b"*": (0, None), b"+": (1, None), b"?": (0, 1)}[self._text[self._at : self._at + 1]]
        self._at += 1
        self._repeat(minimum, maximum)

    def _repeat(self, minimum: int, maximum: int | None) -> None:
        self._skip_spacing()
        if self._text.startswith(b"(?#", self._at):  # one, and no spacing behind it, before the suffix
            self._skip_comment()
        suffix = self._text[self._at : self._at + 1]
        suffix = suffix if suffix in (b"+", b"?") else b""
        self._at += len(suffix)
        item, self._item = self._item, None
        if item is None:
            raise InvalidPattern("nothing to repeat")
        if item.repeat is Repeat.IGNORED or (item.repeat is Repeat.ASSERTION and minimum):
            return
        if item.repeat is Repeat.ASSERTION:
            maximum = min(1, 1 if maximum is None else maximum)
        unrolled = self._unrolled and item.repeat is Repeat.SINGLE and maximum is None
        self._groups.repeated(item, minimum, maximum, unrolled)
        self._out.append(self._quantifier(item, minimum, maximum, unrolled) + suffix)

    def _quantifier(self, item: Item, minimum: int, maximum: int | None, unrolled: bool) -> bytes:
        if unrolled:
            text = b"".join(self._out[item.start :])
            exact = b""
            if minimum > _UNROLLED_LIMIT:
                exact, minimum = b"%s{%d}" % (text, minimum), 0
            # A group's repeats are decisions, one by one; those of a character are one walk over the subject.
            self._out[item.start :] = [exact, b"(?:", text, b")"]
        if maximum is None:
            return {0: b"*", 1: b"+"}.get(minimum, b"{%d,}" % minimum)
        return b"?" if (minimum, maximum) == (0, 1) else b"{%d,%d}" % (minimum, maximum)

    # -- groups

    def _bar(self) -> None:
        self._at += 1
        self._out.append(b"|")
        self._groups.branch()
        self._item = None

    def _close(self) -> None:
        self._at += 1
        level, self._item = self._groups.close()
        self._options = level.options
        self._out.append(b")")

    def _open(self, opening: Opening, text: bytes, length: int, name: bytes = b"") -> None:
        self._at += length
        self._groups.open(opening, self._options, len(self._out), name)
        self._out.append(text)
        self._item = None

    def _bracket(self) -> None:
        if _VERB_SHAPE.match(self._text, self._at):
            self._verb()
        elif not self._text.startswith(b"(?", self._at):
            self._open(Opening.CAPTURE, b"(", 1)
        else:
            _BRACKETS.get(self._text[self._at + 2 : self._at + 3], _Translator._set_options)(self)

    def _plain_group(self) -> None:
        self._open(Opening.PLAIN, self._text[self._at : self._at + 3], 3)

    def _branch_reset(self) -> None:
        before = self._groups.captures
        self._open(Opening.PLAIN, b"(?|", 3)
        self._groups.top.reset = before

    def _lookahead(self) -> None:
        if self._text.startswith(b"(?!)", self._at):
            self._at += 4
            self._item = self._groups.item(Repeat.ASSERTION, len(self._out), True, 2)
            self._out.append(b"(?!(?:))")
            return
        self._open(Opening.ASSERTION, self._text[self._at : self._at + 3], 3)

    def _lookbehind_or_name(self) -> None:
        if self._text[self._at + 3 : self._at + 4] in (b"=", b"!"):
            self._open(Opening.ASSERTION, self._text[self._at : self._at + 4], 4)
            self._groups.top.lookbehind = True
        else:
            self._named_group()

    def _named_group(self) -> None:
        found = _NAMED_GROUP.match(self._text, self._at + 2)
        if found is None:
            raise InvalidPattern("malformed name of a group")
        name = found[1] or found[2]
        self._open(Opening.CAPTURE, b"(?<%s>" % name, 2 + len(found[0]), name)

    def _python(self) -> None:
        if found := _NAMED_REFERENCE.match(self._text, self._at + 2):
            self._at = found.end()
            self._reference(Escape(Kind.REFERENCE, self._at, b"\\k{" + found[1] + b"}"))
        elif self._text.startswith(b">", self._at + 3):
            self._named_call()
        else:
            self._named_group()

    def _named_call(self) -> None:
        found = _NAMED_CALL.match(self._text, self._at + 2)
        if found is None:
            raise InvalidPattern("malformed name in a call")
        self._at = found.end()
        self._call(b"&" + found[1])

    def _numbered_call(self) -> None:
        found = _NUMBERED_CALL.match(self._text, self._at + 2)
        if found is None:
            raise InvalidPattern("malformed call of a group")
        self._at = found.end()
        self._call(b"0" if found[1] == b"R" else found[1])

    def _call(self, group: bytes) -> None:
        """A call of a group as a subroutine: in PCRE 8 an atomic one, nothing in it is tried again."""
        empty = self._groups.called(group)
        self._whole |= not group.strip(b"0")
        self._item = self._groups.item(Repeat.GROUP, len(self._out), empty, 2)
        self._out.append(b"(?>(?" + group + b"))")

    def _minus(self) -> None:
        if self._text[self._at + 3 : self._at + 4].isdigit():
            self._numbered_call()
        else:
            self._set_options()

    def _callout(self) -> None:
        found = _CALLOUT.match(self._text, self._at + 2)
        if found is None or int(found[1][-9:] or b"0") > 255:
            raise InvalidPattern("malformed callout")
        self._at = found.end()
        self._item = None

    def _condition(self) -> None:
        if found := _CONDITION_ASSERTION.match(self._text, self._at + 2):
            # Leave the assertion's own bracket to be read as that of any other.
            self._open(Opening.CONDITION, b"(?", found.end() - 1 - self._at)
            self._groups.top.awaits_assertion = True
            return
        found = _CONDITION.match(self._text, self._at + 2)
        if found is None:
            raise InvalidPattern("malformed condition")
        number, recursion, angled, quoted, bare = found.groups()
        name = angled or quoted
        condition = b"<%s>" % name if name else number or recursion or bare
        if bare and _RECURSION_TEST.fullmatch(bare):
            self._recursion_tests.append((len(self._out), bare))
        opening = Opening.DEFINE if bare == b"DEFINE" else Opening.CONDITION
        self._open(opening, b"(?(" + condition + b")", 2 + len(found[0]))

    def _set_options(self) -> None:
        found = _OPTIONS.match(self._text, self._at + 2)
        if found is None:
            raise InvalidPattern("unknown sequence after (?")
        off = found[1].partition(b"-")[2]
        signs = {letter: letter not in off for letter in found[1] if letter != 0x2D}
        options = self._options
        for letter, option in _OWN_OPTIONS.items():
            options = options | option if signs.get(letter) else options & ~option if letter in signs else options
        set_, unset = (bytes(c for c in _SHARED_OPTIONS if signs.get(c) is wanted) for wanted in (True, False))
        text = set_ + (b"-" + unset if unset else b"")
        if found[2] == b":":
            self._open(Opening.PLAIN, b"(?" + text + b":", 2 + len(found[0]))
        else:
            self._at = found.end()
            self._item = None
            if text:
                self._out.append(b"(?" + text + b")")
        self._options = options

    # -- verbs

    def _verb(self) -> None:
        found = _VERB.match(self._text, self._at)
        if found is None:
            raise InvalidPattern("malformed verb")
        name, argument = found[1], found[2]
        if (
            not ((name in _PLAIN_VERBS and argument is None) or name in _NAMED_VERBS or (name in _MARKS and argument))
            or len(argument or b"") > 255
        ):
            raise InvalidPattern("unknown verb, or one with a wrong argument")
        self._verbs |= name in _NAMED_VERBS or name == b"COMMIT"
        self._skips |= name == b"SKIP" and bool(argument)
        self._at = found.end()
        self._place(b"(*" + name + (b":" + argument if argument else b"") + b")")


_ITEMS: dict[bytes, Callable[[_Translator], None]] = {
    b"\\": _Translator._escape,
    b"^": _Translator._anchor,
    b"$": _Translator._anchor,
    b".": _Translator._dot,
    b"[": _Translator._class,
    b"{": _Translator._brace,
    b"*": _Translator._star,
    b"+": _Translator._star,
    b"?": _Translator._star,
    b"|": _Translator._bar,
    b"(": _Translator._bracket,
    b")": _Translator._close,
}
_ESCAPES: dict[Kind, Callable[[_Translator, Escape], None]] = {
    Kind.CHARACTER: _Translator._escaped_single,
    Kind.TYPE: _Translator._escaped_single,
    Kind.SINGLE: _Translator._escaped_single,
    Kind.ASSERTION: _Translator._escaped_place,
    Kind.REFERENCE: _Translator._reference,
    Kind.CALL: _Translator._called,
    Kind.QUOTE: _Translator._quote,
    Kind.END_QUOTE: _Translator._end_quote,
}
_BRACKETS: dict[bytes, Callable[[_Translator], None]] = {
    b":": _Translator._plain_group,
    b">": _Translator._plain_group,
    b"|": _Translator._branch_reset,
    b"=": _Translator._lookahead,
    b"!": _Translator._lookahead,
    b"<": _Translator._lookbehind_or_name,
    b"'": _Translator._named_group,
    b"P": _Translator._python,
    b"&": _Translator._named_call,
    b"R": _Translator._numbered_call,
    b"+": _Translator._numbered_call,
    b"-": _Translator._minus,
    b"C": _Translator._callout,
    b"(": _Translator._condition,
    **{b"%c" % digit: _Translator._numbered_call for digit in b"0123456789"},
}


def translate(pattern: bytes, script: bytes = b"", unrolled: bool = False) -> Translation:
    """Say a PCRE 8 pattern in PCRE2.

    Args:
        pattern: as given to RabbitMQ.
        script: what the library wants in front of the name of a script so that script extensions don't count.
        unrolled: write repeats of single characters so that each is a decision, which the match limit counts.

    Raises:
        InvalidPattern: PCRE 8 would not compile it.
    """
    return _Translator(pattern.partition(b"\0")[0], script, unrolled).translate()
