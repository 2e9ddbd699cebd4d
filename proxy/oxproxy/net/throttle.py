"""Slows down producers that exceed their user's rate limits or exhaust regex budgets.

`Throttle` charges each read to the user (`relay.rate_limits`). While the user is in debt, the producer's socket is not
read; RabbitMQ's flow control works in the same way. If the debt lasts longer than the configured patience, the channel
or connection is closed with the reason, by a timer or at the next read. If there are no limits, no `Throttle` is
created.

Sources: architecture, "One publish in, one publish out" (back-pressure); RabbitMQ guide "Flow Control".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from oxproxy.relay.counters import LimitCounters
from oxproxy.relay.rate_limits import UserRateLimit
from oxproxy.relay.relay import Relay

#: Minimum duration of a pause.
LEAST_SECONDS = 0.001
#: Pause of a producer that has exhausted a regex budget, as a multiple of the duration of its decisions.
_PAUSE_FACTOR = 9
_WORDS = {"publish_rate": "publishes per second", "publish_bytes": "bytes per second"}


class RegexPacing:
    """Limits the time spent on decisions that exhaust regex budgets to a tenth of the total time.

    Each of these decisions takes milliseconds, during which no other connection is served.
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = float("-inf")

    def pause_seconds(self, begin: float, now: float) -> float:
        """Return the number of seconds for which reading from the producer must be paused.

        Args:
            begin: monotonic time at which the producer's most recent decisions started.
            now: monotonic time at which these decisions ended.
        """
        self._next = max(self._next, now) + (now - begin) * _PAUSE_FACTOR
        return self._next - now


class Throttle:
    """Slows one producer down.

    Args:
        allowance: rate limit of the producer's user.
        relay: counts publishes, and closes the channel or connection.
        pause: pauses or resumes reading from the producer.
        refused: called when the relay has closed the channel or connection.
    """

    def __init__(
        self,
        allowance: UserRateLimit,
        relay: Relay,
        counters: LimitCounters,
        pause: Callable[[bool], None],
        refused: Callable[[], None],
    ) -> None:
        self.allowance = allowance
        self._relay = relay
        self._counters = counters
        self._pause = pause
        self._refused = refused
        self._charged = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        #: whether the producer was refused and has published nothing since then; such a producer is only paused
        self._was_refused = False
        #: earliest monotonic time from which the patience period is counted for this producer, even if the user's debt
        #: is older
        self._not_charged_before = float("-inf")

    def read(self, size_bytes: int, now: float) -> None:
        """Charge a read, and the publishes in it, to the user."""
        published = self._relay.connection.published
        publishes, self._charged = published - self._charged, published
        if publishes:
            self._was_refused = False
        self._judge(*self.allowance.take(publishes, size_bytes, now), now)

    def _check(self) -> None:
        """Check the remaining debt."""
        now = monotonic()
        self._timer = None
        self._counters.throttled -= 1
        wait, limit = self.allowance.take(0, 0, now)
        self._judge(wait, limit, now)
        if self._timer is None:
            self._pause(False)

    def _judge(self, wait: float, limit: str, now: float) -> None:
        if not wait or self._timer is not None or self._over:
            return
        if self._was_refused:
            self._not_charged_before = now  # only for this producer, not for the user's other producers
        patience_left = self._not_charged_before + self.allowance.rates.patience_seconds - now
        left = max(self.allowance.patience_left(now), patience_left)
        if left <= 0:
            self._refuse(limit, now + wait)
            return
        self._counters.hits[limit] += 1
        self._counters.throttled += 1
        self._pause(True)
        self._timer = asyncio.get_running_loop().call_later(min(max(wait, LEAST_SECONDS), left), self._check)

    def _refuse(self, limit: str, paid_at: float) -> None:
        rates = self.allowance.rates
        most = rates.publishes if limit == "publish_rate" else rates.read_bytes
        self.allowance.owes_since = paid_at  # so that the user's other producers are not refused for this debt
        self._was_refused = True
        self._counters.hits["patience"] += 1
        patience = f"{rates.patience_seconds:g} s"
        self._relay.over_limit(f"user has exceeded {most} {_WORDS[limit]} ({limit}) for more than {patience}")
        self._refused()

    def end(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._counters.throttled -= 1
            self._pause(False)
