"""How one value of the configuration is written: addresses, durations, passwords, words and numbers.

A kind reads a node and writes a default for the documentation. It does not know what the value is for.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from proxy.rules.document import read_document
from proxy.rules.faults import Faults
from proxy.rules.fields import text_of
from proxy.rules.nodes import Node, Scalar, Sequence, shown

T = TypeVar("T")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class UnexpectedError(Exception):
    """A value is not what its type expects; the text says what is."""


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of one end of a TCP connection."""

    host: str
    port: int

    def __str__(self) -> str:
        """``host:port``, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether the host can only be this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class Secret:
    """A password: it shows itself only to who asks for it by name."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Wrap a password."""
        self._text = text

    def reveal(self) -> str:
        """Give the password."""
        return self._text

    def __repr__(self) -> str:
        """Never the password."""
        return "Secret(...)"


def from_environment(node: Node) -> bool:
    """Whether a node was made from an environment variable: what it is, is up to who reads it."""
    return node.place.line == 0


def unfold(node: Node, faults: Faults) -> Node | None:
    """Give a node where a list or mapping is wanted: the text of an environment variable is YAML then."""
    if isinstance(node, Scalar) and from_environment(node):
        return read_document(node.text, node.place.source, faults)
    return node


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One way to write a value.

    Args:
        read: turns a node into the value or raises UnexpectedError.
        write: gives the text for the documentation.
        schema: what JSON Schema can say of it, for editors.
    """

    read: Callable[[Node], T]
    write: Callable[[T], str] = str
    schema: dict[str, object] = field(default_factory=lambda: {"type": "string"})


def _text(node: Node) -> str:
    if isinstance(node, Scalar) and from_environment(node):
        return node.text
    found = text_of(node)
    if found is None:
        raise UnexpectedError(f"seen {shown(node)}, expected a text")
    return found


def _secret(node: Node) -> Secret:
    try:
        return Secret(_text(node))
    except UnexpectedError:
        expected = "expected a password, in quotes where it could be something else than a text"
        raise UnexpectedError(f"seen something else than a text, {expected}") from None


def _address(node: Node) -> Address:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/@\[\]]+)):([0-9]{1,5})", _text(node))
    if not found or int(found[3]) > 65535:
        raise UnexpectedError(f"seen {shown(node)}, expected host:port such as 127.0.0.1:5672 or [::1]:5672")
    return Address(found[1] or found[2], int(found[3]))


def _several(node: Node) -> list[Node]:
    """Give the items of a list, or the one value as a list of one."""
    if isinstance(node, Scalar) and from_environment(node) and node.text.lstrip().startswith("["):
        faults = Faults()
        unfolded = read_document(node.text, node.place.source, faults)
        if faults.errors or unfolded is None:
            raise UnexpectedError(f"seen {shown(node)}, expected a list as in YAML")
        node = unfolded
    return node.items if isinstance(node, Sequence) else [node]


def _addresses(node: Node) -> tuple[Address, ...]:
    found = _several(node)
    if not found:
        raise UnexpectedError("seen an empty list, expected at least one address")
    return tuple(_address(item) for item in found)


def _http_url(node: Node) -> str:
    found = _text(node)
    try:
        parts = urlsplit(found)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        good = good and (parts.port is None or parts.port > 0) and not parts.query and not parts.fragment
    except ValueError:
        good = False
    if not good:
        # The text is not shown: it may hold a password.
        expected = "expected http://host:port or https://host:port, credentials go under control"
        raise UnexpectedError(f"seen something else than an address of an HTTP API, {expected}")
    return found.rstrip("/")


def _list_written(items: tuple[object, ...]) -> str:
    return str(items[0]) if len(items) == 1 else "[" + ", ".join(map(str, items)) + "]"


def _one_or_list() -> dict[str, object]:
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


TEXT = Kind(_text)
#: A password; no fault shows it.
SECRET = Kind(_secret, Secret.reveal)
#: ``host:port``, an IPv6 host in brackets.
ADDRESS = Kind(_address)
#: One address or a list of them.
ADDRESSES = Kind(_addresses, _list_written, _one_or_list())
#: One text or a list of them.
TEXTS = Kind(lambda node: tuple(_text(item) for item in _several(node)), _list_written, _one_or_list())
#: The address of an HTTP API, without credentials in it.
HTTP_URL = Kind(_http_url, schema={"type": "string", "pattern": "^https?://"})


def _flag(node: Node) -> bool:
    value = node.value if isinstance(node, Scalar) and node.plain else None
    if not isinstance(value, bool):
        raise UnexpectedError(f"seen {shown(node)}, expected true or false")
    return value


#: True or false.
FLAG = Kind(_flag, lambda value: "true" if value else "false", {"type": "boolean"})


def optional(kind: Kind[T]) -> Kind[T | None]:
    """Allow null beside what another kind reads."""

    def read(node: Node) -> T | None:
        if isinstance(node, Scalar) and not node.absent and node.value is None:
            return None
        return kind.read(node)

    schema: dict[str, object] = {"anyOf": [kind.schema, {"type": "null"}]}
    return Kind(read, lambda value: "null" if value is None else kind.write(value), schema)


def whole(low: int, high: int) -> Kind[int]:
    """Give the kind of whole numbers within bounds."""

    def read(node: Node) -> int:
        value = node.value if isinstance(node, Scalar) and node.plain else None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise UnexpectedError(f"seen {shown(node)}, expected a whole number from {low} to {high}")
        return value

    return Kind(read, schema={"type": "integer", "minimum": low, "maximum": high})


def duration(low: float, high: float) -> Kind[float]:
    """Give the kind of durations within bounds, in seconds; written as ``500ms``, ``5s``, ``2m``, ``1h``."""
    expected = f"a duration with its unit such as 500ms, 5s, 2m or 1h, from {low:g}s to {high:g}s"

    def read(node: Node) -> float:
        written = node.text if isinstance(node, Scalar) else ""
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)", written)
        seconds = float(found[1]) * _UNITS[found[2]] if found else math.nan
        if not low <= seconds <= high:
            raise UnexpectedError(f"seen {shown(node)}, expected {expected}")
        return seconds

    schema: dict[str, object] = {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h)$"}
    return Kind(read, lambda seconds: f"{seconds:g}s", schema)


def word(*allowed: str) -> Kind[str]:
    """Give the kind of one word of a few."""

    def read(node: Node) -> str:
        found = _text(node)
        if found not in allowed:
            raise UnexpectedError(f"seen {shown(node)}, expected one of {', '.join(allowed)}")
        return found

    return Kind(read, schema={"enum": list(allowed)})
