from __future__ import annotations

import json

import pytest

from proxy.errors import ConfigErrors
from proxy.rules.explain import AddressRequest, as_json, as_lines, as_text, explain, explain_address
from tests.rules.loading import load, message_request

SECRET = "s3cret-word"
RULES = f"""
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
    explanation = explain_address(load(RULES), AddressRequest(address="out/a/b/c"))
    assert list(as_lines(explanation)) == [
        'address   "out/a/b/c"',
        'rule      1 (away): "out/%/*"',
        '          $1 = "a"',
        '          $2 = "b/c"',
        'result    "amqps://me:***@far.example/a/b/c"',
        "target    queue a/b/c at far.example:5671, TLS, user me",
    ]


def test_an_address_without_a_rule_is_explained() -> None:
    explanation = explain_address(load(RULES), AddressRequest(address="other"))
    assert (explanation.rule, list(as_lines(explanation))[-1]) == (
        None,
        "          no rule of the address table matches",
    )


def test_no_password_is_shown_whether_it_comes_from_the_rule_or_from_the_address() -> None:
    loaded = load(RULES)
    for address in ("out/a/b", f"amqp://u:{SECRET}@h/x"):
        explanation = explain_address(loaded, AddressRequest(address=address))
        assert explanation.rule is not None
        assert SECRET not in "\n".join(as_lines(explanation)) + json.dumps(explanation.as_json())


def test_an_explanation_contains_the_translation_of_each_destination() -> None:
    answer = explain(load(RULES), message_request(b"exchange: documents", "m"), 0)
    assert (answer.result.queues, [lookup.rule for lookup in answer.lookups]) == (("new",), [0])
    assert "target    queue new here" in as_text(answer)
    assert as_json(answer)["addresses"] == [answer.lookups[0].as_json()]


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
    answer = explain(load(RULES), message_request(f"{{exchange: '', routing_key: {key}}}".encode(), "m"), 0)
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
