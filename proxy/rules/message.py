"""Messages that operators describe, in tests of rules files and for `explain`; and how names and values are printed.

What the broker would refuse before any rule is evaluated (a delivery mode of 3, an expiration that is no number) is a
fault here too. Values keep their type as far as JSON has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.routing.decision import Facts
from proxy.rules.field_values import instant, read_table
from proxy.values import Destination, Table, Value
from proxy.yamlfile.document import Scalar, describe
from proxy.yamlfile.fields import Fields, short_fault, text_of


def json_value(seen: object) -> object:
    """Give a value as JSON can carry it; bytes that are no text as ``{"hex": ...}``."""
    if isinstance(seen, Value):
        return _plain_value(seen)
    if isinstance(seen, bytes):
        try:
            return seen.decode()
        except UnicodeDecodeError:
            return {"hex": seen.hex()}
    return seen


def _plain_value(value: Value) -> object:
    content = value.value
    if value.letter == "x" and isinstance(content, bytes):
        return {"hex": content.hex()}
    if value.letter == "A" and isinstance(content, tuple):
        return [json_value(element) for element in content]
    if value.letter == "F" and isinstance(content, tuple):
        return {text(name): json_value(element) for name, element in content}
    return json_value(content)


def quoted(seen: object) -> str:
    """Write a value in a line of text, a text in quotation marks."""
    found = json_value(seen)
    return f'"{found}"' if isinstance(found, str) else str(found)


def destination_text(destination: Destination) -> str:
    """Write a destination, such as ``queue orders``."""
    kind, name = destination
    return f"{kind} {text(name)}"


def text(name: bytes) -> str:
    """Write a name, whatever its bytes are."""
    return name.decode("utf-8", "backslashreplace")


TEXT_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_MAX_BODY_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DescribedMessage:
    """One publish as described."""

    exchange: bytes
    facts: Facts


def read_message(fields: Fields) -> DescribedMessage:
    """Read a message: exchange, routing_key, headers, properties, body_size; the caller calls ``finish``."""
    node = fields.take("exchange")
    is_default = node is not None and text_of(node) == ""
    exchange = b"" if is_default else fields.name("exchange", "the name of the exchange", required=True) or b""
    key = (fields.text("routing_key", "a text") or "").encode()
    fault = short_fault(key)
    if fault:
        fields.error("routing_key", f"seen {fault}")
    table = fields.mapping("headers")
    headers: Table = read_table(table, fields.at("headers"), fields.faults) if table else ()
    # RabbitMQ takes BCC out before the exchange sees the message (sender-selected distribution).
    headers = tuple(entry for entry in headers if entry[0] != b"BCC")
    section = fields.section("properties")
    properties = _properties(section) if section else {}
    size = fields.integer("body_size", 0, 0, _MAX_BODY_BYTES)
    return DescribedMessage(exchange, Facts(key, headers, properties, size))


def _properties(fields: Fields) -> dict[str, bytes | int]:
    found: dict[str, bytes | int] = {}
    for key in TEXT_PROPERTIES:
        text = fields.text(key)
        if text is None:
            continue
        if len(text.encode()) > 255:
            fields.wrong(key, "at most 255 bytes")
        found[key] = text.encode()
    for key, low, high in (("delivery_mode", 1, 2), ("priority", 0, 255)):
        number = fields.integer(key, low, low, high)
        if key in fields:
            found[key] = number
    timestamp = _timestamp(fields)
    if timestamp is not None:
        found["timestamp"] = timestamp
    expiration = _expiration(fields)
    if expiration is not None:
        found["expiration"] = expiration
    fields.finish()
    return found


def _timestamp(fields: Fields) -> int | None:
    node = fields.take("timestamp")
    if node is None:
        return None
    value: object = None
    if isinstance(node, Scalar):
        value = instant(node.text) if text_of(node) or node.tag == "!timestamp" else node.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 != 0 or value < 0:
        fields.wrong("timestamp", "whole seconds since 1970 or a time such as 2026-11-21T08:00:00Z")
        return None
    return int(value)


def _expiration(fields: Fields) -> bytes | None:
    node = fields.take("expiration")
    if node is None:
        return None
    value = node.value if isinstance(node, Scalar) and node.tag is None else None
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    text = str(number) if number is not None else value if isinstance(value, str) else ""
    if not text.isascii() or not text.removeprefix("+").isdigit() or len(text) > 20:
        fields.faults.error(
            node.place, fields.at("expiration"), f"seen {describe(node)}, expected milliseconds, 0 or more"
        )
        return None
    return text.encode()
