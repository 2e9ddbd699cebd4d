from __future__ import annotations

import pytest

from tests.rules.loading import binding, exchange, faults, load


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("x-match: some", 'x-match: got the string "some", expected all, any, eq, set or set N with an integer N'),
        (
            '"x-?hkvre a": "a(b"',
            '["x-?hkvre a"]: got "a(b", which is not a regular expression: missing closing parenthesis at offset 3',
        ),
        (
            '"x-?hkvre a": [good, "(?<=a*)b"]',
            '["x-?hkvre a"]: got "(?<=a*)b", which is not a regular expression: '
            "lookbehind assertion is not fixed length at offset 0",
        ),
        ('"x-?rkre": ""', '["x-?rkre"]: got "", which is not a regular expression: empty pattern'),
        ('"x-?rkta": ""', '["x-?rkta"]: Invalid AMQP topic: got the string ""'),
        ("x-order: 5", "x-order: Binding's order must be an integer between 100 and 999999"),
        ('"x-?hkv> a": b', "[\"x-?hkv> a\"]: Type's value of comparison's operators < and > must be numeric"),
        (
            '"x-?pr> type": 5',
            '["x-?pr> type"]: Invalid property match operator: type is a string, but x-?pr> or its value '
            "requires another type",
        ),
        (
            '"x-?pr= typ": a',
            '["x-?pr= typ"]: Invalid property match operator: there is no property "typ"; did you mean type?',
        ),
        ('"x-?hkex": [[a]]', '["x-?hkex"]: Invalid use of list in list'),
        ('"x-?hkv> a": [1]', '["x-?hkv> a"]: Invalid use of list type with < or > operators and/or datetime related'),
        ('"": 1', "[\"\"]: Binding's argument key can't be empty"),
    ],
)
def test_a_refusal_with_the_brokers_text_is_reported_at_its_argument(argument: str, message: str) -> None:
    separator = "" if message.startswith("[") else "."
    assert faults(binding(f"{{{argument}}}")) == [
        f"a.yaml:4:39: exchanges[0].bindings[0].arguments{separator}{message}"
    ]


def test_a_restriction_that_depends_on_the_match_type_is_found() -> None:
    assert faults(binding('{x-match: any, "x-?hkv!= a": [1]}')) == [
        'a.yaml:4:53: exchanges[0].bindings[0].arguments["x-?hkv!= a"]: Invalid use of list type with != operator in '
        "this binding type"
    ]
    assert load(binding('{x-match: all, "x-?hkv!= a": [1]}')).rules.vhosts


def test_errors_of_several_bindings_and_of_the_exchange_are_reported_together() -> None:
    text = exchange(
        "arguments: {max-payload-size: big, min-payload-size: 1, max-headers-depth: 1.5}",
        "bindings:",
        "  - {queue: q, arguments: {x-order: 5}}",
        "  - {queue: q}",
        "  - {queue: q, arguments: {x-order: 6}}",
    )
    invalid = "Invalid exchange argument. Expected an integer, 0 or more"
    order = "Binding's order must be an integer between 100 and 999999"
    assert faults(text) == [
        f"a.yaml:3:17: exchanges[0].arguments.max-payload-size: {invalid}",
        f"a.yaml:3:61: exchanges[0].arguments.max-headers-depth: {invalid}",
        f"a.yaml:5:32: exchanges[0].bindings[0].arguments.x-order: {order}",
        f"a.yaml:7:32: exchanges[0].bindings[2].arguments.x-order: {order}",
    ]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ('"x-?hkx a": 1', "unknown operator x-?hkx; did you mean x-?hkex a?"),
        ("x-addq-ontru: a", "unknown operator x-addq-ontru; did you mean x-addq-ontrue?"),
        ("x-zzzzzz: a", 'unknown operator x-zzzzzz; to test a header of that name, use "x-?hkv= x-zzzzzz"'),
        ('"x-?rkre": 5', "got the number 5, expected a regular expression (string)"),
        (
            '"x-?hkv=": 5',
            'got x-?hkv= without a name, expected "x-?hkv= NAME", the name of a header after exactly one space',
        ),
        ('"x-?rk= a": b', "got a name after x-?rk=, expected x-?rk= without a name"),
        ("x-order: ten", 'got the string "ten", expected an integer from 100 to 999999'),
        ("x-goto-ontrue: [200]", "got a list, expected an integer from 100 to 999999"),
        ("x-stop-ontrue: true", 'got the boolean true, expected an empty string, ""'),
        ("x-addq-ontrue: null", "got null, expected a name (non-empty string) or a list of names"),
        ("x-addqre-ontrue: {a: b}", "got a mapping, expected a regular expression (string)"),
        ('"x-?hkex": 5', "got the number 5, expected the name of a header (non-empty string)"),
        (
            '"x-?prex": size',
            'Invalid property match operator: got the string "size", expected the name of a property: content_type, '
            "content_encoding, correlation_id, reply_to, message_id, type, user_id, app_id, cluster_id, delivery_mode, "
            "priority, timestamp, expiration",
        ),
    ],
)
def test_a_refused_key_or_value_is_reported_with_the_expected_one(written: str, message: str) -> None:
    (error,) = faults(binding(f"{{{written}}}"))
    assert error.partition("]: ")[2] == message or error.partition(f"{written.split(':')[0]}: ")[2] == message


def test_a_duplicate_binding_is_an_error_that_names_the_first() -> None:
    text = exchange("bindings:", "  - {queue: q, arguments: {a: 1, b: 2}}", "  - {queue: q, arguments: {b: 2, a: 1}}")
    assert faults(text) == ["a.yaml:5:9: exchanges[0].bindings[1]: the same binding as on line 4"]


def test_bindings_with_invalid_arguments_are_not_reported_as_duplicates() -> None:
    arguments = ("{a: !int8 300}", "{a: !int8 400}", "{}", "{}")
    errors = faults(exchange("bindings:", *(f"  - {{queue: q, arguments: {written}}}" for written in arguments)))
    assert [error.partition(": ")[2].split(",")[0] for error in errors] == [
        "exchanges[0].bindings[0].arguments.a: got !int8 300",
        "exchanges[0].bindings[1].arguments.a: got !int8 400",
        "exchanges[0].bindings[3]: the same binding as on line 6",
    ]


def test_an_invalid_x_match_of_a_headers_exchange_is_an_error() -> None:
    (error,) = faults(binding("{x-match: some}", "headers"))
    assert error == (
        'a.yaml:4:39: exchanges[0].bindings[0].arguments.x-match: got the string "some", expected all, any, '
        "all-with-x or any-with-x"
    )
