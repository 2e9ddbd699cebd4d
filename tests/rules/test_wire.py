from __future__ import annotations

import json

import pytest

from proxy.relay.tokens import TokenForm, token
from proxy.relay.vhost import VhostState
from proxy.rules.explain import Explanation, as_json, as_text, explain
from proxy.rules.wire import owned_exchanges
from tests.routing.building import NOW
from tests.rules.loading import load, message_request

RULES = """\
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
TOKEN = token("queue", b"q").decode()


def explained(message: str, live: VhostState | None = None) -> Explanation:
    states = {} if live is None else {"/": live}
    return explain(load(RULES), message_request(message.encode(), "m.yaml"), NOW, states)


def wire(message: str, live: VhostState | None = None) -> list[tuple[object, ...]]:
    data = json.loads(json.dumps(as_json(explained(message, live))))
    names = ("to", "exchange", "routing_key", "bcc", "reaches", "headers", "untouched")
    return [tuple(publish[name] for name in names) for publish in data["wire"]]


def original(exchange: str, key: str, new: str, new_key: str) -> dict[str, object]:
    names = {"exchange": exchange, "routing-key": key, "new-exchange": new, "new-routing-key": new_key}
    return {"x-original-address": names}


CASES: list[tuple[str, list[tuple[object, ...]]]] = [
    (
        "{exchange: carried, routing_key: k, headers: {type: report}}",
        [("upstream", "carried", "k", [TOKEN], ["queue q"], {}, False)],
    ),
    ("{exchange: carried, routing_key: k}", [("upstream", "carried", "k", [], [], {}, False)]),
    (
        "{exchange: other, routing_key: k, headers: {type: report}}",
        [("upstream", "other.oxproxy", "k", [TOKEN], ["queue q"], original("other", "k", "other.oxproxy", "k"), False)],
    ),
    ("{exchange: other, routing_key: k}", [("upstream", "other", "k", [], [], {}, True)]),
    (
        "{exchange: queued, routing_key: k}",
        [
            ("upstream", "", "q", ["r"], [], original("queued", "k", "", "q"), False),
            ("upstream", "x", "k", [], [], original("queued", "k", "x", "k"), False),
        ],
    ),
    ("{exchange: moving, routing_key: k}", [("upstream", "moving", "k", [TOKEN], ["queue q"], {}, False)]),
    ("{exchange: loud, body_size: 1}", []),
    ("{exchange: elsewhere, routing_key: k}", [("upstream", "elsewhere", "k", [], [], {}, True)]),
    ('{exchange: "", routing_key: out/q}', [("archive", "", "q", [], [], original("", "out/q", "", "q"), False)]),
    ('{exchange: "", routing_key: here/q}', [("upstream", "", "q", [], [], original("", "here/q", "", "q"), False)]),
    (
        '{exchange: "", routing_key: in/k, headers: {type: report}}',
        [("upstream", "carried", "k", [TOKEN], ["queue q"], original("", "in/k", "carried", "k"), False)],
    ),
    ('{exchange: "", routing_key: lost/q}', []),
]


@pytest.mark.parametrize(("message", "leaves"), CASES)
def test_an_explanation_contains_the_publishes_on_the_wire(message: str, leaves: list[tuple[object, ...]]) -> None:
    assert wire(message) == leaves


def live(missing: bool) -> VhostState:
    """The virtual host of a running sidecar in which the queue is missing, or its token is not bound yet."""
    loaded = load(RULES)
    state = VhostState("/", loaded.routers["/"], owned_exchanges(loaded.rules.vhosts["/"]))
    if missing:
        state.missing[("queue", b"q")] = "there is no such queue"
    return state


@pytest.mark.parametrize(("missing", "reason"), [(True, "there is no such queue"), (False, "not bound yet")])
def test_an_explanation_contains_missing_destinations_with_the_reason(missing: bool, reason: str) -> None:
    message = "{exchange: carried, headers: {type: report}}"
    destinations = as_json(explained(message, live(missing)))["missing"]
    assert isinstance(destinations, dict)
    assert destinations["queue q"].startswith(reason)
    assert f"missing   queue q: {reason}" in as_text(explained(message, live(missing)))
    assert wire(message, live(missing)) == [("upstream", "carried", "", [], [], {}, False)]


@pytest.mark.parametrize("form", list(TokenForm))
def test_an_explanation_names_the_destinations_of_tokens_in_every_form(form: TokenForm) -> None:
    state = live(missing=False)
    owned = state.exchanges[b"carried"]
    owned.form = form
    owned.tokens.bind_ok(("queue", b"q"))
    message = "{exchange: carried, headers: {type: report}}"
    ((_, _, _, keys, reached, _, _),) = wire(message, state)
    assert isinstance(keys, list)
    assert reached == ["queue q"] * len(keys)
    assert f"BCC {keys[0]}: queue q" in as_text(explained(message, state))


def test_cc_of_a_client_is_renamed_if_it_would_route() -> None:
    (first, _) = wire("{exchange: queued, headers: {CC: [c]}}")
    headers = first[5]
    assert isinstance(headers, dict)
    assert headers["x-original-cc"] == ["c"]
