"""Converts values, tables, messages and bindings of the vectors from JSON to the types of the proxy."""

from __future__ import annotations

import struct
from typing import Any

from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.decision import Facts
from oxproxy.values import Table, Value

#: Parsed JSON; the README of the vectors describes its form.
Json = Any


def value_of(typed: Json) -> Value:
    letter = typed["t"]
    if "hex" in typed:
        return Value(letter, bytes.fromhex(typed["hex"]))
    content = typed.get("v")
    match letter:
        case "S" | "x":
            return Value(letter, content.encode())
        case "A":
            return Value(letter, tuple(value_of(element) for element in content))
        case "F":
            return Value(letter, table_of(content))
        case "D":
            return Value(letter, tuple(content))
        case "f":
            return Value(letter, struct.unpack(">f", struct.pack(">f", content))[0])
        case "d":
            return Value(letter, float(content))
        case "l" | "L":
            # RabbitMQ decodes values with either letter as signed integers.
            return Value(letter, (content + (1 << 63)) % (1 << 64) - (1 << 63))
    return Value(letter, content)


def table_of(table: Json) -> Table:
    entries = table.items() if isinstance(table, dict) else table or ()
    return tuple((name.encode(), value_of(value)) for name, value in entries)


def binding_of(exchange: bytes, binding: Json, sequence: int = 0) -> Binding:
    return Binding(
        exchange,
        binding["destination_type"],
        binding["destination"].encode(),
        binding["routing_key"].encode(),
        table_of(binding["arguments"]),
        sequence=sequence,
    )


def facts_of(message: Json) -> Facts:
    properties = {
        name: value.encode() if isinstance(value, str) else value for name, value in message["properties"].items()
    }
    return Facts(message["routing_key"].encode(), table_of(message["headers"]), properties, message["body_size"])
