"""Reads AMQP values (arguments and headers), times and time zones from rules files.

A string becomes ``S``, an integer ``I`` or ``l``, a floating-point number ``d``, true and false ``t``, a list ``A``, a
mapping ``F``, and null ``V``; every other type requires a tag. Times become seconds since the epoch. A time without a
zone is rejected, since its meaning would depend on the machine.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from oxproxy.errors import ConfigError
from oxproxy.values import LONGEST_NAME_BYTES, Table, Value
from oxproxy.yamlfile.document import Faults, Mapping, Node, Plain, Scalar, Sequence, describe, join, resolve

INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_NO_VALUE = "no value; put a value in quotes if it begins with one of # * & ! | > % @ `; write null for the value void"


def read_table(node: Mapping, path: str, faults: Faults) -> Table:
    """Convert a mapping to a table, in file order. Invalid entries are reported in `faults` and omitted."""
    entries = []
    for key, child in node.entries:
        try:
            entries.append(_entry(path, key, child))
        except ConfigError as error:
            faults.add(error)
    return tuple(entries)


def _entry(path: str, key: Scalar, node: Node) -> tuple[bytes, Value]:
    name = key.text.encode()
    if len(name) > LONGEST_NAME_BYTES:
        error = f"got a key of {len(name)} bytes, expected at most {LONGEST_NAME_BYTES}"
        raise key.place.error(join(path, key.text), error)
    return name, _value(path, key.text, node)


def _value(path: str, step: str | int, node: Node) -> Value:
    """Convert the value with a key, or an index, in the mapping or list at `path`."""
    if isinstance(node, Sequence):
        path = join(path, step)
        return Value("A", tuple(_value(path, index, item) for index, item in enumerate(node.items)))
    if isinstance(node, Mapping):
        path = join(path, step)
        return Value("F", tuple(_entry(path, key, child) for key, child in node.entries))
    try:
        return _scalar(node)
    except ValueError as error:
        raise node.place.error(join(path, step), str(error)) from None


def _scalar(node: Scalar) -> Value:
    """Convert a scalar.

    Raises:
        ValueError: the value can't be used.
    """
    if node.tag is not None:
        return _tagged(node)
    if node.absent:
        raise ValueError(_NO_VALUE)
    content = node.value
    value = _plain_value(content)
    if value is None:  # a number
        # If a double is not finite, RabbitMQ drops the connection on a bind, and responds to a publish with 541.
        infinite = isinstance(content, float)
        expected = "a finite number" if infinite else "a signed 64-bit integer"
        raise ValueError(f"got {node.text if infinite else describe(node)}, expected {expected}")
    return value


def _plain_value(value: Plain) -> Value | None:
    """Return the AMQP value of a scalar without a tag; None if no AMQP type can represent it."""
    if isinstance(value, str):
        return Value("S", value.encode())
    if value is None:
        return Value("V", None)
    if isinstance(value, bool):
        return Value("t", value)
    if isinstance(value, float):
        return Value("d", value) if math.isfinite(value) else None
    if value in INT32:
        return Value("I", value)
    return Value("l", value) if value in _INT64 else None


def _tagged(node: Scalar) -> Value:
    read = TAGS.get(node.tag or "")
    if read is None:
        expected = ", ".join(sorted(TAGS))
        raise ValueError(f"got the tag {node.tag}, expected one of {expected}, or a string in quotes")
    return read(node)


def _timestamp(node: Scalar) -> Value:
    seconds = resolve(node.text)
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        seconds = instant(node.text)
    if seconds is None or seconds != int(seconds) or int(seconds) not in _INT64:
        expected = "a time such as 2026-11-21T08:00:00Z, or seconds since 1970 as an integer"
        raise ValueError(f"got {describe(node)}, expected {expected}")
    return Value("T", int(seconds))


def _bytes(node: Scalar) -> Value:
    digits = re.sub(r"\s", "", node.text)
    if not re.fullmatch(r"([0-9a-fA-F]{2})*", digits):
        raise ValueError(f"got {describe(node)}, expected pairs of hexadecimal digits")
    return Value("x", bytes.fromhex(digits))


def _float32(node: Scalar) -> Value:
    number = resolve(node.text)
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        try:
            (single,) = struct.unpack(">f", struct.pack(">f", number))
        except OverflowError:
            single = math.inf
        if math.isfinite(single):
            return Value("f", single)
    raise ValueError(f"got {describe(node)}, expected a finite single-precision number")


def _integer(letter: str, bits: int, signed: bool) -> Callable[[Scalar], Value]:
    allowed = range(-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else range(2**bits)

    def read(node: Scalar) -> Value:
        number = resolve(node.text)
        if not isinstance(number, int) or isinstance(number, bool) or number not in allowed:
            expected = f"an integer from {allowed.start} to {allowed.stop - 1}"
            raise ValueError(f"got {describe(node)}, expected {expected}")
        return Value(letter, number)

    return read


#: Readers of tagged scalars, by tag.
TAGS: dict[str, Callable[[Scalar], Value]] = {
    "!int8": _integer("b", 8, signed=True),
    "!int16": _integer("s", 16, signed=True),
    "!int32": _integer("I", 32, signed=True),
    "!int64": _integer("l", 64, signed=True),
    "!uint8": _integer("B", 8, signed=False),
    "!uint16": _integer("u", 16, signed=False),
    "!uint32": _integer("i", 32, signed=False),
    "!float32": _float32,
    "!timestamp": _timestamp,
    "!bytes": _bytes,
}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def zone(name: str) -> tzinfo:
    """Return the time zone with an IANA name such as ``Europe/Berlin``.

    Raises:
        ValueError: there is no such zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("a name from the time zone database such as Europe/Berlin or UTC") from None


def instant(text: str) -> float | None:
    """Convert an RFC 3339 time to seconds since the epoch. Return None if it is invalid or has no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else (moment - _EPOCH).total_seconds()
