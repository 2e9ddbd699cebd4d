"""Reads the messages described in tests and in requests to `explain`, or encoded as frames; formats names and values.

Values that the broker would reject before routing, such as a delivery mode of 3 or a malformed expiration, are also
errors here. Formatted values keep their type if JSON has a corresponding type.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema

from oxproxy import values
from oxproxy.amqp.frames import CONTENT_HEAD, HEADER, LEAST_HEADER_FRAME, METHOD, U16, FrameBuffer
from oxproxy.amqp.method_frames import Publish, read_method
from oxproxy.amqp.methods import BASIC_PUBLISH, method_of
from oxproxy.amqp.properties import decode_properties, header_table
from oxproxy.amqp.tables import decode_table
from oxproxy.routing.bindings.operators import INTEGER_PROPERTIES, TEXT_PROPERTIES
from oxproxy.routing.decision import Facts
from oxproxy.rules.field_values import instant, read_table
from oxproxy.values import LONGEST_NAME_BYTES, Destination, Value, text
from oxproxy.yamlfile.document import Mapping, Scalar
from oxproxy.yamlfile.models import (
    NOTHING,
    Expected,
    FileModel,
    Keys,
    Name,
    Parsed,
    Table,
    Whole,
)


def json_value(seen: object) -> object:
    """Return a value for JSON; bytes that are not UTF-8 become ``{"hex": ...}``."""
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
    """Format a value for a line of text; strings are put in quotation marks."""
    value = json_value(seen)
    return f'"{value}"' if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def quoted_text(content: bytes) -> str:
    """Return a string in quotation marks for an error message; a long string is truncated."""
    shown = text(content)
    return f'"{shown if len(shown) <= 60 else shown[:57] + "..."}"'


def value_words(value: Value) -> str:
    """Describe an argument's value for an error message."""
    match value.letter:
        case "S":
            return f"the string {quoted_text(value.value)}" if isinstance(value.value, bytes) else "a string"
        case "t":
            return f"the boolean {str(value.value).lower()}"
        case "A":
            return "a list"
        case "F":
            return "a mapping"
        case "V":
            return "null"
        case "x":
            return "bytes"
    return f"the number {value.value}"


def destination_text(destination: Destination) -> str:
    kind, name = destination
    return f"{kind} {text(name)}"


PROPERTIES = (*TEXT_PROPERTIES, *INTEGER_PROPERTIES)
_MAX_BODY_BYTES = 2**63 - 1


def _short(text: str) -> bytes:
    if len(text.encode()) > LONGEST_NAME_BYTES:
        raise ValueError(f"at most {LONGEST_NAME_BYTES} bytes")
    return text.encode()


def _timestamp(value: object) -> int:
    if isinstance(value, Scalar):
        value = instant(value.text) if value.tag == "!timestamp" else value.value
    elif isinstance(value, str):
        value = instant(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 != 0 or value < 0:
        raise ValueError
    return int(value)


def _expiration(value: object) -> bytes:
    text = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    if not text.isascii() or not text.removeprefix("+").isdigit() or len(text) > 20:
        raise ValueError
    return text.encode()


_EITHER: dict[str, object] = {"type": ["integer", "string"]}
_ShortText: TypeAlias = Annotated[bytes, Parsed("a string", _short, bytes)]


class Properties(FileModel):
    """Properties of a message."""

    content_type: _ShortText = NOTHING
    content_encoding: _ShortText = NOTHING
    correlation_id: _ShortText = NOTHING
    reply_to: _ShortText = NOTHING
    message_id: _ShortText = NOTHING
    type: _ShortText = NOTHING
    user_id: _ShortText = NOTHING
    app_id: _ShortText = NOTHING
    cluster_id: _ShortText = NOTHING
    delivery_mode: Annotated[int, Whole(1, 2)] = NOTHING
    priority: Annotated[int, Whole(0, 255)] = NOTHING
    timestamp: Annotated[
        int,
        PlainValidator(_timestamp),
        WithJsonSchema(_EITHER),
        Expected("seconds since 1970 as an integer, or a time such as 2026-11-21T08:00:00Z"),
    ] = NOTHING
    expiration: Annotated[
        bytes, PlainValidator(_expiration), WithJsonSchema(_EITHER), Expected("milliseconds, 0 or more")
    ] = NOTHING


class MessageModel(FileModel):
    """One publish as written in a test or request."""

    exchange: Annotated[bytes, Name("the name of the exchange", empty=True)]
    routing_key: Annotated[bytes, Name("a routing key", empty=True)] = b""
    headers: Table = Field(default_factory=dict)
    properties: Properties = Properties()
    body_size: Annotated[int, Whole(0, _MAX_BODY_BYTES)] = 0


@dataclass(frozen=True, slots=True)
class DescribedMessage:
    """One publish as described in a test or request."""

    exchange: bytes
    facts: Facts


def described_message(model: MessageModel, keys: Keys) -> DescribedMessage:
    """Build a message from its model and from the node of its headers."""
    table = keys.value("headers")
    headers = read_table(table, keys.at("headers"), keys.faults) if isinstance(table, Mapping) else ()
    properties = {name: value for name in PROPERTIES if (value := getattr(model.properties, name)) is not None}
    return DescribedMessage(model.exchange, Facts(model.routing_key, _seen(headers), properties, model.body_size))


def _seen(headers: values.Table) -> values.Table:
    """Remove BCC, as RabbitMQ does before the exchange evaluates the message (sender-selected distribution)."""
    return tuple(entry for entry in headers if entry[0] != b"BCC")


def framed_message(data: bytes) -> DescribedMessage:
    """Read a message from its first two frames.

    Raises:
        ProtocolError: a frame or a table is malformed.
        ValueError: these are not the expected frames.
    """
    buffer = FrameBuffer(len(data))
    buffer.feed(data)
    method, header = buffer.next_frame(), buffer.next_frame()
    if method is None or header is None or len(buffer):
        raise ValueError("got no two whole frames")
    if (method.kind, header.kind) != (METHOD, HEADER) or method_of(method.payload) != BASIC_PUBLISH:
        raise ValueError("got frames of other types")
    if len(header.raw) < LEAST_HEADER_FRAME:
        raise ValueError("got a content header without property flags")
    publish = read_method(Publish, method.payload)
    size = CONTENT_HEAD.unpack_from(header.raw)[-1]
    flags = U16.unpack_from(header.raw, CONTENT_HEAD.size)[0]
    properties = decode_properties(header.raw, LEAST_HEADER_FRAME - 1, len(header.raw) - 1, flags)
    _, first, last = header_table(header.raw)
    facts = Facts(publish.routing_key, _seen(decode_table(header.raw, first, last)), properties, size)
    return DescribedMessage(publish.exchange, facts)
