from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from proxy.routing.bindings.arguments import HEADER_KEYS, OPERATOR_KEYS
from proxy.routing.bindings.operators import KeyFits, Topic
from proxy.routing.decision import Facts
from proxy.routing.exchange import Exchange
from proxy.values import Value
from tests.routing.building import VOID, Plain, exchange, facts, many, queues, refusal, table, to_queue


def _unknown(key: str) -> str:
    return f"Unknown or invalid argument's key '<<\"{key}\">>'"


def _true(key: str, plain: Plain, seen: Facts, match_type: str = "all") -> bool:
    return queues(exchange(to_queue("q", {"x-match": match_type, key: plain})), seen) == ["q"]


_HEADERS: list[tuple[str, Plain, dict[str, Plain], bool, bool]] = [
    # key, value, headers, true under all, true under any
    ("x-?hkv= a", 5, {"a": 5.0}, True, True),
    ("x-?hkv= a", 5, {"a": "5"}, False, False),
    ("x-?hkv= a", 5, {}, False, False),
    ("x-?hkv= a", VOID, {"a": VOID}, True, True),
    ("x-?hkv= a", VOID, {"a": 1}, False, False),
    ("x-?hkv!= a", 5, {"a": 6}, True, True),
    ("x-?hkv!= a", 5, {"a": many(5)}, True, True),
    ("x-?hkv!= a", 5, {}, False, False),
    ("x-?hkv< a", 5, {"a": 4}, True, True),
    ("x-?hkv<= a", 5.0, {"a": 5}, True, True),
    ("x-?hkv>= a", 5, {"a": Value("T", 5)}, True, True),
    ("x-?hkv> a", 5, {"a": "9"}, False, False),
    ("x-?hkv> a", 5, {}, False, False),
    ("x-?hkvre a", "^r", {"a": "red"}, True, True),
    ("x-?hkvre a", "^r", {"a": Value("x", b"red")}, False, False),
    ("x-?hkvre a", "^r", {}, False, False),
    ("x-?hkv!re a", "^r", {"a": "blue"}, True, True),
    ("x-?hkv!re a", "^r", {"a": 1}, False, False),
    ("x-?hkv!re a", "^r", {}, False, False),
    ("x-?hk?v= a", 5, {}, True, False),
    ("x-?hk?v= a", 5, {"a": 6}, False, False),
    ("x-?hk?v!= a", 5, {}, True, False),
    ("x-?hk?v> a", 5, {}, True, False),
    ("x-?hk?vre a", "x", {}, True, False),
    ("x-?hk?v!re a", "x", {}, True, False),
    ("x-?hkex", "a", {"a": VOID}, True, True),
    ("x-?hkex", "a", {"A": 1}, False, False),
    ("x-?hk!ex", "a", {}, True, True),
    ("x-?hk!ex", "a", {"a": VOID}, False, False),
    ("x-?hkexs", "a", {"a": ""}, True, True),
    ("x-?hkexs", "a", {}, False, False),
    ("x-?hkex!s", "a", {"a": 1}, True, True),
    ("x-?hkex!s", "a", {}, False, False),
    ("a", 5, {"a": 5}, True, True),
    ("X-foo", 5, {"X-foo": 5}, True, True),
    ("xfoo", 5, {"xfoo": 5}, True, True),
    ("x-?hkv= two words", 5, {"two words": 5}, True, True),
    ("x-?hkv=  leading blank", 5, {" leading blank": 5}, True, True),
    ("x-?hkv= x-own", 5, {"x-own": 5}, True, True),
    ("x-?hkv= é", 5, {"é": 5}, True, True),
]


@pytest.mark.parametrize(("key", "plain", "headers", "under_all", "under_any"), _HEADERS)
def test_header_operators(key: str, plain: Plain, headers: dict[str, Plain], under_all: bool, under_any: bool) -> None:
    assert _true(key, plain, facts(headers=headers)) is under_all
    assert _true(key, plain, facts(headers=headers), "any") is under_any


_KEYS: list[tuple[str, str, str, bool]] = [
    # key, value, routing key, true
    ("x-?rk=", "a", "a", True),
    ("x-?rk=", "", "", True),
    ("x-?rk=", "a", "A", False),
    ("x-?rk!=", "a", "b", True),
    ("x-?rk!=", "", "", False),
    ("x-?rkre", "^a", "ab", True),
    ("x-?rk!re", "^a", "ab", False),
    ("x-?rkta", "a.*", "a.b", True),
    ("x-?rkta", "a.*", "A.b", False),
    ("x-?rk!ta", "a.*", "A.b", True),
    ("x-?rktaci", "a.*", "A.b", True),
    ("x-?rk!taci", "a.*", "A.b", False),
    ("x-?rkta", "a.b", "a.b", True),
]


@pytest.mark.parametrize(("key", "text", "routing_key", "true"), _KEYS)
@pytest.mark.parametrize("match_type", ["all", "any"])
def test_routing_key_operators(key: str, text: str, routing_key: str, true: bool, match_type: str) -> None:
    assert _true(key, text, facts(routing_key), match_type) is true


_PROPERTIES: list[tuple[str, Plain, dict[str, str | int], bool]] = [
    # key, value, properties, true
    ("x-?prex", "type", {"type": ""}, True),
    ("x-?prex", "type", {}, False),
    ("x-?pr!ex", "priority", {}, True),
    ("x-?pr!ex", "priority", {"priority": 0}, False),
    ("x-?pr= type", "a", {"type": "a"}, True),
    ("x-?pr= type", "a", {}, False),
    ("x-?pr!= type", "a", {"type": "b"}, True),
    ("x-?pr!= type", "a", {}, False),
    ("x-?prre type", "^a", {"type": "ab"}, True),
    ("x-?prre type", "^a", {}, False),
    ("x-?pr!re type", "^a", {"type": "b"}, True),
    ("x-?pr!re type", "^a", {}, False),
    ("x-?pr= priority", Value("L", 3), {"priority": 3}, True),
    ("x-?pr!= priority", 3, {"priority": 4}, True),
    ("x-?pr!= priority", 3, {}, False),
    ("x-?pr< timestamp", Value("T", 5), {"timestamp": 4}, True),
    ("x-?pr<= delivery_mode", 1, {"delivery_mode": 2}, False),
    ("x-?pr>= priority", 3, {"priority": 3}, True),
    ("x-?pr> priority", 3, {}, False),
    ("x-?pr= expiration", 5, {"expiration": "005"}, True),
    ("x-?pr= expiration", 5, {"expiration": "+5"}, True),
    ("x-?pr< expiration", 100, {"expiration": "9"}, True),
    ("x-?pr!= expiration", 5, {"expiration": "x"}, False),
]


@pytest.mark.parametrize(("key", "plain", "properties", "true"), _PROPERTIES)
@pytest.mark.parametrize("match_type", ["all", "any", "eq", "set"])
def test_property_operators(
    key: str, plain: Plain, properties: dict[str, str | int], true: bool, match_type: str
) -> None:
    assert _true(key, plain, facts(properties=properties), match_type) is true


@pytest.mark.parametrize(
    ("key", "pattern", "true"),
    [
        ("x-?dture", "^20261121 08", True),
        ("x-?dture", "^20261121 10", False),
        ("x-?dtu!re", "^20261121 10", True),
        ("x-?dtlre", "^20261121 10.* 6 47$", True),
        ("x-?dtl!re", "^20261121 10", False),
    ],
)
def test_clock_operators_read_universal_or_local_time(key: str, pattern: str, true: bool) -> None:
    made = Exchange(b"xo", "x-open", local_time=timezone(timedelta(hours=2)))
    made.bind(to_queue("q", {key: pattern}))
    assert (queues(made) == ["q"]) is true


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        *((key, "a") for key in ("x-", "x-foo", "x-?", "x-?hkv", "x-?hkv=", "x-?hkv= ", "x-?hkv=a", "x-?hkv == a")),
        *((key, "a") for key in ("x-?hkv== a", "x-?HKEX", "x-?hkexz", "x-?hk!exs", "x-?hkex ", "x-?hkvre", "x-?hk?ex")),
        *((key, "a") for key in ("x-?rk", "x-?rk<", "x-?rk= a", "x-?rkTA", "x-?rkci", "x-?dtre", "x-?dture ")),
        *(("x-?hkex", odd) for odd in ("", 1, True, VOID, Value("x", b"a"), table())),
        *(("x-?hk!ex", odd) for odd in ("", 1, Value("S", b"\xff"))),
        *(("x-?hkvre a", odd) for odd in (1, VOID, Value("x", b"a"))),
        *((key, odd) for key in ("x-?rk=", "x-?rk!=", "x-?rkre", "x-?rkta", "x-?dture") for odd in (1, VOID)),
        *(("x-?prex", odd) for odd in (True, VOID, 1.0, Value("x", b"type"))),
        *(("x-?pr= type", odd) for odd in (True, VOID, 1.0)),
        *(("x-?pr= priority", odd) for odd in (True, 1.0)),
    ],
)
def test_unknown_keys_and_values_of_a_wrong_type_are_refused(key: str, plain: Plain) -> None:
    assert refusal(to_queue("q", {key: plain})) == _unknown(key)


@pytest.mark.parametrize("key", ["x-?hkv= \xff", "x-?hkv> \xc3"])
def test_name_of_a_header_begins_with_a_character(key: str) -> None:
    binding = to_queue("q")
    raw = ((key.encode("latin-1"), Value("I", 1)),)
    assert refusal(replace(binding, arguments=raw)).startswith("Unknown or invalid argument's key '<<")


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        *(("x-?prex", odd) for odd in ("nope", "", "headers", "content-type", 1)),
        *(
            (key, "a")
            for key in ("x-?pr", "x-?pr=", "x-?pr= ", "x-?pr=type", "x-?pr= nope", "x-?pr= headers", "x-?private")
        ),
        *((key, "a") for key in ("x-?pr== type", "x-?pr< type", "x-?pr= type ", "x-?prex type")),
        *((key, "1") for key in ("x-?pr= priority", "x-?prre priority", "x-?pr= expiration")),
        *((key, 1) for key in ("x-?pr= type", "x-?prre type", "x-?pr<> priority", "x-?prre priority")),
    ],
)
def test_property_operators_that_make_no_sense_are_refused(key: str, plain: Plain) -> None:
    assert refusal(to_queue("q", {key: plain})) == "Invalid property match operator"


@pytest.mark.parametrize("odd", ["5", "", True, VOID, Value("x", b"5"), table()])
@pytest.mark.parametrize("key", ["x-?hkv< a", "x-?hkv<= a", "x-?hkv>= a", "x-?hk?v> a"])
def test_ordering_needs_a_number(key: str, odd: Plain) -> None:
    text = "Type's value of comparison's operators < and > must be numeric"
    assert refusal(to_queue("q", {key: odd})) == text


@pytest.mark.parametrize("key", ["x-?rkta", "x-?rk!ta", "x-?rktaci", "x-?rk!taci"])
@pytest.mark.parametrize("topic", ["", "a(b", "[z", "a)"])
def test_topics_that_were_refused_stay_refused(key: str, topic: str) -> None:
    assert refusal(to_queue("q", {key: topic})) == "Invalid AMQP topic"


def test_topic_without_wildcards_is_found_like_an_equal_key() -> None:
    places = [KeyFits(b"", VOID, Topic(topic)).index_key for topic in (b"a.b", b"a.*", b"a#")]
    assert places == [("routing key", "", b"a.b"), ("topic", "", b"a.*"), ("topic", "", b"a#")]


def test_tables_hold_every_operator_of_the_specification() -> None:
    assert len(HEADER_KEYS) == 16
    assert len(OPERATOR_KEYS) == 24
