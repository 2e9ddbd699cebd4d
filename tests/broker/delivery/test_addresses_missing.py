"""Which destinations are reported as missing if the address table translates them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.delivery.distance import SECRET, VHOST, Far
from tests.broker.delivery.site import Site, standing
from tests.broker.observed import Outside
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import request_page

RULES = """
exchanges:
  - name: letters
    bindings:
      - {{queue: away}}
      - {{queue: moved}}
      - {{queue: lost}}
      - {{queue: broken}}
      - {{exchange: whole}}
      - {{queue: first}}
      - {{queue: second}}
      - {{queue: gone}}
      - {{queue: there, arguments: {{"x-?rk=": there}}}}
  - name: entered
    bindings: [{{queue: final}}]
  - name: plainly
    delivery: queue
    bindings: [{{queue: away}}, {{queue: moved}}]
brokers:
  far: {{address: "127.0.0.1:{port}", username: mover, password: {secret}, vhost: {vhost}}}
addresses:
  - {{pattern: away, translation: far/queue/away}}
  - {{pattern: moved, translation: /queue/new}}
  - {{pattern: gone, translation: far/queue/nowhere}}
  - {{pattern: there, translation: far/exchange/unknown/k}}
  - {{pattern: broken, translation: /exchange//nothing}}
  - {{pattern: first, translation: /queue/second}}
  - {{pattern: second, translation: /queue/first}}
  - {{pattern: final, translation: far/queue/away}}
  - {{pattern: "in/*", translation: /exchange/entered/$1}}
  - {{pattern: "/exchange/whole/*", translation: far/exchange/same}}
"""
ABSENT = "does not exist"
LETTER = {"exchange": "letters", "routing_key": "there"}


@pytest.fixture(scope="module")
def site(broker: Broker, far: Far, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    settings = {"inventory": {"refresh": "200ms"}}
    with standing(broker, tmp_path_factory.mktemp("site"), far.rules(RULES), settings) as site:
        yield site


def test_only_destinations_after_translation_are_reported_here_and_at_other_brokers(site: Site, far: Far) -> None:
    elsewhere = {"queue nowhere on broker far": ABSENT, "exchange unknown on broker far": ABSENT}
    expected = elsewhere | {
        "queue broken": "its translation by the address table fails: the exchange or queue name is empty",
        "queue first": ABSENT,
        "queue second": ABSENT,
        "queue final": ABSENT,  # for messages that the table itself has sent to `entered`
        "queue lost": ABSENT,
        "queue new": f"the address table redirects queue moved to it: {ABSENT}",
    }
    until(lambda: len(site.status["missing"]) == len(expected))
    assert site.status["missing"] == expected
    until(lambda: site.metric("topology_missing_destinations") == len(expected))
    lines = site.logged("destinations missing")
    assert any("queue new" in line for line in lines)
    assert any("queue nowhere on broker far" in line for line in lines)
    assert not any("queue away" in line for line in lines)
    assert elsewhere.items() <= post(site, "/explain", LETTER | {"vhost": site.vhost})["missing"].items()
    site.make_queues("lost", "new", "first", "second", "final")
    Outside(far.broker, VHOST).make_queue("nowhere")
    Outside(far.broker, VHOST).make_exchange("unknown")
    until(lambda: list(site.status["missing"]) == ["queue broken"])
    assert SECRET not in site.sidecar.log.read_text()


def test_explain_and_the_answer_to_a_reload_report_the_same_destinations(
    broker: Broker, far: Far, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {"inventory": {"refresh": "200ms"}}
    with standing(broker, tmp_path_factory.mktemp("site"), far.rules(RULES), settings) as site:
        answer = post(site, "/-/reload", {})
        assert [destination for destination in answer["missing"] if destination in ("queue away", "queue moved")] == []
        assert {"queue broken", "queue lost", "queue new"} <= set(answer["missing"])
        until(lambda: site.status["missing"])
        explained = post(site, "/explain", {"exchange": "letters", "vhost": site.vhost})["missing"]
        assert {destination for destination in explained if " on broker " not in destination} == {
            "queue first",
            "queue lost",
            "queue new",
            "queue second",
        }


def post(site: Site, page: str, body: object) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(request_page(site.sidecar.admin + page, json.dumps(body).encode(), "POST")[1])
    return parsed
