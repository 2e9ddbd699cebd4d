from __future__ import annotations

import pytest

from tests.rules.loading import binding, exchange, faults, load

UNKNOWN = "Unknown or invalid argument's key "


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("x-match: some", "x-match: Invalid binding type"),
        ('"x-?hkvre a": "(("', "[\"x-?hkvre a\"]: Invalid regex '(('"),
        ('"x-?rkre": ""', "[\"x-?rkre\"]: Invalid regex ''"),
        ('"x-?rkta": ""', '["x-?rkta"]: Invalid AMQP topic'),
        ("x-order: 5", "x-order: Binding's order must be an integer between 100 and 999999"),
        ('"x-?hkv> a": b', "[\"x-?hkv> a\"]: Type's value of comparison's operators < and > must be numeric"),
        ('"x-?pr> type": 5', '["x-?pr> type"]: Invalid property match operator'),
        ('"x-?hkex": [[a]]', '["x-?hkex"]: Invalid use of list in list'),
        ('"x-?hkv> a": [1]', '["x-?hkv> a"]: Invalid use of list type with < or > operators and/or datetime related'),
        ('"": 1', "[\"\"]: Binding's argument key can't be empty"),
    ],
)
def test_a_refusal_of_the_broker_s_kind_comes_back_at_its_argument(argument: str, message: str) -> None:
    separator = "" if message.startswith("[") else "."
    assert faults(binding(f"{{{argument}}}")) == [
        f"a.yaml:4:39: exchanges[0].bindings[0].arguments{separator}{message}"
    ]


def test_every_fault_of_a_binding_is_reported_at_its_own_line() -> None:
    text = """
        exchanges:
          - name: e
            bindings:
              - queue: q
                routing_key: a.b
                arguments:
                  x-match: some
                  "x-?hkv= good": 1
                  "x-?hkvre a": "(("
                  x-order: 5
    """
    assert [error.split(": ")[:2] for error in faults(text)] == [
        ["a.yaml:6:9", "exchanges[0].bindings[0].routing_key"],
        ["a.yaml:8:11", "exchanges[0].bindings[0].arguments.x-match"],
        ["a.yaml:10:11", 'exchanges[0].bindings[0].arguments["x-?hkvre a"]'],
        ["a.yaml:11:11", "exchanges[0].bindings[0].arguments.x-order"],
    ]


def test_a_restriction_that_depends_on_the_match_type_is_found() -> None:
    assert faults(binding('{x-match: any, "x-?hkv!= a": [1]}')) == [
        'a.yaml:4:53: exchanges[0].bindings[0].arguments["x-?hkv!= a"]: Invalid use of list type with != operator in '
        "this binding type"
    ]
    assert load(binding('{x-match: all, "x-?hkv!= a": [1]}')).rules.vhosts


def test_faults_of_several_bindings_and_of_the_exchange_are_found_at_once() -> None:
    text = exchange(
        "arguments: {max-payload-size: big, min-payload-size: 1, max-headers-depth: 1.5}",
        "bindings:",
        "  - {queue: q, arguments: {x-order: 5}}",
        "  - {queue: q}",
        "  - {queue: q, arguments: {x-order: 6}}",
    )
    invalid = "Invalid exchange argument. Expected a whole number, 0 or more"
    order = "Binding's order must be an integer between 100 and 999999"
    assert faults(text) == [
        f"a.yaml:3:17: exchanges[0].arguments.max-payload-size: {invalid}",
        f"a.yaml:3:61: exchanges[0].arguments.max-headers-depth: {invalid}",
        f"a.yaml:5:32: exchanges[0].bindings[0].arguments.x-order: {order}",
        f"a.yaml:7:32: exchanges[0].bindings[2].arguments.x-order: {order}",
    ]


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ('"x-?hkx a": 1', "; did you mean x-?hkex a?"),
        ("x-addq-ontru: a", "; did you mean x-addq-ontrue?"),
        ("x-zzzzzz: a", ""),
        (
            '"x-?rkre": 5',
            "; the operator is known: is its value of the kind it takes, and does it need a name behind a blank?",
        ),
        (
            '"x-?hkv=": 5',
            "; the operator is known: is its value of the kind it takes, and does it need a name behind a blank?",
        ),
    ],
)
def test_an_unknown_key_says_what_was_probably_meant(written: str, hint: str) -> None:
    (error,) = faults(binding(f"{{{written}}}"))
    assert UNKNOWN in error
    assert error.endswith(">>'" + hint)


def test_the_same_binding_twice_is_a_fault_that_names_the_first() -> None:
    text = exchange("bindings:", "  - {queue: q, arguments: {a: 1, b: 2}}", "  - {queue: q, arguments: {b: 2, a: 1}}")
    assert faults(text) == ["a.yaml:5:9: exchanges[0].bindings[1]: the same binding as in line 4"]


def test_bindings_that_differ_in_a_type_alone_are_two() -> None:
    text = exchange("bindings:", "  - {queue: q, arguments: {a: 1}}", "  - {queue: q, arguments: {a: !int64 1}}")
    assert len(load(text).rules.vhosts["/"].exchanges[0].bindings) == 2


def test_a_headers_exchange_has_its_own_refusals() -> None:
    (error,) = faults(binding("{x-match: some}", "headers"))
    assert error.startswith("a.yaml:4:39: exchanges[0].bindings[0].arguments.x-match: Invalid x-match field value")
