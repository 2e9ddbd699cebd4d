from __future__ import annotations

import json
import re

import pytest

from oxproxy.errors import ConfigErrors
from oxproxy.relay.vhost import VhostState
from oxproxy.rules.explain import AddressRequest, Explanation, as_json, as_lines, as_text, explain, explain_address
from oxproxy.rules.wire import owned_exchanges
from tests.routing.building import NOW
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
  - {name: sorted, arguments: {max-payload-size-silent: 5, alternate-exchange: large}}
  - {name: large, type: fanout, bindings: [{queue: big}]}
  - {name: outside, arguments: {max-payload-size-silent: 5, alternate-exchange: elsewhere}}
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
        'header    kind: "urgent"',
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
        "          BCC the token of queue a",
        "          BCC the token of queue d",
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
        (
            "{exchange: sorted, body_size: 6}",
            "  filter max-payload-size-silent: Max size payload hit. The message continues at the alternate exchange "
            "large",
        ),
        ("{exchange: sorted, body_size: 6}", "outcome   filtered"),
        ("{exchange: sorted, body_size: 6}", "queues    big"),
        (
            "{exchange: outside, body_size: 6}",
            "  filter max-payload-size-silent: Max size payload hit. The message continues at the alternate exchange "
            "elsewhere",
        ),
        ("{exchange: outside, body_size: 6}", "outcome   filtered"),
        ("{exchange: outside, body_size: 6}", "exchanges elsewhere"),
        ("{exchange: sorted}", "  no destination: continues at the alternate exchange large"),
        ("{exchange: sorted}", "outcome   routed"),
        ("{exchange: quiet, body_size: 5}", "  no binding"),
        ('{exchange: other, headers: {a: "1\\n2"}}', r'header    a: "1\n2"'),
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
    assert walk[0]["filters"] == [{"filter": "max-payload-size", "breach": None, "silent": False, "observed": False}]
    assert walk[0]["bindings"][0] == {
        "binding": "urgent",
        "destination": "queue a",
        "order": 200,
        "match": "all",
        "result": True,
        "operators": [
            {"operator": "x-?pr> priority", "header": None, "expected": 4, "verdict": "match", "seen": 9},
            {
                "operator": "x-?hkv= kind",
                "header": "kind",
                "expected": "urgent",
                "verdict": "match",
                "seen": "urgent",
            },
        ],
        "added": ["queue a"],
        "removed": [],
        "goto": 400,
        "stop": False,
        "error": None,
        "regex_budget_spent": [],
    }


def test_a_filtered_message_with_an_alternate_exchange_is_not_said_to_be_dropped() -> None:
    text = as_text(explained("{exchange: sorted, body_size: 6}"))
    assert "dropped" not in text
    assert text.count("alternate exchange") == 1


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


SECRET = "s3cret-word"
ADDRESS_RULES = f"""
exchanges:
  - {{name: documents, bindings: [{{queue: moved}}]}}
addresses:
  - {{pattern: moved, translation: /queue/new}}
  - {{name: away, pattern: "out/%/*", translation: "amqps://me:{SECRET}@far.example/$1/$2"}}
  - {{pattern: "amqp://*", translation: "far.example/$1"}}
  - {{pattern: in, translation: /exchange/documents/k}}
  - {{pattern: bad, translation: /exchange//k}}
"""


def test_an_address_is_explained_with_rule_captures_result_and_target() -> None:
    explanation = explain_address(load(ADDRESS_RULES), AddressRequest(address="out/a/b/c"))
    assert list(as_lines(explanation)) == [
        'address   "out/a/b/c"',
        'rule      1 (away): "out/%/*"',
        '          $1 = "a"',
        '          $2 = "b/c"',
        'result    "amqps://me:***@far.example/a/b/c"',
        "target    queue a/b/c at far.example:5671, TLS, user me",
    ]


def test_an_address_without_a_rule_is_explained() -> None:
    explanation = explain_address(load(ADDRESS_RULES), AddressRequest(address="other"))
    assert (explanation.rule, list(as_lines(explanation))[-1]) == (
        None,
        "          no rule of the address table matches",
    )


def test_no_password_is_shown_whether_it_comes_from_the_rule_or_from_the_address() -> None:
    loaded = load(ADDRESS_RULES)
    for address in ("out/a/b", f"amqp://u:{SECRET}@h/x"):
        explanation = explain_address(loaded, AddressRequest(address=address))
        assert explanation.rule is not None
        assert SECRET not in "\n".join(as_lines(explanation)) + json.dumps(as_json(explanation))


def test_an_explanation_contains_the_translation_of_each_destination() -> None:
    answer = explain(load(ADDRESS_RULES), message_request(b"exchange: documents", "m"), 0)
    assert (answer.result.queues, [lookup.rule for lookup in answer.lookups]) == (("new",), [0])
    assert "target    queue new here" in as_text(answer)
    assert as_json(answer)["addresses"] == [as_json(answer.lookups[0])]


@pytest.mark.parametrize(
    ("key", "outcome", "queues", "remotes"),
    [
        ("in", "routed", ("moved",), ()),
        ("out/a/b", "translated", (), ("far.example:5671",)),
        ("bad", "unrouted", (), ()),
        ("none", "passed", (), ()),
    ],
)
def test_a_message_to_an_exchange_without_rules_is_explained_by_the_table(
    key: str, outcome: str, queues: tuple[str, ...], remotes: tuple[str, ...]
) -> None:
    answer = explain(load(ADDRESS_RULES), message_request(f"{{exchange: '', routing_key: {key}}}".encode(), "m"), 0)
    assert (answer.result.outcome, answer.result.queues, answer.result.remotes) == (outcome, queues, remotes)
    assert SECRET not in as_text(answer)


UNUSABLE = """
exchanges:
  - name: documents
    carrier: stored
    bindings: [{exchange: outside, arguments: {"x-?rk!=": token}}, {exchange: further, arguments: {"x-?rk=": token}}]
addresses:
  - {pattern: /exchange/outside/*, translation: /exchange/stored/$1}
  - {pattern: /exchange/further/*, translation: /exchange/else/x.o.p.e.n.x.$1}
  - {pattern: to-carrier, translation: /exchange/stored/k}
  - {pattern: here/*, translation: /queue/$1}
  - {pattern: in/*, translation: /exchange/documents/$1}
  - {pattern: away/*, translation: far.example/queue/$1}
"""


@pytest.mark.parametrize(
    ("exchange", "key", "reason"),
    [
        ("", "to-carrier", "a carrier, not the exchange that it represents"),
        (
            "documents",
            "k",
            "the target is an exchange that the sidecar evaluates, but a message is evaluated only once",
        ),
        ("documents", "token", "a routing key with a reserved prefix"),
    ],
)
def test_translations_that_the_sidecar_refuses_are_explained_as_failed(exchange: str, key: str, reason: str) -> None:
    request = message_request(f"{{exchange: '{exchange}', routing_key: {key}}}".encode(), "m")
    answer = explain(load(UNUSABLE), request, 0)
    assert (answer.result.queues, answer.result.exchanges, answer.result.failed) == ((), (), (reason,))
    assert answer.wire.publishes == ()


@pytest.mark.parametrize("rule", ["here", "in", "away"])
@pytest.mark.parametrize("prefix", ["x.o.p.e.n.x.", "x-o-p-e-n-x-"])
def test_a_translation_to_a_reserved_key_is_explained_as_refused(rule: str, prefix: str) -> None:
    request = message_request(f"{{exchange: '', routing_key: {rule}/{prefix}q.1}}".encode(), "m")
    answer = explain(load(UNUSABLE), request, 0)
    assert (answer.result.outcome, answer.result.queues, answer.wire.publishes) == ("rejected", (), ())
    refusal = "the channel is closed with 403 \"routing keys that begin with 'x.o.p.e.n.x.' are reserved\""
    assert f"outcome   rejected: {refusal}" in as_text(answer)


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        (AddressRequest(address="a"), ""),
        (AddressRequest(address="a", vhost="foo"), " in virtual host foo"),
    ],
)
def test_without_a_table_explaining_an_address_is_an_error(request_: AddressRequest, where: str) -> None:
    with pytest.raises(ConfigErrors, match=f"no address table{where}; define `addresses` in a rules file"):
        explain_address(load("queues: [q]"), request_)


WIRE_RULES = """\
exchanges:
  - name: carried
    bindings: [{queue: q, arguments: {"x-?hkv= type": report}}]
  - name: other
    carrier: other.oxproxy
    unmatched: pass
    bindings: [{queue: q, arguments: {"x-?hkv= type": report}}]
  - name: queued
    delivery: queue
    bindings: [{queue: q}, {queue: r}, {exchange: x}]
  - name: moving
    bindings: [{queue: moved}]
  - name: loud
    arguments: {max-payload-size: 0}
brokers:
  archive: {address: "archive.example:5672"}
addresses:
  - {pattern: "out/*", translation: "amqp://archive/queue/$1"}
  - {pattern: "here/*", translation: /queue/$1}
  - {pattern: "in/*", translation: /exchange/carried/$1}
  - {pattern: "lost/*", translation: "/exchange//x"}
  - {pattern: moved, translation: /queue/q}
"""


def explained_live(message: str, live: VhostState | None = None) -> Explanation:
    states = {} if live is None else {"/": live}
    return explain(load(WIRE_RULES), message_request(message.encode(), "m.yaml"), NOW, states)


def wire(message: str, live: VhostState | None = None) -> list[tuple[object, ...]]:
    data = json.loads(json.dumps(as_json(explained_live(message, live))))
    names = ("to", "exchange", "routing_key", "bcc", "reaches", "headers", "untouched")
    return [tuple(publish[name] for name in names) for publish in data["wire"]]


def original(exchange: str, key: str, new: str, new_key: str) -> dict[str, object]:
    names = {"exchange": exchange, "routing-key": key, "new-exchange": new, "new-routing-key": new_key}
    return {"x-original-address": names}


CASES: list[tuple[str, list[tuple[object, ...]]]] = [
    (
        "{exchange: carried, routing_key: k, headers: {type: report}}",
        [("upstream", "carried", "k", [], ["queue q"], {}, False)],
    ),
    ("{exchange: carried, routing_key: k}", [("upstream", "carried", "k", [], [], {}, False)]),
    (
        "{exchange: other, routing_key: k, headers: {type: report}}",
        [("upstream", "other.oxproxy", "k", [], ["queue q"], original("other", "k", "other.oxproxy", "k"), False)],
    ),
    ("{exchange: other, routing_key: k}", [("upstream", "other", "k", [], [], {}, True)]),
    (
        "{exchange: queued, routing_key: k}",
        [
            ("upstream", "", "q", ["r"], [], original("queued", "k", "", "q"), False),
            ("upstream", "x", "k", [], [], original("queued", "k", "x", "k"), False),
        ],
    ),
    ("{exchange: moving, routing_key: k}", [("upstream", "moving", "k", [], ["queue q"], {}, False)]),
    ("{exchange: loud, body_size: 1}", []),
    ("{exchange: elsewhere, routing_key: k}", [("upstream", "elsewhere", "k", [], [], {}, True)]),
    ('{exchange: "", routing_key: out/q}', [("archive", "", "q", [], [], original("", "out/q", "", "q"), False)]),
    ('{exchange: "", routing_key: here/q}', [("upstream", "", "q", [], [], original("", "here/q", "", "q"), False)]),
    (
        '{exchange: "", routing_key: in/k, headers: {type: report}}',
        [("upstream", "carried", "k", [], ["queue q"], original("", "in/k", "carried", "k"), False)],
    ),
    ('{exchange: "", routing_key: lost/q}', []),
]


@pytest.mark.parametrize(("message", "leaves"), CASES)
def test_an_explanation_contains_the_publishes_on_the_wire(message: str, leaves: list[tuple[object, ...]]) -> None:
    assert wire(message) == leaves


def live(missing: bool) -> VhostState:
    """The virtual host of a running sidecar in which the queue is missing, or its token is not bound yet."""
    loaded = load(WIRE_RULES)
    state = VhostState("/", loaded.routers["/"], owned_exchanges(loaded.rules.vhosts["/"]))
    if missing:
        state.exchanges[b"carried"].tokens.refused(("queue", b"q"), "there is no such queue", 0.0)
    return state


@pytest.mark.parametrize(("missing", "reason"), [(True, "there is no such queue"), (False, "not bound yet")])
def test_an_explanation_contains_missing_destinations_with_the_reason(missing: bool, reason: str) -> None:
    message = "{exchange: carried, headers: {type: report}}"
    destinations = as_json(explained_live(message, live(missing)))["missing"]
    assert isinstance(destinations, dict)
    assert destinations["queue q"].startswith(reason)
    assert f"missing   queue q: {reason}" in as_text(explained_live(message, live(missing)))
    assert wire(message, live(missing)) == [("upstream", "carried", "", [], [], {}, False)]


def test_an_explanation_names_the_destinations_of_tokens_without_the_tokens() -> None:
    state = live(missing=False)
    owned, destination = state.exchanges[b"carried"], ("queue", b"q")
    owned.tokens.bind_ok(destination, state.candidates(owned, destination)[:1])
    message = "{exchange: carried, headers: {type: report}}"
    ((_, _, _, keys, reached, _, _),) = wire(message, state)
    assert (keys, reached) == ([], ["queue q"])
    text = as_text(explained_live(message, state))
    assert text.count("BCC the token of queue q") == 1
    assert not re.search(r"x.o.p.e.n.x", text)


def test_cc_of_a_client_is_renamed_if_it_would_route() -> None:
    (first, _) = wire("{exchange: queued, headers: {CC: [c]}}")
    headers = first[5]
    assert isinstance(headers, dict)
    assert headers["x-original-cc"] == ["c"]


@pytest.mark.timeout(60)
def test_a_message_with_tens_of_thousands_of_headers_is_explained_in_linear_time() -> None:
    """If each header were compared with all others, this would take many minutes."""
    headers = "".join(f"  h{number}: {number}\n" for number in range(60_000))
    rules = "queues: [q]\nexchanges:\n- name: e\n  bindings: [{queue: q, arguments: {x-?hkex: h7}}]\n"
    answer = explain(load(rules), message_request(f"exchange: e\nheaders:\n{headers}".encode(), "m"), 0)
    assert answer.result.outcome == "routed"
