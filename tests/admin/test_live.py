"""Tests ``GET /api/live`` and ``/api/traffic``: events, limits, and clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from oxproxy.admin import live, server
from oxproxy.admin.access import Access
from oxproxy.admin.live import MOST_STREAMS, LiveFeed, LiveTopic
from oxproxy.admin.server import MOST_CONNECTIONS, AdminServer
from oxproxy.admin.traffic import TrafficSampler, quantile
from oxproxy.observe.exposition import Exposition
from oxproxy.relay.counters import CONFIRM_BOUNDS, Counters, Histogram


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def counters() -> Counters:
    made = Counters()
    made.traffic.name(made.traffic.labels([("/", b"orders")], [("/", b"orders", "big")], [("/", b"q")]))
    made.rules.version = "abc"
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


def publish(counters: Counters, publishes: int) -> None:
    counters.traffic.add("/", b"orders", "routed", ((b"orders", "big"),), [b"q"], publishes, 10 * publishes)


# -- sampling ----------------------------------------------------------------------------------------------------------


async def test_rates_are_available_from_the_second_sample(counters: Counters, clock: Clock) -> None:
    sampler = TrafficSampler(counters, clock, clock)
    await sampler.sample(True)
    first: Any = await sampler.snapshot()
    assert first["bindings"][0] == {
        "vhost": "/",
        "exchange": "orders",
        "binding": "big",
        "total": 0,
        "per_second": None,
    }
    publish(counters, 30)
    clock.now += 2.0
    await sampler.sample(True)
    news: Any = sampler.news()
    assert news["bindings"][0]["total"] == 30
    assert news["bindings"][0]["per_second"] == 15.0
    assert news["per_second"]["routed"] == 15.0
    assert news["destinations"] == [{"vhost": "/", "destination": "q", "total": 30, "per_second": 15.0}]
    clock.now += 2.0
    await sampler.sample(True)
    clock.now += 2.0
    await sampler.sample(True)
    assert sampler.news()["bindings"] == []  # nothing has changed


async def test_history_is_kept_for_15_minutes_without_clients(counters: Counters, clock: Clock) -> None:
    sampler = TrafficSampler(counters, clock, clock)
    for _ in range(600):
        publish(counters, 10)
        clock.now += 2.0
        await sampler.sample(False)
    traffic: Any = await sampler.snapshot()
    points = traffic["history"]["points"]
    assert (points[0][0], points[-1][0]) == (clock.now - 900.0, clock.now)
    assert {point[1 + traffic["history"]["series"].index("routed")] for point in points} == {5.0}


async def test_a_removed_exchange_causes_no_negative_rate(counters: Counters, clock: Clock) -> None:
    sampler = TrafficSampler(counters, clock, clock)
    publish(counters, 100)
    await sampler.sample(True)
    counters.traffic.name(counters.traffic.labels([("/", b"other")], [], []))
    clock.now += 2.0
    await sampler.sample(True)
    assert sampler.news()["per_second"] == dict.fromkeys(live_series(sampler), 0.0)


def live_series(sampler: TrafficSampler) -> Iterator[str]:
    return iter(sampler.news()["per_second"])  # type: ignore[call-overload, no-any-return]


async def test_confirm_latency_covers_the_last_minute(counters: Counters, clock: Clock) -> None:
    sampler = TrafficSampler(counters, clock, clock)
    counters.confirm_seconds.observe(5.0)
    await sampler.sample(False)
    for _ in range(40):
        clock.now += 2.0
        counters.confirm_seconds.observe(0.0003)
        await sampler.sample(False)
    traffic: Any = await sampler.snapshot()
    assert 0.00025 < traffic["confirm_seconds"]["p50"] <= traffic["confirm_seconds"]["p99"] <= 0.0005


def test_a_quantile_is_within_its_bucket() -> None:
    histogram = Histogram(CONFIRM_BOUNDS)
    counts = [0] * (len(CONFIRM_BOUNDS) + 1)
    assert quantile(histogram, counts, 0.5) is None
    counts[2] = 10  # 0.25 to 0.5 ms
    assert quantile(histogram, counts, 0.5) == pytest.approx(0.000375)
    counts[-1] = 100
    assert quantile(histogram, counts, 0.99) == CONFIRM_BOUNDS[-1]


# -- streams -----------------------------------------------------------------------------------------------------------


class Running:
    def __init__(self, url: str, status: dict[str, object]) -> None:
        self.url = url
        self.status = status


@pytest.fixture
async def running(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(live, "SAMPLE_SECONDS", 0.05)
    monkeypatch.setattr(live, "PAUSE_FACTOR", 1)
    status: dict[str, object] = {"ready": True}
    feed = LiveFeed(TrafficSampler(counters), {"status": LiveTopic(lambda: status)})
    admin = AdminServer(Exposition(counters), tuple, dict, Access(), routes=feed.routes)
    host, port = await admin.start("127.0.0.1", 0)
    task = asyncio.ensure_future(feed.run())
    yield Running(f"http://{host}:{port}", status)
    task.cancel()
    await admin.stop()


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async with asyncio.timeout(20):
        async for line in answer.content:
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])


async def test_a_stream_begins_with_the_complete_state_and_continues_with_changes(
    running: Running, counters: Counters
) -> None:
    async with aiohttp.ClientSession() as http, http.get(running.url + "/api/live?topics=status,traffic") as answer:
        assert answer.content_type == "text/event-stream"
        stream = events(answer)
        assert await anext(stream) == ("status", {"ready": True})
        name, complete = await anext(stream)
        assert (name, complete["complete"], complete["rules"]) == ("traffic", True, "abc")
        publish(counters, 5)
        running.status["ready"] = False
        latest = {}
        async for name, data in stream:
            if name == "status" or data["bindings"]:
                latest[name] = data
            if len(latest) == 2 and not latest["status"]["ready"]:
                break
        assert latest["traffic"]["bindings"][0]["total"] == 5


async def test_an_unknown_topic_is_refused(running: Running) -> None:
    async with aiohttp.ClientSession() as http, http.get(running.url + "/api/live?topics=secrets") as answer:
        assert answer.status == 422
        assert await answer.json() == {"errors": ["topics: got 'secrets', expected any of traffic, status"]}


async def test_other_origins_get_no_stream(running: Running) -> None:
    refused = [
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ]
    async with aiohttp.ClientSession() as http:
        for headers in refused:
            async with http.get(running.url + "/api/live", headers=headers) as answer:
                assert answer.status == 403, headers
        own = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
        async with http.get(running.url + "/api/live", headers=own) as answer:
            assert answer.status == 200


async def test_streams_above_the_limit_get_503_and_probes_are_answered(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "NEW_SECONDS", 60.0)  # the requests of this test are slow
    connector = aiohttp.TCPConnector(limit=0)
    results: list[int | str] = []
    over, in_turn = asyncio.Event(), asyncio.Semaphore(50)

    async def follow(http: aiohttp.ClientSession) -> None:
        try:
            async with in_turn:
                answer = await http.get(running.url + "/api/live?topics=status")
        except aiohttp.ClientError as error:
            results.append(type(error).__name__)
            return
        async with answer:
            results.append(answer.status)
            if answer.status == 200:
                await over.wait()

    async with aiohttp.ClientSession(connector=connector) as http, asyncio.timeout(60):
        followers = [asyncio.ensure_future(follow(http)) for _ in range(1000)]
        while len(results) < 1000:  # noqa: ASYNC110 -- what each got
            await asyncio.sleep(0.01)
        async with http.get(running.url + "/livez") as answer:
            assert answer.status == 200
        over.set()
        await asyncio.gather(*followers)
    assert results.count(200) == MOST_STREAMS < MOST_CONNECTIONS
    assert results.count(503) == 1000 - MOST_STREAMS


async def test_a_client_that_does_not_read_is_disconnected(running: Running, counters: Counters) -> None:
    names = [f"{number:04}" + "x" * 2000 for number in range(400)]
    counters.traffic.name(counters.traffic.labels([("/", b"orders")], [("/", b"orders", name) for name in names], []))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))
    transport = writer.transport
    writer.write(b"GET /api/live?topics=traffic HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"event: traffic")
    transport.pause_reading()  # type: ignore[attr-defined]
    followed = asyncio.all_tasks()
    async with asyncio.timeout(60):
        while any(
            "_follow" in repr(task.get_coro()) or "RequestHandler.start" in repr(task.get_coro()) for task in followed
        ):
            for name in names:
                counters.traffic.add("/", b"orders", "routed", ((b"orders", name),), [], 1, 1)
            await asyncio.sleep(0.05)
            followed = asyncio.all_tasks()
    transport.resume_reading()  # type: ignore[attr-defined]
    with contextlib.suppress(ConnectionResetError):
        while await reader.read(1 << 20):
            pass
    writer.close()


async def test_streams_end_with_the_feed(counters: Counters) -> None:
    feed = LiveFeed(TrafficSampler(counters), {})
    admin = AdminServer(Exposition(counters), tuple, dict, Access(), routes=feed.routes)
    host, port = await admin.start("127.0.0.1", 0)
    task = asyncio.ensure_future(feed.run())
    async with aiohttp.ClientSession() as http, http.get(f"http://{host}:{port}/api/live") as answer:
        assert await anext(events(answer))
        task.cancel()
        async with asyncio.timeout(10):
            await answer.content.read()
    await admin.stop()


async def test_traffic_is_also_a_page(running: Running, counters: Counters) -> None:
    publish(counters, 7)
    async with aiohttp.ClientSession() as http, http.get(running.url + "/api/traffic") as answer:
        traffic = await answer.json()
    assert traffic["exchanges"][0] == {
        "vhost": "/",
        "exchange": "orders",
        "outcome": "routed",
        "total": 7,
        "per_second": None,
    }
