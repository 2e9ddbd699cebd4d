"""Formats error messages in the same way as RabbitMQ.

RabbitMQ prints keys and values as Erlang terms (``~p``: lines of 80 columns, Latin-1), sends the message as Latin-1 if
possible, and truncates it to fit into a short string. Clients and recorded test vectors compare these messages byte by
byte.

Sources: the open-exchange specification, section 11; Erlang/OTP 25, io_lib:format/2; RabbitMQ 3.10,
rabbit_binary_generator:map_exception/3.
"""

from __future__ import annotations

from typing import cast

from oxproxy.errors import ProtocolError, Scope
from oxproxy.values import Table, Value

#: The AMQP 0-9-1 reply code 406, the only reply code that rules cause.
PRECONDITION_FAILED = 406
#: Prefix of the reply texts on the wire.
_OPENING = "PRECONDITION_FAILED - "
#: Maximum length in bytes of the text on the wire, which is a short string. Longer texts are truncated to _KEPT bytes,
#: and three dots are added.
_LONGEST = 255
_KEPT = 252
_ROOM = _LONGEST - len(_OPENING)

_LINE = 80
_PRINTABLE = frozenset((*range(0x20, 0x7F), *range(0xA0, 0x100), *b"\n\r\t\v\b\f\x1b"))
_ESCAPES = str.maketrans(
    {
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\b": "\\b",
        "\f": "\\f",
        "\x1b": "\\e",
        '"': '\\"',
        "\\": "\\\\",
    }
)

TYPE_NAMES = {
    "t": "bool",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "I": "signedint",
    "i": "unsignedint",
    "l": "long",
    "L": "long",
    "T": "timestamp",
    "f": "float",
    "d": "double",
    "D": "decimal",
    "S": "longstr",
    "x": "binary",
    "A": "array",
    "F": "table",
    "V": "void",
}


def precondition_failed(text: str) -> ProtocolError:
    """Return the channel error that rejects a declaration."""
    return ProtocolError(PRECONDITION_FAILED, encode_error_text(text), Scope.CHANNEL)


def encode_error_text(text: str) -> bytes:
    """Encode an error message, without the name of the reply code.

    The message is truncated so that the name and the message fit into a short string. As in the broker, the encoding is
    Latin-1 if possible, otherwise UTF-8. Truncation never splits a UTF-8 character.
    """
    encoded, encoding = _encoded(text)
    if len(encoded) <= _ROOM:
        return encoded
    return encoded[: _KEPT - len(_OPENING)].decode(encoding, errors="ignore").encode(encoding) + b"..."


def fits(text: str) -> bool:
    """Return True if `encode_error_text` does not truncate a text."""
    return len(_encoded(text)[0]) <= _ROOM


def _encoded(text: str) -> tuple[bytes, str]:
    try:
        return text.encode("latin-1"), "latin-1"
    except UnicodeEncodeError:
        return text.encode(), "utf-8"


def decode_text(text: bytes) -> str:
    """Decode bytes as ``~ts`` prints them: as UTF-8 if valid, otherwise one character per byte."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")


def format_binary(content: bytes, column: int = 0) -> str:
    """Format a binary as ``~p`` prints it, after `column` characters on the same line."""
    if not content:
        return "<<>>"
    if _PRINTABLE.issuperset(content):
        return '<<"' + content.decode("latin-1").translate(_ESCAPES) + '">>'
    numbers = [str(byte) for byte in content]
    whole = "<<" + ",".join(numbers) + ">>"
    if len(whole) < _LINE - column - 1:
        return whole
    return "<<" + _broken(numbers, column, len(whole)) + ">>"


def _broken(numbers: list[str], column: int, whole: int) -> str:
    width = max(8, min(_LINE - column - 3, whole - 4))
    indent = "\n" + " " * (column + 2)
    parts: list[str] = []
    left = width
    for number in numbers[:-1]:
        left -= len(number) + 1
        if left < 0:
            left = width - len(number) - 1
            parts.append(indent)
        parts.append(number + ",")
    if len(numbers[-1]) > left:
        parts.append(indent)
    parts.append(numbers[-1])
    return "".join(parts)


def format_term(value: Value, column: int = 0) -> str:
    """Format a field value as ``~p`` prints it, but without line breaks in lists and tables."""
    letter, content = value
    match letter:
        case "A":
            elements = cast("tuple[Value, ...]", content)
            return "[" + ",".join(f"{{{TYPE_NAMES[item.letter]},{format_term(item)}}}" for item in elements) + "]"
        case "F":
            entries = cast("Table", content)
            printed = (
                f"{{{format_binary(name)},{TYPE_NAMES[entry.letter]},{format_term(entry)}}}" for name, entry in entries
            )
            return "[" + ",".join(printed) + "]"
        case "S" | "x":
            return format_binary(cast("bytes", content), column)
        case "D":
            return "{{{},{}}}".format(*cast("tuple[int, int]", content))
        case "t":
            return "true" if content else "false"
        case "V":
            return "undefined"
        case "f" | "d":
            return _float(cast("float", content))
    return str(content)


def _float(number: float) -> str:
    """Format a number with the fewest digits that identify it.

    An exponent is used if the result is shorter, or if the number's absolute value is 2**53 or larger.
    """
    shortest = repr(number)
    mantissa, _, exponent = (shortest if "e" in shortest else _scientific(shortest)).partition("e")
    scientific = f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent)}"
    if "e" in shortest or abs(number) >= 2.0**53 or len(scientific) < len(shortest):
        return scientific
    return shortest


def _scientific(text: str) -> str:
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, _, fraction = digits.partition(".")
    joined = (whole + fraction).lstrip("0")
    exponent = len(whole) - 1 if whole != "0" else len(joined) - len(fraction) - 1
    joined = joined.rstrip("0") or "0"
    return f"{sign}{joined[0]}{'.' + joined[1:] if joined[1:] else ''}e{exponent}"
