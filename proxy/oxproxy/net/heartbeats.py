"""Sends and monitors heartbeats on both sides of a connection, and applies the idle timeout.

If nothing was sent to a side for half of its heartbeat interval, a heartbeat is sent. If nothing was received from a
side for two intervals, that side is considered lost. A connection is idle if only heartbeats were received during the
idle timeout, unless it has unconfirmed publishes. Time during which reading is paused does not count towards any of
these timeouts.

Source: AMQP 0-9-1 spec, 4.2.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import structlog

from oxproxy.amqp.frames import HEARTBEAT_FRAME
from oxproxy.net.link import Link
from oxproxy.relay.handshake.greeting import Tuning
from oxproxy.relay.relay import Relay

#: Number of checks during the shortest of the heartbeat intervals and the idle timeout.
_CHECKS = 4


class Side:
    """One side of a connection: its heartbeat interval, and the monotonic times of the last read and the last write."""

    __slots__ = ("_interval_seconds", "link", "read_at", "wrote_at")

    def __init__(self, link: Link) -> None:
        self.link = link
        self._interval_seconds = 0
        self.read_at = self.wrote_at = 0.0

    def start(self, interval_seconds: int, now: float) -> None:
        self._interval_seconds = interval_seconds
        self.read_at = self.wrote_at = now

    def is_due(self, now: float, margin_seconds: float) -> bool:
        """Return True if a heartbeat must be sent, since the next check in `margin_seconds` would be too late."""
        seconds = self._interval_seconds
        return bool(seconds) and now - self.wrote_at >= seconds / 2 - margin_seconds

    def is_lost(self, now: float) -> bool:
        """Return True if heartbeats were missed; time during which reading is paused does not count."""
        if self.link.paused:
            self.read_at = now
        return bool(self._interval_seconds) and now - self.read_at > self.limit_seconds

    @property
    def limit_seconds(self) -> int:
        return 2 * self._interval_seconds


class Heartbeats:
    """Monitors both sides of one connection.

    Args:
        idle_seconds: time after which a connection is considered idle if only heartbeats are received; 0: no timeout.
        flush: sends the relay's output.
        idle: called when the connection is idle.
    """

    def __init__(
        self,
        producer: Link,
        upstream: Link,
        idle_seconds: float,
        flush: Callable[[Relay, float], None],
        idle: Callable[[], None],
    ) -> None:
        self.producer, self.upstream = Side(producer), Side(upstream)
        self._flush = flush
        self._idle = idle
        self._idle_seconds = idle_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._busy = 0.0
        #: whether `saw` must be called with the bytes read
        self.watches_idle = bool(idle_seconds)

    def start(self, relay: Relay, tuning: Tuning, now: float, log: structlog.typing.FilteringBoundLogger) -> None:
        self._relay = relay
        self._log = log
        self._busy = now
        self.producer.start(tuning.heartbeat_producer, now)
        self.upstream.start(tuning.heartbeat_upstream, now)
        intervals = (tuning.heartbeat_producer, tuning.heartbeat_upstream, self._idle_seconds)
        if any(intervals):
            self._every = min(filter(None, intervals)) / _CHECKS
            self._check()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        del self._flush, self._idle  # without this reference cycle, the session is freed immediately

    def saw(self, data: bytes, now: float) -> None:
        """Record a read from either side. A heartbeat that is split across two reads counts as other data."""
        if data.replace(HEARTBEAT_FRAME, b""):
            self._busy = now

    def _check(self) -> None:
        now = monotonic()
        if self._is_producer_lost(now):
            return
        self._check_upstream(now)
        if self._idle_seconds and self._is_idle(now):
            self._idle()
            return
        self._flush(self._relay, now)
        self._timer = asyncio.get_running_loop().call_later(self._every, self._check)

    def _is_producer_lost(self, now: float) -> bool:
        side = self.producer
        if side.is_due(now, self._every):
            side.wrote_at = now
            side.link.send([HEARTBEAT_FRAME])
        if side.is_lost(now):
            self._log.warning("missed heartbeats from the producer", seconds=side.limit_seconds)
            side.link.abort()
            return True
        return False

    def _check_upstream(self, now: float) -> None:
        side = self.upstream
        if side.is_due(now, self._every):
            self._relay.connection.to_upstream.append(HEARTBEAT_FRAME)
        if side.is_lost(now):
            self._log.warning("missed heartbeats from the broker", seconds=side.limit_seconds)
            side.link.abort()

    def _is_idle(self, now: float) -> bool:
        if self.producer.link.paused or self._relay.connection.unsettled:
            self._busy = now
        return now - self._busy >= self._idle_seconds
