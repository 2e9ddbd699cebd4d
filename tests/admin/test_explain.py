"""Tests POST /explain without a broker; tests/app/test_two_sidecars.py requests it from a running sidecar."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import pytest

from oxproxy.admin.explain import ExplainPage
from oxproxy.amqp.methods import BASIC_ACK, method_frame
from oxproxy.errors import ConfigErrors
from oxproxy.relay.vhost import DeclaredExchange, Delivery, OwnedExchange, VhostState
from oxproxy.routing.decision import QueueNames
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.rules.wire import owned_exchanges
from oxproxy.values import Value
from tests.client import content_header, publish
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


FRAMES = publish(0, b"e", b"k", ((b"w", Value("D", (2, 150))), (b"w", Value("L", -1)), (b"\xff", Value("S", b"\xff"))))


def framed(frames: bytes) -> bytes:
    return json.dumps({"frames": base64.b64encode(frames).decode(), "at": "2026-11-21T08:00:00Z"}).encode()


async def test_a_message_given_as_frames_keeps_its_types_and_repeated_names() -> None:
    loaded = load("exchanges: [{name: e, bindings: [{queue: q, when: {w exists: true, w is not: string, key =: k}}]}]")
    explanation = await explained(ExplainPage(lambda: loaded, lambda: [], lambda: NOW), framed(FRAMES))
    assert (explanation["exchange"], explanation["queues"]) == ("e", ["q"])


async def test_properties_and_body_size_are_read_from_the_frames() -> None:
    properties: dict[str, bytes | int] = {"message_id": b"m1", "priority": 5}
    frames = publish(0, b"e", b"", ((b"BCC", Value("S", b"x")),), b"", properties)
    header = content_header(0, 11, b"", properties)
    method = frames[: frames.index(b"\xce\x02") + 1]
    loaded = load(
        "exchanges: [{name: e, arguments: {min-payload-size: 11}, bindings: "
        "[{queue: q, when: {property message_id =: m1, property priority =: 5, BCC exists: false}}]}]"
    )
    explanation = await explained(ExplainPage(lambda: loaded, lambda: [], lambda: NOW), framed(method + header))
    assert explanation["queues"] == ["q"]


@pytest.mark.parametrize(
    "frames",
    [b"", b"x" * 40, FRAMES[:-1], FRAMES + b"\x00", FRAMES[FRAMES.index(b"\xce\x02") + 1 :] * 2,
     publish(0, b"e", b"", ((b"a", Value("S", b"b")),)).replace(b"S", b"?"), method_frame(1, BASIC_ACK, 1, False) * 2],
)  # fmt: skip
async def test_frames_that_are_not_a_message_are_refused_in_one_sentence(frames: bytes) -> None:
    page, _ = explain_page()
    with pytest.raises(ConfigErrors) as raised:
        await page.explain(framed(frames))
    (error,) = raised.value.errors
    assert str(error).startswith("message: frames: can't be read: ")
    assert str(error).endswith("; expected base64 of a Basic.Publish frame and its content header frame")


async def test_frames_that_are_not_base64_are_refused() -> None:
    page, _ = explain_page()
    with pytest.raises(ConfigErrors, match=r"message: frames: can't be read: .*base64"):
        await page.explain(b"{frames: '*'}")
