"""How are names and values of messages written, for people and in JSON? Values keep their kind as far as JSON can."""

from __future__ import annotations

from proxy.routing.bindings.binding import Destination
from proxy.values import Value


def plain(seen: object) -> object:
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
        return [plain(element) for element in content]
    if value.letter == "F" and isinstance(content, tuple):
        return {text(name): plain(element) for name, element in content}
    return plain(content)


def quoted(seen: object) -> str:
    """Write a value in a line of text, a text in quotation marks."""
    found = plain(seen)
    return f'"{found}"' if isinstance(found, str) else str(found)


def named(destination: Destination) -> str:
    """Write a destination, such as ``queue orders``."""
    kind, name = destination
    return f"{kind} {text(name)}"


def text(name: bytes) -> str:
    """Write a name, whatever its bytes are."""
    return name.decode("utf-8", "backslashreplace")
