"""Questions to rules in force, without a broker; `test_reload` asks a running sidecar."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

from proxy.app.questions import Questions
from proxy.app.reload import Answer, Reload, owned_exchanges
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


GOOD = Answer("v")


def asked(answer: Answer = GOOD) -> tuple[Questions, VhostState]:
    loaded = load(RULES)
    state = VhostState("/", loaded.routers["/"], owned_exchanges(loaded.rules.vhosts["/"]))
    state.queues = QueueNames((b"elsewhere", b"there1"))

    async def reload(reason: str) -> Answer:
        assert reason == "request"
        return answer

    holder = cast("Reload", SimpleNamespace(loaded=loaded, reload=reload))
    return Questions(holder, lambda: [state], lambda: NOW), state


async def explained(questions: Questions, body: bytes) -> dict[str, object]:
    code, text = await questions.explain(body)
    assert code == 200
    assert isinstance(text, str)
    found: dict[str, object] = json.loads(text)
    return found


async def test_queues_that_exist_are_seen_by_regex_routes() -> None:
    questions, _ = asked()
    found = await explained(questions, b"exchange: e")
    assert (found["queues"], found["at"]) == (["q", "there1"], "2026-11-21T08:00:00Z")


async def test_what_clients_declared_is_explained() -> None:
    questions, state = asked()
    theirs = OwnedExchange(
        b"xo", "x-open", Delivery.CARRIER, b"xo", declared=DeclaredExchange(True, False, False, b"", 1)
    )
    exchange = Exchange(b"xo", "x-open")
    exchange.bind(to_queue("theirs"))
    state.add_exchange(theirs, exchange)
    assert (await explained(questions, b"{exchange: xo, vhost: /}"))["queues"] == ["theirs"]


async def test_faults_of_a_question_are_given() -> None:
    code, found = await asked()[0].explain(b"{}")
    assert code == 422
    assert "exchange" in str(found)


@pytest.mark.parametrize(
    ("answer", "code"),
    [(GOOD, 200), (Answer("v", ("bad",), faulty=True), 422), (Answer("v", ("no broker",)), 503)],
)
async def test_the_status_says_who_is_to_blame(answer: Answer, code: int) -> None:
    assert await asked(answer)[0].reload(b"") == (code, answer.as_json())
