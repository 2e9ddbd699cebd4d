"""What does an opening bracket begin: a group, a look-around, a condition, a call, options, a verb, a callout?

One function a kind, each of which reads up to where ordinary items go on. Source: pcrepattern(3) of PCRE 8.44, from
"Internal option setting" to "Backtracking control".
"""

from __future__ import annotations

import re
from collections.abc import Callable

from proxy.routing.pattern_cost import DECISION
from proxy.routing.pattern_escapes import NAME, Escape, InvalidPattern, Kind
from proxy.routing.pattern_groups import Opening, Repeat
from proxy.routing.pattern_writer import EXTENDED, STRICT, Writer

_OWN_OPTIONS = {0x78: EXTENDED, 0x58: STRICT}  # x X: not known to PCRE2 in this sense, done here
_SHARED_OPTIONS = b"imsUJ"
_VERB = re.compile(rb"\(\*([A-Za-z\xaa\xb5\xba\xc0-\xd6\xd8-\xf6\xf8-\xff]*)(?::([^)]*))?\)", re.DOTALL)
_VERB_SHAPE = re.compile(rb"\(\*[:A-Za-z\xaa\xb5\xba\xc0-\xd6\xd8-\xf6\xf8-\xff]")
_PLAIN_VERBS = frozenset({b"ACCEPT", b"COMMIT", b"F", b"FAIL"})
_NAMED_VERBS = frozenset({b"PRUNE", b"SKIP", b"THEN"})
_MARKS = frozenset({b"", b"MARK"})
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


def open_bracket(writer: Writer) -> None:
    """Read what the opening bracket at hand begins.

    Raises:
        InvalidPattern: PCRE 8 knows nothing that begins so.
    """
    if _VERB_SHAPE.match(writer.text, writer.at):
        _verb(writer)
    elif not writer.text.startswith(b"(?", writer.at):
        writer.open(Opening.CAPTURE, b"(", 1)
    else:
        _BRACKETS.get(writer.text[writer.at + 2 : writer.at + 3], _set_options)(writer)


def _plain_group(writer: Writer) -> None:
    writer.open(Opening.PLAIN, writer.text[writer.at : writer.at + 3], 3)


def _branch_reset(writer: Writer) -> None:
    before = writer.groups.captures
    writer.open(Opening.PLAIN, b"(?|", 3)
    writer.groups.top.reset = before


def _lookahead(writer: Writer) -> None:
    if writer.text.startswith(b"(?!)", writer.at):
        writer.at += 4
        writer.item = writer.groups.item(Repeat.ASSERTION, len(writer.out), True, DECISION)
        writer.out.append(b"(?!(?:))")
        return
    writer.open(Opening.ASSERTION, writer.text[writer.at : writer.at + 3], 3)


def _lookbehind_or_name(writer: Writer) -> None:
    if writer.text[writer.at + 3 : writer.at + 4] in (b"=", b"!"):
        writer.open(Opening.ASSERTION, writer.text[writer.at : writer.at + 4], 4)
        writer.groups.top.lookbehind = True
    else:
        _named_group(writer)


def _named_group(writer: Writer) -> None:
    found = _NAMED_GROUP.match(writer.text, writer.at + 2)
    if found is None:
        raise InvalidPattern("malformed name of a group")
    name = found[1] or found[2]
    writer.open(Opening.CAPTURE, b"(?<%s>" % name, 2 + len(found[0]), name)


def _python(writer: Writer) -> None:
    if found := _NAMED_REFERENCE.match(writer.text, writer.at + 2):
        writer.at = found.end()
        writer.reference(Escape(Kind.REFERENCE, writer.at, b"\\k{" + found[1] + b"}"))
    elif writer.text.startswith(b">", writer.at + 3):
        _named_call(writer)
    else:
        _named_group(writer)


def _named_call(writer: Writer) -> None:
    found = _NAMED_CALL.match(writer.text, writer.at + 2)
    if found is None:
        raise InvalidPattern("malformed name in a call")
    writer.at = found.end()
    writer.call(b"&" + found[1])


def _numbered_call(writer: Writer) -> None:
    found = _NUMBERED_CALL.match(writer.text, writer.at + 2)
    if found is None:
        raise InvalidPattern("malformed call of a group")
    writer.at = found.end()
    writer.call(b"0" if found[1] == b"R" else found[1])


def _minus(writer: Writer) -> None:
    if writer.text[writer.at + 3 : writer.at + 4].isdigit():
        _numbered_call(writer)
    else:
        _set_options(writer)


def _callout(writer: Writer) -> None:
    found = _CALLOUT.match(writer.text, writer.at + 2)
    if found is None or int(found[1][-9:] or b"0") > 255:
        raise InvalidPattern("malformed callout")
    writer.at = found.end()
    writer.item = None


def _condition(writer: Writer) -> None:
    if found := _CONDITION_ASSERTION.match(writer.text, writer.at + 2):
        # Leave the assertion's own bracket to be read as that of any other.
        writer.open(Opening.CONDITION, b"(?", found.end() - 1 - writer.at)
        writer.groups.top.awaits_assertion = True
        return
    found = _CONDITION.match(writer.text, writer.at + 2)
    if found is None:
        raise InvalidPattern("malformed condition")
    number, recursion, angled, quoted, bare = found.groups()
    name = angled or quoted
    condition = b"<%s>" % name if name else number or recursion or bare
    if bare and _RECURSION_TEST.fullmatch(bare):
        writer.recursion_tests.append((len(writer.out), bare))
    opening = Opening.DEFINE if bare == b"DEFINE" else Opening.CONDITION
    writer.open(opening, b"(?(" + condition + b")", 2 + len(found[0]))


def _set_options(writer: Writer) -> None:
    found = _OPTIONS.match(writer.text, writer.at + 2)
    if found is None:
        raise InvalidPattern("unknown sequence after (?")
    off = found[1].partition(b"-")[2]
    signs = {letter: letter not in off for letter in found[1] if letter != 0x2D}
    options = writer.options
    for letter, option in _OWN_OPTIONS.items():
        options = options | option if signs.get(letter) else options & ~option if letter in signs else options
    set_, unset = (bytes(c for c in _SHARED_OPTIONS if signs.get(c) is wanted) for wanted in (True, False))
    text = set_ + (b"-" + unset if unset else b"")
    if found[2] == b":":
        writer.open(Opening.PLAIN, b"(?" + text + b":", 2 + len(found[0]))
    else:
        writer.at = found.end()
        writer.item = None
        if text:
            writer.out.append(b"(?" + text + b")")
    writer.options = options


def _verb(writer: Writer) -> None:
    found = _VERB.match(writer.text, writer.at)
    if found is None:
        raise InvalidPattern("malformed verb")
    name, argument = found[1], found[2]
    known = name in _NAMED_VERBS or (name in _MARKS and argument) or (name in _PLAIN_VERBS and argument is None)
    if not known or len(argument or b"") > 255:
        raise InvalidPattern("unknown verb, or one with a wrong argument")
    writer.verbs |= name in _NAMED_VERBS or name == b"COMMIT"
    writer.skips |= name == b"SKIP" and bool(argument)
    writer.at = found.end()
    writer.place(b"(*" + name + (b":" + argument if argument else b"") + b")")


_BRACKETS: dict[bytes, Callable[[Writer], None]] = {
    b":": _plain_group,
    b">": _plain_group,
    b"|": _branch_reset,
    b"=": _lookahead,
    b"!": _lookahead,
    b"<": _lookbehind_or_name,
    b"'": _named_group,
    b"P": _python,
    b"&": _named_call,
    b"R": _numbered_call,
    b"+": _numbered_call,
    b"-": _minus,
    b"C": _callout,
    b"(": _condition,
    **{b"%c" % digit: _numbered_call for digit in b"0123456789"},
}
