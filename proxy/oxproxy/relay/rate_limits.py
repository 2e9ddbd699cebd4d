"""Token buckets that limit the publish rate of each user.

A bucket contains the units that may be taken immediately, and it is refilled at a constant rate. It may be overdrawn,
since publishes are charged only after they have been read. The debt determines how long reading from the user's
producers is paused. This module uses no sockets and no clock.

Source: the token bucket in RFC 2697, section 3, with a debt instead of marking.
"""

from __future__ import annotations

from typing import NamedTuple

#: Once the limits of this many users are stored, users that have full buckets and no connections are forgotten. Users
#: in debt are kept, so that a user can't clear a debt by reconnecting.
REMEMBERED = 1024


class TokenBucket:
    """A user's token bucket.

    Args:
        rate: units per second; 0: no limit.
        burst_seconds: capacity of the bucket, expressed as the number of seconds in which it is refilled.
    """

    def __init__(self, rate: float, burst_seconds: float) -> None:
        self._rate = rate
        self._most = self._level = rate * burst_seconds
        self._at = float("-inf")

    def take(self, amount: int, now: float) -> float:
        """Take units, even if they are not available; return the seconds until the debt is paid, 0 without a debt."""
        if not self._rate:
            return 0.0
        if now > self._at:
            self._level = min(self._most, self._level + (now - self._at) * self._rate)
            self._at = now
        self._level -= amount
        return -self._level / self._rate if self._level < 0 else 0.0

    def full(self, now: float) -> bool:
        self.take(0, now)
        return self._level >= self._most


class RateLimits(NamedTuple):
    """Rate limits for each user; 0 means no limit."""

    #: messages per second
    publishes: int = 0
    #: bytes per second, as read from the socket: frames, headers and bodies
    read_bytes: int = 0
    #: capacity of each bucket, expressed as the number of seconds in which it is refilled
    burst_seconds: float = 1.0
    #: maximum time for which a producer is slowed down before its channel or connection is closed; 0: no limit
    patience_seconds: float = 0.0


class UserRateLimit:
    """The rate limit of one user, shared by all of the user's connections."""

    def __init__(self, rates: RateLimits) -> None:
        self.rates = rates
        self.connections = 0
        #: start of the current debt; after a producer was refused, the time at which the debt will be paid; None if
        #: there is no debt
        self.owes_since: float | None = None
        self._publishes = TokenBucket(rates.publishes, rates.burst_seconds)
        self._read_bytes = TokenBucket(rates.read_bytes, rates.burst_seconds)

    def take(self, publishes: int, read_bytes: int, now: float) -> tuple[float, str]:
        """Charge publishes and bytes that have been read.

        Returns:
            Seconds until the debt is paid, and the exceeded limit: ``publish_rate``, ``publish_bytes``, or empty.
        """
        if self.owes_since is not None and self.full(now):
            self.owes_since = None
        messages_wait = self._publishes.take(publishes, now)
        bytes_wait = self._read_bytes.take(read_bytes, now)
        wait = max(messages_wait, bytes_wait)
        if not wait:
            return 0.0, ""
        if self.owes_since is None:
            self.owes_since = now
        return wait, "publish_rate" if messages_wait >= bytes_wait else "publish_bytes"

    def patience_left(self, now: float) -> float:
        """Return the seconds until the producers of a user in debt are refused; infinite without a limit or a debt."""
        if not self.rates.patience_seconds or self.owes_since is None:
            return float("inf")
        return self.owes_since + self.rates.patience_seconds - now

    def full(self, now: float) -> bool:
        return self._publishes.full(now) and self._read_bytes.full(now)


class UserRateLimits:
    """The rate limits of all users."""

    def __init__(self, rates: RateLimits) -> None:
        self._rates = rates
        self._by_user: dict[str, UserRateLimit] = {}

    def __bool__(self) -> bool:
        return bool(self._rates.publishes or self._rates.read_bytes)

    def acquire(self, user: str, now: float) -> UserRateLimit:
        """Return the rate limit of a user for a new connection; `release` must be called when the connection ends."""
        if len(self._by_user) >= REMEMBERED:
            self._by_user = {
                name: limit for name, limit in self._by_user.items() if limit.connections or not limit.full(now)
            }
        allowance = self._by_user.get(user)
        if allowance is None:
            allowance = self._by_user[user] = UserRateLimit(self._rates)
        allowance.connections += 1
        return allowance

    def release(self, allowance: UserRateLimit) -> None:
        allowance.connections -= 1
