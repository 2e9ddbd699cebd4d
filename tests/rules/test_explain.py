from __future__ import annotations

import json

import pytest

from proxy.errors import ConfigErrors
from proxy.relay.tokens import token
from proxy.rules.explain import Explanation, as_json, as_text, explain
from tests.rules.loading import load, message_request

RULES = """
queues: [spare]
exchanges:
  - name: orders
    arguments: {max-payload-size: 100, alternate-exchange: rest}
    bindings:
      - queue: a
        name: urgent
        arguments: {x-order: 200, "x-?hkv= kind": urgent, "x-?pr> priority": 4, x-goto-ontrue: 400}
      - {queue: b, name: ordinary, arguments: {x-order: 300}}
      - {queue: c, name: last, arguments: {x-order: 400, x-?rkre: ^x, x-delq-ontrue: b, x-stop-ontrue: ""}}
      - {exchange: chain, name: on, arguments: {x-order: 500}}
  - {name: chain, type: fanout, bindings: [{queue: d, name: all}]}
  - {name: quiet, arguments: {min-payload-size-silent: 5}}
"""
NOON = 1795262400.0


def explained(message: str, rules: str = RULES) -> Explanation:
    return explain(load(rules), message_request(message.encode(), "m.yaml"), NOON)


def refused(data: bytes) -> str:
    with pytest.raises(ConfigErrors) as raised:
        message_request(data, "m.yaml")
    return str(raised.value)


def test_the_text_contains_each_visit_with_the_result_of_each_operator() -> None:
    message = "{exchange: orders, routing_key: k, headers: {kind: urgent}, properties: {priority: 9}, body_size: 7}"
    version = load(RULES).rules.version
    assert as_text(explained(message)).splitlines() == [
        'message   to exchange orders in vhost /, key "k", headers 1, body 7 bytes',
        f"rules     {version}, at 2026-11-21T12:00:00Z",
        "",
        "exchange orders (x-open)",
        "  filter max-payload-size: passed",
        "  200 urgent -> queue a: true (all)",
        "      match     x-?pr> priority: 4, got 9",
        '      match     x-?hkv= kind: "urgent", got "urgent"',
        "      adds queue a",
        "      continues at order 400",
        "  400 last -> queue c: false (all)",
        '      mismatch  x-?rkre: "^x", got "k"',
        "  500 on -> exchange chain: true (all)",
        "      adds exchange chain",
        "",
        "exchange chain (fanout)",
        "  10000 all -> queue d: true (all)",
        "      adds queue d",
        "",
        "outcome   routed",
        "queues    a, d",
        'wire      publish to exchange "orders", key "k"',
        f"          BCC {token('queue', b'a').decode()}: queue a",
        f"          BCC {token('queue', b'd').decode()}: queue d",
    ]


def test_the_text_contains_removals_and_the_end_of_the_visit() -> None:
    lines = as_text(explained("{exchange: orders, routing_key: x}")).splitlines()
    assert "      absent    x-?pr> priority: 4" in lines
    assert "      removes queue b" in lines
    assert "      stops here" in lines
    assert lines[-3] == "queues    c"


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            "{exchange: orders, body_size: 101}",
            "  filter max-payload-size: Max size payload hit. The channel is closed",
        ),
        (
            "{exchange: orders, body_size: 101}",
            'outcome   rejected: the channel is closed with 406 "Max size payload hit."',
        ),
        ("{exchange: quiet}", "  filter min-payload-size-silent: Min size payload hit. The message is dropped"),
        ("{exchange: quiet}", "outcome   filtered"),
        ("{exchange: quiet, body_size: 5}", "  no binding"),
        ("{exchange: other}", "outcome   passed"),
        ("{exchange: other, body_size: 1}", 'message   to exchange other in vhost /, key "", headers 0, body 1 byte'),
        ("{exchange: other}", "          no rules file names other: the message is passed to the broker unchanged"),
        (
            "{exchange: order}",
            "          no rules file names order: the message is passed to the broker unchanged; did you mean orders?",
        ),
        (
            "{exchange: orders, vhost: shop}",
            "          no rules file names orders: the message is passed to the broker unchanged; "
            "virtual host / has an exchange with this name",
        ),
        (
            '{exchange: "", routing_key: q}',
            'message   to the default exchange in vhost /, key "q", headers 0, body 0 bytes',
        ),
        (
            '{exchange: "", routing_key: q}',
            "          messages to the default exchange are evaluated only by the address table: "
            "the message is passed to the broker unchanged",
        ),
    ],
)
def test_the_text_contains_the_reason_of_an_unrouted_message(message: str, line: str) -> None:
    assert line in as_text(explained(message)).splitlines()


def test_a_misspelled_exchange_is_searched_in_the_only_virtual_host() -> None:
    lines = as_text(explained("{exchange: order}", "{vhost: shop, exchanges: [{name: orders}]}")).splitlines()
    assert lines[0].startswith("message   to exchange order in vhost shop, ")
    assert lines[4].endswith("; did you mean orders?")


def test_the_text_contains_the_alternate_exchange() -> None:
    rules = "exchanges: [{name: e, arguments: {alternate-exchange: rest}}]"
    lines = as_text(explained("exchange: e", rules)).splitlines()
    assert lines[-6:] == [
        "  no binding",
        "  no destination: continues at the alternate exchange rest",
        "",
        "outcome   unrouted",
        "exchanges rest",
        'wire      publish to exchange "e", key ""',
    ]


def test_an_invalid_producer_regex_is_reported_at_the_binding() -> None:
    rules = "exchanges: [{name: e, bindings: [{queue: q, arguments: {x-msg-addqre-ontrue: ''}}]}]"
    explanation = explained('{exchange: e, headers: {x-addqre-ontrue: "("}}', rules)
    assert "      Invalid regex '(': missing closing parenthesis at offset 1" in as_text(explanation).splitlines()
    assert explanation.result.outcome == "rejected"


def test_the_json_result_contains_the_same() -> None:
    answer = as_json(
        explained("{exchange: orders, routing_key: k, headers: {kind: urgent}, properties: {priority: 9}}")
    )
    assert json.loads(json.dumps(answer)) == answer
    assert {key: answer[key] for key in ("vhost", "exchange", "at", "outcome", "queues", "exchanges", "error")} == {
        "vhost": "/",
        "exchange": "orders",
        "at": "2026-11-21T12:00:00Z",
        "outcome": "routed",
        "queues": ["a", "d"],
        "exchanges": [],
        "error": None,
    }
    assert answer["matched"] == [
        {"exchange": "orders", "binding": "urgent"},
        {"exchange": "orders", "binding": "on"},
        {"exchange": "chain", "binding": "all"},
    ]
    walk = answer["walk"]
    assert isinstance(walk, list)
    assert walk[0]["filters"] == [{"filter": "max-payload-size", "breach": None, "silent": False}]
    assert walk[0]["bindings"][0] == {
        "binding": "urgent",
        "destination": "queue a",
        "order": 200,
        "match": "all",
        "result": True,
        "operators": [
            {"operator": "x-?pr> priority", "expected": 4, "verdict": "match", "seen": 9},
            {"operator": "x-?hkv= kind", "expected": "urgent", "verdict": "match", "seen": "urgent"},
        ],
        "added": ["queue a"],
        "removed": [],
        "goto": 400,
        "stop": False,
        "error": None,
        "regex_budget_spent": [],
    }


def test_regex_routes_see_queues_of_rules_and_request() -> None:
    rules = "queues: [spare]\nexchanges: [{name: e, bindings: [{queue: q, arguments: {x-addqre-ontrue: ^s}}]}]"
    assert explained("{exchange: e, queues: [s2]}", rules).result.queues == ("q", "s2", "spare")


def test_an_exchange_in_two_virtual_hosts_requires_a_virtual_host() -> None:
    first, second = "vhost: one\nexchanges: [{name: e}]\n", "vhost: two\nexchanges: [{name: e}]\n"
    with pytest.raises(ConfigErrors, match=r"m\.yaml: vhost: missing, expected one of one, two"):
        explain(load(first, second), message_request(b"exchange: e", "m.yaml"), NOON)
    question = message_request(b"{exchange: e, vhost: two}", "m.yaml")
    assert explain(load(first, second), question, NOON).vhost == "two"


def test_every_error_of_a_message_is_reported_with_its_line() -> None:
    assert refused(b"exchange: 5\nbody_size: x\nbody: a\n").splitlines() == [
        "m.yaml:1:11: exchange: got the number 5, expected the name of the exchange: put it in quotes",
        'm.yaml:2:12: body_size: got the string "x", expected an integer from 0 to 9223372036854775807',
        "m.yaml:3:1: body: unknown key; did you mean body_size?",
    ]


@pytest.mark.parametrize("data", [b"", b"# nothing\n"])
def test_an_empty_message_is_an_error(data: bytes) -> None:
    assert refused(data) == "m.yaml: the file is empty, expected a message: exchange, routing_key, headers, ..."


def test_a_message_that_is_not_yaml_is_an_error() -> None:
    assert refused(b"exchange: [").startswith("m.yaml:2:1: YAML syntax: ")
