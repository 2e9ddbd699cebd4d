"""What one row of a listing of the management API says about a queue, an exchange or a binding.

It must not know how listings are asked for (see `inventory`). Source: RabbitMQ's management HTTP API reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from proxy.relay.declare.stored import KEPT, MARK, SIGNATURE, STORAGE
from proxy.relay.tokens import is_keyed, token

_MARK, _KEPT, _SIGNATURE = MARK.decode(), KEPT.decode(), SIGNATURE.decode()
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()

_NO_ARGUMENTS: Mapping[str, object] = MappingProxyType({})


class QueueInfo(NamedTuple):
    """A queue that exists."""

    name: bytes
    exclusive: bool = False
    arguments: Mapping[str, object] = _NO_ARGUMENTS


class ExchangeInfo(NamedTuple):
    """An exchange that exists."""

    name: bytes
    type: str
    internal: bool = False
    arguments: Mapping[str, object] = _NO_ARGUMENTS
    durable: bool = True
    auto_delete: bool = False

    @property
    def marked(self) -> bool:
        """Whether it is one of ours: declared by us, or by a client through a sidecar."""
        return self.type == "direct" and self.arguments.get(_MARK) is True

    @property
    def kept(self) -> str:
        """What we keep in it of a client's declare; empty where it is not marked, or declared by us."""
        return _kept(self.arguments) if self.marked else ""


class BindingInfo(NamedTuple):
    """A binding of one exchange.

    Args:
        destination_type: ``queue`` or ``exchange``.
        destination: its name.
        routing_key: as on the broker.
        properties_key: the name the management API has for it.
        kept: what we keep in it of a client's bind; empty where there is nothing.
        signature: ours over what is kept; empty where there is none.
    """

    destination_type: str
    destination: bytes
    routing_key: bytes
    properties_key: str
    kept: str = ""
    signature: str = ""

    @property
    def under_token(self) -> bool:
        """Whether its key has the form of a token: of this destination, or keyed, and then of whatever secret."""
        return is_keyed(self.routing_key) or self.routing_key == token(self.destination_type, self.destination)

    @property
    def stores(self) -> bool:
        """Whether a client's binding is kept in it."""
        return self.routing_key.startswith(STORAGE) or (bool(self.kept) and self.under_token)

    def __str__(self) -> str:
        """Destination and key, for operators."""
        name = self.destination.decode(errors="replace")
        if is_keyed(self.routing_key):  # nobody is to know the token of a destination
            return f"{self.destination_type} {name} under a token"
        key = self.routing_key.decode(errors="replace")
        return f"{self.destination_type} {name} under key {key!r}"


def queue_info(item: Mapping[str, Any]) -> QueueInfo:
    """Read a queue."""
    # A queue whose process is starting may be listed without its statistics, these columns included.
    return QueueInfo(item["name"].encode(), bool(item.get("exclusive")), item.get("arguments") or _NO_ARGUMENTS)


def exchange_info(item: Mapping[str, Any]) -> ExchangeInfo:
    """Read an exchange."""
    arguments = item.get("arguments") or _NO_ARGUMENTS
    return ExchangeInfo(
        item["name"].encode(),
        item["type"],
        bool(item.get("internal")),
        arguments,
        bool(item.get("durable", True)),
        bool(item.get("auto_delete")),
    )


def binding_info(item: Mapping[str, Any]) -> BindingInfo:
    """Read a binding."""
    arguments = item.get("arguments") or _NO_ARGUMENTS
    return BindingInfo(
        item["destination_type"],
        item["destination"].encode(),
        item["routing_key"].encode(),
        item["properties_key"],
        _kept(arguments),
        _own_text(arguments, _SIGNATURE),
    )


def items(text: str) -> Iterator[Any]:  # JSON of any shape
    """Read a JSON list item by item: whole, a long one would keep everybody waiting.

    Raises:
        ValueError: it is none.
    """
    at = _after_blanks(text, 0)
    expected = "["
    while text[at : at + 1] == expected:
        at = _after_blanks(text, at + 1)
        if expected == "[" and text[at : at + 1] == "]":
            break
        item, at = _DECODER.raw_decode(text, at)
        yield item
        at = _after_blanks(text, at)
        expected = ","
    if text[at : at + 1] != "]" or _after_blanks(text, at + 1) != len(text):
        raise ValueError(f"no list in JSON: something else at {at}")


def _after_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found is not None else at


def _kept(arguments: Mapping[str, object]) -> str:
    return _own_text(arguments, _KEPT)


def _own_text(arguments: Mapping[str, object], name: str) -> str:
    text = arguments.get(name)
    return text if isinstance(text, str) else ""
