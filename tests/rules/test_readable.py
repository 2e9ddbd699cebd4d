"""Rules files in the readable spelling: the compiled bindings, errors with their lines, and how they are shown."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import indent

import jsonschema
import pytest
import yaml

from oxproxy.cli.check import check_files
from oxproxy.cli.schema import json_schema
from oxproxy.rules.explain import as_json, as_text, explain
from oxproxy.rules.loader import LoadedRules
from oxproxy.rules.overview import overview
from oxproxy.rules.schema import RulesModel
from tests.rules.loading import faults, load, message_request

READABLE = """\
- {queue: all}
- {queue: big, when: {amount >=: 1000, country in: [de, at]}}
- queue: late
  match: any
  when: {key topic: "#.late", property type matches: (?i)^late}
  then: {add queue: archive, stop: true}
  else: {goto: 5000}
  order: 200
- {queue: new, when: {property message_id share: [0, 5], a exists: true, b exists: true}, queue from key: true}
- {queue: other, when: {country not in: [de, at], tenant is: string, tenant missing or =: acme}}
"""
ARGUMENTS = """\
- {queue: all}
- {queue: big, arguments: {"x-?hkv>= amount": 1000, "x-?hkvin country": [de, at]}}
- queue: late
  arguments:
    x-match: any
    x-?rkta: "#.late"
    x-?prre type: (?i)^late
    x-addq-ontrue: archive
    x-stop-ontrue: ""
    x-goto-onfalse: 5000
    x-order: 200
- {queue: new, arguments: {"x-?pr% message_id": [0, 5], "x-?hkex": [a, b], x-msg-destq-rk: ""}}
- {queue: other, arguments: {"x-?hkv!= country": [de, at], "x-?hkexs": tenant, "x-?hk?v= tenant": acme}}
"""


def rules(bindings: str, kind: str = "x-open") -> str:
    return f"exchanges:\n  - name: e\n    type: {kind}\n    bindings:\n{indent(bindings, '      ')}\n"


def ids(loaded: LoadedRules) -> list[object]:
    return [(binding.id, binding.identity) for binding in loaded.rules.vhosts["/"].exchanges[0].bindings]


def test_both_spellings_are_the_same_bindings_and_have_the_same_ids() -> None:
    assert ids(load(rules(READABLE))) == ids(load(rules(ARGUMENTS)))


def test_a_binding_is_written_in_one_spelling() -> None:
    assert faults(rules("- {queue: a, arguments: {b: 1}, when: {c: 2}}")) == [
        "a.yaml:5:39: exchanges[0].bindings[0]: got both arguments and when, expected one of the two spellings; "
        "`oxproxy rules convert` translates between them"
    ]


def test_other_exchange_types_keep_arguments_and_routing_keys() -> None:
    assert faults(rules("- {queue: a, when: {b: 1}}", "headers")) == [
        "a.yaml:5:20: exchanges[0].bindings[0]: got a binding of type headers with when, match, then, else or order, "
        "expected arguments: {NAME: VALUE}"
    ]
    assert "expected routing_key:" in faults(rules("- {queue: a, order: 200}", "topic"))[0]


@pytest.mark.parametrize(
    ("binding", "fault"),
    [
        ("when: {amount>=: 5}", '5:27: exchanges[0].bindings[0].when["amount>="]: got "amount>=", did you mean'),
        (
            "when: {amount >=: 1k}",
            "when[\"amount >=\"]: Type's value of comparison's operators < and > must be numeric: ",
        ),
        ("when: {amount >=: 1k}", 'got "1k", expected a number'),
        ("when: {a: [1, x]}", 'got a list, expected a single value; did you mean "a in": [1, x]?'),
        ("match: any, when: {a !=: [1]}", 'did you mean "a not in": [1]?'),
        ("when: {key topic: ''}", 'when["key topic"]: Invalid AMQP topic: got the string ""'),
        ("when: {a matches: '('}", 'when["a matches"]: got "(", which is not a regular expression'),
        ("when: {property priority: high}", 'priority is an integer, got the string "high", expected an integer'),
        ("when: {property type >: 1}", "type is a string, got the operator >, expected an operator for a string"),
        ("when: {a share: [5, 1]}", "expected two percentages from 0 to 100"),
        ("when: {utc matches: [a, b]}", 'when["utc matches"]: Invalid use of list type'),
        ("when: {a: }", "5:30: exchanges[0].bindings[0].when.a: no value"),
        ("when: {amount >=: }", '5:38: exchanges[0].bindings[0].when["amount >="]: no value'),
        ("when: {x-match: any, a: 5}", 'when.x-match: got the argument "x-match", did you mean match in the binding?'),
        ("when: {amount >= 5}", 'when["amount >= 5"]: got a key without a value, expected {amount >=: 5}'),
        ("when: {amount: {gte: 5}}", 'got a mapping of operators, expected one key for each, such as "amount >="'),
        ("when: {property priority: {'>': 5}}", 'such as "property priority >"'),
        ("when: {headers: {amount: 5}}", "expected them directly under when, such as {amount: VALUE}"),
        ("when: [a]", "5:26: exchanges[0].bindings[0].when: got a list, expected a mapping such as {amount >=: 1000}"),
        ("when: amount >= 5 && b == c", "expected a mapping such as {amount >=: 5, b =: c}"),
        ("match: some", '5:20: exchanges[0].bindings[0].match: got the string "some", expected all, any, eq, set'),
        ("order: 5", "bindings[0].order: Binding's order must be an integer between 100 and 999999: got the number 5"),
        ("then: {goto: x}", 'then.goto: got the string "x", expected an integer from 100 to 999999'),
        ("then: {add queues: x}", 'then["add queues"]: unknown effect; did you mean add queue?'),
        ("else: {add queues matching: '('}", 'else["add queues matching"]: got "("'),
        ("then: stop", 'then: got the string "stop", expected a mapping such as {add queue: NAME}'),
        ("queue from key: yes", '["queue from key"]: got the string "yes", expected true'),
        ("wen: {a: 1}", "bindings[0].wen: unknown key; did you mean when?"),
        ("routing_key: a.b", "it must be empty for type x-open; write when: {key: a.b}"),
    ],
)
def test_a_mistake_is_reported_at_its_line(binding: str, fault: str) -> None:
    (reported,) = faults(rules(f"- {{queue: q, {binding}}}"))
    assert fault in reported
    assert reported.startswith("a.yaml:5:")


@pytest.mark.parametrize(
    ("binding", "hint"),
    [
        ("- {queue: q, when: {amount: >= 1000}}", "as in amount >=: 1000"),
        ("- queue: q\n  when:\n    amount: > 1000\n", "as in amount >: 1000"),
    ],
)
def test_a_comparison_after_the_key_is_explained(binding: str, hint: str) -> None:
    (fault,) = faults(rules(binding))
    assert "YAML syntax" in fault
    assert hint in fault


def test_all_mistakes_of_a_binding_are_reported() -> None:
    binding = "- {queue: q, when: {a>=: 1, b in: c, d: 1}, then: {stop: no, goto: 500}, order: 200}"
    assert [fault.split(": ")[1] for fault in faults(rules(binding))] == [
        'exchanges[0].bindings[0].when["a>="]',
        'exchanges[0].bindings[0].when["b in"]',
        "exchanges[0].bindings[0].then.stop",
    ]


MESSAGE = b"{exchange: e, routing_key: q, headers: {amount: 5, a: 1, country: fr}, properties: {type: Later}}"


def test_explanations_show_conditions_as_written() -> None:
    explanation = explain(load(rules(READABLE)), message_request(MESSAGE, "m"), 0.0)
    shown = as_text(explanation)
    assert 'match     property type matches: "(?i)^late", got "Later"' in shown
    assert 'mismatch  key topic: "#.late", got "q"' in shown
    explanation = explain(load(rules(READABLE)), message_request(MESSAGE.replace(b"Later", b"x"), "m"), 0.0)
    shown = as_text(explanation)
    assert "mismatch  amount >=: 1000, got 5" in shown
    assert 'mismatch  country in: ["de", "at"], got "fr"' in shown
    assert 'match     country not in: "de", got "fr"' in shown
    assert "match     a exists: true, got 1" in shown
    assert "absent    b exists: true" in shown
    assert "x-?" not in shown
    walk = json.loads(json.dumps(as_json(explanation)["walk"]))
    (step,) = (step for step in walk[0]["bindings"] if step["destination"] == "queue big")
    assert step["operators"][0] == {
        "operator": "amount >=",
        "header": "amount",
        "expected": 1000,
        "verdict": "mismatch",
        "seen": 5,
    }


def test_warnings_name_conditions_as_written(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(rules("- {queue: q, when: {a >: 5, a <: 5}}\n- {queue: r, match: any}"))
    messages = [warning.message for warning in check_files([path], {}).warnings]
    assert messages == [
        "this binding never matches: a < and a > contradict each other",
        "this binding never matches: match: any requires at least one operator",
    ]


def test_routes_show_conditions_and_effects_as_written() -> None:
    (vhost,) = json.loads(json.dumps(overview(load(rules(READABLE)))))["vhosts"]
    shown = {binding["destination"]["name"]: binding for binding in vhost["exchanges"][0]["bindings"]}
    assert shown["late"]["conditions"] == {"key topic": "#.late", "property type matches": "(?i)^late"}
    assert shown["late"]["effects"] == {
        "order": 200,
        "then add queue": "archive",
        "then stop": True,
        "else goto": 5000,
    }
    assert shown["late"]["match"] == "any"
    assert shown["other"]["conditions"]["country not in"] == ["de", "at"]
    assert shown["new"]["effects"] == {"queue from key": True}


@pytest.mark.parametrize(
    ("bindings", "valid"),
    [
        (READABLE, True),
        (ARGUMENTS, True),
        ("- {queue: q, then: {ad queue: a}}", False),
        ("- {queue: q, order: 5}", False),
        ("- {queue: q, match: some}", False),
        ("- {queue: q, when: {a is: text}}", False),
        ("- {queue: q, when: {a exists: yes}}", False),
        ("- {queue: q, when: {key in: a}}", False),
    ],
)
def test_the_json_schema_knows_the_readable_spelling(bindings: str, valid: bool) -> None:
    validator = jsonschema.Draft202012Validator(json_schema(RulesModel, "rules"))
    document = json.loads(json.dumps(yaml.load(rules(bindings), yaml.CBaseLoader if not valid else yaml.CSafeLoader)))
    if not valid and "order" in bindings:
        document["exchanges"][0]["bindings"][0]["order"] = 5
    assert (not list(validator.iter_errors(document))) is valid
