"""Locates the header table of a content header, and reads the other properties.

This module handles only the layout of the properties of class basic, independently of frames and rules. It never writes
property bytes: callers remove and insert bytes at the returned offsets.

Source: AMQP 0-9-1 spec, 4.2.6.1 "The content header". As on RabbitMQ, the two low bits of the flags are ignored. One of
them is the continuation bit, so a second word of flags is never read. RabbitMQ 3.10.8 delivers the flags unchanged, and
closes the connection with 541 if there is a second word. The table must be located exactly where the broker locates it;
otherwise, our tokens would be inserted at the wrong offset.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from functools import lru_cache
from typing import Final, NoReturn

from oxproxy.amqp.tables import pick, refuse_undecodable
from oxproxy.errors import ProtocolError

CONTENT_TYPE: Final = 0x8000
CONTENT_ENCODING: Final = 0x4000
HEADERS: Final = 0x2000

_LENGTH: Final = struct.Struct(">I")
_TIMESTAMP: Final = struct.Struct(">Q")
_MALFORMED = (IndexError, struct.error)
_BCC: Final = b"BCC"

_NONE: Final[frozenset[str]] = frozenset()

_TEXT: Final = "short string"
_TABLE: Final = "table"
_OCTET: Final = "octet"
#: Properties in wire order, starting with the highest flag bit. ``cluster_id`` is RabbitMQ's name for the reserved
#: property.
_LAYOUT = (
    ("content_type", _TEXT),
    ("content_encoding", _TEXT),
    ("headers", _TABLE),
    ("delivery_mode", _OCTET),
    ("priority", _OCTET),
    ("correlation_id", _TEXT),
    ("reply_to", _TEXT),
    ("expiration", _TEXT),
    ("message_id", _TEXT),
    ("timestamp", "64 bits, unsigned"),
    ("type", _TEXT),
    ("user_id", _TEXT),
    ("app_id", _TEXT),
    ("cluster_id", _TEXT),
)


def header_table(header: bytes, start: int = 21, end: int = -1) -> tuple[int, int, int]:
    """Locate the header table.

    Args:
        header: a whole content header frame, or other bytes that contain a content header.
        start: offset of the first property, which follows the property flags.
        end: offset after the last property; -1: the frame-end octet is the last octet.

    Returns:
        The offset of the table's length, of its first entry, and after its last entry. If the message has no table, all
        three are the offset at which a table would be inserted.

    Raises:
        ProtocolError: 502: the table extends past ``end``.
    """
    at = start
    try:
        flags = header[start - 2] << 8
        if flags & CONTENT_TYPE:
            at += 1 + header[at]
        if flags & CONTENT_ENCODING:
            at += 1 + header[at]
        first = last = at
        if flags & HEADERS:
            first = at + 4
            last = first + _LENGTH.unpack_from(header, at)[0]
    except _MALFORMED:
        _malformed()
    if last > (len(header) - 1 if end < 0 else end):
        _malformed()
    return at, first, last


def decode_properties(
    data: bytes, start: int, end: int, flags: int, wanted: frozenset[str] | None = None
) -> dict[str, bytes | int]:
    """Read properties other than the header table.

    Args:
        data: bytes that contain the content header.
        start: offset just after the property flags.
        end: offset after the last property.
        flags: the property flags.
        wanted: names of the properties to read; None: all properties.

    Returns:
        The properties in ``wanted`` that are set, by name. Strings are returned as bytes and may be empty.

    Raises:
        ProtocolError: 502: the last property does not end exactly at ``end``.
    """
    if end > len(data):
        _malformed()
    properties: dict[str, bytes | int] = {}
    at = start
    try:
        for name, kind in _present(flags):
            content: bytes | int | None
            if kind == _TEXT:
                stop = at + 1 + data[at]
                content = data[at + 1 : stop]
            elif kind == _TABLE:
                stop = at + 4 + _LENGTH.unpack_from(data, at)[0]
                content = None
            elif kind == _OCTET:
                stop = at + 1
                content = data[at]
            else:
                stop = at + 8
                content = _TIMESTAMP.unpack_from(data, at)[0]
            if content is not None and (wanted is None or name in wanted):
                properties[name] = content
            at = stop
    except _MALFORMED:
        _malformed()
    if at != end:
        _malformed()
    return properties


def refuse_undecodable_header(header: bytes) -> None:
    """Refuse a whole content header frame that RabbitMQ can't decode. RabbitMQ would close the connection with 541.

    Raises:
        ProtocolError: 502: the properties are malformed, or `refuse_undecodable` refuses the header table.
    """
    _, first, last = header_table(header)
    refuse_undecodable(header, first, last)
    decode_properties(header, 21, len(header) - 1, header[19] << 8 | header[20], _NONE)


@lru_cache(maxsize=1024)
def _present(flags: int) -> tuple[tuple[str, str], ...]:
    return tuple(entry for bit, entry in enumerate(_LAYOUT) if flags & 0x8000 >> bit)


def _malformed() -> NoReturn:
    raise ProtocolError(502, "malformed properties in a content header")


def fingerprint(exchange: bytes, routing_key: bytes, header: bytes) -> Hashable:
    """Return a key for the address and header of a publish. A message that the broker returns has the same key.

    Args:
        header: a whole content header frame.

    Raises:
        ProtocolError: 502: the header is malformed.
    """
    at, first, last = header_table(header)
    # When RabbitMQ removes BCC, it changes the type letter L (64 bits, unsigned) to l, but no other letter (tested
    # with 3.10.8). RabbitMQ 4.0 also sorts the entries by name, and keeps only the first entry with each name.
    entries = {name: raw.replace(b"L", b"l") for name, raw in reversed(pick(header, first, last, None)) if name != _BCC}
    return exchange, routing_key, header[11:at], tuple(sorted(entries.items())), header[last:]
