"""Which argument of an open exchange's binding is which operator, and which value may it have?

The tables below are the operator tables of the specification: argument key -> what reads its value. A reader puts an
operator into the draft, or refuses the value.

Source: the open-exchange specification, sections 4 and 5; section 11 for the texts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC
from typing import cast

from proxy.routing.bindings import comparison
from proxy.routing.bindings.comparison import INTEGERS, NUMBERS, TYPE_TESTS, Judge
from proxy.routing.bindings.draft import Draft, HeaderReader, Reader, name_of, pattern_of, text_of, unknown_key
from proxy.routing.bindings.operators import (
    ABSENT,
    MATCH,
    PROPERTY,
    ROUTING_KEY,
    TOPIC,
    Access,
    ClockOperator,
    HeaderOperator,
    PropertyOperator,
    RoutingKeyOperator,
    Verdict,
    header_access,
)
from proxy.routing.bindings.topics import InvalidTopic, open_topic
from proxy.routing.erlang_terms import refused
from proxy.routing.message import Message, spelled_integer
from proxy.values import Value

# Section 4: headers.


def plain_key(draft: Draft, key: bytes, value: Value) -> None:
    """A key that is not ours: equality of the header of that name."""
    _equality(draft, key, value, key, False)


def _equality(draft: Draft, key: bytes, value: Value, name: bytes, optional: bool) -> None:
    judge = comparison.equals(value)
    draft.headers.append(
        HeaderOperator(key, value, name, judge, optional, ABSENT, True, True, header_access(name, value))
    )


def _equal(optional: bool) -> HeaderReader:
    return lambda draft, key, value, name: _equality(draft, key, value, name, optional)


def _comparison(optional: bool, judge_of: Callable[[bytes, Value], Judge]) -> HeaderReader:
    return lambda draft, key, value, name: draft.headers.append(
        HeaderOperator(key, value, name, judge_of(key, value), optional)
    )


def _different(_key: bytes, value: Value) -> Judge:
    return comparison.differs(value)


def _ordered(sign: bytes) -> Callable[[bytes, Value], Judge]:
    def judge_of(_key: bytes, value: Value) -> Judge:
        if value.letter not in NUMBERS:
            raise refused("Type's value of comparison's operators < and > must be numeric")
        return comparison.compares(sign, value)

    return judge_of


def _searched(key: bytes, value: Value) -> Judge:
    return comparison.matches(pattern_of(key, value))


def _not_searched(key: bytes, value: Value) -> Judge:
    return comparison.mismatches(pattern_of(key, value))


def _exists(judge: Judge) -> Reader:
    return lambda draft, key, value: draft.headers.append(
        HeaderOperator(key, value, name_of(key, value), judge, uses_up=True, compares=False)
    )


def _is_absent(draft: Draft, key: bytes, value: Value) -> None:
    name = name_of(key, value)
    draft.headers.append(HeaderOperator(key, value, name, _never, absent=MATCH, compares=False))


def _never(_value: object, _message: object) -> bool:
    return False


# Section 5: routing key, properties, clock.


def _key_equals(draft: Draft, key: bytes, value: Value) -> None:
    expected = text_of(key, value)
    access = (ROUTING_KEY, "", expected)
    draft.others.append(RoutingKeyOperator(key, value, lambda seen, _: seen == expected, access))


def _key_differs(draft: Draft, key: bytes, value: Value) -> None:
    expected = text_of(key, value)
    draft.others.append(RoutingKeyOperator(key, value, lambda seen, _: seen != expected))


def _key_searched(negated: bool) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        pattern = pattern_of(key, value)
        draft.others.append(
            RoutingKeyOperator(key, value, lambda seen, message: message.search(pattern, seen) is not negated)
        )

    return read


def _key_topic(negated: bool, ignore_case: bool) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        source = text_of(key, value)
        try:
            topic = open_topic(source, ignore_case)
        except InvalidTopic as error:
            raise refused("Invalid AMQP topic") from error
        access = None if negated or ignore_case else topic_access(source)
        draft.others.append(RoutingKeyOperator(key, value, lambda seen, _: topic.matches(seen) is not negated, access))

    return read


def topic_access(pattern: bytes) -> Access:
    """Where a routing key that fits a topic is found; a topic without wildcards is an equality."""
    if b"*" in pattern or b"#" in pattern:
        return TOPIC, "", pattern
    return ROUTING_KEY, "", pattern


def property_key(draft: Draft, key: bytes, value: Value) -> None:
    """A key of the property family: ``x-?prex``, ``x-?pr!ex``, or a comparison, a blank and the property."""
    sign, _, name = key.removeprefix(PROPERTY_PREFIX).partition(b" ")
    if value.letter == "S":
        read = _text_property(key, value, sign, name)
    elif value.letter in INTEGERS:
        read = _integer_property(key, value, sign, name)
    else:
        raise unknown_key(key)
    if read is None:
        raise refused("Invalid property match operator")
    draft.others.append(read)


def _text_property(key: bytes, value: Value, sign: bytes, name: bytes) -> PropertyOperator | None:
    expected = text_of(key, value)
    if key in _PROPERTY_TESTS and expected in TEXT_PROPERTIES | INTEGER_PROPERTIES:
        judge, absent = _PROPERTY_TESTS[key]
        return PropertyOperator(key, value, expected.decode(), judge, absent)
    if name not in TEXT_PROPERTIES or sign not in (b"=", b"!=", b"re", b"!re"):
        return None
    negated = sign.startswith(b"!")
    if sign.endswith(b"="):
        access = None if negated else (PROPERTY, name.decode(), expected)
        return PropertyOperator(
            key, value, name.decode(), lambda seen, _: (seen == expected) is not negated, access=access
        )
    pattern = pattern_of(key, value)
    return PropertyOperator(
        key,
        value,
        name.decode(),
        lambda seen, message: message.search(pattern, cast("bytes", seen)) is not negated,
    )


def _integer_property(key: bytes, value: Value, sign: bytes, name: bytes) -> PropertyOperator | None:
    compare = _INTEGER_COMPARISONS.get(sign)
    if name not in INTEGER_PROPERTIES or compare is None:
        return None
    bound = cast("int", value.value)

    def judge(seen: bytes | int, _message: Message) -> bool:
        number = spelled_integer(seen)
        return number is not None and compare(number, bound)

    access = (PROPERTY, name.decode(), bound) if sign == b"=" else None
    return PropertyOperator(key, value, name.decode(), judge, access=access)


def _clock(local: bool, negated: bool) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        zone = draft.zone if local else UTC
        draft.others.append(ClockOperator(key, value, zone, pattern_of(key, value), negated))

    return read


TEXT_PROPERTIES = frozenset(
    b"content_type content_encoding correlation_id reply_to message_id type user_id app_id cluster_id".split()
)
INTEGER_PROPERTIES = frozenset(b"delivery_mode priority timestamp expiration".split())

#: How all keys of the property family begin.
PROPERTY_PREFIX = b"x-?pr"

_PROPERTY_TESTS: dict[bytes, tuple[Callable[[object, object], bool], Verdict]] = {
    b"x-?prex": (lambda _seen, _message: True, ABSENT),
    b"x-?pr!ex": (_never, MATCH),
}
_INTEGER_COMPARISONS: dict[bytes, Callable[[int, int], bool]] = {
    b"=": operator.eq,
    b"!=": operator.ne,
    b"<": operator.lt,
    b"<=": operator.le,
    b">=": operator.ge,
    b">": operator.gt,
}

#: Keys that take the name of a header behind one blank.
HEADER_KEYS: dict[bytes, HeaderReader] = {
    prefix + sign: reader
    for prefix, optional in ((b"x-?hkv", False), (b"x-?hk?v", True))
    for sign, reader in {
        b"=": _equal(optional),
        b"!=": _comparison(optional, _different),
        b"<": _comparison(optional, _ordered(b"<")),
        b"<=": _comparison(optional, _ordered(b"<=")),
        b">=": _comparison(optional, _ordered(b">=")),
        b">": _comparison(optional, _ordered(b">")),
        b"re": _comparison(optional, _searched),
        b"!re": _comparison(optional, _not_searched),
    }.items()
}

#: Whole keys.
OPERATOR_KEYS: dict[bytes, Reader] = {
    b"x-?hkex": _exists(comparison.present),
    b"x-?hk!ex": _is_absent,
    **{b"x-?hkex" + test: _exists(comparison.has_type(letters)) for test, letters in TYPE_TESTS.items()},
    **{b"x-?hkex!" + test: _exists(comparison.lacks_type(letters)) for test, letters in TYPE_TESTS.items()},
    b"x-?rk=": _key_equals,
    b"x-?rk!=": _key_differs,
    b"x-?rkre": _key_searched(False),
    b"x-?rk!re": _key_searched(True),
    b"x-?rkta": _key_topic(False, False),
    b"x-?rk!ta": _key_topic(True, False),
    b"x-?rktaci": _key_topic(False, True),
    b"x-?rk!taci": _key_topic(True, True),
    b"x-?dture": _clock(False, False),
    b"x-?dtu!re": _clock(False, True),
    b"x-?dtlre": _clock(True, False),
    b"x-?dtl!re": _clock(True, True),
}
