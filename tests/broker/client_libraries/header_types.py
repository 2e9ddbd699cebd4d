"""Types with which client libraries encode the values of headers: by library, the letter of each header's type.

The tests publish these headers, and docs/reference/header-types.md describes the types.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

from oxproxy.values import Value

#: Headers that the Python libraries publish.
HEADERS: Mapping[str, object] = {
    "kind": "letter",
    "string": "2000",
    "small": 5,
    "integer": 70000,
    "big": 2**40,
    "double": 2000.5,
    "boolean": True,
    "decimal": Decimal("12.34"),
    "timestamp": datetime(2027, 1, 15, 8, tzinfo=UTC),
    "bytes": b"\0\xff",
    "null": None,
    "list": [1, "a"],
    "table": {"a": 1},
}

TYPES: Mapping[str, Mapping[str, str]] = {
    "pika": {
        "string": "S",
        "small": "I",
        "integer": "I",
        "big": "l",
        "boolean": "t",
        "decimal": "D",
        "timestamp": "T",
        "bytes": "x",
        "null": "V",
        "list": "A",
        "table": "F",
    },
    "aio-pika": {
        "string": "S",
        "small": "b",
        "integer": "I",
        "big": "l",
        "double": "f",
        "boolean": "t",
        "decimal": "D",
        "timestamp": "T",
        "null": "V",
        "list": "A",
        "table": "F",
    },
    "kombu": {
        "string": "S",
        "small": "I",
        "integer": "I",
        "big": "l",
        "double": "d",
        "boolean": "t",
        "decimal": "D",
        "timestamp": "T",
        "bytes": "S",
        "null": "V",
        "list": "A",
        "table": "F",
    },
    "Java client": {
        "string": "S",
        "integer": "I",
        "long": "l",
        "big": "l",
        "short": "s",
        "small": "b",
        "double": "d",
        "single": "f",
        "boolean": "t",
        "decimal": "D",
        "timestamp": "T",
        "bytes": "x",
        "null": "V",
        "list": "A",
        "table": "F",
    },
    "amqp091-go": {
        "string": "S",
        "integer": "I",
        "small": "b",
        "short": "s",
        "int32": "I",
        "int64": "l",
        "double": "d",
        "single": "f",
        "boolean": "t",
        "decimal": "D",
        "timestamp": "T",
        "bytes": "x",
        "null": "V",
        "list": "A",
        "table": "F",
    },
    "amqplib": {
        "string": "S",
        "small": "b",
        "short": "s",
        "integer": "I",
        "big": "l",
        "int64": "l",
        "double": "d",
        "single": "f",
        "boolean": "t",
        "decimal": "D",
        "timestamp": "T",
        "bytes": "x",
        "null": "V",
        "list": "A",
        "table": "F",
    },
    "Bunny": {
        "string": "S",
        "symbol": "S",
        "integer": "l",
        "big": "l",
        "double": "d",
        "boolean": "t",
        "decimal": "D",
        "timestamp": "T",
        "null": "V",
        "list": "A",
        "table": "F",
    },
    "php-amqplib": {
        "string": "S",
        "integer": "I",
        "big": "l",
        "small": "b",
        "short": "s",
        "float": "S",
        "boolean": "t",
        "decimal": "D",
        "timestamp": "T",
        "bytes": "x",
        "null": "V",
        "list": "A",
        "table": "F",
    },
}


def accepted(library: str) -> dict[str, object]:
    """The headers of HEADERS that a library accepts."""
    return {name: value for name, value in HEADERS.items() if name == "kind" or name in TYPES[library]}


def letters(headers: Mapping[str, Value]) -> dict[str, str]:
    """The letters of the types of a message's headers, without the header that routes it."""
    return {name: value.letter for name, value in headers.items() if name != "kind"}
