"""What becomes of a binding's arguments while they are being read?

A `Draft` collects operators and effects; the readers of single arguments (`operator_arguments`, `route_arguments`)
fill it and share the checks of values that stand here.

Source: the open-exchange specification, section 11, "every other ``x-`` key, or a known key with a value of the
wrong type".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import TypeAlias, cast

from proxy.errors import ProtocolError
from proxy.routing.bindings.binding import Destination
from proxy.routing.bindings.operators import HeaderOperator, Operator
from proxy.routing.bindings.patterns import InvalidPattern, Pattern, compile_pattern
from proxy.routing.bindings.producer_routes import begins_with_character, invalid_regex
from proxy.routing.bindings.routes import EffectsDraft
from proxy.routing.erlang_terms import binary, refused
from proxy.values import Table, Value


@dataclass(slots=True)
class Draft:
    """What has been read of a binding's arguments so far.

    Args:
        destination: the declared one.
        zone: local time.
    """

    destination: Destination
    zone: tzinfo = UTC
    headers: list[HeaderOperator] = field(default_factory=list)
    others: list[Operator] = field(default_factory=list)
    order: int = 0
    effects: dict[bool, EffectsDraft] = field(default_factory=dict)
    queue_of_routing_key: bool = False

    def on(self, result: bool) -> EffectsDraft:
        """The effects of one result."""
        draft = self.effects.get(result)
        if draft is None:
            draft = self.effects[result] = EffectsDraft()
        return draft


#: Reads a value (an element of it, where it was a list) into the draft; gets the whole key too.
Reader: TypeAlias = Callable[[Draft, bytes, Value], None]
#: The same for keys that end with the name of a header, which comes last.
HeaderReader: TypeAlias = Callable[[Draft, bytes, Value, bytes], None]


def unknown_key(key: bytes) -> ProtocolError:
    """The refusal of a key that is not known, or whose value is of the wrong type."""
    opening = "Unknown or invalid argument's key '"
    return refused(f"{opening}{binary(key, len(opening))}'")


def text_of(key: bytes, value: Value) -> bytes:
    """The bytes of a long string; nothing else will do."""
    if value.letter != "S":
        raise unknown_key(key)
    return cast("bytes", value.value)


def name_of(key: bytes, value: Value) -> bytes:
    """A name: a long string with at least one character."""
    text = text_of(key, value)
    if not begins_with_character(text):
        raise unknown_key(key)
    return text


def pattern_of(key: bytes, value: Value) -> Pattern:
    """A long string that is a regex."""
    source = text_of(key, value)
    try:
        return compile_pattern(source)
    except InvalidPattern as error:
        raise refused(invalid_regex(source, str(error))) from error


def count_regexes(arguments: Table) -> int:
    """Count the regular expressions in the arguments of a binding."""
    lists = (value.value if value.letter == "A" else (value,) for key, value in arguments if is_regex_key(key))
    return sum(len(cast("tuple[Value, ...]", values)) for values in lists)


def is_regex_key(key: bytes) -> bool:
    """Whether an argument's value is a regular expression, or a list of them."""
    head = key.partition(b" ")[0]
    if head.startswith(b"x-?"):
        return head.endswith(b"re") and head != b"x-?hkexre"
    return head.startswith((b"x-addq", b"x-delq", b"x-add1q")) and b"re-on" in head
