"""Limits how fast requests are answered, so that clients of the admin address do not delay producers.

Requests and producers share the event loop, and the threads that render pages share the interpreter lock with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


class Pace:
    """Restricts work to a share of the time. Work that exceeds the share waits for its turn, in order.

    Args:
        share: share of the time, between 0 and 1.
        burst_seconds: work that is done without waiting after a pause.
        timer: returns monotonic seconds.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        share: float,
        burst_seconds: float,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._share = share
        self._burst = burst_seconds / share
        self._timer = timer
        self._sleep = sleep
        self._in_turn = asyncio.Lock()
        #: time at which all work so far is within the share
        self._permitted_at = 0.0

    async def wait(self, seconds: float) -> None:
        """Wait for a turn to do work of an estimated duration."""
        async with self._in_turn:
            await self._until_permitted()
            self._count(seconds)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and measure the work within the context, which is never done concurrently."""
        async with self._in_turn:
            await self._until_permitted()
            start = self._timer()
            try:
                yield
            finally:
                self._count(self._timer() - start)

    async def _until_permitted(self) -> None:
        pause = self._permitted_at - self._burst - self._timer()
        if pause > 0:
            await self._sleep(pause)

    def _count(self, seconds: float) -> None:
        self._permitted_at = max(self._timer(), self._permitted_at) + seconds / self._share
