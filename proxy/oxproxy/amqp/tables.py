"""Selects, removes, decodes and encodes the entries of field tables. Tables are read in place.

Received bytes are never re-encoded: rules get decoded values, and the broker gets the producer's own bytes, except that
whole entries may be added or removed. This module is independent of frames, methods and rules.

Each value begins with an octet, the type letter. The letters have the same meaning as on RabbitMQ. All lengths are in
bytes. Malformed bytes cause a ``ProtocolError`` that closes the connection with 502, as on RabbitMQ.

Source: AMQP 0-9-1 spec, 4.2.5.5 "Field tables"; RabbitMQ's errata, "Field types".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NoReturn, cast

from oxproxy.errors import LocalProtocolError, ProtocolError
from oxproxy.values import Table, Value

#: Nesting limit for tables and arrays. Real headers have a few levels (x-death has 2). Deeper nesting is refused with
#: 502, so that producers can't exhaust the stack.
MAX_NESTING: Final = 128

#: AMQP 0-9-1 spec, 4.2.5.5: the names of entries are short strings.
MAX_NAME_BYTES: Final = 255


_FIXED: Final = {
    letter: struct.Struct(code)
    for letter, code in {
        "t": ">?", "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q",
        "T": ">Q", "f": ">f", "d": ">d", "D": ">BI",
    }.items()
}  # fmt: skip
#: (type letter, codec, size of the value), indexed by the octet of the type letter.
_FIXED_BY_OCTET: Final = {ord(letter): (letter, codec, codec.size) for letter, codec in _FIXED.items()}
_LENGTH: Final = struct.Struct(">I")

#: Total size of the type letter and the value, indexed by the octet of the type letter; 0 if the letter is followed by
#: a four-byte length.
VALUE_SIZES: Final = (
    {ord(letter): 1 + codec.size for letter, codec in _FIXED.items()} | {ord("V"): 1} | dict.fromkeys(b"SxAF", 0)
)


#: Type letters of arrays and tables.
_CONTAINERS: Final = b"AF"
_VOID: Final = Value("V", None)
_NEW_TUPLE: Final[Any] = tuple.__new__

#: Exceptions caused by reading out of bounds, and by an unknown type letter.
_MALFORMED = (IndexError, KeyError, struct.error)


def pick(data: bytes, start: int, end: int, wanted: frozenset[bytes] | None) -> list[tuple[bytes, bytes]]:
    """Find the entries with the given names and skip the others.

    Args:
        data: bytes that contain the table.
        start: offset of the first entry, after the table's length.
        end: offset after the last entry.
        wanted: names to find; None: all names.

    Returns:
        (name, raw value) for each entry found, in order, including duplicates. A raw value consists of the type letter
        and the bytes of the value.

    Raises:
        ProtocolError: 502: the last entry does not end exactly at ``end``, or a type letter is unknown.
    """
    picked: list[tuple[bytes, bytes]] = []
    sizes = VALUE_SIZES
    length = _LENGTH.unpack_from
    at = start
    try:
        while at < end:
            letter_at = at + 1 + data[at]
            stop = letter_at + (sizes[data[letter_at]] or 5 + length(data, letter_at + 1)[0])
            name = data[at + 1 : letter_at]
            if wanted is None or name in wanted:
                picked.append((name, data[letter_at:stop]))
            at = stop
    except _MALFORMED:
        _malformed()
    if at != end or end > len(data):
        _malformed()
    return picked


def without(data: bytes, start: int, end: int, names: frozenset[bytes]) -> bytes:
    """Return the entries except those with the given names; all other bytes are unchanged.

    Raises:
        ProtocolError: 502: see `pick`.
    """
    kept: list[bytes] = []
    kept_from = start
    at = start
    try:
        while at < end:
            letter_at = at + 1 + data[at]
            stop = letter_at + (VALUE_SIZES[data[letter_at]] or 5 + _LENGTH.unpack_from(data, letter_at + 1)[0])
            if data[at + 1 : letter_at] in names:
                kept.append(data[kept_from:at])
                kept_from = stop
            at = stop
    except _MALFORMED:
        _malformed()
    if at != end or end > len(data):
        _malformed()
    if not kept:
        return data[start:end]
    kept.append(data[kept_from:end])
    return b"".join(kept)


def decode_table(data: bytes, start: int, end: int) -> Table:
    """Decode every entry.

    Raises:
        ProtocolError: 502: the table is malformed, or nested deeper than `MAX_NESTING`.
    """
    if end > len(data):
        _malformed()
    try:
        return _decode_entries(data, start, end, MAX_NESTING)
    except _MALFORMED:
        _malformed()


def too_deep(entries: bytes) -> bytes | None:
    """Find an argument that `decode_table` would reject because tables and arrays are nested deeper than `MAX_NESTING`.

    Returns:
        The name of the first such top-level argument; None if there is none, or if the table is malformed, in which
        case the broker rejects it.
    """
    argument = b""
    try:
        for name_at, letter_at, depth in _walk(entries, 0, len(entries)):
            if depth == 0:
                argument = entries[name_at + 1 : letter_at]
            if depth >= MAX_NESTING and entries[letter_at] in _CONTAINERS:
                return argument
    except _MALFORMED:
        return None
    return None


def refuse_undecodable(data: bytes, start: int, end: int) -> None:
    """Refuse a table that contains, at any depth, a value that RabbitMQ can't decode.

    RabbitMQ would close the connection with 541. Tested with 3.10.8: numbers that are infinite or NaN can't be decoded.
    Tables of any depth can be decoded, and any octet can be decoded as a boolean.

    Raises:
        ProtocolError: 502: the table is malformed, or contains such a number.
    """
    try:
        for _, letter_at, _ in _walk(data, start, end):
            octet = data[letter_at]
            if octet in b"fd" and data[letter_at + 1] & 0x7F == 0x7F:  # seven of the exponent's 8 or 11 bits
                rest = 0x80 if octet == 0x66 else 0xF0
                if data[letter_at + 2] & rest == rest:
                    raise ProtocolError(502, "a number in the headers is infinite or NaN")
    except _MALFORMED:
        _malformed()


def _walk(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Visit every value of a table. The walk is iterative, not recursive, so any depth of nesting is possible.

    Yields:
        For each value, the offset of its name (in an array, the offset of its type letter), the offset of its type
        letter, and its depth, which is 0 in the table itself.

    Raises:
        IndexError, KeyError or struct.error: the table is malformed.
    """
    #: end offset of each enclosing table or array, and whether its elements have names
    open_values: list[tuple[int, bool]] = [(end, True)]
    at = start
    while open_values:
        stop, named = open_values[-1]
        if at == stop:
            open_values.pop()
            continue
        name_at = at
        if named:
            at += 1 + data[at]
        octet = data[at]
        size = VALUE_SIZES[octet] or 5 + _LENGTH.unpack_from(data, at + 1)[0]
        if at + size > stop:
            raise IndexError(at)
        yield name_at, at, len(open_values) - 1
        if octet in _CONTAINERS:
            open_values.append((at + size, octet == 0x46))
            at += 5
        else:
            at += size


def decode_value(raw: bytes) -> Value:
    """Decode one value.

    Raises:
        ProtocolError: 502: see `decode_table`.
    """
    try:
        value, stop = _decode(raw, 0, len(raw), MAX_NESTING)
    except _MALFORMED:
        _malformed()
    if stop != len(raw):
        _malformed()
    return value


def encode_table(table: Table) -> bytes:
    """Encode entries, without the table's length.

    Raises:
        LocalProtocolError: a name is too long, or a value does not match its type letter.
    """
    return b"".join([_encode_name(name) + encode_value(value) for name, value in table])


def encode_value(value: Value) -> bytes:
    """Encode one value: its type letter, followed by its content.

    Raises:
        LocalProtocolError: the value does not match its type letter.
    """
    letter, content = value
    codec = _FIXED.get(letter)
    try:
        if codec is not None:
            parts = cast("tuple[int, int]", content) if letter == "D" else (content,)
            return letter.encode() + codec.pack(*parts)
        return letter.encode() + _encode_sized(letter, content)
    except (struct.error, OverflowError, TypeError, ValueError) as error:
        raise LocalProtocolError(f"can't encode {type(content).__name__} as field value of type {letter!r}") from error


def _encode_sized(letter: str, content: object) -> bytes:
    match letter, content:
        case (("S" | "x"), bytes()):
            encoded = content
        case "A", tuple():
            encoded = b"".join(map(encode_value, content))
        case "F", tuple():
            encoded = encode_table(content)
        case "V", None:
            return b""
        case _:
            raise TypeError(letter)
    return _LENGTH.pack(len(encoded)) + encoded


def _encode_name(name: bytes) -> bytes:
    if len(name) > MAX_NAME_BYTES:
        raise LocalProtocolError(f"a name in a field table has {len(name)} bytes, expected at most {MAX_NAME_BYTES}")
    return bytes((len(name),)) + name


def _decode_entries(data: bytes, start: int, end: int, depth: int) -> Table:
    entries: list[tuple[bytes, Value]] = []
    at = start
    while at < end:
        letter_at = at + 1 + data[at]
        value, stop = _decode(data, letter_at, end, depth)
        entries.append((data[at + 1 : letter_at], value))
        at = stop
    if at != end:
        _malformed()
    return tuple(entries)


def _decode(data: bytes, at: int, end: int, depth: int) -> tuple[Value, int]:
    """Decode the value whose type letter is at ``at``; the value must not extend beyond ``end``."""
    octet: int = data[at]
    at += 1
    if octet == 0x53 and at + 4 <= end:
        # Most headers are strings or 32-bit integers. Reading four octets takes half as long without a codec.
        stop: int = at + 4 + ((data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3])
        if stop > end:
            _malformed()
        return _value("S", data[at + 4 : stop]), stop
    if octet == 0x49 and at + 4 <= end:
        number: int = (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]
        return _value("I", number - (1 << 32) if number >> 31 else number), at + 4
    fixed = _FIXED_BY_OCTET.get(octet)
    if fixed is not None:
        letter, codec, fixed_size = fixed
        content = codec.unpack_from(data, at)
        return _within(_value(letter, content if letter == "D" else content[0]), at + fixed_size, end)
    if octet == 0x56:  # V
        return _within(_VOID, at, end)
    size = VALUE_SIZES[octet] or _LENGTH.unpack_from(data, at)[0]
    at += 4
    stop = at + size
    letter = chr(octet)
    if stop > end:
        _malformed()
    if octet == 0x53 or octet == 0x78:  # S x
        return _value(letter, data[at:stop]), stop
    if depth == 0:
        raise ProtocolError(502, f"field table nested deeper than {MAX_NESTING} levels")
    decode_inner = _decode_entries if octet == 0x46 else _decode_elements
    return Value(letter, decode_inner(data, at, stop, depth - 1)), stop


def _decode_elements(data: bytes, start: int, end: int, depth: int) -> tuple[Value, ...]:
    elements: list[Value] = []
    at = start
    while at < end:
        value, at = _decode(data, at, end, depth)
        elements.append(value)
    return tuple(elements)


def _value(letter: str, content: object) -> Value:
    # The named tuple's constructor, a Python function, would take four times as long.
    return cast("Value", _NEW_TUPLE(Value, (letter, content)))


def _within(value: Value, stop: int, end: int) -> tuple[Value, int]:
    if stop > end:
        _malformed()
    return value, stop


def _malformed() -> NoReturn:
    raise ProtocolError(502, "malformed field table")
