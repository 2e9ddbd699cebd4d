"""Kinds of values in the configuration: addresses, durations, passwords, words and numbers.

A kind reads a node, writes a default for the documentation and describes itself as JSON Schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from proxy.yamlfile.document import Faults, Node, Place, Scalar, Sequence, describe, read_document
from proxy.yamlfile.fields import text_of

T = TypeVar("T")

_MOST_PORT = 65535
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class UnexpectedError(Exception):
    """A value is not what its type expects; the text says what is.

    Args:
        message: what was seen and what was expected.
        index: of the item that is meant, where the value is a list.
        place: of that item.
    """

    def __init__(self, message: str, index: int | None = None, place: Place | None = None) -> None:
        super().__init__(message)
        self.path = "" if index is None else f"[{index}]"
        self.place = place


@dataclass(frozen=True, slots=True)
class HostPort:
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
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def is_own_address(host: str, port: int, listening: Collection[tuple[str, int]]) -> bool:
    """Whether an address is one of those that we listen on, as far as its text tells.

    Args:
        host: name or address.
        port: its port.
        listening: (host, port) where we listen.
    """
    return any(port == own_port and _is_host(host, own) for own, own_port in listening)


def _is_host(host: str, own: str) -> bool:
    if host.lower() == own.lower():
        return True
    return _is_loopback(host) and (_is_loopback(own) or _is_any(own))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback or _is_any(host)
    except ValueError:
        return host.lower() == "localhost"


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def listen_conflict(one: HostPort, other: HostPort) -> bool:
    """Whether only one of two addresses can be listened on, as far as their text tells; port 0 is any free one."""
    if one.port != other.port or not one.port:
        return False
    here, there = _bound(one.host), _bound(other.host)
    return bool(here & there) or any(_covers(a, b) or _covers(b, a) for a in here for b in there)


def _bound(host: str) -> frozenset[IPv4Address | IPv6Address | str]:
    """What is bound for a host, as far as its text tells."""
    if host.lower() == "localhost":
        return frozenset((ip_address("127.0.0.1"), ip_address("::1")))
    try:
        return frozenset((ip_address(host),))
    except ValueError:
        return frozenset((host.lower(),))


def _covers(host: IPv4Address | IPv6Address | str, other: IPv4Address | IPv6Address | str) -> bool:
    if isinstance(host, str) or isinstance(other, str):
        return False
    return host.is_unspecified and host.version == other.version


class Secret:
    """A password: only `reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Wrap a password."""
        self._text = text

    def reveal(self) -> str:
        """Give the password."""
        return self._text

    def __eq__(self, other: object) -> bool:
        """Whether it is the same password."""
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        """As of its text."""
        return hash(self._text)

    def __repr__(self) -> str:
        """Never the password."""
        return "Secret(...)"


def from_environment(node: Node) -> bool:
    """Whether a node was made from an environment variable: its type is decided by the reader."""
    return node.place.line == 0


def parse_inline(node: Node, faults: Faults) -> Node | None:
    """Give a node where a list or mapping is wanted: the text of an environment variable is YAML then."""
    if isinstance(node, Scalar) and from_environment(node):
        return read_document(node.text, node.place.source, faults)
    return node


@dataclass(frozen=True, slots=True)
class ValueKind(Generic[T]):
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
        raise UnexpectedError(f"seen {describe(node)}, expected a text")
    return found


def _secret(node: Node) -> Secret:
    try:
        return Secret(_text(node))
    except UnexpectedError:
        expected = "expected a password, in quotes where it could be something else than a text"
        raise UnexpectedError(f"seen something else than a text, {expected}") from None


def _address(node: Node, least: int = 1) -> HostPort:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/@\[\]]+)):([0-9]{1,5})", _text(node))
    if not found or int(found[3]) > _MOST_PORT:
        raise UnexpectedError(f"seen {describe(node)}, expected host:port such as 127.0.0.1:5672 or [::1]:5672")
    host, port = found[1] or found[2], int(found[3])
    if port < least:
        raise UnexpectedError(f"seen {describe(node)}, expected a port from {least} to {_MOST_PORT}")
    try:
        host.encode("idna")  # as a look-up of the name does
    except UnicodeError:
        expected = "expected host:port with a name whose parts between dots have 1 to 63 characters"
        raise UnexpectedError(f"seen {describe(node)}, {expected}") from None
    return HostPort(host, port)


def _several(node: Node) -> list[Node]:
    """Give the items of a list, or the one value as a list of one."""
    if isinstance(node, Scalar) and from_environment(node) and node.text.lstrip().startswith("["):
        faults = Faults()
        unfolded = read_document(node.text, node.place.source, faults)
        if faults.errors or unfolded is None:
            raise UnexpectedError(f"seen {describe(node)}, expected a list as in YAML")
        node = unfolded
    return node.items if isinstance(node, Sequence) else [node]


def _addresses(node: Node) -> tuple[HostPort, ...]:
    found = _each(node, _address)
    if not found:
        raise UnexpectedError("seen an empty list, expected at least one address")
    return found


def _each(node: Node, read: Callable[[Node], T]) -> tuple[T, ...]:
    """Read one value or a list of them; an error says which of a list it is."""
    items = _several(node)
    if items == [node]:
        return (read(node),)
    values = []
    for index, item in enumerate(items):
        try:
            values.append(read(item))
        except UnexpectedError as error:
            raise UnexpectedError(str(error), index, item.place) from None
    return tuple(values)


def _network(node: Node) -> str:
    text = _text(node)
    try:
        ip_network(text)
    except ValueError:
        try:
            wide = ip_interface(text)
        except ValueError:
            expected = "expected an address or a network such as 10.0.0.0/8 or fd00::/8"
            raise UnexpectedError(f"seen {describe(node)}, {expected}") from None
        message = f"seen {describe(node)}, an address inside the network: expected {wide.network} or {wide.ip}"
        raise UnexpectedError(message) from None
    return text


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


TEXT = ValueKind(_text)
#: A password; no fault shows it.
SECRET = ValueKind(_secret, Secret.reveal)
#: ``host:port``, an IPv6 host in brackets.
ADDRESS = ValueKind(_address)
#: The same where we listen: port 0 is any free one.
LISTEN_ADDRESS = ValueKind(lambda node: _address(node, least=0))
#: One address or a list of them.
ADDRESSES = ValueKind(_addresses, _list_written, _one_or_list())
#: One text or a list of them.
TEXTS = ValueKind(lambda node: _each(node, _text), _list_written, _one_or_list())
#: One address or network (CIDR), or a list of them.
NETWORKS = ValueKind(lambda node: _each(node, _network), _list_written, _one_or_list())
#: The address of an HTTP API, without credentials in it.
HTTP_URL = ValueKind(_http_url, schema={"type": "string", "pattern": "^https?://"})


def _flag(node: Node) -> bool:
    value = node.value if isinstance(node, Scalar) and node.plain else None
    if not isinstance(value, bool):
        raise UnexpectedError(f"seen {describe(node)}, expected true or false")
    return value


#: True or false.
FLAG = ValueKind(_flag, lambda value: "true" if value else "false", {"type": "boolean"})


def optional(kind: ValueKind[T]) -> ValueKind[T | None]:
    """Allow null in addition to what another kind reads."""

    def read(node: Node) -> T | None:
        if isinstance(node, Scalar) and not node.absent and node.value is None:
            return None
        return kind.read(node)

    schema: dict[str, object] = {"anyOf": [kind.schema, {"type": "null"}]}
    return ValueKind(read, lambda value: "null" if value is None else kind.write(value), schema)


def whole_number(low: int, high: int) -> ValueKind[int]:
    """Give the kind of whole numbers within bounds."""

    def read(node: Node) -> int:
        value = node.value if isinstance(node, Scalar) and node.plain else None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise UnexpectedError(f"seen {describe(node)}, expected a whole number from {low} to {high}")
        return value

    return ValueKind(read, schema={"type": "integer", "minimum": low, "maximum": high})


def duration(low: float, high: float) -> ValueKind[float]:
    """Give the kind of durations within bounds, in seconds; written as ``500ms``, ``5s``, ``2m``, ``1h``."""
    expected = f"a duration with its unit such as 500ms, 5s, 2m or 1h, from {low:g}s to {high:g}s"

    def read(node: Node) -> float:
        written = node.text if isinstance(node, Scalar) else ""
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)", written)
        seconds = float(found[1]) * _UNITS[found[2]] if found else math.nan
        if not low <= seconds <= high:
            raise UnexpectedError(f"seen {describe(node)}, expected {expected}")
        return seconds

    schema: dict[str, object] = {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h)$"}
    return ValueKind(read, lambda seconds: f"{seconds:g}s", schema)


def choice(*allowed: str) -> ValueKind[str]:
    """Give the kind of one word of a few."""

    def read(node: Node) -> str:
        found = _text(node)
        if found not in allowed:
            raise UnexpectedError(f"seen {describe(node)}, expected one of {', '.join(allowed)}")
        return found

    return ValueKind(read, schema={"enum": list(allowed)})


def choices(*allowed: str) -> ValueKind[tuple[str, ...]]:
    """Give the kind of one or several words of a few."""
    single = choice(*allowed)
    schema: dict[str, object] = {"anyOf": [single.schema, {"type": "array", "items": single.schema}]}
    return ValueKind(lambda node: _each(node, single.read), _list_written, schema)
