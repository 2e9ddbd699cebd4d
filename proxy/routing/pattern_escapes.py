"""What does a backslash mean in a PCRE 8 pattern, and how is that said in PCRE2?

Reads one escape sequence and answers with canonical PCRE2 text; where and how often it may stand is for
``pattern_classes`` and ``pattern_dialect``. Source: pcrepattern(3) of PCRE 8.44, "Backslash".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple


class InvalidPattern(ValueError):  # noqa: N818 - reads as a verdict on a pattern, not as a fault of ours
    """A pattern that PCRE 8 would not compile."""


class Kind(Enum):
    """What an escape sequence is."""

    CHARACTER = auto()
    LETTER = auto()  # in a class: a sequence without meaning there, taken as its letter; can't end a range
    TYPE = auto()  # a set of characters that may also stand in a class
    SINGLE = auto()  # an item that may not stand in a class, but may be repeated
    ASSERTION = auto()  # matches a place; can't be repeated
    REFERENCE = auto()
    CALL = auto()
    QUOTE = auto()
    END_QUOTE = auto()


class Escape(NamedTuple):
    """One escape sequence.

    Args:
        kind: what it is.
        end: index behind it.
        text: PCRE2 text, for characters that of ``literal``; for a call, what stands between the brackets.
        code: code point of a character.
    """

    kind: Kind
    end: int
    text: bytes = b""
    code: int = -1


class Reading(NamedTuple):
    """Where an escape sequence is read: everything its meaning depends on.

    Args:
        text: the whole pattern.
        utf: characters are UTF-8, not bytes.
        in_class: between square brackets.
        strict: the option ``(?X)``: an unknown letter is an error.
        groups: capture groups opened so far.
        script: what PCRE2 wants in front of a script's name so that extensions don't count.
    """

    text: bytes
    utf: bool
    in_class: bool
    strict: bool
    groups: int
    script: bytes


_CATEGORIES = frozenset(
    b"Any C Cc Cf Cn Co Cs L L& Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So "
    b"Z Zl Zp Zs Xan Xps Xsp Xuc Xwd".split()
)
#: Those of Unicode 7, which PCRE 8 stopped at. PCRE2 knows more, and other spellings.
_SCRIPTS = frozenset(
    b"""Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bopomofo Brahmi Braille Buginese Buhid
    Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Common Coptic Cuneiform Cypriot Cyrillic
    Deseret Devanagari Duployan Egyptian_Hieroglyphs Elbasan Ethiopic Georgian Glagolitic Gothic Grantha Greek
    Gujarati Gurmukhi Han Hangul Hanunoo Hebrew Hiragana Imperial_Aramaic Inherited Inscriptional_Pahlavi
    Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kayah_Li Kharoshthi Khmer Khojki Khudawadi Lao Latin
    Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani Malayalam Mandaic Manichaean Meetei_Mayek
    Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Myanmar Nabataean New_Tai_Lue Nko
    Ogham Ol_Chiki Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_South_Arabian Old_Turkic Oriya Osmanya
    Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra
    Sharada Shavian Siddham Sinhala Sora_Sompeng Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham
    Tai_Viet Takri Tamil Telugu Thaana Thai Tibetan Tifinagh Tirhuta Ugaritic Vai Warang_Citi Yi""".split()
)
_CONTROLS = {b"a": 0x07, b"e": 0x1B, b"f": 0x0C, b"n": 0x0A, b"r": 0x0D, b"t": 0x09}
_HEX_BRACES = re.compile(rb"\{([0-9A-Fa-f]+)\}")
_OCTAL_BRACES = re.compile(rb"\{([0-7]+)\}")
_OCTAL_DIGITS = re.compile(rb"[0-7]{1,3}")
_DIGITS = re.compile(rb"[0-9]+")
#: The braces of a quantifier.
COUNT = re.compile(rb"\{([0-9]+)(?:(,)([0-9]*))?\}")
_PROPERTY = re.compile(rb"\{(\^?)([^}]*)\}|([^{])", re.DOTALL)
_GROUP_NUMBER = re.compile(rb"\{(-?)([0-9]+)\}|(-?)([0-9]+)")
_WORD = rb"0-9A-Za-z_\xaa\xb5\xba\xc0-\xd6\xd8-\xf6\xf8-\xff"
#: A group's name: letters of Latin-1 count, whatever the pattern's own character set is.
NAME = re.compile(rb"(?![0-9])[" + _WORD + rb"]{1,32}(?![" + _WORD + rb"])")
_SIGNED = re.compile(rb"[+-][0-9]+|[0-9]+")


def literal(code: int, utf: bool) -> bytes:
    """A character as PCRE2 text that means it everywhere, in a class too."""
    if code < 0x80 and (chr(code).isalnum() or code == 0x5F):
        return b"%c" % code
    return b"\\x%02x" % code if code < 0x80 or not utf else b"\\x{%x}" % code


def next_character(text: bytes, at: int, utf: bool) -> tuple[int, int]:
    """The character at `at` and the index behind it; the text must be valid UTF-8 where `utf` says so."""
    code = text[at]
    if not utf or code < 0x80:
        return code, at + 1
    length = 2 + (code >= 0xE0) + (code >= 0xF0)
    return ord(text[at : at + length].decode()), at + length


def _character(code: int, end: int, reading: Reading) -> Escape:
    if code > (0x10FFFF if reading.utf else 0xFF) or (reading.utf and 0xD800 <= code <= 0xDFFF):
        raise InvalidPattern(f"no character has the number {code:#x}")
    return Escape(Kind.CHARACTER, end, literal(code, reading.utf), code)


def _hexadecimal(reading: Reading, at: int) -> Escape:
    if reading.text[at : at + 1] == b"{":
        braces = _HEX_BRACES.match(reading.text, at)
        if braces is None:
            raise InvalidPattern(r"\x{} without hexadecimal digits")
        return _character(int(braces[1][-16:], 16), braces.end(), reading)
    digits = reading.text[at : at + 2]
    digits = digits[: len(digits) - len(digits.lstrip(b"0123456789abcdefABCDEF"))]
    return _character(int(digits or b"0", 16), at + len(digits), reading)


def _octal(reading: Reading, at: int) -> Escape:
    braces = _OCTAL_BRACES.match(reading.text, at)
    if braces is None:
        raise InvalidPattern(r"\o is not followed by octal digits in braces")
    return _character(int(braces[1][-16:], 8), braces.end(), reading)


def _control(reading: Reading, at: int) -> Escape:
    if not (character := reading.text[at : at + 1]) or character[0] > 0x7F:
        raise InvalidPattern(r"\c is not followed by an ASCII character")
    return _character(character.upper()[0] ^ 0x40, at + 1, reading)


def _number(reading: Reading, at: int) -> Escape:
    """Digits: a back reference where there may be such a group, else an octal character code."""
    digits = _DIGITS.match(reading.text, at - 1)
    if digits is not None and not reading.in_class and digits[0][0] != 0x30:
        number = int(digits[0][:10])
        if number > 0x7FFFFFFF or len(digits[0]) > 10:
            raise InvalidPattern("number is too big")
        if number < 8 or number <= reading.groups:
            return Escape(Kind.REFERENCE, digits.end(), b"\\g{%d}" % number)
    octal = _OCTAL_DIGITS.match(reading.text, at - 1)
    if octal is None:
        return _character(reading.text[at - 1], at, reading)
    return _character(int(octal[0], 8), octal.end(), reading)


def _group(reading: Reading, at: int) -> Escape:
    r"""``\g``: a reference by number or name, or a call."""
    text = reading.text
    if reading.in_class:
        return _character(text[at - 1], at, reading)
    if (opening := text[at : at + 1]) in (b"<", b"'"):
        return _call(reading, at + 1, b">" if opening == b"<" else b"'")
    found = _GROUP_NUMBER.match(text, at)
    if found is None:
        return _named_reference(reading, at, b"{") if opening == b"{" else _invalid_reference()
    negative, number = (found[1] or found[3]), int((found[2] or found[4])[-10:])
    if negative:
        number = reading.groups - number + 1 if number else 0
    return Escape(Kind.REFERENCE, found.end(), b"\\g{%d}" % number) if number > 0 else _invalid_reference()


def _invalid_reference() -> Escape:
    raise InvalidPattern("reference to a group that does not exist")


def _call(reading: Reading, at: int, terminator: bytes) -> Escape:
    found = _SIGNED.match(reading.text, at) or NAME.match(reading.text, at)
    if found is None or reading.text[found.end() : found.end() + 1] != terminator:
        raise InvalidPattern(r"\g is not followed by a group in brackets")
    prefix = b"" if found.re is _SIGNED else b"&"
    return Escape(Kind.CALL, found.end() + 1, prefix + found[0])


def _named_reference(reading: Reading, at: int, opening: bytes) -> Escape:
    terminators = {b"{": b"}", b"<": b">", b"'": b"'"}
    name = NAME.match(reading.text, at + 1)
    if name is None or reading.text[name.end() : name.end() + 1] != terminators.get(opening):
        raise InvalidPattern("a group's name was expected")
    return Escape(Kind.REFERENCE, name.end() + 1, b"\\k{" + name[0] + b"}")


def _letter(reading: Reading, at: int) -> Escape:
    if reading.strict:
        raise InvalidPattern("unknown escape sequence in a class")
    return _character(reading.text[at - 1], at, reading)._replace(kind=Kind.LETTER)


def _name(reading: Reading, at: int) -> Escape:
    if reading.in_class:
        return _letter(reading, at)
    return _named_reference(reading, at, reading.text[at : at + 1])


def _property(reading: Reading, at: int) -> Escape:
    found = _PROPERTY.match(reading.text, at)
    if found is None:
        raise InvalidPattern(r"malformed \p or \P")
    name = found[2] if found[2] is not None else found[3]
    if name not in _CATEGORIES and name not in _SCRIPTS:
        raise InvalidPattern(r"unknown property after \p or \P")
    negative = (reading.text[at - 1 : at] == b"P") != bool(found[1])
    prefix = reading.script if name in _SCRIPTS else b""
    return Escape(Kind.TYPE, found.end(), (b"\\P{" if negative else b"\\p{") + prefix + name + b"}")


def _not_newline(reading: Reading, at: int) -> Escape:
    if reading.in_class or (reading.text[at : at + 1] == b"{" and not COUNT.match(reading.text, at)):
        raise InvalidPattern(r"\N is not supported here")
    return Escape(Kind.SINGLE, at, rb"\N")


def _unsupported(reading: Reading, at: int) -> Escape:
    raise InvalidPattern(r"\L, \l, \U and \u are not supported")


def _of(kind: Kind) -> Callable[[Reading, int], Escape]:
    def read(reading: Reading, at: int) -> Escape:
        letter = reading.text[at - 1 : at]
        if reading.in_class and kind in (Kind.SINGLE, Kind.ASSERTION):
            # PCRE 8 takes what means nothing in a class as the letter itself; \b is the backspace there.
            return _character(0x08, at, reading) if letter == b"b" else _letter(reading, at)
        return Escape(kind, at, b"\\" + letter)

    return read


_READERS: dict[bytes, Callable[[Reading, int], Escape]] = {
    **{b"%c" % letter: _of(Kind.TYPE) for letter in b"dDwWsShHvV"},
    **{b"%c" % letter: _of(Kind.SINGLE) for letter in b"CRX"},
    **{b"%c" % letter: _of(Kind.ASSERTION) for letter in b"AGKBbZz"},
    **{b"%c" % letter: _unsupported for letter in b"lLuU"},
    **{b"%c" % digit: _number for digit in b"0123456789"},
    b"Q": _of(Kind.QUOTE),
    b"E": _of(Kind.END_QUOTE),
    b"N": _not_newline,
    b"x": _hexadecimal,
    b"o": _octal,
    b"c": _control,
    b"g": _group,
    b"k": _name,
    b"p": _property,
    b"P": _property,
}


def read_escape(reading: Reading, at: int) -> Escape:
    """Read the escape sequence whose backslash stands before `at`.

    Raises:
        InvalidPattern: PCRE 8 has no such sequence.
    """
    letter = reading.text[at : at + 1]
    if not letter:
        raise InvalidPattern("backslash at the end")
    if reader := _READERS.get(letter):
        return reader(reading, at + 1)
    if letter in _CONTROLS:
        return _character(_CONTROLS[letter], at + 1, reading)
    if reading.strict and letter.isalpha():
        raise InvalidPattern("unknown escape sequence")
    code, end = next_character(reading.text, at, reading.utf)
    return _character(code, end, reading)
