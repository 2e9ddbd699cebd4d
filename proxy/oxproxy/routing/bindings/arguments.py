"""Reads the arguments of an open exchange's binding: operators, routes, order and match type.

`OPERATOR_KEYS`, `HEADER_KEYS` and `ROUTE_KEYS` correspond to the tables in the specification. They map each argument
key to a function that either reads the value into the draft of the binding or rejects it. To add an operator, add its
key to one of these tables.

Only the first error in a binding is reported, so the order of checks is part of the behaviour: match type, forbidden
lists, nested lists, then each argument by ascending key. `read_arguments` implements this order.

Source: the open-exchange specification, sections 3 to 8; section 11 for the texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC
from functools import lru_cache, partial
from math import isfinite
from typing import TypeAlias, cast

from oxproxy.routing.bindings.compiled import Draft, Match, MatchAll, MatchAny, MatchEq, MatchSet
from oxproxy.routing.bindings.operators import (
    FLOATS,
    INTEGER_PROPERTIES,
    INTEGERS,
    SIGNS,
    TEXT_PROPERTIES,
    TYPE_TESTS,
    ClockOperator,
    HeaderCompares,
    HeaderEquals,
    HeaderIsAbsent,
    HeaderIsIn,
    HeaderIsPresent,
    HeaderMatches,
    HeaderOperator,
    HeaderShare,
    KeyEquals,
    KeyFits,
    KeyIsIn,
    KeyMatches,
    KeyShare,
    Operator,
    PropertyCompares,
    PropertyEquals,
    PropertyIsAbsent,
    PropertyIsIn,
    PropertyIsPresent,
    PropertyMatches,
    PropertyOperator,
    PropertyShare,
    name_of,
    open_topic,
    pattern_of,
    text_of,
    unknown_key,
)
from oxproxy.routing.bindings.producer_routes import PatternRoute, begins_with_character
from oxproxy.routing.bindings.routes import QueueRoute
from oxproxy.routing.error_texts import precondition_failed
from oxproxy.values import EXCHANGE, QUEUE, Table, Value, text

DEFAULT_ORDER = 10_000
LEAST_ORDER, GREATEST_ORDER = 100, 999_999

#: Common prefix of all keys of the property family.
PROPERTY_PREFIX = b"x-?pr"

X_MATCH = b"x-match"
X_ORDER = b"x-order"
#: Operators that the open-exchange plugin does not have, without the name that may follow. The value of ``in`` is a
#: list that is not expanded.
EXTENSIONS = frozenset(
    (
        *(prefix + sign for prefix in (b"x-?hkv", b"x-?hk?v", b"x-?pr", b"x-?rk") for sign in (b"in", b"!in")),
        *(b"x-?hkv%", b"x-?pr%", b"x-?rk%"),
    )
)
_SET = re.compile(rb"set(?: ([+-]?)([0-9]+))?")
#: A count that no binding reaches. It replaces larger numbers in ``set N``.
_OUT_OF_REACH = 10**18

_NO_LIST_FOR_EQUAL = "Invalid use of list type with = operator in this binding type"
_NO_LIST_FOR_DIFFERENT = "Invalid use of list type with != operator in this binding type"
_NO_LIST_FOR_ROUTE = "Invalid use of list type with regex in routing facilities"
_NO_LIST_FOR_COMPARISON = "Invalid use of list type with < or > operators and/or datetime related"

_EQUAL = (b"x-?pr=", b"x-?hkv= ", b"x-?hk?v= ")
_DIFFERENT = (b"x-?pr!=", b"x-?hkv!= ", b"x-?hk?v!= ")
_ROUTES = (b"x-addqre-", b"x-delqre-", b"x-addq!re-", b"x-delq!re-", b"x-add1qre-", b"x-add1q!re-")
_COMPARISONS = (b"x-?hkv<", b"x-?hk?v<", b"x-?hkv>", b"x-?hk?v>", b"x-?pr<", b"x-?pr>", b"x-?dt")
#: Other keys that don't accept a list.
_SINGLE = (X_ORDER, b"x-goto-ontrue", b"x-goto-onfalse", b"x-del-dest")


#: Reads a value, or one element of a list, into the draft; also receives the whole key.
Reader: TypeAlias = Callable[[Draft, bytes, Value], None]
#: Like `Reader`, for keys that contain the name of a header. The name is the last argument.
HeaderReader: TypeAlias = Callable[[Draft, bytes, Value, bytes], None]


# -- section 4: headers -----------------------------------------------------------------------------------------------


def _of_header(operator: Callable[..., HeaderOperator], *options: object) -> HeaderReader:
    """Return a reader for keys that contain the name of a header."""
    return lambda draft, key, value, name: draft.headers.append(operator(key, value, name, *options))


def _of_named_header(operator: Callable[..., HeaderOperator], *options: object) -> Reader:
    """Return a reader for keys whose value is the name of a header."""
    return lambda draft, key, value: draft.headers.append(operator(key, value, name_of(key, value), *options))


#: Keys to which a space and the name of a header are appended.
HEADER_KEYS: dict[bytes, HeaderReader] = {
    prefix + sign: reader
    for prefix, optional in ((b"x-?hkv", False), (b"x-?hk?v", True))
    for sign, reader in {
        b"=": _of_header(HeaderEquals, False, optional),
        b"!=": _of_header(HeaderEquals, True, optional),
        **{sign: _of_header(HeaderCompares, SIGNS[sign], optional) for sign in (b"<", b"<=", b">=", b">")},
        b"re": _of_header(HeaderMatches, False, optional),
        b"!re": _of_header(HeaderMatches, True, optional),
        b"in": _of_header(HeaderIsIn, False, optional),
        b"!in": _of_header(HeaderIsIn, True, optional),
    }.items()
}
HEADER_KEYS[b"x-?hkv%"] = _of_header(HeaderShare)
#: Reads a key without the prefix ``x-``: the header with this name must be equal to the argument's value.
_plain_key = HEADER_KEYS[b"x-?hkv="]


# -- section 5: routing key, properties, clock ------------------------------------------------------------------------


def _of_message(operator: Callable[..., Operator], *options: object) -> Reader:
    return lambda draft, key, value: draft.others.append(operator(key, value, *options))


def _topic(ignore_case: bool, negated: bool) -> Reader:
    return lambda draft, key, value: draft.others.append(
        KeyFits(key, value, open_topic(text_of(key, value), ignore_case), negated)
    )


def _local_time(negated: bool) -> Reader:
    return lambda draft, key, value: draft.others.append(ClockOperator(key, value, draft.zone, negated))


#: Operator keys to which no name is appended.
OPERATOR_KEYS: dict[bytes, Reader] = {
    b"x-?hkex": _of_named_header(HeaderIsPresent),
    b"x-?hk!ex": _of_named_header(HeaderIsAbsent),
    **{b"x-?hkex" + test: _of_named_header(HeaderIsPresent, letters) for test, letters in TYPE_TESTS.items()},
    **{b"x-?hkex!" + test: _of_named_header(HeaderIsPresent, letters, True) for test, letters in TYPE_TESTS.items()},
    b"x-?rk=": _of_message(KeyEquals),
    b"x-?rk!=": _of_message(KeyEquals, True),
    b"x-?rkin": _of_message(KeyIsIn),
    b"x-?rk!in": _of_message(KeyIsIn, True),
    b"x-?rk%": _of_message(KeyShare),
    b"x-?rkre": _of_message(KeyMatches),
    b"x-?rk!re": _of_message(KeyMatches, True),
    b"x-?rkta": _topic(ignore_case=False, negated=False),
    b"x-?rk!ta": _topic(ignore_case=False, negated=True),
    b"x-?rktaci": _topic(ignore_case=True, negated=False),
    b"x-?rk!taci": _topic(ignore_case=True, negated=True),
    b"x-?dture": _of_message(ClockOperator, UTC, False),
    b"x-?dtu!re": _of_message(ClockOperator, UTC, True),
    b"x-?dtlre": _local_time(negated=False),
    b"x-?dtl!re": _local_time(negated=True),
}

_PropertyReader: TypeAlias = Callable[[bytes, Value, str], PropertyOperator]

#: Names as bytes, mapped to the str objects that all bindings share.
_TEXT_PROPERTIES = {name.encode(): name for name in TEXT_PROPERTIES}
_INTEGER_PROPERTIES = {name.encode(): name for name in INTEGER_PROPERTIES}
_PROPERTIES = _TEXT_PROPERTIES | _INTEGER_PROPERTIES

#: Operators of the property family: keys whose value is the name of a property, and operators such as ``=`` or ``re``
#: that are followed by the name.
_PROPERTY_TESTS: dict[bytes, _PropertyReader] = {b"x-?prex": PropertyIsPresent, b"x-?pr!ex": PropertyIsAbsent}
_TEXT_SIGNS: dict[bytes, _PropertyReader] = {
    b"=": PropertyEquals,
    b"!=": partial(PropertyEquals, negated=True),
    b"re": PropertyMatches,
    b"!re": partial(PropertyMatches, negated=True),
}
_INTEGER_SIGNS: dict[bytes, _PropertyReader] = {
    sign: partial(PropertyCompares, sign=code) for sign, code in SIGNS.items()
}
#: Operators whose value is a list, for all properties.
_LIST_SIGNS: dict[bytes, _PropertyReader] = {
    b"in": PropertyIsIn,
    b"!in": partial(PropertyIsIn, negated=True),
    b"%": PropertyShare,
}


def _property_key(draft: Draft, key: bytes, value: Value) -> None:
    """Read a key of the property family: a test, or an operator followed by a space and the name of the property."""
    sign, _, name = key.removeprefix(PROPERTY_PREFIX).partition(b" ")
    operator: _PropertyReader | None
    if value.letter == "S" and key in _PROPERTY_TESTS:
        operator, known, name = _PROPERTY_TESTS[key], _PROPERTIES, cast("bytes", value.value)
    elif value.letter == "S":
        operator, known = _TEXT_SIGNS.get(sign), _TEXT_PROPERTIES
    elif value.letter in INTEGERS:
        operator, known = _INTEGER_SIGNS.get(sign), _INTEGER_PROPERTIES
    elif value.letter == "A":  # only operators that take a whole list
        operator, known = _LIST_SIGNS.get(sign), _PROPERTIES
    else:
        raise unknown_key(key)
    if operator is None or name not in known:
        raise precondition_failed("Invalid property match operator")
    draft.others.append(operator(key, value, known[name]))


# -- section 7: routes ------------------------------------------------------------------------------------------------


def _names(result: bool, kind: str, adds: bool) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        effects = draft.on(result)
        (effects.add if adds else effects.delete).add((kind, name_of(key, value)))

    return read


def _add_queues(result: bool, negated: bool, only_one: bool) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        route = QueueRoute(pattern_of(key, value), negated, only_one)
        draft.on(result).add_queues[negated] = route

    return read


def _delete_queues(result: bool, negated: bool) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        draft.on(result).delete_queues[negated] = PatternRoute(pattern_of(key, value), negated)

    return read


def _flag(raise_flag: Callable[[Draft], None]) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        if value != ("S", b""):
            raise unknown_key(key)
        raise_flag(draft)

    return read


def _grant(result: bool, action: bytes, *kinds: bytes) -> Reader:
    headers = [b"x-%s%s-on%s" % (action, kind, b"true" if result else b"false") for kind in kinds]

    def grant(draft: Draft) -> None:
        effects = draft.on(result)
        (effects.granted_add if action == b"add" else effects.granted_delete).update(headers)

    return _flag(grant)


def _use_routing_key(draft: Draft) -> None:
    draft.queue_of_routing_key = True


def _delete_destination(draft: Draft) -> None:
    draft.on(True).delete.add(draft.destination)


# -- section 8: order, goto, stop -------------------------------------------------------------------------------------


def _place(argument: str, key: bytes, value: Value) -> int:
    number = value.value
    if value.letter not in INTEGERS or not isinstance(number, int) or number <= 0:
        raise unknown_key(key)
    if not LEAST_ORDER <= number <= GREATEST_ORDER:
        raise precondition_failed(f"Binding's {argument} must be an integer between {LEAST_ORDER} and {GREATEST_ORDER}")
    return number


def _order(draft: Draft, key: bytes, value: Value) -> None:
    order = _place("order", key, value)
    draft.order = draft.order or order


def _goto(result: bool) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        draft.on(result).goto = _place("goto", key, value)

    return read


def _stop(result: bool) -> Reader:
    def stop(draft: Draft) -> None:
        draft.on(result).stop = True

    return _flag(stop)


#: Keys of routes, order, goto and stop.
ROUTE_KEYS: dict[bytes, Reader] = {
    b"x-msg-destq-rk": _flag(_use_routing_key),
    b"x-del-dest": _flag(_delete_destination),
    X_ORDER: _order,
    **{
        start + suffix: reader
        for suffix, result in ((b"-ontrue", True), (b"-onfalse", False))
        for start, reader in {
            b"x-addq": _names(result, QUEUE, True),
            b"x-adde": _names(result, EXCHANGE, True),
            b"x-delq": _names(result, QUEUE, False),
            b"x-dele": _names(result, EXCHANGE, False),
            b"x-addqre": _add_queues(result, False, False),
            b"x-addq!re": _add_queues(result, True, False),
            b"x-add1qre": _add_queues(result, False, True),
            b"x-add1q!re": _add_queues(result, True, True),
            b"x-delqre": _delete_queues(result, False),
            b"x-delq!re": _delete_queues(result, True),
            b"x-msg-addq": _grant(result, b"add", b"q"),
            b"x-msg-adde": _grant(result, b"add", b"e"),
            b"x-msg-delq": _grant(result, b"del", b"q"),
            b"x-msg-dele": _grant(result, b"del", b"e"),
            b"x-msg-addqre": _grant(result, b"add", b"q", b"qre", b"q!re"),
            b"x-msg-delqre": _grant(result, b"del", b"q", b"qre", b"q!re"),
            b"x-goto": _goto(result),
            b"x-stop": _stop(result),
        }.items()
    },
}


#: All keys to which no name is appended.
KEYS: dict[bytes, Reader] = {**OPERATOR_KEYS, **ROUTE_KEYS}


# -- sections 3 and 6: match type, lists, order of checks -------------------------------------------------------------


def read_arguments(arguments: Table, draft: Draft) -> str:
    """Read all arguments, which are sorted by name, into the draft; return the name of the match type.

    Raises:
        ProtocolError: an argument is not valid; 406 on the channel, with the first error in the specified order.
    """
    match_type = next((_match_type(value) for key, value in arguments if key == X_MATCH), "all")
    if any(value.letter == "A" for _, value in arguments):
        _refuse_lists(arguments, match_type == "any")
    for key, value in arguments:
        if key == X_MATCH:
            continue
        if value.letter == "A" and not (draft.extensions and _is_extension(key)):
            for element in cast("tuple[Value, ...]", value.value):
                _refuse_element(key, element)
                _read(draft, key, element)
        else:
            _read(draft, key, value)
    return match_type


def _match_type(value: Value) -> str:
    name = cast("bytes", value.value) if value.letter == "S" else b""
    if name in (b"all", b"any", b"eq"):
        return name.decode()
    match = _SET.fullmatch(name)
    if match is None:
        raise precondition_failed("Invalid binding type")
    sign, digits = match.groups(default=b"")
    digits = digits.lstrip(b"0")
    if sign == b"-" and digits:
        raise precondition_failed("Invalid binding type")
    return f"set {int(digits or b'0') if len(digits) <= 18 else _OUT_OF_REACH}"


def match_of(match_type: str, draft: Draft) -> Match:
    """Combine the operators of a draft."""
    match match_type.split():
        case ["all"]:
            return MatchAll((*draft.others, *draft.headers))
        case ["any"]:
            return MatchAny((*draft.others, *draft.headers))
        case ["set", least]:
            return MatchSet(draft.headers, draft.others, int(least))
    return MatchEq(draft.headers, draft.others)


def _refuse_lists(arguments: Table, under_any: bool) -> None:
    lists = [(key, cast("tuple[Value, ...]", value.value)) for key, value in arguments if value.letter == "A"]
    for key, _ in reversed(lists):
        _refuse_list(key, under_any)
    for _, elements in lists:
        if any(element.letter == "A" for element in elements):
            raise precondition_failed("Invalid use of list in list")


def _refuse_list(key: bytes, under_any: bool) -> None:
    if under_any and (key == b"x-?rk!=" or key.startswith(_DIFFERENT)):
        raise precondition_failed(_NO_LIST_FOR_DIFFERENT)
    if not under_any and (key == b"x-?rk=" or key.startswith(_EQUAL)):
        raise precondition_failed(_NO_LIST_FOR_EQUAL)
    if key.startswith(_ROUTES):
        raise precondition_failed(_NO_LIST_FOR_ROUTE)
    if key.startswith(_COMPARISONS):
        raise precondition_failed(_NO_LIST_FOR_COMPARISON)


def _refuse_element(key: bytes, element: Value) -> None:
    if key in _SINGLE and element.letter != "D":
        raise unknown_key(key)


def _is_extension(key: bytes) -> bool:
    return key.startswith(b"x-?") and key.partition(b" ")[0] in EXTENSIONS


def _read(draft: Draft, key: bytes, value: Value) -> None:
    if value.letter == "D":
        raise precondition_failed("Usage of decimal type is forbidden")
    if not key:
        raise precondition_failed("Binding's argument key can't be empty")
    if not key.startswith(b"x-"):
        _plain_key(draft, key, value, key)
        return
    if not draft.extensions and _is_extension(key):
        raise precondition_failed(f"{text(unknown_key(key).text)}: requires declared.extensions: true")
    if key.startswith(PROPERTY_PREFIX):
        _property_key(draft, key, value)
        return
    of_header, name = _header_key(key)
    if of_header is not None:
        of_header(draft, key, value, name)
        return
    reader = KEYS.get(key)
    if reader is None:
        raise unknown_key(key)
    reader(draft, key, value)


@lru_cache(maxsize=4096)
def _header_key(key: bytes) -> tuple[HeaderReader | None, bytes]:
    """Return the reader for a key, and the header name in the key.

    Results are cached so that bindings with the same key share the name: objects that many bindings share stay in the
    CPU caches during decisions.
    """
    sign, _, name = key.partition(b" ")
    return HEADER_KEYS.get(sign) if begins_with_character(name) else None, name


def refuse_unreal_numbers(arguments: Sequence[tuple[bytes, Value]]) -> None:
    """Reject infinities and NaN, since RabbitMQ drops connections that send them.

    Raises:
        ProtocolError: a number is infinite or NaN; 406 on the channel, with the name of the argument.
    """
    for key, value in arguments:
        if value.letter in "fdAF" and not _is_real(value):
            raise precondition_failed(f"Argument '{text(key)}' holds a number that is infinite or NaN")


def _is_real(value: Value) -> bool:
    letter, content = value
    if letter in FLOATS:
        return isfinite(cast("float", content))
    if letter == "A":
        return all(map(_is_real, cast("tuple[Value, ...]", content)))
    if letter == "F":
        return all(_is_real(element) for _, element in cast("Table", content))
    return True
