from __future__ import annotations

import asyncio
from time import monotonic
from types import SimpleNamespace
from typing import Any

from proxy.net.throttle import Throttle
from proxy.relay.counters import LimitCounters
from proxy.relay.rate_limits import RateLimits, UserRateLimit


class _Producer:
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
    first, second = _Producer(allowance), _Producer(allowance)
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
