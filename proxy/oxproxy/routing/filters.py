"""Filters of an open exchange, checked before its bindings.

Filters are arguments of the exchange. They test only the size of the body and the header table. If a message violates
several filters, the filter that was declared last applies.

Source: the open-exchange specification, section 10.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

from oxproxy.routing.bindings.operators import INTEGERS, NUMBERS, TEXTS
from oxproxy.routing.error_texts import precondition_failed
from oxproxy.routing.message import Message
from oxproxy.values import Table, Value, text

_SILENT = b"-silent"
_MIN_PAYLOAD = b"min-payload-size"
_MAX_PAYLOAD = b"max-payload-size"
_MAX_DEPTH = b"max-headers-depth"
_MAX_SIZE = b"max-headers-size"
_PAYLOAD = frozenset((_MIN_PAYLOAD, _MIN_PAYLOAD + _SILENT, _MAX_PAYLOAD, _MAX_PAYLOAD + _SILENT))
_HEADERS = {_MAX_DEPTH: 2, _MAX_SIZE: 16384}
ALTERNATE = b"alternate-exchange"
_BOUNDS = (*sorted(_PAYLOAD), *sorted(_HEADERS))
#: Known arguments of an open exchange.
ARGUMENTS = (ALTERNATE, *_BOUNDS)

#: Types of values that can be sizes. A timestamp can be compared as an integer, but cannot be a size.
_SIZES = INTEGERS - {"T"}

_TOO_SMALL = "Min size payload hit."
_TOO_LARGE = "Max size payload hit."
_TOO_DEEP = "Max headers depth hit."
_TOO_HEAVY = "Max headers size hit."

_LIST_WEIGHT = 10
_NUMBER_WEIGHT = 4
_OTHER_WEIGHT = 1


@dataclass(frozen=True, slots=True)
class PayloadFilter:
    """A limit on the size of the body."""

    name: bytes
    limit: int  # bytes, inclusive
    smallest: bool  # whether it is a lower bound
    silent: bool  # whether a violation drops the message instead of closing the channel

    def breach(self, message: Message) -> str | None:
        if self.smallest:
            return _TOO_SMALL if message.size < self.limit else None
        return _TOO_LARGE if message.size > self.limit else None

    @property
    def cut(self) -> int:
        """The first size for which the result differs from the result for smaller sizes."""
        return self.limit if self.smallest else self.limit + 1


@dataclass(frozen=True, slots=True)
class HeadersFilter:
    """Limits for the header table: the nesting of lists, and the size as computed by the open-exchange plugin."""

    name: bytes
    max_depth: int
    max_size: int
    silent: bool = False

    def breach(self, message: Message) -> str | None:
        """Return the error message of the first violation.

        Headers are checked in the order of their names, and the depth is checked before the size.
        """
        size = 0
        if self.max_depth < 0:
            return _TOO_DEEP
        if self.max_size < 0:
            return _TOO_HEAVY
        for name, value in message.sorted_headers:
            depth, weight = _measure(value)
            size += len(name) + weight
            if depth > self.max_depth:
                return _TOO_DEEP
            if size > self.max_size:
                return _TOO_HEAVY
        return None


Filter: TypeAlias = PayloadFilter | HeadersFilter


def read_filters(arguments: Table) -> tuple[Filter, ...]:
    """Return the filters among an exchange's arguments, in the order in which they are checked.

    Raises:
        ProtocolError: a filter's value is not an integer; 406 on the channel.
    """
    filters: list[Filter] = []
    bounds = dict(_HEADERS)
    headers_at: int | None = None
    for name, value in arguments:
        if name in _PAYLOAD:
            limit = _limit(value)
            filters.append(PayloadFilter(name, limit, name.startswith(_MIN_PAYLOAD), name.endswith(_SILENT)))
        elif name in _HEADERS:
            bounds[name] = _limit(value)
            if headers_at is not None:
                # Both limits are checked together, in the position of the later argument.
                del filters[headers_at]
            headers_at = len(filters)
            filters.append(HeadersFilter(name, bounds[_MAX_DEPTH], bounds[_MAX_SIZE]))
    return tuple(reversed(filters))


class ArgumentFault(NamedTuple):
    """An exchange argument that can't have its intended effect."""

    name: bytes
    message: str  # the reason, such as the value found and the values expected
    stray: bool = False  # whether it resembles no known argument; the broker accepts and ignores such an argument


def argument_faults(arguments: Table, also_known: Collection[bytes] = ()) -> Iterator[ArgumentFault]:
    """Find misspelt names, negative sizes and limits that no message can satisfy.

    Like the open-exchange plugin, `read_filters` accepts these arguments, since existing exchanges must still be
    readable. Values of a wrong type are not reported here, since `read_filters` rejects them.

    Args:
        also_known: additional known names.
    """
    known = (*ARGUMENTS, *also_known)
    least: dict[bytes, int] = {}
    most: dict[bytes, int] = {}
    for name, value in arguments:
        if name not in known:
            yield _unknown(name, known)
            continue
        if name == ALTERNATE and value.letter != "S":
            yield ArgumentFault(name, "got a value that is not a string, expected the name of an exchange")
        size = value.value
        if name not in _BOUNDS or value.letter not in _SIZES or not isinstance(size, int):
            continue
        if size < 0:
            yield ArgumentFault(name, f"got {size}, expected an integer, 0 or more")
        elif name in _PAYLOAD:
            bounds = least if name.startswith(_MIN_PAYLOAD) else most
            bounds[name] = size
            low, high = max(least, key=least.__getitem__, default=None), min(most, key=most.__getitem__, default=None)
            if low is not None and high is not None and name in (low, high) and least[low] > most[high]:
                smallest, largest = f"{low.decode()} {least[low]}", f"{high.decode()} {most[high]}"
                yield ArgumentFault(name, f"no message passes both {smallest} and {largest}")


def _unknown(name: bytes, known: Collection[bytes]) -> ArgumentFault:
    if name.removesuffix(_SILENT) in _HEADERS:
        return ArgumentFault(name, f"unknown argument; {text(name).removesuffix('-silent')} has no `-silent` form")
    names = sorted(argument.decode() for argument in known)
    near = difflib.get_close_matches(text(name).lower().replace("_", "-"), names, 1, 0.75)
    if near:
        return ArgumentFault(name, f"unknown argument; did you mean {near[0]}?")
    return ArgumentFault(name, f"unknown argument, expected one of {', '.join(names)}", stray=True)


def _limit(value: Value) -> int:
    if value.letter not in _SIZES:
        raise precondition_failed("Invalid exchange argument.")
    return cast("int", value.value)


def _measure(value: Value) -> tuple[int, int]:
    """Return the nesting depth of lists in a header's value, and the value's size as computed by the plugin."""
    deepest = weight = 0
    lists = [iter((value,))]
    while lists:
        element = next(lists[-1], None)
        if element is None:
            lists.pop()
        elif element.letter == "A":
            deepest = max(deepest, len(lists))
            weight += _LIST_WEIGHT
            lists.append(iter(cast("tuple[Value, ...]", element.value)))
        else:
            weight += _weight(element)
    return deepest, weight


def _weight(value: Value) -> int:
    letter, content = value
    if letter in TEXTS:
        return len(cast("bytes", content))
    if letter in NUMBERS:
        return _NUMBER_WEIGHT
    if letter == "F":
        return len(cast("Table", content))
    return _OTHER_WEIGHT
