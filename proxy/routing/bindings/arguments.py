"""In which order are the arguments of an open exchange's binding checked and read?

Only the first problem is reported, so the order is part of the answer: match type, lists where none may be, lists
inside lists, then each argument from the smallest key up. What a single argument means is said by the tables of
`operator_arguments` and `route_arguments`.

Source: the open-exchange specification, sections 3, 6 and 11.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import cast

from proxy.routing.bindings import operator_arguments, route_arguments
from proxy.routing.bindings.comparison import FLOATS
from proxy.routing.bindings.draft import Draft, Reader, unknown_key
from proxy.routing.bindings.match import Match, match_all, match_any, match_eq, match_set
from proxy.routing.bindings.operator_arguments import HEADER_KEYS, PROPERTY_PREFIX
from proxy.routing.bindings.producer_routes import begins_with_character
from proxy.routing.erlang_terms import refused
from proxy.values import Table, Value

KEYS: dict[bytes, Reader] = {**operator_arguments.OPERATOR_KEYS, **route_arguments.ROUTE_KEYS}

_X_MATCH = b"x-match"
_SET = re.compile(rb"set(?: ([+-]?)([0-9]+))?")
#: A count that no binding reaches; a longer number in ``set N`` is read as this one.
_OUT_OF_REACH = 10**18

_NO_LIST_FOR_EQUAL = "Invalid use of list type with = operator in this binding type"
_NO_LIST_FOR_DIFFERENT = "Invalid use of list type with != operator in this binding type"
_NO_LIST_FOR_ROUTE = "Invalid use of list type with regex in routing facilities"
_NO_LIST_FOR_COMPARISON = "Invalid use of list type with < or > operators and/or datetime related"

_EQUAL = (b"x-?pr=", b"x-?hkv= ", b"x-?hk?v= ")
_DIFFERENT = (b"x-?pr!=", b"x-?hkv!= ", b"x-?hk?v!= ")
_ROUTES = (b"x-addqre-", b"x-delqre-", b"x-addq!re-", b"x-delq!re-", b"x-add1qre-", b"x-add1q!re-")
_COMPARISONS = (b"x-?hkv<", b"x-?hk?v<", b"x-?hkv>", b"x-?hk?v>", b"x-?pr<", b"x-?pr>", b"x-?dt")
#: Keys of which a list makes no sense, though no restriction above names them.
_SINGLE = (b"x-order", b"x-goto-ontrue", b"x-goto-onfalse", b"x-del-dest")


@dataclass(frozen=True, slots=True)
class MatchType:
    """A match type, as ``x-match`` names it: what makes a `Match` of the operators of a draft."""

    name: str
    fold: Callable[[Draft], Match]


ALL = MatchType("all", lambda draft: match_all((*draft.others, *draft.headers)))
ANY = MatchType("any", lambda draft: match_any((*draft.others, *draft.headers)))
EQ = MatchType("eq", lambda draft: match_eq(draft.headers, draft.others))


def read_arguments(arguments: Table, draft: Draft) -> MatchType:
    """Read all arguments into the draft.

    Args:
        arguments: sorted by name.
        draft: takes operators and effects.

    Returns:
        The match type.

    Raises:
        ProtocolError: 406 on the channel, for the first problem in the order of the specification.
    """
    match_type = match_type_of(arguments)
    if any(value.letter == "A" for _, value in arguments):
        _refuse_lists(arguments, match_type is ANY)
    for key, value in arguments:
        if key == _X_MATCH:
            continue
        if value.letter == "A":
            for element in cast("tuple[Value, ...]", value.value):
                _refuse_element(key, element)
                _read(draft, key, element)
        else:
            _read(draft, key, value)
    return match_type


def match_type_of(arguments: Table) -> MatchType:
    """The match type that ``x-match`` names, `all` without it."""
    for key, value in arguments:
        if key == _X_MATCH:
            return _match_type(value)
    return ALL


def _match_type(value: Value) -> MatchType:
    name = cast("bytes", value.value) if value.letter == "S" else b""
    if named := {b"all": ALL, b"any": ANY, b"eq": EQ}.get(name):
        return named
    found = _SET.fullmatch(name)
    if found is None:
        raise refused("Invalid binding type")
    sign, digits = found.groups(default=b"")
    digits = digits.lstrip(b"0")
    if sign == b"-" and digits:
        raise refused("Invalid binding type")
    least = int(digits or b"0") if len(digits) <= 18 else _OUT_OF_REACH
    return MatchType(f"set {least}", lambda draft: match_set(draft.headers, draft.others, least))


def _refuse_lists(arguments: Table, under_any: bool) -> None:
    lists = [(key, cast("tuple[Value, ...]", value.value)) for key, value in arguments if value.letter == "A"]
    for key, _ in reversed(lists):
        _refuse_list(key, under_any)
    for _, elements in lists:
        if any(element.letter == "A" for element in elements):
            raise refused("Invalid use of list in list")


def _refuse_list(key: bytes, under_any: bool) -> None:
    if under_any and (key == b"x-?rk!=" or key.startswith(_DIFFERENT)):
        raise refused(_NO_LIST_FOR_DIFFERENT)
    if not under_any and (key == b"x-?rk=" or key.startswith(_EQUAL)):
        raise refused(_NO_LIST_FOR_EQUAL)
    if key.startswith(_ROUTES):
        raise refused(_NO_LIST_FOR_ROUTE)
    if key.startswith(_COMPARISONS):
        raise refused(_NO_LIST_FOR_COMPARISON)


def _refuse_element(key: bytes, element: Value) -> None:
    if key in _SINGLE and element.letter != "D":
        raise unknown_key(key)


def _read(draft: Draft, key: bytes, value: Value) -> None:
    if value.letter == "D":
        raise refused("Usage of decimal type is forbidden")
    if not key:
        raise refused("Binding's argument key can't be empty")
    if not key.startswith(b"x-"):
        operator_arguments.plain_key(draft, key, value)
        return
    if key.startswith(PROPERTY_PREFIX):
        operator_arguments.property_key(draft, key, value)
        return
    sign, _, name = key.partition(b" ")
    of_header = HEADER_KEYS.get(sign)
    if of_header is not None and begins_with_character(name):
        of_header(draft, key, value, name)
        return
    reader = KEYS.get(key)
    if reader is None:
        raise unknown_key(key)
    reader(draft, key, value)


def refuse_unreal_numbers(arguments: Sequence[tuple[bytes, Value]]) -> None:
    """Refuse numbers that are none: RabbitMQ drops the connection that sends them.

    Raises:
        ProtocolError: 406 on the channel, naming the argument.
    """
    for key, value in arguments:
        if value.letter in "fdAF" and not _is_real(value):
            shown = key.decode(errors="backslashreplace")
            raise refused(f"Argument '{shown}' holds a number that is infinite or not a number")


def _is_real(value: Value) -> bool:
    letter, content = value
    if letter in FLOATS:
        return isfinite(cast("float", content))
    if letter == "A":
        return all(map(_is_real, cast("tuple[Value, ...]", content)))
    if letter == "F":
        return all(_is_real(element) for _, element in cast("Table", content))
    return True
