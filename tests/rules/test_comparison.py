from __future__ import annotations

from typing import Any

import pytest

from proxy.routing.decision import Decision, Facts, Outcome, QueueNames
from proxy.rules import comparison
from proxy.rules.comparison import ComparedRules, ObservedPublish, RulesComparison
from proxy.rules.loader import LoadedRules
from proxy.rules.message import DescribedMessage
from tests.routing.building import NOW, Plain, arguments
from tests.rules.loading import load

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


def compared(live: str, candidate: str, *publishes: dict[str, Any]) -> dict[str, Any]:  # Any: arguments, and JSON
    rules = load(live)
    found = RulesComparison(ComparedRules(rules), ComparedRules(load(candidate)))
    for each in publishes:
        found.compare(published(rules, **each), lambda: {"routing_key": "shown"})
    return found.as_json()


def test_equal_and_different_publishes_are_counted_with_examples() -> None:
    found = compared(LIVE, OTHER, {"type": "report"}, {"type": "bill"}, {"type": "bill"}, {"type": "note"})
    assert (found["compared"], found["equal"], found["different"], found["random"]) == (4, 2, 2, 0)
    (exchange,) = found["exchanges"]
    assert (exchange["vhost"], exchange["exchange"], exchange["different"]) == ("/", "e", 2)
    (kind,) = exchange["differences"]
    assert (kind["publishes"], kind["example"]) == (2, {"routing_key": "shown"})
    assert (kind["live"]["outcome"], kind["live"]["queues"]) == ("unrouted", [])
    assert (kind["candidate"]["outcome"], kind["candidate"]["queues"]) == ("routed", ["bills"])
    assert [(each["binding"], each["matches"]) for each in found["bindings"]] == [("reports", 1), ("bills", 2)]


def test_a_comparison_names_both_versions() -> None:
    found = compared(LIVE, OTHER)
    assert found["live"] == load(LIVE).rules.version != found["candidate"] == load(OTHER).rules.version


def test_an_exchange_on_only_one_side_is_a_difference() -> None:
    found = compared(
        LIVE, OTHER.replace("name: e\n", "name: f\n"), {"type": "report"}, {"exchange": "f", "type": "bill"}
    )
    kinds = {each["exchange"]: each["differences"][0] for each in found["exchanges"]}
    assert (kinds["e"]["live"]["outcome"], kinds["e"]["candidate"]["outcome"]) == ("routed", "passed")
    assert (kinds["f"]["live"]["outcome"], kinds["f"]["candidate"]["queues"]) == ("passed", ["bills"])


def test_an_exchange_on_neither_side_is_equal() -> None:
    assert compared(LIVE, OTHER, {"exchange": "x"})["equal"] == 1


def test_a_virtual_host_of_only_the_candidate_is_compared_with_no_rules() -> None:
    live, candidate = load(LIVE), load(OTHER)
    seen = published(candidate, type="bill")
    away = ObservedPublish("elsewhere", seen.message, seen.at, seen.queues, seen.decision)
    found = RulesComparison(ComparedRules(live), ComparedRules(candidate))
    found.compare(away, dict)
    assert found.as_json()["equal"] == 1


def test_refusals_with_different_texts_differ() -> None:
    loud = LIVE + "    arguments: {max-payload-size: 0}\n"
    found = compared(LIVE, loud, {"type": "report"})
    assert found["exchanges"][0]["differences"][0]["candidate"]["outcome"] == "rejected"


def test_clock_rules_are_compared_at_the_time_of_the_publish() -> None:
    early = LIVE.replace('"x-?hkv= type": report', '"x-?dture": " 08"')
    late = LIVE.replace('"x-?hkv= type": report', '"x-?dture": " 09"')
    found = compared(early, late, {}, {"at": NOW + 7200})
    assert (found["different"], found["equal"]) == (1, 1)
    assert compared(early, early, {}, {"at": NOW + 3600})["different"] == 0


@pytest.mark.parametrize("swap", [False, True])
def test_a_random_pick_is_not_compared(swap: bool) -> None:
    random = LIVE.replace('"x-?hkv= type": report', "x-add1qre-ontrue: ^there")
    found = compared(*((random, LIVE) if swap else (LIVE, random)), {"type": "report"})
    assert (found["compared"], found["random"]) == (0, 1)
    assert found["exchanges"][0]["random"] == 1


def test_regex_routes_see_the_queues_that_exist() -> None:
    found = compared(LIVE, LIVE.replace('"x-?hkv= type": report', "x-addqre-ontrue: ^there"), {"type": "report"})
    assert found["exchanges"][0]["differences"][0]["candidate"]["queues"] == ["q", "there1", "there2"]


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
    publishes: list[dict[str, Any]] = [  # Any: arguments
        {"exchange": "", "key": "moved/there"},
        {"exchange": "", "key": "in/k", "type": "report"},
        {"type": "report"},
        {"exchange": "", "key": "plain"},
    ]
    found = compared(LIVE, ADDRESSED, *publishes)
    assert (found["different"], found["equal"]) == (3, 1)
    kinds = {each["exchange"]: each["differences"] for each in found["exchanges"]}
    assert [kind["candidate"]["queues"] for kind in kinds[""]] == [["there"], ["q"]]
    assert len(kinds["e"][0]["candidate"]["remotes"]) == 1


def test_equal_address_tables_are_equal() -> None:
    rules = load(ADDRESSED)
    inner = published(rules, type="report")
    seen = published(rules, exchange="", key="in/k", type="report")
    found = RulesComparison(ComparedRules(rules), ComparedRules(load(ADDRESSED)))
    found.compare(ObservedPublish(seen.vhost, seen.message, seen.at, seen.queues, inner.decision), dict)
    found.compare(published(rules, exchange="", key="moved/x"), dict)
    assert found.as_json()["equal"] == 2


def test_only_publishes_affected_by_rules_are_compared() -> None:
    assert ComparedRules(load(LIVE)).touches("/", b"e")
    assert not ComparedRules(load(LIVE)).touches("/", b"")
    assert not ComparedRules(load(LIVE)).touches("elsewhere", b"e")
    assert ComparedRules(load(ADDRESSED)).touches("/", b"")


def test_the_comparison_result_is_limited_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "KINDS", 2)
    monkeypatch.setattr(comparison, "EXCHANGES", 2)
    found = compared(LIVE, ADDRESSED, *({"exchange": f"x{number}"} for number in range(5)))
    assert [each["exchange"] for each in found["exchanges"]] == ["other", "x0", "x1"]
    assert found["exchanges"][0]["compared"] == 3
    many = compared(LIVE, ADDRESSED, *({"exchange": "", "key": f"moved/{number}"} for number in range(5)))
    (exchange,) = many["exchanges"]
    assert (len(exchange["differences"]), exchange["further_differences"], exchange["different"]) == (2, 3, 5)
