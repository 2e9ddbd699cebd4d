"""Routes that a producer requests in the headers of its message.

This module only reads the headers; `routes` decides whether a binding permits the producer to add or delete
destinations.

Source: the open-exchange specification, section 7, "Producer side".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

from oxproxy.routing.bindings.patterns import InvalidPattern, Pattern, compile_pattern
from oxproxy.routing.error_texts import decode_text, encode_error_text, fits
from oxproxy.values import EXCHANGE, QUEUE, Destination, Table, Value

RESULTS = (b"true", b"false")

#: Kind of destination that each header names.
NAMED_ROUTES = {
    b"x-%s%s-on%s" % (action, kind, result): QUEUE if kind == b"q" else EXCHANGE
    for action in (b"add", b"del")
    for kind in (b"q", b"e")
    for result in RESULTS
}

#: Whether the pattern in each header is negated.
PATTERN_ROUTES = {
    b"x-%sq%s-on%s" % (action, kind, result): kind == b"!re"
    for action in (b"add", b"del")
    for kind in (b"re", b"!re")
    for result in RESULTS
}


class PatternRoute(NamedTuple):
    """Selects queues whose names match a pattern or, if negated, do not match it."""

    pattern: Pattern
    negated: bool


class ProducerRoutes:
    """The routes that one message requests.

    If several headers have the same name, all destinations named in them are used, but only the first regex.

    Args:
        headers: all headers, sorted by name.
    """

    __slots__ = ("error", "named", "patterns")

    def __init__(self, headers: Table) -> None:
        self.named: dict[bytes, set[Destination]] = {}
        self.patterns: dict[bytes, PatternRoute] = {}
        #: Reply text for the first invalid regex; b"" if there is none.
        self.error = b""
        for name, value in headers:
            kind = NAMED_ROUTES.get(name)
            if kind is not None:
                self.named.setdefault(name, set()).update((kind, target) for target in _names(value))
            elif value.letter == "S" and name in PATTERN_ROUTES:
                self._add_pattern(name, cast("bytes", value.value))

    def _add_pattern(self, name: bytes, source: bytes) -> None:
        try:
            pattern = compile_pattern(source)
        except InvalidPattern as error:
            self.error = self.error or encode_error_text(invalid_regex(source, str(error)))
            return
        self.patterns.setdefault(name, PatternRoute(pattern, PATTERN_ROUTES[name]))


def _names(value: Value) -> Iterator[bytes]:
    elements = cast("tuple[Value, ...]", value.value) if value.letter == "A" else (value,)
    for letter, content in elements:
        if letter == "S" and begins_with_character(cast("bytes", content)):
            yield cast("bytes", content)


def begins_with_character(text: bytes) -> bool:
    """Return True if the string is not empty and its first character is valid UTF-8."""
    if not text or text[0] < 0x80:
        return bool(text)
    length = 2 + (text[0] >= 0xE0) + (text[0] >= 0xF0)
    try:
        text[:length].decode()
    except UnicodeDecodeError:
        return False
    return True


def invalid_regex(source: bytes, reason: str) -> str:
    """Return the open-exchange plugin's error message for an invalid regex, followed by the reason if both fit."""
    specified = f"Invalid regex '{decode_text(source)}'"
    explained = f"{specified}: {reason}"
    return explained if fits(explained) else specified
