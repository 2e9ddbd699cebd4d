"""POST /explain without a broker; `tests/app/test_workers.py` requests it of a running sidecar."""

from __future__ import annotations

import json

from proxy.admin.explain import ExplainPage
from proxy.app.reload import owned_exchanges
from proxy.relay.vhost import DeclaredExchange, Delivery, OwnedExchange, VhostState
from proxy.routing.decision import QueueNames
from proxy.routing.exchange import Exchange
from tests.routing.building import NOW, to_queue
from tests.rules.loading import load

RULES = """\
exchanges:
  - name: e
    bindings: [{queue: q, arguments: {x-addqre-ontrue: ^there}}]
"""


def asked() -> tuple[ExplainPage, VhostState]:
    loaded = load(RULES)
    state = VhostState("/", loaded.routers["/"], owned_exchanges(loaded.rules.vhosts["/"]))
    state.queues = QueueNames((b"elsewhere", b"there1"))
    return ExplainPage(lambda: loaded, lambda: [state], lambda: NOW), state


async def explained(page: ExplainPage, body: bytes) -> dict[str, object]:
    code, text = await page.explain(body)
    assert code == 200
    assert isinstance(text, str)
    found: dict[str, object] = json.loads(text)
    return found


async def test_queues_that_exist_are_seen_by_regex_routes() -> None:
    page, _ = asked()
    found = await explained(page, b"exchange: e")
    assert (found["queues"], found["at"]) == (["q", "there1"], "2026-11-21T08:00:00Z")


async def test_what_clients_declared_is_explained() -> None:
    page, state = asked()
    theirs = OwnedExchange(
        b"xo", "x-open", Delivery.CARRIER, b"xo", declared=DeclaredExchange(True, False, False, b"", 1)
    )
    exchange = Exchange(b"xo", "x-open")
    exchange.bind(to_queue("theirs"))
    state.add_exchange(theirs, exchange)
    assert (await explained(page, b"{exchange: xo, vhost: /}"))["queues"] == ["theirs"]


async def test_faults_of_a_question_are_given() -> None:
    code, found = await asked()[0].explain(b"{}")
    assert code == 422
    assert "exchange" in str(found)
