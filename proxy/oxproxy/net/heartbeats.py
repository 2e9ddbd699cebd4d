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
        self._producer = producer
        self._upstream = upstream
        self._flush = flush
        self._idle = idle
        self._idle_seconds = idle_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._busy = 0.0
        #: monotonic time of the last read and the last write on each side
        self.read_producer_at = self.read_upstream_at = self.wrote_producer_at = self.wrote_upstream_at = 0.0
        #: whether `saw` must be called with the bytes read
        self.watches_idle = bool(idle_seconds)

    def start(self, relay: Relay, tuning: Tuning, now: float, log: structlog.typing.FilteringBoundLogger) -> None:
        self._relay = relay
        self._tuning = tuning
        self._log = log
        self._busy = self.read_producer_at = self.read_upstream_at = self.wrote_producer_at = self.wrote_upstream_at = (
            now
        )
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
        if self._producer.paused:
            self.read_producer_at = now
        if self._upstream.paused:
            self.read_upstream_at = now
        if self._is_producer_lost(now):
            return
        self._check_upstream(now)
        if self._idle_seconds and self._is_idle(now):
            self._idle()
            return
        self._flush(self._relay, now)
        self._timer = asyncio.get_running_loop().call_later(self._every, self._check)

    def _is_producer_lost(self, now: float) -> bool:
        seconds = self._tuning.heartbeat_producer
        if seconds and now - self.wrote_producer_at >= seconds / 2 - self._every:
            self.wrote_producer_at = now
            self._producer.send([HEARTBEAT_FRAME])
        if seconds and now - self.read_producer_at > 2 * seconds:
            self._log.warning("missed heartbeats from the producer", seconds=2 * seconds)
            self._producer.abort()
            return True
        return False

    def _check_upstream(self, now: float) -> None:
        seconds = self._tuning.heartbeat_upstream
        if seconds and now - self.wrote_upstream_at >= seconds / 2 - self._every:
            self._relay.connection.to_upstream.append(HEARTBEAT_FRAME)
        if seconds and now - self.read_upstream_at > 2 * seconds:
            self._log.warning("missed heartbeats from the broker", seconds=2 * seconds)
            self._upstream.abort()

    def _is_idle(self, now: float) -> bool:
        if self._producer.paused or self._relay.connection.unsettled:
            self._busy = now
        return now - self._busy >= self._idle_seconds
