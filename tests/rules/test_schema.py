from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from oxproxy.errors import ConfigErrors
from oxproxy.routing.bindings.binding import binding_hash
from oxproxy.rules.loader import compile_rules
from oxproxy.rules.ruleset import ExchangeRule, QueueRule
from oxproxy.values import Value
from oxproxy.yamlfile.document import Faults
from tests.rules.loading import binding, by_line, exchange, faults, load

EVERYTHING = """
vhost: shop
timezone: Europe/Berlin
queues: [a, {name: b, arguments: {x-message-ttl: 60000}}]
exchanges:
  - name: documents
    type: x-open
    delivery: carrier
    carrier: documents.oxproxy
    unmatched: pass
    arguments: {max-payload-size: 1048576, alternate-exchange: rest}
    bindings:
      - queue: a
        name: first
        arguments: {"x-?hkv= type": public}
      - exchange: other
  - name: topics
    type: topic
    delivery: queue
    bindings:
      - {queue: b, routing_key: "a.#"}
tests: []
"""


def rule(text: str, index: int = 0) -> ExchangeRule:
    (vhost,) = load(text).rules.vhosts.values()
    return vhost.exchanges[index]


def test_every_key_of_a_rules_file_is_read() -> None:
    vhost = load(EVERYTHING).rules.vhosts["shop"]
    documents, topics = vhost.exchanges
    assert vhost.queues == (QueueRule(b"a"), QueueRule(b"b", ((b"x-message-ttl", Value("I", 60000)),)))
    assert (documents.name, documents.type, documents.delivery) == (b"documents", "x-open", "carrier")
    assert (documents.carrier, documents.unmatched_pass) == (b"documents.oxproxy", True)
    assert documents.arguments[0] == (b"max-payload-size", Value("I", 1048576))
    assert documents.alternate == b"rest"
    assert documents.local_time == ZoneInfo("Europe/Berlin")
    assert [(binding.destination_type, binding.destination, binding.id) for binding in documents.bindings] == [
        ("queue", b"a", "first"),
        ("exchange", b"other", binding_hash("exchange", b"other", b"", ())),
    ]
    assert (topics.type, topics.delivery, topics.bindings[0].routing_key) == ("topic", "queue", b"a.#")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vhosts: /", "a.yaml:1:1: vhosts: unknown key; did you mean vhost?"),
        ("vhost: ''", 'a.yaml:1:8: vhost: got the string "", expected the name of a virtual host, 1 to 255 bytes'),
        (
            "remotes: []",
            "a.yaml:1:1: remotes: unknown key, expected one of addresses, brokers, exchanges, queues, tests, timezone, "
            "vhost",
        ),
        (
            "timezone: Mars/Base",
            'a.yaml:1:11: timezone: got the string "Mars/Base", expected a name from the time zone database such as '
            "Europe/Berlin or UTC",
        ),
        ("queues: {a: b}", "a.yaml:1:9: queues: got a mapping, expected a list"),
        (
            "queues: [5]",
            "a.yaml:1:10: queues[0]: got the number 5, expected the name of a queue, or a mapping with its name",
        ),
        (
            "queues: ['']",
            "a.yaml:1:10: queues[0]: got an empty name, expected the name of a queue, or a mapping with its name",
        ),
        ("queues: [{}]", "a.yaml:1:10: queues[0].name: missing, expected the name of a queue"),
        (
            "queues: [amq.a]",
            'a.yaml:1:10: queues[0]: names that begin with "amq." are reserved by the broker and can\'t be declared',
        ),
        ("exchanges: [{}]", "a.yaml:1:13: exchanges[0].name: missing, expected the name of an exchange"),
        ("exchanges: [e]", "a.yaml:1:13: exchanges[0]: got a single value, expected a mapping"),
        (
            "exchanges: [{name: ''}]",
            "a.yaml:1:20: exchanges[0].name: got an empty name, expected the name of an exchange",
        ),
        ("- a", "a.yaml:1:1: got a list, expected a mapping"),
    ],
)
def test_invalid_files_are_errors(text: str, message: str) -> None:
    assert faults(text) == [message]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["type: open"], 'type: got the string "open", expected one of x-open, headers, topic, direct, fanout'),
        (["delivery: both"], 'delivery: got the string "both", expected one of carrier, queue'),
        (["unmatched: drop"], 'unmatched: got the string "drop", expected pass'),
        (["delivery: queue", "carrier: f"], "carrier: requires delivery: carrier"),
        (["arguments: [a]"], "arguments: got a list, expected a mapping"),
        (["arguments: {x-oxproxy: a}"], "arguments.x-oxproxy: this argument is reserved for the sidecar"),
        (
            ["arguments: {x-open-exchange: true}"],
            "arguments.x-open-exchange: this argument is reserved for the sidecar",
        ),
        (
            ["arguments: {alternate-exchange: 5}"],
            "arguments.alternate-exchange: got a value that is not a string, expected the name of an exchange",
        ),
        (
            ["arguments: {alternate-exchange: ''}"],
            "arguments.alternate-exchange: got an empty name, expected the name of an exchange",
        ),
        (
            ["unmatched: pass"],
            "unmatched: requires another name in carrier:, or delivery: queue; otherwise the "
            "carrier would be the broker's own exchange of this name",
        ),
        (
            ["carrier: amq.direct"],
            'carrier: names that begin with "amq." are reserved by the broker and can\'t be declared: expected another '
            "name in carrier:, or delivery: queue",
        ),
        (["bindings: [{queue: a, exchange: b}]"], "bindings[0]: got both, expected either queue: or exchange:"),
        (["bindings: [{name: a}]"], "bindings[0]: got neither, expected either queue: or exchange:"),
        (
            ["bindings: [{queue: 5}]"],
            "bindings[0].queue: got the number 5, expected the name of a queue: put it in quotes",
        ),
        (
            ["bindings: [{queue: a, name: ''}]"],
            'bindings[0].name: got the string "", expected a name for metrics, audit and explain',
        ),
        (
            ["bindings: [{queue: a, rk: b}]"],
            "bindings[0].rk: unknown key, expected one of arguments, drop destination, else, exchange, match, name, "
            "order, queue, queue from key, routing_key, then, when",
        ),
        (["bindings: [q]"], "bindings[0]: got a single value, expected a mapping"),
    ],
)
def test_invalid_exchanges_are_errors_with_lines(lines: list[str], message: str) -> None:
    number = 2 + len(lines)
    assert by_line(faults(exchange(*lines))) == [f"a.yaml:{number}: exchanges[0].{message}"]


@pytest.mark.parametrize("carrier", [["delivery: queue"], ["carrier: other"]])
def test_unmatched_pass_requires_another_carrier_name(carrier: list[str]) -> None:
    assert rule(exchange("unmatched: pass", *carrier)).unmatched_pass


RESERVED = "x.o.p.e.n.x.q.1"


@pytest.mark.parametrize(
    "text",
    [
        f"queues: [{RESERVED}]",
        f"exchanges: [{{name: {RESERVED}}}]",
        f"exchanges: [{{name: e, carrier: {RESERVED}}}]",
        f"exchanges: [{{name: e, arguments: {{alternate-exchange: {RESERVED}}}}}]",
        f"exchanges: [{{name: e, bindings: [{{queue: {RESERVED}}}]}}]",
        f"exchanges: [{{name: e, bindings: [{{exchange: {RESERVED}}}]}}]",
        f"exchanges: [{{name: e, type: direct, bindings: [{{queue: q, routing_key: {RESERVED}}}]}}]",
        f"exchanges: [{{name: e, bindings: [{{queue: q, arguments: {{x-addq-ontrue: {RESERVED}}}}}]}}]",
        f"exchanges: [{{name: e, bindings: [{{queue: q, arguments: {{x-adde-onfalse: [a, {RESERVED}]}}}}]}}]",
        f"tests: [{{name: t, publish: {{exchange: e, routing_key: {RESERVED}}}, expect: {{}}}}]",
    ],
)
def test_the_reserved_prefix_is_refused_in_every_name_and_key(text: str) -> None:
    errors = faults(text)
    assert len(errors) == 1
    assert "reserved for the sidecar" in errors[0]


def test_invalid_exchange_arguments_are_errors() -> None:
    assert faults(
        """
        exchanges:
          - name: e
            arguments:
              max-payload-sise: 10
              Max_Payload_Size: 10
              alternate-exchagne: b
              max-headers-depth: -1
              max-headers-size-silent: 5
              min-payload-size: 20
              max-payload-size-silent: 10
              x-owner: me
          - {name: t, type: topic, carrier: c, arguments: {alternate_exchange: b}}
        """
    ) == [
        "a.yaml:5:7: exchanges[0].arguments.max-payload-sise: unknown argument; did you mean max-payload-size?",
        "a.yaml:6:7: exchanges[0].arguments.Max_Payload_Size: unknown argument; did you mean max-payload-size?",
        "a.yaml:7:7: exchanges[0].arguments.alternate-exchagne: unknown argument; did you mean alternate-exchange?",
        "a.yaml:8:7: exchanges[0].arguments.max-headers-depth: got -1, expected an integer, 0 or more",
        "a.yaml:9:7: exchanges[0].arguments.max-headers-size-silent: unknown argument; max-headers-size has no "
        "`-silent` form",
        "a.yaml:11:7: exchanges[0].arguments.max-payload-size-silent: no message passes both min-payload-size 20 and "
        "max-payload-size-silent 10",
        "a.yaml:12:7: exchanges[0].arguments.x-owner: unknown argument, expected one of alternate-exchange, "
        "max-headers-depth, max-headers-size, max-payload-size, max-payload-size-silent, min-payload-size, "
        "min-payload-size-silent",
        "a.yaml:13:52: exchanges[1].arguments.alternate_exchange: unknown argument; did you mean alternate-exchange?",
    ]


PLAIN = [
    "{queue: a}",
    "{exchange: e2, name: first, arguments: {x-match: any}}",
    '{queue: b, arguments: {"x-?hkv= a": 5, "x-?hkv>= b": -0.0, c: null, d: true, e: "5", x-order: 500}}',
    '{arguments: {"x-?hkv= a": 0.0, "x-?hkv!= f": 5000000000}, name: "n", queue: "b"}',
    "{queue: b, match: any, when: {a >=: 5, key topic: a.#}, then: {add queue: [c, d], stop: true}, order: 200}",
    "{queue: c, queue from key: true, when: {a exists: true, b exists: true, c not in: [1]}, else: {goto: 500}}",
]
OTHER = [
    "{queue: !!str 5, arguments: {a: [b, {c: d}]}}",
    "{queue: c, arguments: {a: !timestamp 5}}",
    '{queue: d, "name": o, arguments: {}}',
]
WRONG = [
    "{queue: 5}",
    "{queue: a, name: ''}",
    "{queue: a, exchange: b}",
    "{queue: a, rk: b}",
    "{queue: a, queue: b}",
    "{queue: a, arguments: {b: 1, b: 2}}",
    "{queue: a, arguments: {5: 1}}",
    "{queue: a, arguments: {<<: {b: 1}}}",
    "{queue: a, arguments: {b: .inf}}",
    "{queue: a, arguments: {b: 99999999999999999999}}",
    "{queue: a, arguments: {b: }}",
    "{queue: &a b}",
    "{queue: *a}",
    "{queue: a, arguments: b}",
    "{queue: a, routing_key: x.o.p.e.n.x.q}",
    "[a]",
    "a",
    "{queue: a, arguments: {[b]: c}}",
    "{queue: a, when: {b: 1}, arguments: {c: 1}}",
    "{queue: a, when: b >= 5, order: x, name: ''}",
    "{queue: a, when: {b>=: 5, c: }, then: {add: q}, else: [], rk: 5}",
]


@pytest.mark.parametrize("wrong", WRONG)
def test_errors_of_an_invalid_binding_are_in_its_line_only(wrong: str) -> None:
    lines = ["exchanges:", "  - bindings:", *(f"      - {item}" for item in (*PLAIN, wrong, *OTHER)), "    name: x", ""]
    with pytest.raises(ConfigErrors) as caught:
        compile_rules([("f.yaml", "\n".join(lines).encode())], Faults())
    assert {error.line for error in caught.value.errors} == {3 + len(PLAIN)}


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
        ("x-order: 5", "x-order: Binding's order must be an integer between 100 and 999999: got the number 5"),
        (
            '"x-?hkv> a": b',
            '["x-?hkv> a"]: Type\'s value of comparison\'s operators < and > must be numeric: got "b", '
            "expected a number",
        ),
        (
            '"x-?pr> type": 5',
            '["x-?pr> type"]: Invalid property match operator: type is a string, got the operator x-?pr>, '
            "expected an operator for a string, such as =, !=, in, matches",
        ),
        (
            '"x-?pr= typ": a',
            '["x-?pr= typ"]: Invalid property match operator: there is no property "typ"; did you mean type?',
        ),
        ('"x-?hkex": [[a]]', '["x-?hkex"]: Invalid use of list in list'),
        (
            '"x-?hkv> a": [1]',
            '["x-?hkv> a"]: Invalid use of list type with < or > operators and/or datetime related: '
            "got a list, expected a single value",
        ),
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
        'this binding type: got a list, expected a single value; did you mean "x-?hkv!in a": [1]?'
    ]
    assert load(binding('{x-match: all, "x-?hkv!= a": [1]}')).rules.vhosts


@pytest.mark.parametrize(
    ("lines", "meant"),
    [
        ("max-payload-size: 5", "arguments: {max-payload-size: VALUE}"),
        ("alternate-exchange: rest", "arguments: {alternate-exchange: VALUE}"),
        ("when: {amount: 5}", "when of a binding, or require"),
        ("bindings: [{queue: q, stop: true}]", "then: {stop: true}"),
        ("bindings: [{queue: q, add queue: r}]", "then: {add queue: VALUE}"),
        ("bindings: [{queue: q, if: {amount: 5}}]", "when"),
        ("bindings: [{queue: q, priority: 5}]", "order"),
        ("bindings: [{queue: q, otherwise: {stop: true}}]", "else"),
        ("bindings: [{queue: q, x-match: any}]", "match"),
    ],
)
def test_a_key_in_the_wrong_mapping_or_of_another_rule_language(lines: str, meant: str) -> None:
    (fault,) = faults(exchange(lines))
    assert fault.startswith("a.yaml:3:")
    assert fault.endswith(f": unknown key; did you mean {meant}?")


def test_errors_of_several_bindings_and_of_the_exchange_are_reported_together() -> None:
    text = exchange(
        "arguments: {max-payload-size: big, min-payload-size: 1, max-headers-depth: 1.5}",
        "bindings:",
        "  - {queue: q, arguments: {x-order: 5}}",
        "  - {queue: q}",
        "  - {queue: q, arguments: {x-order: 6}}",
    )
    invalid, expected = "Invalid exchange argument. Got", "expected an integer, 0 or more"
    order = "Binding's order must be an integer between 100 and 999999"
    assert faults(text) == [
        f'a.yaml:3:17: exchanges[0].arguments.max-payload-size: {invalid} the string "big", {expected}',
        f"a.yaml:3:61: exchanges[0].arguments.max-headers-depth: {invalid} the number 1.5, {expected}",
        f"a.yaml:5:32: exchanges[0].bindings[0].arguments.x-order: {order}: got the number 5",
        f"a.yaml:7:32: exchanges[0].bindings[2].arguments.x-order: {order}: got the number 6",
    ]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ('"x-?hkx a": 1', "unknown operator x-?hkx; did you mean x-?hkex a?"),
        ("x-?hkv>=amount: 1", 'unknown operator x-?hkv>=amount; did you mean "x-?hkv>= amount"?'),
        ('"x-?hkv != my amount": 1', 'unknown operator x-?hkv; did you mean "x-?hkv!= my amount"?'),
        ("x-?pr=type: a", 'unknown operator x-?pr=type; did you mean "x-?pr= type"?'),
        ("x-?hkvretype: a", 'unknown operator x-?hkvretype; did you mean "x-?hkvre type"?'),
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
