from __future__ import annotations

import pytest

from tests.rules.loading import binding, by_line, faults, load, warnings

PASS = "{name: e, carrier: c, unmatched: pass}"
UNREACHABLE = "an exchange with unmatched: pass cannot be the destination of another evaluated exchange"


def test_an_exchange_in_two_files_is_an_error_that_names_both() -> None:
    text = "exchanges:\n  - {name: e}\n"
    assert faults(text, text) == ["b.yaml:2:6: exchanges[0].name: a.yaml:2 already defines an exchange with this name"]


def test_two_files_may_declare_a_queue_with_equal_arguments() -> None:
    text = "queues: [{name: q, arguments: {x-message-ttl: 5}}]\n"
    assert len(load(text, text).rules.vhosts["/"].queues) == 1


def test_two_files_may_not_declare_a_queue_with_different_arguments() -> None:
    assert faults("queues: [q]\n", "queues: [{name: q, arguments: {x-message-ttl: 5}}]\n") == [
        "b.yaml:1:10: queues[0]: a.yaml:1 declares the same queue with different arguments"
    ]


def test_a_duplicate_queue_in_a_file_is_an_error() -> None:
    assert faults("queues:\n  - q\n  - q\n") == ["a.yaml:3:5: queues[1]: the same queue as on line 2"]


@pytest.mark.parametrize(
    ("exchanges", "message"),
    [
        (
            "  - {name: a, carrier: c}\n  - {name: b, carrier: c}\n",
            "a.yaml:3:15: exchanges[1].carrier: this name is used by the exchange in a.yaml:2",
        ),
        (
            "  - {name: a}\n  - {name: b, carrier: a}\n",
            "a.yaml:3:15: exchanges[1].carrier: this name is used by the exchange in a.yaml:2",
        ),
        (
            "  - {name: b, carrier: a}\n  - {name: a, delivery: queue}\n",
            "a.yaml:2:15: exchanges[0].carrier: this name is used by the exchange in a.yaml:3",
        ),
    ],
)
def test_two_exchanges_can_not_share_a_carrier(exchanges: str, message: str) -> None:
    assert faults("exchanges:\n" + exchanges) == [message]


def test_two_bindings_of_an_exchange_can_not_share_an_id() -> None:
    text = "exchanges:\n  - name: e\n    bindings:\n      - {queue: a, name: n}\n      - {queue: b, name: n}\n"
    assert faults(text) == ["a.yaml:5:20: exchanges[0].bindings[1].name: the same name as on line 4"]
    one_line = "exchanges: [{name: e, bindings: [{queue: a, name: n}, {queue: b, name: n}]}]"
    assert faults(one_line) == ["a.yaml:1:66: exchanges[0].bindings[1].name: the same name as on line 1"]


def test_an_exchange_is_not_its_own_alternate() -> None:
    assert faults("exchanges: [{name: e, arguments: {alternate-exchange: e}}]") == [
        "a.yaml:1:35: exchanges[0].arguments.alternate-exchange: got the exchange itself, expected another exchange"
    ]


def test_an_exchange_with_unmatched_pass_can_not_have_an_open_alternate_exchange() -> None:
    text = "exchanges: [{name: e, carrier: c, unmatched: pass, arguments: {alternate-exchange: f}}, {name: f}]"
    assert faults(text) == [
        "a.yaml:1:64: exchanges[0].arguments.alternate-exchange: an exchange with unmatched: pass can't have an "
        "alternate exchange that the sidecar evaluates"
    ]


def test_an_alternate_exchange_with_unmatched_pass_is_a_warning() -> None:
    assert warnings("exchanges: [{name: e, carrier: c, unmatched: pass, arguments: {alternate-exchange: f}}]") == [
        "a.yaml:1:64: exchanges[0].arguments.alternate-exchange: warning: `unmatched: pass` takes precedence, so "
        "only messages dropped by a `-silent` filter are sent to the alternate exchange"
    ]


@pytest.mark.parametrize(
    ("other", "key"),
    [
        ("bindings: [{exchange: e}]", "bindings[0].exchange"),
        ("bindings: [{queue: q, arguments: {x-adde-ontrue: [e]}}]", "bindings[0].arguments.x-adde-ontrue"),
        ("arguments: {alternate-exchange: e}", "arguments.alternate-exchange"),
    ],
)
def test_an_exchange_with_unmatched_pass_can_not_be_a_destination(other: str, key: str) -> None:
    text = f"exchanges:\n  - {PASS}\n  - {{name: f, {other}}}\n"
    assert by_line(faults(text)) == [f"a.yaml:3: exchanges[1].{key}: {UNREACHABLE}"]


def test_a_carrier_is_not_a_destination() -> None:
    text = "exchanges: [{name: e, carrier: c}, {name: f, bindings: [{exchange: c}]}]"
    assert faults(text) == [
        "a.yaml:1:57: exchanges[1].bindings[0].exchange: the target is a carrier; expected the exchange that it "
        "represents"
    ]


@pytest.mark.parametrize(
    ("exchange", "key", "message"),
    [
        (
            "{name: e, type: topic, arguments: {max-payload-size-silent: 5}}",
            "arguments.max-payload-size-silent",
            "has no effect for type topic",
        ),
        (
            "{name: e, type: headers, bindings: [{queue: q, routing_key: a}]}",
            "bindings[0].routing_key",
            "has no effect for type headers",
        ),
        (
            "{name: e, type: topic, bindings: [{queue: q, arguments: {a: 1}}]}",
            "bindings[0].arguments.a",
            "arguments have no effect for type topic",
        ),
    ],
)
def test_arguments_that_a_type_ignores_are_a_warning(exchange: str, key: str, message: str) -> None:
    assert by_line(warnings(f"exchanges: [{exchange}]")) == [f"a.yaml:1: exchanges[0].{key}: warning: {message}"]


def test_operators_in_a_headers_exchange_are_a_warning_unless_permitted() -> None:
    assert warnings(binding('{"x-?hkv= a": 1}', "headers")) == [
        'a.yaml:4:39: exchanges[0].bindings[0].arguments["x-?hkv= a"]: warning: is an operator of type x-open and has '
        "no effect for type headers"
    ]
    assert warnings(binding('{x-match: all-with-x, "x-?hkv= a": 1}', "headers")) == []
    assert warnings(binding("{x-match: any, x-a: 1, b: 2}", "headers")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            '{"X-?hkv= amount": 1}',
            "tests a header with this name; operators begin with a lower-case x-: did you mean x-?hkv= amount?; if "
            'not, write "x-?hkv= X-?hkv= amount"',
        ),
        (
            "{X-Match: any}",
            "tests a header with this name; operators begin with a lower-case x-: did you mean x-match?; if not, write "
            '"x-?hkv= X-Match"',
        ),
        (
            '{"x\u2013?rk=": a}',
            "tests a header with this name; operators begin with a lower-case x-: did you mean x-?rk=?; if not, write "
            '"x-?hkv= x\u2013?rk="',
        ),
        (
            '{"\u201ctype\u201d": a}',
            "tests a header with this name; the key contains typographic quotes: did you mean type?; if not, write "
            '"x-?hkv= \u201ctype\u201d"',
        ),
        ('{"x-?hkv=  amount": 1}', 'tests the header " amount", whose name begins or ends with a space'),
        ('{"type ": 1}', 'tests the header "type ", whose name begins or ends with a space'),
        ('{"x-?hkex": " a"}', 'tests the header " a", whose name begins or ends with a space'),
        (
            '{"x-?dtu!re": "^2026-11"}',
            '"-" never occurs in the matched string: date, time, weekday and week as digits with spaces between '
            'them, such as "20261121 080000 6 47"',
        ),
        (
            '{"x-?dtlre": " 08:00"}',
            '":" never occurs in the matched string: date, time, weekday and week as digits with spaces between '
            'them, such as "20261121 080000 6 47"',
        ),
    ],
)
def test_probable_mistakes_are_warnings(arguments: str, message: str) -> None:
    (warning,) = warnings(binding(arguments))
    assert warning.partition(": warning: ")[2] == message


@pytest.mark.parametrize(
    "arguments",
    [
        '{X-Request-Id: a, type: a, "two words": a, "Äx-?": a, "x-?hkv= X-Match": any, "x-?hkvre a": "-:a"}',
        '{"x-?hkex": a, x-addq-ontrue: " a"}',
        "{\"x-?dture\": '^(?:2026|2027)[01-9/]\\d{3} (?i)(0[89]|1\\d)\\x30.* (?<day>[1-5]) \\p{Nd}\\d$'}",
        '{"x-?dture": "(*UCP)^2026"}',
    ],
)
def test_plausible_keys_and_patterns_are_not_warnings(arguments: str) -> None:
    assert warnings(binding(arguments)) == []


def test_an_uppercase_x_match_of_a_headers_exchange_is_a_warning() -> None:
    (warning,) = warnings(binding("{X-Match: any}", "headers"))
    assert warning.endswith("operators begin with a lower-case x-: did you mean x-match?")


@pytest.mark.parametrize(
    ("more", "alternate"),
    [("", ""), ("", ", arguments: {alternate-exchange: amq.fanout}"), ("{exchange: amq.fanout}", "")],
    ids=["queues only", "with an alternate exchange", "with an exchange"],
)
def test_a_direct_carrier_with_many_destinations_is_a_warning(more: str, alternate: str) -> None:
    least = 50

    def messages(count: int, carrier_type: str) -> list[str]:
        named = [f"{{queue: q{number}}}" for number in range(count - bool(more))] + [more] * bool(more)
        text = f"exchanges:\n  - {{name: e, carrier_type: {carrier_type}{alternate}, bindings: [{', '.join(named)}]}}\n"
        return [line for line in warnings(text) if "carrier_type" in line]

    assert messages(least + 1, "direct") == [
        f"a.yaml:2:15: exchanges[0].carrier_type: warning: a direct carrier with {least + 1} destinations: RabbitMQ "
        f"before 3.13 compares all of them with every message; a topic carrier is cheaper for more than {least} "
        "destinations; set carrier_type: auto"
    ]
    assert messages(least, "direct") == messages(least + 1, "auto") == messages(least + 1, "topic") == []
