"""The operators of bindings of open exchanges: their names, what their values are, what they do.

What they mean is in package `routing`; this table is for messages, lints, the documentation and the schema for editors.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from proxy.routing.bindings.arguments import GREATEST_ORDER, LEAST_ORDER
from proxy.rules.message import PROPERTIES

JsonSchema = dict[str, Any]


class ValueKind(NamedTuple):
    """What the value of an operator is: in words, and as JSON Schema."""

    expected: str
    schema: JsonSchema


class OperatorGroup(NamedTuple):
    """Operators that differ by one letter or word.

    Args:
        names: what keys begin with.
        value: what stands under the key.
        help: what they do, in one line.
        named: what the name after the operator and a blank is of, empty where there is none.
    """

    names: tuple[str, ...]
    value: ValueKind
    help: str
    named: str = ""


_TEXT: JsonSchema = {"type": "string"}
_FILLED: JsonSchema = {"type": "string", "minLength": 1}
_ANY = ValueKind("a value of another type", {})
_NUMBER = ValueKind("a value of another type", {"anyOf": [{"type": "number"}, _TEXT]})
_STRING = ValueKind("a text", _TEXT)
_REGEX = ValueKind("a regular expression (text)", {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]})
_HEADER = ValueKind("the name of a header (text, not empty)", _FILLED)
_PROPERTY = ValueKind(f"the name of a property: {', '.join(PROPERTIES)}", {"enum": list(PROPERTIES)})
_NAMES = ValueKind(
    "a name (text, not empty) or a list of them", {"anyOf": [_FILLED, {"type": "array", "items": _FILLED}]}
)
_NOTHING = ValueKind('an empty text, ""', {"const": ""})
_ORDER = ValueKind(
    f"a whole number from {LEAST_ORDER} to {GREATEST_ORDER}",
    {"type": "integer", "minimum": LEAST_ORDER, "maximum": GREATEST_ORDER},
)


def _both(*verbs: str) -> tuple[str, ...]:
    return tuple(f"x-{verb}-{when}" for verb in verbs for when in ("ontrue", "onfalse"))


def _tests() -> tuple[OperatorGroup, ...]:
    groups: list[OperatorGroup] = []
    for form, absent in (("", ""), ("?", "is absent, or ")):
        head = f"x-?hk{form}v"
        groups += (
            OperatorGroup((head + "=",), _ANY, f"the header {absent}is there and equal", "header"),
            OperatorGroup((head + "!=",), _ANY, f"the header {absent}is there and different", "header"),
            OperatorGroup(
                tuple(head + sign for sign in ("<", "<=", ">=", ">")),
                _NUMBER,
                f"the header {absent}is a number or timestamp and compares so",
                "header",
            ),
            OperatorGroup((head + "re",), _REGEX, f"the header {absent}is a text that matches", "header"),
            OperatorGroup((head + "!re",), _REGEX, f"the header {absent}is a text that does not match", "header"),
        )
    return tuple(groups)


GROUPS = (
    *_tests(),
    OperatorGroup(("x-?hkex",), _HEADER, "the header is there"),
    OperatorGroup(("x-?hk!ex",), _HEADER, "the header is absent"),
    OperatorGroup(tuple(f"x-?hkex{letter}" for letter in "snbia"), _HEADER, "the header is there and of that type"),
    OperatorGroup(tuple(f"x-?hkex!{letter}" for letter in "snbia"), _HEADER, "the header is there, of another type"),
    OperatorGroup(("x-?rk=", "x-?rk!="), _STRING, "the routing key is equal, different"),
    OperatorGroup(("x-?rkre", "x-?rk!re"), _REGEX, "the routing key matches, does not match"),
    OperatorGroup(
        ("x-?rkta", "x-?rk!ta"), _STRING, "the routing key fits the topic, does not: * one word, # any number"
    ),
    OperatorGroup(("x-?rktaci", "x-?rk!taci"), _STRING, "the same, upper and lower case alike"),
    OperatorGroup(("x-?prex", "x-?pr!ex"), _PROPERTY, "the property is set, is not set"),
    OperatorGroup(("x-?pr=", "x-?pr!="), _ANY, "the property is set and equal, different", "property"),
    OperatorGroup(
        ("x-?pr<", "x-?pr<=", "x-?pr>=", "x-?pr>"), _NUMBER, "the property is set and compares so", "property"
    ),
    OperatorGroup(("x-?prre", "x-?pr!re"), _REGEX, "the property is set and matches, does not match", "property"),
    OperatorGroup(("x-?dture", "x-?dtu!re"), _REGEX, "universal time as 20261121 080000 6 47 matches, does not"),
    OperatorGroup(("x-?dtlre", "x-?dtl!re"), _REGEX, "local time matches, does not; see timezone"),
    OperatorGroup(_both("addq", "delq"), _NAMES, "adds, removes queues"),
    OperatorGroup(_both("adde", "dele"), _NAMES, "adds, removes exchanges"),
    OperatorGroup(_both("addqre", "addq!re"), _REGEX, "adds all queues whose names match, do not match"),
    OperatorGroup(_both("add1qre", "add1q!re"), _REGEX, "adds one of those queues, picked at random"),
    OperatorGroup(_both("delqre", "delq!re"), _REGEX, "removes queues that match, do not match"),
    OperatorGroup(_both("goto"), _ORDER, "skips every following binding of a lower order"),
    OperatorGroup(_both("stop"), _NOTHING, "ends the visit of this exchange"),
    OperatorGroup(
        _both(*(f"msg-{act}{kind}" for act in ("add", "del") for kind in ("q", "e", "qre"))),
        _NOTHING,
        "lets the producer's headers of that name through",
    ),
    OperatorGroup(("x-match",), _STRING, "all, any, eq, set or set N; all-with-x and any-with-x for type headers"),
    OperatorGroup(("x-order",), _ORDER, "when the binding is visited: lower first, 10000 where none is given"),
    OperatorGroup(("x-del-dest",), _NOTHING, "removes the binding's own destination, chosen earlier too"),
    OperatorGroup(("x-msg-destq-rk",), _NOTHING, "the queue named by the routing key takes the destination's place"),
)

BY_NAME = {name: group for group in GROUPS for name in group.names}
#: Every operator of open exchanges, without the name after its blank.
OPERATORS = tuple(BY_NAME)


def arguments_schema() -> JsonSchema:
    """The JSON Schema of a binding's arguments: each operator with its value and one line on what it does."""
    plain: JsonSchema = {}
    named: JsonSchema = {}
    for name, group in BY_NAME.items():
        described = {**group.value.schema, "description": group.help}
        if group.named:
            named[f"^{re.escape(name)} ."] = {**described, "description": f"{group.help}; {name} NAME"}
        else:
            plain[name] = described
    return {"properties": plain, "patternProperties": named}
