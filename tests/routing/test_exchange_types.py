from __future__ import annotations

from datetime import UTC

import pytest

from proxy.routing.bindings.exchange_types import COMPILERS, compile_binding
from proxy.routing.decision import Facts
from proxy.values import Value
from tests.routing.building import (
    VOID,
    Plain,
    exchange,
    facts,
    many,
    queues,
    refusal,
    table,
    to_exchange,
    to_queue,
)


def test_routing_key_of_an_open_binding_is_empty() -> None:
    text = "Forbidden declaration of binding's routing key"
    assert refusal(to_queue("q", {"x-nope": ""}, key="a")) == text
    assert refusal(to_exchange("e", key="#")) == text


@pytest.mark.parametrize(("key", "reached"), [("a", ["q1", "q2"]), ("b", ["q3"]), ("A", []), ("", ["q4"])])
def test_direct_exchange_compares_keys(key: str, reached: list[str]) -> None:
    bindings = [to_queue("q1", key="a"), to_queue("q2", key="a"), to_queue("q3", key="b"), to_queue("q4")]
    assert queues(exchange(*bindings, kind="direct"), facts(key)) == reached


def test_fanout_exchange_takes_everything() -> None:
    assert queues(exchange(to_queue("q1", key="a"), to_queue("q2"), kind="fanout"), facts("b")) == ["q1", "q2"]


@pytest.mark.parametrize(
    ("key", "reached"),
    [("a.b", ["all", "star", "tail"]), ("a", ["all", "tail"]), ("", ["all", "none"]), ("a.b.c", ["all", "tail"])],
)
def test_topic_exchange_matches_words(key: str, reached: list[str]) -> None:
    topics = {"all": "#", "star": "a.*", "tail": "a.#", "none": ""}
    bindings = [to_queue(name, key=topic) for name, topic in topics.items()]
    assert queues(exchange(*bindings, kind="topic"), facts(key)) == reached


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic"])
def test_arguments_have_no_effect_on_the_standard_types(kind: str) -> None:
    entries: dict[str, Plain] = {"x-match": "nonsense", "x-order": "x", "x-del-dest": "", "x-stop-ontrue": ""}
    assert queues(exchange(to_queue("q1", entries, "k"), to_queue("q2", {}, "k"), kind=kind), facts("k")) == [
        "q1",
        "q2",
    ]


_PAIR: dict[str, Plain] = {"a": 1, "b": "x"}


@pytest.mark.parametrize(
    ("match_type", "entries", "headers", "true"),
    [
        (None, {}, {}, True),
        ("any", {}, {"a": 1}, False),
        (None, _PAIR, {"a": 1, "b": "x", "c": 1}, True),
        ("all", _PAIR, {"a": 1}, False),
        ("any", _PAIR, {"a": 1}, True),
        ("any", _PAIR, {"a": 2}, False),
        ("all", {"a": VOID}, {"a": 5}, True),
        ("all", {"a": VOID}, {}, False),
        ("any", {"a": VOID, "b": 1}, {"a": "x"}, True),
        ("all", {"a": 1}, {"a": 1.0}, True),
        ("all", {"a": 1}, {"a": Value("T", 1)}, True),
        ("all", {"a": 1}, {"a": True}, False),
        ("all", {"a": "x"}, {"a": Value("x", b"x")}, True),
        ("all", {"a": many(1)}, {"a": many(1)}, True),
        ("all", {"a": many(1)}, {"a": many(1.0)}, False),
        ("all", {"a": table(k=1)}, {"a": table(k=1)}, True),
        ("all", {"a": Value("D", (1, 5))}, {"a": Value("D", (1, 5))}, True),
        ("all", {"x-own": 1}, {}, True),
        ("any", {"x-own": 1}, {"x-own": 1}, False),
        ("all-with-x", {"x-own": 1}, {}, False),
        ("all-with-x", {"x-own": 1}, {"x-own": 1}, True),
        ("any-with-x", {"x-own": 1, "a": 1}, {"x-own": 1}, True),
        ("all", {"X-own": 1}, {}, False),
    ],
)
def test_headers_exchange(
    match_type: str | None, entries: dict[str, Plain], headers: dict[str, Plain], true: bool
) -> None:
    declared: dict[str, Plain] = entries if match_type is None else {"x-match": match_type, **entries}
    made = exchange(to_queue("q", declared, key="ignored"), kind="headers")
    assert (queues(made, facts("k", headers)) == ["q"]) is true


def test_headers_exchange_looks_at_the_first_header_of_a_name() -> None:
    made = exchange(to_queue("q1", {"a": 1}), to_queue("q2", {"a": 2}), kind="headers")
    assert queues(made, Facts(b"", ((b"a", Value("I", 2)), (b"a", Value("I", 1))))) == ["q2"]


@pytest.mark.parametrize(
    ("headers", "reached"),
    [
        # x-match belongs to the binding: a message for all of A is one for any of B, too.
        ({"format": "pdf", "type": "report"}, ["A", "B"]),
        ({"format": "pdf"}, ["B"]),
        ({"format": "zip", "type": "log"}, ["B"]),
        ({"format": "zip", "type": "report"}, ["C"]),
    ],
)
def test_headers_walk_through(headers: dict[str, Plain], reached: list[str]) -> None:
    made = exchange(
        to_queue("A", {"x-match": "all", "format": "pdf", "type": "report"}),
        to_queue("B", {"x-match": "any", "format": "pdf", "type": "log"}),
        to_queue("C", {"x-match": "all", "format": "zip", "type": "report"}),
        kind="headers",
    )
    assert queues(made, facts(headers=headers)) == reached


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        ("ALL", 'value <<"ALL">>; expected all, any, all-with-x, or any-with-x'),
        ("", "value <<>>; expected all, any, all-with-x, or any-with-x"),
        (Value("S", b"\0"), "value <<0>>; expected all, any, all-with-x, or any-with-x"),
        (1, "type signedint (value 1); expected longstr"),
        (True, "type bool (value true); expected longstr"),
        (VOID, "type void (value undefined); expected longstr"),
        (many("any"), 'type array (value [{longstr,<<"any">>}]); expected longstr'),
        (Value("x", b"all"), 'type binary (value <<"all">>); expected longstr'),
    ],
)
def test_headers_exchange_refuses_other_match_types(odd: Plain, text: str) -> None:
    assert refusal(to_queue("q", {"x-match": odd}), "headers") == f"Invalid x-match field {text}"


def test_every_type_compiles() -> None:
    assert list(COMPILERS) == ["x-open", "fanout", "direct", "topic", "headers"]
    for kind in COMPILERS:
        assert compile_binding(kind, to_queue("q"), UTC).binding == to_queue("q")
