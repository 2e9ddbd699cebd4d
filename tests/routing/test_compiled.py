from __future__ import annotations

from datetime import UTC

import pytest

from proxy.routing.bindings.compiled import CompiledBinding
from proxy.routing.bindings.exchange_types import compile_open
from proxy.routing.bindings.operators import ALL_HEADERS, CLOCK, HEADER, PROPERTY, QUEUE_NAMES, ROUTING_KEY, FactName
from proxy.routing.bindings.producer_routes import PATTERN_ROUTES
from proxy.values import EXCHANGE, QUEUE, Destination
from tests.routing.building import Plain, many, to_queue

_REGEXES = {(HEADER, name) for name in PATTERN_ROUTES}


def _compiled(entries: dict[str, Plain]) -> CompiledBinding:
    return compile_open(to_queue("q", entries), UTC)


@pytest.mark.parametrize(
    ("entries", "plain", "idle"),
    [
        ({}, True, True),
        ({"x-?hkv= a": 1, "x-order": 100}, True, True),
        ({"x-msg-destq-rk": ""}, False, True),
        ({"x-addq-ontrue": "r"}, False, True),
        ({"x-stop-ontrue": ""}, False, True),
        ({"x-goto-ontrue": 200}, False, True),
        ({"x-del-dest": ""}, False, True),
        ({"x-addq-onfalse": "r"}, False, False),
        ({"x-goto-onfalse": 200}, False, False),
        ({"x-stop-onfalse": ""}, False, False),
        # A regex route or a grant makes it look at the producer's regexes, whatever it evaluates to.
        ({"x-addqre-ontrue": "r"}, False, False),
        ({"x-delqre-ontrue": "r"}, False, False),
        ({"x-msg-adde-ontrue": ""}, False, False),
    ],
)
def test_what_a_visit_can_do(entries: dict[str, Plain], plain: bool, idle: bool) -> None:
    compiled = _compiled(entries)
    assert compiled.plain is plain
    assert compiled.idle_when_false is idle


@pytest.mark.parametrize(
    ("entries", "fact_names"),
    [
        ({}, set()),
        ({"x-?hkv= a": 1, "x-?hkex": "b", "c": 1}, {(HEADER, b"a"), (HEADER, b"b"), (HEADER, b"c")}),
        ({"x-?rk=": "k"}, {(ROUTING_KEY, "")}),
        ({"x-?prex": "type", "x-?pr= priority": 1}, {(PROPERTY, "type"), (PROPERTY, "priority")}),
        ({"x-?dture": "."}, {(CLOCK, "")}),
        ({"x-match": "eq", "a": 1}, {(HEADER, b"a"), ALL_HEADERS}),
        ({"x-match": "set", "a": 1}, {(HEADER, b"a")}),
        ({"x-msg-destq-rk": ""}, {(ROUTING_KEY, "")}),
        ({"x-addq-ontrue": "r", "x-order": 100, "x-stop-ontrue": ""}, set()),
        ({"x-addqre-ontrue": "r"}, _REGEXES | {QUEUE_NAMES}),
        ({"x-delqre-ontrue": "r"}, _REGEXES),
        ({"x-msg-addq-ontrue": ""}, _REGEXES | {(HEADER, b"x-addq-ontrue")}),
        ({"x-msg-addqre-onfalse": ""}, _REGEXES | {(HEADER, b"x-addq-onfalse"), QUEUE_NAMES}),
    ],
)
def test_needs_are_what_can_change_it(entries: dict[str, Plain], fact_names: set[FactName]) -> None:
    assert _compiled(entries).fact_names == fact_names


@pytest.mark.parametrize(
    ("entries", "more"),
    [
        ({}, set()),
        ({"x-addq-ontrue": many("r", "s"), "x-adde-onfalse": "e"}, {(QUEUE, b"r"), (QUEUE, b"s"), (EXCHANGE, b"e")}),
        ({"x-delq-ontrue": "r", "x-addqre-ontrue": "t"}, set()),
    ],
)
def test_destinations_are_those_that_it_names(entries: dict[str, Plain], more: set[Destination]) -> None:
    assert _compiled(entries).destinations == {(QUEUE, b"q")} | more


@pytest.mark.parametrize(
    ("grant", "lets"),
    [
        ("x-msg-adde-ontrue", True),
        ("x-msg-adde-onfalse", True),
        ("x-msg-addqre-ontrue", False),
        ("x-msg-dele-ontrue", False),
    ],
)
def test_only_a_grant_to_add_exchanges_lets_messages_name_some(grant: str, lets: bool) -> None:
    assert _compiled({grant: ""}).lets_producer_add_exchanges is lets
