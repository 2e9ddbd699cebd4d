from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.routing.bindings.compiled import CompiledBinding
from proxy.routing.decision import Facts
from proxy.routing.exchange import Exchange
from proxy.rules.lint.satisfiability import always_true, unsatisfiable_reason
from tests.routing.building import Plain, message, to_queue
from tests.routing.random_rules import BINDINGS, bind_valid, messages


def compiled(arguments: dict[str, Plain], kind: str = "x-open", key: str = "") -> CompiledBinding:
    exchange = Exchange(b"xo", kind)
    exchange.bind(to_queue("q", arguments, key))
    (entry,) = exchange.entries
    return entry


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-?hkv= a": 1, "x-?hkv> a": 5}, "x-?hkv= a and x-?hkv> a contradict each other"),
        ({"x-?hkv= a": 1, "a": "1"}, "a and x-?hkv= a contradict each other"),
        ({"x-?hkv= a": "x", "x-?hkv!= a": "x"}, "x-?hkv!= a and x-?hkv= a contradict each other"),
        ({"x-?hkv= a": "abc", "x-?hkvre a": "^b"}, "x-?hkv= a and x-?hkvre a contradict each other"),
        ({"x-?hkv= a": 1, "x-?hkexs": "a"}, "x-?hkexs and x-?hkv= a contradict each other"),
        ({"x-?hkv= a": 1, "x-?hk!ex": "a"}, "x-?hk!ex and x-?hkv= a contradict each other"),
        ({"x-?hkv> a": 5, "x-?hkv< a": 3}, "x-?hkv< a and x-?hkv> a contradict each other"),
        ({"x-?hkv>= a": 5, "x-?hkv< a": 5}, "x-?hkv< a and x-?hkv>= a contradict each other"),
        ({"x-?hkv> a": 5, "x-?hkvre a": "5"}, "x-?hkv> a and x-?hkvre a contradict each other"),
        ({"x-?hkexb": "a", "x-?hkexn": "a"}, "x-?hkexb and x-?hkexn contradict each other"),
        ({"x-?hkexn": "a", "x-?hkex!n": "a"}, "x-?hkex!n and x-?hkexn contradict each other"),
        ({"x-?hkv= a": 1, "x-?hk?v= a": 2}, "x-?hk?v= a and x-?hkv= a contradict each other"),
        ({"x-?rk=": "a.b", "x-?rkta": "b.#"}, "x-?rk= and x-?rkta contradict each other"),
        ({"x-?rkta": "a.#", "x-?rk!ta": "a.#"}, "x-?rk!ta and x-?rkta contradict each other"),
        ({"x-?dture": "^2", "x-?dtu!re": "^2"}, "x-?dtu!re and x-?dture contradict each other"),
        ({"x-?prex": "type", "x-?pr!ex": "type"}, "x-?pr!ex and x-?prex contradict each other"),
        ({"x-?pr= type": "a", "x-?prre type": "b"}, "x-?pr= type and x-?prre type contradict each other"),
        ({"x-?pr> priority": 4, "x-?pr< priority": 5}, "x-?pr< priority and x-?pr> priority contradict each other"),
        ({"x-?pr> priority": 255}, "no value satisfies x-?pr> priority"),
        ({"x-match": "set 2", "a": 1}, "2 header operators must match, but there are only 1"),
        ({"x-match": "eq", "a": 1, "x-?rk=": "a", "x-?rk!=": "a"}, "x-?rk!= and x-?rk= contradict each other"),
        ({"x-match": "any"}, "x-match: any requires at least one operator"),
        ({"x-match": "any", "x-?pr> priority": 255}, "no operator can match"),
    ],
)
def test_a_contradiction_is_reported(arguments: dict[str, Plain], reason: str) -> None:
    assert unsatisfiable_reason(compiled(arguments)) == reason


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-?hkv= a": 1, "x-?hkv= b": 2},
        {"x-?hkv= a": 1, "x-?hkv>= a": 1, "x-?hkexi": "a"},
        {"x-?hkv> a": 5, "x-?hkv< a": 6},
        {"x-?hkv>= a": 5, "x-?hkv<= a": 5},
        {"x-?hk?v= a": 1, "x-?hk!ex": "a"},
        {"x-?hk?v> a": 5, "x-?hk?v< a": 3},
        {"x-?hkv= a": 1.0, "x-?hkexi": "a"},
        {"x-match": "any", "x-?hkv> a": 5, "x-?hkv< a": 3},
        {"x-match": "set 2", "x-?hkv> a": 5, "x-?hkv< a": 3},
        {"x-match": "eq", "x-?hkv> a": 5, "x-?hkv< a": 3},
        {"x-match": "set 1", "a": 1},
        {"x-?rk!=": "a", "x-?rkta": "#"},
        {"x-?pr> priority": 254},
        {"x-?pr> expiration": 255},
    ],
)
def test_satisfiable_conditions_are_not_reported(arguments: dict[str, Plain]) -> None:
    assert unsatisfiable_reason(compiled(arguments)) is None


@pytest.mark.parametrize(
    ("kind", "key", "arguments", "expected"),
    [
        ("x-open", "", {}, True),
        ("x-open", "", {"x-?rkta": "#"}, True),
        ("x-open", "", {"x-match": "any"}, False),
        ("x-open", "", {"x-?hk?v= a": 1}, False),
        ("fanout", "k", {}, True),
        ("topic", "#", {}, True),
        ("topic", "a.#", {}, False),
        ("direct", "#", {}, False),
    ],
)
def test_bindings_that_always_match_are_recognized(
    kind: str, key: str, arguments: dict[str, Plain], expected: bool
) -> None:
    assert always_true(compiled(arguments, kind, key)) is expected


@pytest.mark.parametrize("kind", sorted(BINDINGS))
@settings(max_examples=150)
@given(data=st.data())
def test_predictions_of_never_and_always_matching_hold(kind: str, data: st.DataObject) -> None:
    exchange = Exchange(b"xo", kind)
    bind_valid(exchange, data.draw(BINDINGS[kind]))
    facts: list[Facts] = data.draw(st.lists(messages, min_size=1, max_size=6))
    for entry in exchange.entries:
        truths = {entry.truth(message(seen)) for seen in facts}
        assert unsatisfiable_reason(entry) is None or truths == {False}
        assert not always_true(entry) or truths == {True}
