"""When the next look at a virtual host is due: regularly, and soon after somebody said that something changed.

However often that is said, the looks it causes take a small share of the time. It must not know what a look is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from proxy.broker.connection import ControlConnection

#: Shortest pause before a look that was asked for; more such words meanwhile are one look.
_PAUSE_SECONDS = 0.05
#: Such a pause is at least so many times what the last look took.
_SHARE = 9


class RefreshSchedule:
    """The rhythm of looks.

    Args:
        refresh_seconds: what changed beside us is known after that long at the latest.
        clock: monotonic seconds.
    """

    def __init__(self, refresh_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is due."""
        self._clock = clock
        self._refresh_seconds = refresh_seconds
        self._wake = asyncio.Event()
        self._names: set[bytes] = set()
        self._everything = False
        self._regular_at = 0.0
        self._hurried_at = 0.0

    def request_refresh(self, names: set[bytes] | None = None) -> None:
        """Ask for a look soon, at some exchanges or (None) at everything."""
        if names is None:
            self._everything = True
        else:
            self._names |= names
        self._wake.set()

    def take(self) -> set[bytes] | None:
        """Begin the look that is due: give the names of the exchanges to look at, None for everything."""
        regular = self._clock() >= self._regular_at
        names = None if regular or self._everything or not self._wake.is_set() else self._names
        self._names, self._everything = set(), False
        self._wake.clear()
        return names

    def looked(self, began_at: float, everything: bool) -> None:
        """Take note of the end of a look.

        Args:
            began_at: the clock's time at its beginning.
            everything: whether it was a look at everything.
        """
        now = self._clock()
        took_seconds = now - began_at
        self._hurried_at = now + max(_PAUSE_SECONDS, _SHARE * took_seconds)
        if everything:
            # What changes right behind this look is known when the next one ends.
            pause = max(self._refresh_seconds - 2 * took_seconds, self._refresh_seconds / 4)
            self._regular_at = now + pause

    async def wait(self, connection: ControlConnection) -> bool:
        """Wait until a look is due or the connection is lost; say whether it is lost."""
        if await connection.wait_lost(max(0.0, self._regular_at - self._clock()), self._wake):
            return True
        if not self._wake.is_set():
            return False
        seconds = min(self._hurried_at, self._regular_at) - self._clock()
        return await connection.wait_lost(seconds) if seconds > 0 else not connection.connected
