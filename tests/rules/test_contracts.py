"""Contracts of exchanges in rules files: `require` and `violations`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oxproxy.cli.check import check_files
from oxproxy.routing.decision import Facts, QueueNames
from oxproxy.rules.explain import as_json, as_text, explain
from tests.routing.building import NOW, no_draw
from tests.rules.loading import faults, load, message_request

RULES = """
    exchanges:
      - name: strict
        require: {tenant is: string, property message_id exists: true, amount missing or >=: 1}
        bindings: [{queue: all}, {queue: big, when: {amount >=: 1000}}]
      - name: lenient
        require: {tenant is: string, kind in: [a, b]}
        violations: observe
        arguments: {max-payload-size: 10, min-payload-size-silent: 2}
        bindings: [{queue: all}, {exchange: strict, when: {onward: true}}]
      - {name: kinds, type: headers, require: {tenant is: string}, bindings: [{queue: all}]}
"""
TENANT = "headers: {tenant: a}, properties: {message_id: m}"


@pytest.mark.parametrize(
    ("publish", "expect"),
    [
        ("exchange: strict, " + TENANT, "queues: [all]"),
        (
            "exchange: strict, headers: {tenant: a, amount: 0}, properties: {message_id: m}",
            "violates: [amount missing or >=]",
        ),
        ("exchange: strict, headers: {tenant: 5}", "violates: [tenant is]"),
        ("exchange: strict", "outcome: rejected"),
        ("exchange: strict", "error: 'Contract violated: tenant is: got nothing, expected string'"),
        ("exchange: lenient, body_size: 5, headers: {tenant: a, kind: a}", "queues: [all]"),
        ("exchange: lenient, body_size: 5", "queues: [all], violates: [tenant is, kind in]"),
        (
            "exchange: lenient, body_size: 11, headers: {tenant: a, kind: a}",
            "queues: [all], violates: [max-payload-size]",
        ),
        ("exchange: lenient, body_size: 1", "outcome: filtered"),
        ("exchange: lenient, body_size: 5, headers: {tenant: 5, kind: a, onward: true}", "violates: [tenant is]"),
        ("exchange: kinds, headers: {tenant: a}", "queues: [all]"),
        ("exchange: kinds", "violates: [tenant is]"),
    ],
)
def test_the_result_of_a_message(publish: str, expect: str) -> None:
    loaded = load(f"{RULES}\n    tests: [{{name: t, publish: {{{publish}}}, expect: {{{expect}}}}}]")
    assert [str(failure) for failure in loaded.failures()] == []


@pytest.mark.parametrize(
    ("expect", "difference"),
    [
        ("queues: [all]", "violates: got kind in, tenant is, which was not expected"),
        ("queues: [all], violates: [tenant is, kind in, other]", "violates: expected other as well"),
    ],
)
def test_a_test_states_every_violation(expect: str, difference: str) -> None:
    test = f"{{name: t, publish: {{exchange: lenient, body_size: 5}}, expect: {{{expect}}}}}"
    (failure,) = load(f"{RULES}\n    tests: [{test}]").failures()
    assert difference in str(failure)


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("require: [a]", "require: got a list, expected a mapping such as {tenant is: string}"),
        ("require: {amount>=: 5}", 'require["amount>="]: got "amount>=", did you mean "amount >="?'),
        ("require: {amount >=: 1k}", 'got "1k", expected a number'),
        ("require: {a matches: '('}", "which is not a regular expression"),
        ("require: {a is: text}", "did you mean string?"),
        ("violations: ignore", 'violations: got the string "ignore", expected one of reject, observe'),
    ],
)
def test_mistakes_are_errors_with_their_line(key: str, fault: str) -> None:
    (reported,) = faults(f"exchanges:\n  - {{name: e, {key}, bindings: [{{queue: q}}]}}\n")
    assert reported.startswith("a.yaml:2:")
    assert fault in reported


def test_a_contract_that_no_message_satisfies_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("exchanges:\n  - name: e\n    require: {a >: 5, a <: 5}\n    bindings: [{queue: q}]\n")
    (warning,) = check_files([path], {}).warnings
    assert str(warning).endswith(
        "3:5: exchanges[0].require: warning: no message satisfies this contract: a > and a < contradict each other"
    )


def test_explanations_show_each_condition() -> None:
    request = message_request(b"{exchange: lenient, headers: {tenant: 5, kind: a}, body_size: 11}", "m")
    explanation = explain(load(RULES), request, 0.0)
    shown = as_text(explanation)
    assert "filter max-payload-size: Max size payload hit. Only observed" in shown
    assert "require mismatch  tenant is: string, got 5, observed" in shown
    assert 'require match     kind in: ["a", "b"], got "a"' in shown
    assert "violates  max-payload-size, tenant is" in shown
    answer = json.loads(json.dumps(as_json(explanation)))
    assert answer["violates"] == ["max-payload-size", "tenant is"]
    assert answer["walk"][0]["contract"][0] == {
        "condition": "tenant is",
        "expected": "string",
        "verdict": "mismatch",
        "seen": 5,
        "violated": True,
        "observed": True,
    }
    rejected = as_text(explain(load(RULES), message_request(b"{exchange: strict}", "m"), 0.0))
    assert "require absent    tenant is: string. The channel is closed" in rejected
    assert "no binding" not in rejected


def test_the_conditions_are_facts_of_the_decision() -> None:
    interest = load(RULES).routers["/"].interest(b"strict")
    assert interest.headers == frozenset((b"tenant", b"amount"))
    assert interest.properties == {"message_id"}


@pytest.mark.parametrize(("key", "spent"), [(b"a1", ()), (b"a" * 4000, ("rules",))])
def test_searches_of_a_contract_are_charged_to_the_rules(key: bytes, spent: tuple[str, ...]) -> None:
    rules = r"exchanges: [{name: e, require: {key matches: '(a+)+\d$'}, violations: observe, bindings: [{queue: q}]}]"
    decision = load(rules).routers["/"].decide(b"e", Facts(key), NOW, QueueNames(), no_draw, regex_budget=10_000)
    assert (decision.queues, decision.spent_budgets) == ((b"q",), spent)
