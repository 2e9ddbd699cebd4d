from __future__ import annotations

from typing import Any

import pytest

from oxproxy.routing.decision import Decision, Facts, Outcome, QueueNames
from oxproxy.rules import comparison
from oxproxy.rules.comparison import ComparedRules, ObservedPublish, RulesComparison
from oxproxy.rules.loader import LoadedRules, compile_rules
from oxproxy.rules.message import DescribedMessage
from tests.routing.building import NOW, Plain, arguments
from tests.rules.loading import load, message_request

LIVE = """\
exchanges:
  - name: e
    bindings:
      - {queue: q, name: reports, arguments: {"x-?hkv= type": report}}
"""
OTHER = """\
exchanges:
  - name: e
    bindings:
      - {queue: q, name: reports, arguments: {"x-?hkv= type": report}}
      - {queue: bills, name: bills, arguments: {"x-?hkv= type": bill}}
"""
QUEUES = QueueNames((b"there1", b"there2"))


def published(
    live: LoadedRules, exchange: str = "e", key: str = "", at: float = NOW, **headers: Plain
) -> ObservedPublish:
    """A publish with the decision of the live rules."""
    message = DescribedMessage(exchange.encode(), Facts(key.encode(), arguments(headers), {}, 1))
    nothing = Decision(message.exchange, Outcome.UNROUTED)
    router = live.routers["/"]
    decided = message.exchange in router.exchanges
    decision = router.decide(message.exchange, message.facts, at, QUEUES, lambda _: 0) if decided else nothing
    return ObservedPublish("/", message, at, QUEUES, decision)


def compared(live: str, candidate: str, *publishes: dict[str, Any]) -> dict[str, Any]:  # Any: arguments; JSON
    rules = load(live)
    comparison = RulesComparison(ComparedRules(rules), ComparedRules(load(candidate)))
    for publish in publishes:
        comparison.compare(published(rules, **publish), lambda: {"routing_key": "shown"})
    return comparison.as_json()


def test_equal_and_different_publishes_are_counted_with_examples() -> None:
    result = compared(LIVE, OTHER, {"type": "report"}, {"type": "bill"}, {"type": "bill"}, {"type": "note"})
    assert (result["compared"], result["equal"], result["different"], result["random"]) == (4, 2, 2, 0)
    (exchange,) = result["exchanges"]
    assert (exchange["vhost"], exchange["exchange"], exchange["different"]) == ("/", "e", 2)
    (kind,) = exchange["differences"]
    assert (kind["publishes"], kind["example"]) == (2, {"routing_key": "shown"})
    assert (kind["live"]["outcome"], kind["live"]["queues"]) == ("unrouted", [])
    assert (kind["candidate"]["outcome"], kind["candidate"]["queues"]) == ("routed", ["bills"])
    assert [(binding["binding"], binding["matches"]) for binding in result["bindings"]] == [
        ("reports", 1),
        ("bills", 2),
    ]


def test_an_exchange_on_only_one_side_is_a_difference() -> None:
    result = compared(
        LIVE, OTHER.replace("name: e\n", "name: f\n"), {"type": "report"}, {"exchange": "f", "type": "bill"}
    )
    kinds = {row["exchange"]: row["differences"][0] for row in result["exchanges"]}
    assert (kinds["e"]["live"]["outcome"], kinds["e"]["candidate"]["outcome"]) == ("routed", "passed")
    assert (kinds["f"]["live"]["outcome"], kinds["f"]["candidate"]["queues"]) == ("passed", ["bills"])


def test_a_virtual_host_of_only_the_candidate_is_compared_with_no_rules() -> None:
    live, candidate = load(LIVE), load(OTHER)
    seen = published(candidate, type="bill")
    away = ObservedPublish("elsewhere", seen.message, seen.at, seen.queues, seen.decision)
    comparison = RulesComparison(ComparedRules(live), ComparedRules(candidate))
    comparison.compare(away, dict)
    assert comparison.as_json()["equal"] == 1


def test_refusals_with_different_texts_differ() -> None:
    loud = LIVE + "    arguments: {max-payload-size: 0}\n"
    result = compared(LIVE, loud, {"type": "report"})
    assert result["exchanges"][0]["differences"][0]["candidate"]["outcome"] == "rejected"


def test_clock_rules_are_compared_at_the_time_of_the_publish() -> None:
    early = LIVE.replace('"x-?hkv= type": report', '"x-?dture": " 08"')
    late = LIVE.replace('"x-?hkv= type": report', '"x-?dture": " 09"')
    result = compared(early, late, {}, {"at": NOW + 7200})
    assert (result["different"], result["equal"]) == (1, 1)
    assert compared(early, early, {}, {"at": NOW + 3600})["different"] == 0


@pytest.mark.parametrize("swap", [False, True])
def test_a_random_pick_is_not_compared(swap: bool) -> None:
    random = LIVE.replace('"x-?hkv= type": report', "x-add1qre-ontrue: ^there")
    result = compared(*((random, LIVE) if swap else (LIVE, random)), {"type": "report"})
    assert (result["compared"], result["random"]) == (0, 1)
    assert result["exchanges"][0]["random"] == 1


ADDRESSED = (
    LIVE
    + """\
addresses:
  - {pattern: "moved/*", translation: /queue/$1}
  - {pattern: "in/*", translation: /exchange/e/$1}
  - {pattern: "q", translation: "amqp://archive/queue/q"}
brokers:
  archive: {address: "archive.example:5672"}
"""
)


def test_address_tables_are_compared_too() -> None:
    publishes: list[dict[str, Any]] = [  # Any: as `published` accepts
        {"exchange": "", "key": "moved/there"},
        {"exchange": "", "key": "in/k", "type": "report"},
        {"type": "report"},
        {"exchange": "", "key": "plain"},
    ]
    result = compared(LIVE, ADDRESSED, *publishes)
    assert (result["different"], result["equal"]) == (3, 1)
    kinds = {row["exchange"]: row["differences"] for row in result["exchanges"]}
    assert [kind["candidate"]["queues"] for kind in kinds[""]] == [["there"], ["q"]]
    assert len(kinds["e"][0]["candidate"]["remotes"]) == 1


def test_equal_address_tables_are_equal() -> None:
    rules = load(ADDRESSED)
    inner = published(rules, type="report")
    seen = published(rules, exchange="", key="in/k", type="report")
    comparison = RulesComparison(ComparedRules(rules), ComparedRules(load(ADDRESSED)))
    comparison.compare(ObservedPublish(seen.vhost, seen.message, seen.at, seen.queues, inner.decision), dict)
    comparison.compare(published(rules, exchange="", key="moved/x"), dict)
    assert comparison.as_json()["equal"] == 2


def test_the_comparison_result_is_limited_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "KINDS", 2)
    monkeypatch.setattr(comparison, "EXCHANGES", 2)
    result = compared(LIVE, ADDRESSED, *({"exchange": f"x{number}"} for number in range(5)))
    assert [row["exchange"] for row in result["exchanges"]] == ["other", "x0", "x1"]
    assert result["exchanges"][0]["compared"] == 3
    many = compared(LIVE, ADDRESSED, *({"exchange": "", "key": f"moved/{number}"} for number in range(5)))
    (exchange,) = many["exchanges"]
    assert (len(exchange["differences"]), exchange["further_differences"], exchange["different"]) == (2, 3, 5)


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
