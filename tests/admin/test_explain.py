"""Tests POST /explain without a broker; tests/app/test_workers.py requests it from a running sidecar."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from proxy.admin.explain import ExplainPage
from proxy.errors import ConfigErrors
from proxy.relay.vhost import DeclaredExchange, Delivery, OwnedExchange, VhostState
from proxy.routing.decision import QueueNames
from proxy.routing.exchange import Exchange
from proxy.routing.router import Router
from proxy.rules.wire import owned_exchanges
from tests.routing.building import NOW, to_queue
from tests.rules.loading import load

RULES = """\
exchanges:
  - name: e
    bindings: [{queue: q, arguments: {x-addqre-ontrue: ^there}}]
"""


def explain_page() -> tuple[ExplainPage, VhostState]:
    loaded = load(RULES)
    state = VhostState("/", loaded.routers["/"], owned_exchanges(loaded.rules.vhosts["/"]))
    state.queues = QueueNames((b"elsewhere", b"there1"))
    return ExplainPage(lambda: loaded, lambda: [state], lambda: NOW), state


async def explained(page: ExplainPage, body: bytes) -> dict[str, object]:
    code, text = await page.explain(body)
    assert code == 200
    assert isinstance(text, str)
    explanation: dict[str, object] = json.loads(text)
    return explanation


async def test_regex_routes_match_existing_queues() -> None:
    page, _ = explain_page()
    explanation = await explained(page, b"exchange: e")
    assert (explanation["queues"], explanation["at"]) == (["q", "there1"], "2026-11-21T08:00:00Z")


async def test_regex_routes_match_neither_missing_queues_nor_those_of_other_virtual_hosts() -> None:
    rules = RULES.replace("bindings: [", "bindings: [{queue: there-missing, arguments: {x-?hkex: x}}, ")
    loaded = load(rules)
    state = VhostState("/", loaded.routers["/"], owned_exchanges(loaded.rules.vhosts["/"]))
    state.queues = QueueNames((b"q", b"there1"))
    other = VhostState("other", Router([]), queues=QueueNames((b"there2",)))
    page = ExplainPage(lambda: loaded, lambda: [state, other], lambda: NOW)
    assert (await explained(page, b"exchange: e"))["queues"] == ["q", "there1"]
    assert (await explained(page, b"{exchange: e, queues: [there3]}"))["queues"] == ["q", "there1", "there3"]


async def test_exchanges_declared_by_clients_are_explained() -> None:
    page, state = explain_page()
    declared = OwnedExchange(
        b"xo", "x-open", Delivery.CARRIER, b"xo", declared=DeclaredExchange(True, False, False, b"", 1)
    )
    exchange = Exchange(b"xo", "x-open")
    exchange.bind(to_queue("theirs"))
    state.add_exchange(declared, exchange)
    assert (await explained(page, b"{exchange: xo, vhost: /}"))["queues"] == ["theirs"]


async def test_a_large_message_does_not_block_other_tasks() -> None:
    page = ExplainPage(lambda: load("exchanges: [{name: e}]"), tuple, lambda: 0.0)
    body = b"{" + b",".join(b'"%d": 1' % key for key in range(10000)) + b"}"  # a tenth of MAX_BODY_BYTES
    explaining = asyncio.ensure_future(page.explain(body))
    longest = 0.0
    while not explaining.done():
        began = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - began)
    with pytest.raises(ConfigErrors):
        await explaining
    assert longest < 1
