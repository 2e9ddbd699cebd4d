"""Warnings about definitions that are valid but look like a mistake."""

from __future__ import annotations

import pytest

from oxproxy.rules.lint import mistakes
from tests.rules.loading import faults, load

MISTAKES = [
    ('arguments: {"amount >=": 1000}', 'did you mean "x-?hkv>= amount"? If not, write "x-?hkv= amount >="'),
    ('arguments: {"amount>=": 1000}', 'did you mean "x-?hkv>= amount"?'),
    ('arguments: {"amount ==": 1000}', 'did you mean "x-?hkv= amount"?'),
    ('arguments: {"tenant exists": true}', 'did you mean "x-?hkex: tenant"?'),
    ('arguments: {"property priority >": 1}', 'did you mean "x-?pr> priority"?'),
    ("arguments: {headers.amount: 5}", 'did you mean "x-?hkv= amount"?'),
    ("arguments: {routing_key: a.b}", 'did you mean "x-?rk="?'),
    ("arguments: {a && b: 5}", "expected one condition for each key"),
    ('arguments: {amount: ">= 1000"}', 'compares with the string ">= 1000"; did you mean "x-?hkv>= amount": 1000?'),
    ('arguments: {"x-?hkv= amount": "> 5"}', 'did you mean "x-?hkv> amount": 5?'),
    ('arguments: {"x-?pr= type": "!= a"}', 'did you mean "x-?pr!= type": a?'),
    ('when: {amount: ">= 1000"}', 'did you mean "amount >=": 1000?'),
    ('when: {amount =: "<5"}', 'did you mean "amount <": 5?'),
    ("arguments: {max-payload-size: 5}", "filters are arguments of the exchange, not of a binding"),
    ("when: {max-payload-size: 5}", "filters are arguments of the exchange, not of a binding"),
    ("when: {alternate-exchange: a}", "alternate-exchange is an argument of the exchange, not of a binding"),
    ('arguments: {"amount exits": true}', 'did you mean "x-?hkex: amount"?'),
    ('arguments: {"amount is": string}', 'did you mean "x-?hkexs: amount"?'),
    ('arguments: {"utc matches": ^2026}', 'did you mean "x-?dture"?'),
    ("when: {key: orders.*}", 'for wildcards, write "key topic": "orders.*"'),
    ('arguments: {"x-?rk=": "orders.#"}', 'for wildcards, write "x-?rkta": "orders.#"'),
    ('when: {country: "d*"}', 'did you mean "country matches": ^d?'),
    ('when: {country: "*e"}', 'did you mean "country matches": e$?'),
    ('arguments: {"x-?hkv= country": "d*"}', 'did you mean "x-?hkvre country": ^d?'),
    ('when: {tenant: "*"}', "if any value is meant, write tenant exists: true"),
    ("when: {key topic: a.**}", "in a topic, # is any number of words, and * is one word"),
    ("when: {key topic: a.>}", "in a topic, # is any number of words, and * is one word"),
    ("when: {key topic: a.+}", "in a topic, # is any number of words, and * is one word"),
    ("when: {title matches: /^a/}", "the slashes are part of the pattern; did you mean ^a?"),
    ("when: {title matches: /a/i}", "did you mean (?i)a?"),
    (r"when: {utc matches: '^\d{8} 24\d\d'}", 'the hour "24" never occurs'),
    ("when: {key topic: a.b#}", "in a topic, # is any number of words, and * is one word"),
    ("when: {key topic: orders*.late}", "in a topic, # is any number of words, and * is one word"),
    ("when: {country: \u201cde\u201d}", "the typographic quotes \u201c\u201d are part of the value; did you mean de?"),
    ('arguments: {"tenant missing": true}', 'did you mean "x-?hk!ex: tenant"?'),
    ('arguments: {"tenant is string": true}', 'did you mean "x-?hkexs: tenant"?'),
    ('arguments: {"amount >= 1000": true}', 'did you mean "x-?hkv>= amount"?'),
    ("arguments: {message_id: a}", 'did you mean "x-?pr= message_id"? If not, write "x-?hkv= message_id"'),
    ("arguments: {match: any}", 'did you mean "x-match"? If not, write "x-?hkv= match"'),
    ("arguments: {when: {amount: 5}}", "a binding has either arguments, or when, then, else and so on"),
    ('arguments: {"x?hkv= amount": 5}', 'did you mean "x-?hkv= amount"?'),
    ('when: {" amount": 5}', "begins or ends with a space"),
    ('when: {"am\\u200bount": 5}', 'contains an invisible character: "am\\u200bount"'),
    ('when: {"\\ufeffamount >=": 5}', 'contains an invisible character: "\\ufeffamount"'),
]


def rules(binding: str, queues: str = "[]") -> str:
    return f"queues: {queues}\nexchanges:\n  - name: e\n    bindings:\n      - {{queue: q, {binding}}}\n"


@pytest.mark.parametrize(("binding", "hint"), MISTAKES)
def test_a_probable_mistake_is_a_warning_with_its_line(binding: str, hint: str) -> None:
    (warning,) = load(rules(binding)).warnings
    assert (warning.place.line, warning.key.startswith("exchanges[0].bindings[0].")) == (5, True)
    assert hint in warning.message


@pytest.mark.parametrize(
    "binding",
    [
        "arguments: {amount: 5, document.type: a, header: 5}",
        'arguments: {"x-?hkv= amount >=": 5}',
        "when: {amount >=: 5, order date =: today, path: /a/b/, title: a > b, mail: a@b, tags: '#a'}",
        "when: {path matches: /api/, other matches: ^/a/$}",
        r"when: {utc matches: ' 47$', local matches: '^\d{8} (2[0-3]|0\d)'}",
        "when: {key topic: a.*.#, key: a.b}",
        "arguments: {match: 5, type: a, message-id: a, order: 200}",
        "when: {type: a, priority >: 5, quote: \u201c}",
    ],
)
def test_usual_definitions_cause_no_warning(binding: str) -> None:
    assert load(rules(binding)).warnings == ()


@pytest.mark.parametrize(
    ("queue", "near"),
    [("orders.bgi", True), ("orders.bi", True), ("orders.bigg", True), ("orders.bag", True), ("orders.2", False)],
)
def test_a_queue_that_is_one_letter_off_a_declared_one(queue: str, near: bool) -> None:
    loaded = load(f"queues: [orders.big, orders.1]\nexchanges: [{{name: e, bindings: [{{queue: {queue}}}]}}]")
    expected = ["this queue is not declared under queues; did you mean orders.big?"] if near else []
    assert [warning.message for warning in loaded.warnings] == expected


def many_rules(declared: int, named: int, bindings: int = 1) -> str:
    """Declared queues ``a...0`` and so on, and bindings to other queues ``bb...``, several to each."""
    queues = ", ".join(f"a{number:04}" for number in range(declared))
    lines = (
        f"      - {{queue: bb{number:04}, when: {{amount: {again}}}}}\n"
        for number in range(named)
        for again in range(bindings)
    )
    return f"queues: [{queues}]\nexchanges:\n  - name: e\n    bindings:\n{''.join(lines)}"


def test_names_are_compared_only_with_similar_names(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare = mistakes._one_letter_off

    def counted(name: bytes, other: bytes) -> bool:
        compared.append(name)
        return compare(name, other)

    monkeypatch.setattr(mistakes, "_one_letter_off", counted)
    loaded = load(many_rules(declared=500, named=200, bindings=10) + "      - {queue: ax0007}\n")
    assert (len(loaded.warnings), len(compared) < 200) == (1, True)


def test_of_several_queues_one_letter_off_the_first_by_name_is_named() -> None:
    loaded = load("queues: [order, ordeal, ordes]\nexchanges: [{name: e, bindings: [{queue: orde}]}]")
    assert [warning.message.rpartition(" ")[2] for warning in loaded.warnings] == ["order?"]


@pytest.mark.parametrize(("declared", "warned"), [(40_000, True), (50_000, False)])
def test_names_are_not_compared_if_there_are_too_many(declared: int, warned: bool) -> None:
    loaded = load(many_rules(declared, named=1) + "      - {queue: ax0007}\n")
    assert bool(loaded.warnings) is warned


def test_a_misspelt_argument_of_a_queue() -> None:
    loaded = load("queues: [{name: q, arguments: {x-queue-typ: quorum, x-own: 1}}]\nexchanges: []")
    assert [warning.message for warning in loaded.warnings] == [
        "unknown argument of a queue; did you mean x-queue-type?"
    ]


@pytest.mark.parametrize(
    ("keys", "idle"),
    [
        ("", True),
        ("arguments: {min-payload-size-silent: 5, alternate-exchange: a}, ", True),
        ("arguments: {max-payload-size: 5}, ", False),
        ("require: {tenant is: string}, ", False),
    ],
)
def test_violations_that_nothing_can_cause(keys: str, idle: bool) -> None:
    loaded = load(f"exchanges: [{{name: e, {keys}violations: observe, bindings: [{{queue: q}}]}}]")
    expected = ["has no effect without conditions under require, or filters under arguments"] if idle else []
    assert [warning.message for warning in loaded.warnings] == expected


def test_a_routing_operator_without_a_suffix() -> None:
    (fault,) = faults(rules("arguments: {x-addq: a}"))
    assert "unknown operator x-addq; did you mean x-addq-ontrue or x-addq-onfalse?" in fault


@pytest.mark.parametrize(("written", "meant"), [("=>", ">="), ("=<", "<="), ("==", "=")])
def test_an_operator_with_its_signs_in_another_order(written: str, meant: str) -> None:
    (fault,) = faults(rules(f'arguments: {{"x-?hkv{written} amount": 5}}'))
    assert f"unknown operator x-?hkv{written}; did you mean x-?hkv{meant} amount?" in fault
