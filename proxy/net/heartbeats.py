"""Which side of a connection is silent, and what comes of it? Heartbeats sent and missed, and peers that are idle.

A side that has not heard from us for half its interval gets a heartbeat; one that we have not heard from for two is
gone. A connection on which nothing but heartbeats comes or goes for the idle timeout is idle, unless publishes on it
are not settled yet. A socket that we don't read can't tell us anything: its silence is ours.

Source: AMQP 0-9-1 spec, 4.2.7.

When is a producer that publishes more than its user may read again, and when is it told?

After each read what it brought is charged (`amqp.allowance`); while something is owed, the producer's socket is not
read: it waits, as at a broker with flow control. When that has gone on for as long as the patience, a timer or the
next read ends it with a clear text. Where there are no limits there is no Throttle.

Source: architecture, "One in, one out" (back-pressure); RabbitMQ guide "Flow Control".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import structlog

from proxy.amqp.frames import HEARTBEAT_FRAME
from proxy.net.link import Link
from proxy.relay.counters import LimitCounters
from proxy.relay.handshake.greeting import Tuning
from proxy.relay.rate_limits import UserRateLimit
from proxy.relay.relay import Relay

#: Looks in each interval.
_LOOKS = 4


class Heartbeats:
    """Watches both sides of one connection.

    Args:
        producer: the producer's side.
        upstream: the broker's side.
        idle_seconds: longest time without a frame but heartbeats; 0: without end.
        flush: sends what the relay has.
        idle: called when nothing has come or gone for so long.
    """

    __slots__ = (
        "_busy",
        "_every",
        "_flush",
        "_idle",
        "_idle_seconds",
        "_log",
        "_producer",
        "_relay",
        "_timer",
        "_tuning",
        "_upstream",
        "heard_producer",
        "heard_upstream",
        "sent_producer",
        "sent_upstream",
        "watches_idle",
    )

    def __init__(
        self,
        producer: Link,
        upstream: Link,
        idle_seconds: float,
        flush: Callable[[Relay, float], None],
        idle: Callable[[], None],
    ) -> None:
        """Start before there is anything to watch."""
        self._producer = producer
        self._upstream = upstream
        self._flush = flush
        self._idle = idle
        self._idle_seconds = idle_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._busy = 0.0
        #: monotonic seconds of what came last and of what was sent last
        self.heard_producer = self.heard_upstream = self.sent_producer = self.sent_upstream = 0.0
        #: whether `saw` wants to know what is read
        self.watches_idle = bool(idle_seconds)

    def start(self, relay: Relay, tuning: Tuning, now: float, log: structlog.typing.FilteringBoundLogger) -> None:
        """Both sides are open: watch them."""
        self._relay = relay
        self._tuning = tuning
        self._log = log
        self._busy = self.heard_producer = self.heard_upstream = self.sent_producer = self.sent_upstream = now
        intervals = (tuning.heartbeat_producer, tuning.heartbeat_upstream, self._idle_seconds)
        beats = [one for one in intervals if one]
        if beats:
            self._every = min(beats) / _LOOKS
            self._look()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def saw(self, data: bytes, now: float) -> None:
        """Note what either side said, where idle peers are told to go.

        Args:
            data: a read; one heartbeat split over two reads counts as something else, which does no harm.
            now: monotonic seconds.
        """
        if data.replace(HEARTBEAT_FRAME, b""):
            self._busy = now

    def _look(self) -> None:
        now = monotonic()
        if self._producer.paused:
            self.heard_producer = now
        if self._upstream.paused:
            self.heard_upstream = now
        if not (self._look_at_producer(now) and self._look_at_upstream(now)):
            return
        if self._idle_seconds and self._is_idle(now):
            self._idle()
            return
        self._flush(self._relay, now)
        self._timer = asyncio.get_running_loop().call_later(self._every, self._look)

    def _look_at_producer(self, now: float) -> bool:
        seconds = self._tuning.heartbeat_producer
        if seconds and now - self.sent_producer >= seconds / 2 - self._every:
            self.sent_producer = now
            self._producer.send([HEARTBEAT_FRAME])
        if seconds and now - self.heard_producer > 2 * seconds:
            self._log.warning("missed heartbeats from the producer", seconds=2 * seconds)
            self._producer.abort()
            return False
        return True

    def _look_at_upstream(self, now: float) -> bool:
        seconds = self._tuning.heartbeat_upstream
        if seconds and now - self.sent_upstream >= seconds / 2 - self._every:
            self._relay.heartbeat_upstream()
        if seconds and now - self.heard_upstream > 2 * seconds:
            self._log.warning("missed heartbeats from the broker", seconds=2 * seconds)
            self._upstream.abort()
        return True

    def _is_idle(self, now: float) -> bool:
        if self._producer.paused or self._relay.unsettled:
            self._busy = now
        return now - self._busy >= self._idle_seconds


#: A shorter rest is not worth its timer.
LEAST_SECONDS = 0.001
#: A producer that has spent a regex budget rests so many times as long as that took.
_RESTS = 9
_WORDS = {"publish_rate": "publishes a second", "publish_bytes": "bytes a second"}


class Pacing:
    """Gives the producers whose publishes spend regex budgets a tenth of the time, all of them together.

    Each decision of theirs takes milliseconds in which nobody else is served.
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = float("-inf")

    def rest(self, begin: float, now: float) -> float:
        """Return how long a producer is not read, in seconds.

        Args:
            begin: when its last publishes began to be decided, monotonic seconds.
            now: when they were.
        """
        self._next = max(self._next, now) + (now - begin) * _RESTS
        return self._next - now


class Throttle:
    """Slows one producer down.

    Args:
        allowance: of its user.
        relay: says how much was published, and closes what has to be closed.
        counters: what limits do.
        pause: stops the reading of the producer, or lets it go on.
        refused: called when the relay has closed something.
    """

    def __init__(
        self,
        allowance: UserRateLimit,
        relay: Relay,
        counters: LimitCounters,
        pause: Callable[[bool], None],
        refused: Callable[[], None],
    ) -> None:
        """Start with nothing charged."""
        self.allowance = allowance
        self._relay = relay
        self._counters = counters
        self._pause = pause
        self._refused = refused
        self._charged = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        #: it was told and has published nothing since: it only has to wait
        self._told = False

    def read(self, size_bytes: int, now: float) -> None:
        """Charge a read.

        Args:
            size_bytes: what came from the socket.
            now: monotonic seconds.
        """
        published = self._relay.published
        publishes, self._charged = published - self._charged, published
        if publishes:
            self._told = False
        self._judge(*self.allowance.take(publishes, size_bytes, now), now)

    def _look(self) -> None:
        """Time has passed: what is still owed?"""
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
        if self._told:
            self.allowance.since = None
        left = self.allowance.patience(now)
        if left <= 0:
            self._refuse(limit)
            return
        self._counters.hits[limit] += 1
        self._counters.throttled += 1
        self._pause(True)
        self._timer = asyncio.get_running_loop().call_later(min(max(wait, LEAST_SECONDS), left), self._look)

    def _refuse(self, limit: str) -> None:
        rates = self.allowance.rates
        most = rates.publishes if limit == "publish_rate" else rates.read_bytes
        self.allowance.since = None
        self._told = True
        self._counters.hits["patience"] += 1
        patience = f"{rates.patience_seconds:g} s"
        self._relay.over_limit(f"user is above {most} {_WORDS[limit]} ({limit}) for longer than {patience}")
        self._refused()

    def end(self) -> None:
        """Slow it down no more: its connection ends."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._counters.throttled -= 1
            self._pause(False)
