from __future__ import annotations

from proxy.routing.decision import QueueNames
from proxy.rules.comparison import ComparedRules, ObservedPublish, RulesComparison
from proxy.rules.loader import compile_rules
from tests.rules.loading import message_request

RULES = "vhost: {}\nexchanges: [{{name: e, bindings: [{{queue: q, name: b}}]}}]\n"


def test_matches_are_counted_separately_for_each_virtual_host() -> None:
    loaded = compile_rules([(name, RULES.format(name).encode()) for name in ("one", "two")])
    comparison = RulesComparison(ComparedRules(loaded), ComparedRules(loaded))
    message = message_request(b"exchange: e", "message").message
    decision = loaded.routers["one"].decide(b"e", message.facts, 0.0, QueueNames(), lambda _: 0)
    comparison.compare(ObservedPublish("one", message, 0.0, QueueNames(), decision), dict)
    bindings = comparison.as_json()["bindings"]
    assert isinstance(bindings, list)
    assert [(binding["vhost"], binding["matches"]) for binding in bindings] == [("one", 1), ("two", 0)]
