"""Token buckets of each user's publish rate: numbers and time in, seconds to wait out.

A bucket holds what may be taken at once and fills up steadily. It may be overdrawn, since what has been read was
published already: the debt determines how long its user is not to be read. No sockets and no clock.

Source: the token bucket of RFC 2697, section 3, with debt in place of a mark.
"""

from __future__ import annotations

from typing import NamedTuple

#: Users remembered without a connection, so that a new connection does not begin without the debt of the last one.
#: Reaching it forgets those who owe nothing.
REMEMBERED = 1024


class TokenBucket:
    """What one user may take of one thing: units a second, and so many seconds' worth at once."""

    __slots__ = ("_at", "_level", "_most", "_rate")

    def __init__(self, rate: float, burst_seconds: float) -> None:
        self._rate = rate
        self._most = self._level = rate * burst_seconds
        self._at = float("-inf")

    def take(self, amount: int, now: float) -> float:
        """Take units, whether they are there or not (0 only looks); return seconds until nothing is owed."""
        if now > self._at:
            self._level = min(self._most, self._level + (now - self._at) * self._rate)
            self._at = now
        self._level -= amount
        return -self._level / self._rate if self._level < 0 else 0.0

    def full(self, now: float) -> bool:
        self.take(0, now)
        return self._level >= self._most


class RateLimits(NamedTuple):
    """What each user may publish; 0 is no limit."""

    #: messages a second
    publishes: int = 0
    #: bytes a second, as they come from the socket: frames, headers and bodies
    read_bytes: int = 0
    #: seconds' worth of either that may come at once
    burst_seconds: float = 1.0
    #: longest time that a user is slowed down before its connection is told; 0: no limit
    patience_seconds: float = 0.0


class UserRateLimit:
    """What one user may publish, over all of its connections."""

    __slots__ = ("_publishes", "_read_bytes", "connections", "owes_since", "rates")

    def __init__(self, rates: RateLimits) -> None:
        self.rates = rates
        self.connections = 0
        #: when it began to owe, if it has not been below its limits since
        self.owes_since: float | None = None
        self._publishes = TokenBucket(rates.publishes, rates.burst_seconds) if rates.publishes else None
        self._read_bytes = TokenBucket(rates.read_bytes, rates.burst_seconds) if rates.read_bytes else None

    def take(self, publishes: int, read_bytes: int, now: float) -> tuple[float, str]:
        """Charge what has been read.

        Returns:
            Seconds until nothing is owed, and the limit in force: ``publish_rate``, ``publish_bytes``, or empty.
        """
        if self.owes_since is not None and self.full(now):
            self.owes_since = None
        messages_wait = self._publishes.take(publishes, now) if self._publishes is not None else 0.0
        bytes_wait = self._read_bytes.take(read_bytes, now) if self._read_bytes is not None else 0.0
        wait = max(messages_wait, bytes_wait)
        if not wait:
            return 0.0, ""
        if self.owes_since is None:
            self.owes_since = now
        return wait, "publish_rate" if messages_wait >= bytes_wait else "publish_bytes"

    def patience_left(self, now: float) -> float:
        """Seconds that are left of the patience with a user that owes; infinite where there is no end to it."""
        if not self.rates.patience_seconds or self.owes_since is None:
            return float("inf")
        return self.owes_since + self.rates.patience_seconds - now

    def full(self, now: float) -> bool:
        """Whether it was below its limits for as long as its buckets take to fill up."""
        return all(bucket.full(now) for bucket in (self._publishes, self._read_bytes) if bucket is not None)


class UserRateLimits:
    """All users' allowances."""

    __slots__ = ("_by_user", "_rates")

    def __init__(self, rates: RateLimits) -> None:
        self._rates = rates
        self._by_user: dict[str, UserRateLimit] = {}

    def __bool__(self) -> bool:
        return bool(self._rates.publishes or self._rates.read_bytes)

    def acquire(self, user: str, now: float) -> UserRateLimit:
        """Return what a user may publish, at the start of one of its connections; `release` ends that."""
        if len(self._by_user) >= REMEMBERED:
            self._by_user = {name: one for name, one in self._by_user.items() if one.connections or not one.full(now)}
        found = self._by_user.get(user)
        if found is None:
            found = self._by_user[user] = UserRateLimit(self._rates)
        found.connections += 1
        return found

    def release(self, allowance: UserRateLimit) -> None:
        allowance.connections -= 1
