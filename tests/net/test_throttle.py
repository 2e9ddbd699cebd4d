from __future__ import annotations

import asyncio
from time import monotonic
from types import SimpleNamespace
from typing import Any

from pamqp import commands

from oxproxy.net.context import SessionLimits
from oxproxy.net.throttle import Throttle
from oxproxy.relay.counters import LimitCounters
from oxproxy.relay.rate_limits import RateLimits, UserRateLimit, UserRateLimits
from tests import client
from tests.net.stage import Peer, eventually, staged

SMALL = client.publish(1, b"any", b"k", (), b"x")


async def taken(link: Peer, publishes: int) -> None:
    """Read the given number of publishes on the broker's side."""
    await link.read(publishes * len(SMALL))


async def test_a_producer_above_its_rate_is_paused_and_loses_nothing() -> None:
    rates = RateLimits(publishes=100, burst_seconds=0.1)
    async with staged(allowances=UserRateLimits(rates)) as stage:
        producer, link = await stage.opened()
        for _ in range(3):
            producer.send(SMALL * 20)
            await taken(link, 20)
        await eventually(lambda: stage.counters.limits.throttled == 1)
        assert stage.counters.relay("/").paused_producers == 1
        assert stage.counters.limits.hits["publish_rate"] >= 2
        await eventually(lambda: stage.counters.limits.throttled == 0)
        assert stage.counters.relay("/").paused_producers == 0
        await producer.disconnect()


async def test_a_rate_limit_slows_all_connections_of_its_user_and_no_others() -> None:
    async with staged(allowances=UserRateLimits(RateLimits(publishes=10, burst_seconds=0.1))) as stage:
        greedy, link = await stage.opened()
        brother, _ = await stage.opened()
        greedy.send(SMALL * 100)
        await taken(link, 100)
        brother.send(SMALL)
        await eventually(lambda: stage.counters.limits.throttled == 2)
        for peer in (greedy, brother):
            await peer.disconnect()
        await eventually(lambda: stage.counters.limits.throttled == 0)


async def test_a_channel_throttled_too_long_is_closed_with_406_and_its_publishes_are_kept() -> None:
    rates = RateLimits(publishes=10, burst_seconds=0.1, patience_seconds=0.2)
    async with staged(allowances=UserRateLimits(rates)) as stage:
        producer, link = await stage.opened()
        producer.send(SMALL * 100)
        await taken(link, 100)
        close = (await producer.expect("Channel.Close")).arguments
        assert close["reply_code"] == 406
        assert close["reply_text"] == (
            "PRECONDITION_FAILED - user has exceeded 10 publishes per second (publish_rate) for more than 0.2 s"
        )
        await link.expect("Channel.Close")
        assert stage.counters.limits.hits["patience"] == 1
        producer.call(commands.Channel.CloseOk())
        producer.call(commands.Channel.Open(), 2)
        assert (await link.expect("Channel.Open")).channel == 2
        await producer.disconnect()


async def test_a_connection_with_two_channels_throttled_too_long_is_closed_with_320() -> None:
    rates = RateLimits(read_bytes=1000, burst_seconds=0.1, patience_seconds=0.2)
    async with staged(allowances=UserRateLimits(rates)) as stage:
        producer, link = await stage.opened(1, 2)
        producer.send(SMALL * 100, client.publish(2, b"any", b"k", (), b"x"))
        await taken(link, 101)
        assert await producer.close_reason() == (
            320,
            "CONNECTION_FORCED - user has exceeded 1000 bytes per second (publish_bytes) for more than 0.2 s",
        )
        producer.call(commands.Connection.CloseOk(), 0)
        await link.expect("Connection.Close")
        link.call(commands.Connection.CloseOk(), 0)
        assert await producer.is_gone()


async def test_a_connection_throttled_too_long_within_a_body_is_closed_instead_of_its_channel() -> None:
    rates = RateLimits(read_bytes=1000, burst_seconds=0.1, patience_seconds=0.2)
    async with staged(allowances=UserRateLimits(rates)) as stage:
        producer, link = await stage.opened()
        begun = client.publish(1, b"any", b"k", (), bytes(200_000))[:150_000]
        producer.send(begun)
        await link.expect("Basic.Publish")
        assert (await producer.close_reason())[0] == 320
        await producer.disconnect()


async def test_the_close_of_a_throttled_connection_does_not_wait() -> None:
    rates = RateLimits(publishes=1, burst_seconds=0.1)
    async with staged(SessionLimits(close_seconds=30), allowances=UserRateLimits(rates)) as stage:
        producer, link = await stage.opened()
        producer.send(SMALL * 1000)
        await taken(link, 1000)
        await eventually(lambda: stage.counters.limits.throttled == 1)
        [session] = stage.listener._sessions
        session.close(320, "bye")
        assert (await producer.close_reason())[0] == 320
        producer.call(commands.Connection.CloseOk(), 0)
        await link.expect("Connection.Close")
        link.call(commands.Connection.CloseOk(), 0)
        async with asyncio.timeout(10):
            assert await producer.is_gone()
        await eventually(lambda: stage.counters.limits.throttled == 0)
        assert stage.counters.relay("/").paused_producers == 0


async def test_publishes_of_channels_that_are_closed_again_are_charged_as_well() -> None:
    async with staged(allowances=UserRateLimits(RateLimits(publishes=10, burst_seconds=1))) as stage:
        producer, link = await stage.opened()
        closed = SMALL * 50 + client.method(1, commands.Channel.Close(200, "", 0, 0))
        producer.send(closed)
        await taken(link, 50)
        await link.expect("Channel.Close")
        link.call(commands.Channel.CloseOk())
        await producer.expect("Channel.CloseOk")
        producer.call(commands.Channel.Open())
        await eventually(lambda: stage.counters.limits.throttled == 1)
        await producer.disconnect()


class PolledProducer:
    """A producer whose socket is read every few milliseconds, unless reading is paused."""

    def __init__(self, allowance: UserRateLimit) -> None:
        self.refused = self.paused = False
        self.connection = SimpleNamespace(published=0)
        relay: Any = self
        self.throttle = Throttle(allowance, relay, LimitCounters(), self.pause, lambda: None)

    def pause(self, paused: bool) -> None:
        self.paused = paused

    def over_limit(self, text: str) -> None:
        self.refused = True

    def sends(self, publishes: int) -> None:
        if not self.paused:
            self.connection.published += publishes
            self.throttle.read(8, monotonic())


async def test_a_refused_producer_does_not_extend_the_patience_with_others_of_its_user() -> None:
    allowance = UserRateLimit(RateLimits(publishes=1000, burst_seconds=0.01, patience_seconds=0.2))
    first, second = PolledProducer(allowance), PolledProducer(allowance)
    async with asyncio.timeout(5):
        while not first.refused:
            first.sends(publishes=20)
            await asyncio.sleep(0.002)
    async with asyncio.timeout(5):
        while not second.refused:
            first.sends(publishes=0)  # such as heartbeats or acks
            second.sends(publishes=20)
            await asyncio.sleep(0.002)
    for producer in (first, second):
        producer.throttle.end()
