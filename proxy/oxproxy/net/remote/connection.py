"""Keeps one link to another broker connected: socket, TLS, deadlines, reconnects, back-pressure.

`relay.remote_link` gets the received bytes and decides what to send. A lane (the publishes of one producer's
channel) outlives a connection: waiting messages are sent over the next connection or, at their deadline, reported to
the producer as lost. No message is sent twice.

Sources: the messenger-addressing specification, section 3.4; architecture, "Invariants" (bounded buffers).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import monotonic

import structlog

from oxproxy.amqp.frames import HEARTBEAT_FRAME
from oxproxy.errors import ConfigError
from oxproxy.net.link import Link, ReadPauses
from oxproxy.net.remote.endpoints import Endpoint, RemoteLimits
from oxproxy.net.tls import TlsContexts, words
from oxproxy.relay.connection_state import AHEAD_MESSAGES
from oxproxy.relay.counters import RemoteCounters
from oxproxy.relay.remote_link import Lane, RemoteLink, RemoteMessage, RemoteResult

_log = structlog.get_logger(__name__)
#: Timeout for connecting and logging in to a broker.
_OPENING_SECONDS = 10.0
#: Shortest and longest wait between connection attempts, in seconds. Each wait is randomized by up to 50 percent.
_BACK_OFF = (0.2, 5.0)
#: Minimum number of seconds between two warnings about the same link.
_LOG_SECONDS = 5.0
_LOOP = "leads back to this sidecar"
_STOPPING = "the proxy is shutting down"
#: Seconds after which a link without lanes is closed.
IDLE_SECONDS = 60.0


class Load:
    """The unconfirmed messages of a link, and whether they are so many, or so large, that producers have to wait."""

    def __init__(self) -> None:
        self.messages = 0
        self._bytes = 0
        self.full = False

    def add(self, message: RemoteMessage) -> None:
        self.messages += 1
        self._bytes += message.size_bytes

    def remove(self, *messages: RemoteMessage) -> None:
        self.messages -= len(messages)
        self._bytes -= sum(message.size_bytes for message in messages)

    def weigh(self, limits: RemoteLimits) -> bool:
        """Compare the messages with the limits; return True if `full` has changed. It ends at half of the limits."""
        divisor = 2 if self.full else 1
        most, most_bytes = limits.messages // divisor, limits.message_bytes // divisor
        was_full = self.full
        if was_full:
            self.full = self.messages > most or self._bytes > most_bytes
        else:
            self.full = self.messages >= most or self._bytes >= most_bytes
        return self.full != was_full


class _Attempt:
    """One attempt to connect and, if it succeeds, the connection. The next attempt begins without any of its state."""

    def __init__(self, socket: Link) -> None:
        self.socket = socket
        #: the protocol; None until the socket is connected
        self.link: RemoteLink | None = None
        #: set when the link is open, or has failed
        self.decided = asyncio.Event()
        self.over = asyncio.Event()
        self.read_at = self.wrote_at = 0.0


class RemoteConnection:
    """One link, from its first use to its end.

    Its lanes, its load and its attempts are objects; most other attributes are what the pool has given it.

    Args:
        ourselves: returns True if the two addresses of a socket show that the socket is connected to this process.
        changed: called when `load.full` has changed, or when the link is replaced and unused.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        counters: RemoteCounters,
        version: str,
        contexts: TlsContexts,
        ourselves: Callable[[object, object], bool],
        changed: Callable[[], None],
    ) -> None:
        self.endpoint = endpoint
        self._counters = counters
        self._version = version
        self._contexts = contexts
        self._ourselves = ourselves
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._read_pauses = ReadPauses()
        #: lanes in the order of creation, each with the function to call when the lane is closed; after a reconnect,
        #: channels are assigned in the same order
        self._lanes: dict[Lane, Callable[[Lane], None]] = {}
        #: lanes that still have messages in progress although the producer's channel is closed
        self._leaving: set[Lane] = set()
        #: whether messages are waiting because all channels of the link are in use
        self._crowded = False
        self.load = Load()
        self._attempt: _Attempt | None = None
        self._flushing = False
        self._attempts = 0
        self._log_after = 0.0
        self.failure = "not connected yet"
        self.unused_since: float | None = monotonic()
        #: whether the configuration no longer contains the endpoint, so that the link ends when it is unused
        self.replaced = False

    # -- lanes -----------------------------------------------------------------------------------------------------

    def lane(self, closed: Callable[[Lane], None]) -> Lane:
        """Create a lane; `closed` is called with the lane after `leave`, once it has no messages in progress."""
        lane = Lane(self._settled)
        self._lanes[lane] = closed
        self.unused_since = None
        return lane

    def send(self, lane: Lane, message: RemoteMessage) -> None:
        self.load.add(message)
        lane.send(message)
        link = self._link
        if not lane.number and not self._crowded and link is not None and link.open and not link.attach(lane):
            self._assign_channels(link)
        if not self.load.full:
            self._weigh()
        if not self._flushing:
            self.flush_soon()

    def _assign_channels(self, link: RemoteLink) -> None:
        """Give a channel to each lane that has waiting messages but no channel.

        If there are too few channels, idle lanes release theirs.
        """
        waiting = [lane for lane in self._lanes if lane.waiting and not lane.number]
        missing = len(waiting)
        for lane in waiting:
            if not link.attach(lane):
                break
            missing -= 1
        if missing and not self._crowded:
            self._warn("all channels of the link to another broker are in use")
        self._crowded = missing > 0
        idle = [lane for lane in self._lanes if lane.number and lane.idle]
        for lane in idle[: max(0, missing - link.channels_closing)]:
            lane.close()

    def leave(self, lane: Lane) -> None:
        """Close the lane of a closed channel once the lane has no messages in progress."""
        self._leaving.add(lane)
        self._retire(lane)

    def refuse(self, message: RemoteMessage, reason: str) -> None:
        """Report that a message was refused, since it can't be sent over any link."""
        self._count(RemoteResult.NACKED, reason)
        message.settled(RemoteResult.NACKED)

    def take_waiting(self, lane: Lane) -> list[RemoteMessage]:
        """Remove and return the messages of a lane that have not been sent yet."""
        messages = list(lane.waiting)
        lane.waiting.clear()
        self.load.remove(*messages)
        self._weigh()
        return messages

    def stay(self, lane: Lane) -> None:
        """Undo `leave`, since the producer has opened its channel again. The order of the messages is preserved."""
        self._leaving.discard(lane)

    def _retire(self, lane: Lane) -> None:
        if lane.idle:
            self._leaving.discard(lane)
            closed = self._lanes.pop(lane)
            lane.close()
            self.flush_soon()
            closed(lane)
            if not self._lanes:
                self.unused_since = monotonic()
                if self.replaced:
                    self._changed()

    def _settled(self, message: RemoteMessage, result: RemoteResult, reason: str) -> None:
        self.load.remove(message)
        if self.load.full:
            self._weigh()
        self._count(result, reason)

    def _count(self, result: RemoteResult, reason: str) -> None:
        self._counters.results[result.value] += 1
        if reason:
            self._warn("message to another broker failed", result=result.value, reason=reason)

    def _warn(self, event: str, **fields: str) -> None:
        """Log a warning, but at most once every `_LOG_SECONDS`."""
        if monotonic() >= self._log_after:
            self._log_after = monotonic() + _LOG_SECONDS
            _log.warning(event, remote=self.endpoint.label, **fields)

    def _weigh(self) -> None:
        if self.load.weigh(self.endpoint.limits):
            self._changed()

    @property
    def _link(self) -> RemoteLink | None:
        return None if self._attempt is None else self._attempt.link

    # -- bytes -----------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Send the collected output in the next iteration of the event loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        attempt = self._attempt
        if attempt is not None and attempt.link is not None and attempt.link.to_send:
            attempt.wrote_at = monotonic()
            attempt.socket.send(attempt.link.to_send)

    def _received(self, data: bytes) -> None:
        attempt, link = self._attempt, self._link
        if attempt is None or link is None:
            return
        attempt.read_at = monotonic()
        was_open = link.open
        link.receive(data)
        if link.open and not was_open:
            self._opened(link)
            attempt.decided.set()
        elif self._crowded and link.open:
            self._assign_channels(link)
        self._flush()
        if self.load.messages >= AHEAD_MESSAGES:
            self._read_pauses.begin(attempt.socket, len(data))
        for lane in tuple(self._leaving):
            self._retire(lane)
        if link.failure is not None:
            self._end(link.failure)

    def _opened(self, link: RemoteLink) -> None:
        self._attempts = 0
        self._counters.links += 1
        self.failure = ""
        _log.info("remote broker connected", remote=self.endpoint.label)
        self._crowded = False
        self._assign_channels(link)

    def _made(self) -> None:
        attempt = self._attempt
        transport = attempt.socket.transport if attempt is not None else None
        if attempt is None or transport is None:
            return
        names = (transport.get_extra_info("sockname"), transport.get_extra_info("peername"))
        if self._ourselves(*names):
            self._end(_LOOP)
            # A retry would have the same result, so the messages fail now instead of waiting.
            self.give_up(_LOOP)
            return
        attempt.link = RemoteLink(self.endpoint.credentials, self._version)
        self._flush()

    def _lost(self, error: Exception | None) -> None:
        text = "connection lost" if error is None else f"connection lost: {words(error)}"
        link = self._link
        if link is not None:
            link.lost(text)
        self._end(link.failure or text if link is not None else text)

    def _end(self, reason: str) -> None:
        """Close the connection, after which `run` reconnects."""
        attempt = self._attempt
        if attempt is None or attempt.over.is_set():
            return
        self._not_open(reason)
        attempt.over.set()
        attempt.decided.set()
        attempt.socket.close()

    # -- lifecycle -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the link connected until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tick())
                while True:
                    await self._connect()
                    first, longest = _BACK_OFF
                    wait = min(longest, first * 2 ** min(self._attempts, 10)) * random.uniform(0.5, 1.5)  # noqa: S311
                    self._attempts += 1
                    await asyncio.sleep(wait)
        finally:
            self._stop()

    async def _connect(self) -> None:
        """Connect, and return when the connection has ended or the attempt has failed."""
        endpoint, tls = self.endpoint, self.endpoint.tls
        socket = Link(self._received, self._lost, self._may_write, self._made)
        self._attempt = attempt = _Attempt(socket)
        try:
            async with asyncio.timeout(_OPENING_SECONDS):
                context = self._contexts.of(tls) if tls is not None else None
                name = (tls.server_name or endpoint.host) if tls is not None else None
                await self._loop.create_connection(
                    lambda: socket, endpoint.host, endpoint.port, ssl=context, server_hostname=name
                )
                await attempt.decided.wait()
        except TimeoutError:
            self._end("no response in time")
        except (OSError, ConfigError) as error:
            self._end(words(error) if tls is None else tls.words(error))
        await attempt.over.wait()
        if socket.connected:
            socket.abort()
        if self._attempts in (0, 3) or not self._attempts % 20:
            _log.warning("remote broker not connected", remote=endpoint.label, reason=self.failure)

    def _may_write(self, writable: bool) -> None:
        link = self._link
        # Messages that can't be written wait in the lanes, which apply the deadline.
        if link is not None and link.open:
            link.set_socket_full(not writable)
            self.flush_soon()

    async def _tick(self) -> None:
        """Check deadlines and heartbeats."""
        while True:
            deadline = self.endpoint.limits.deadline_seconds
            await asyncio.sleep(min(1.0, deadline / 10))
            now = monotonic()
            attempt, link = self._attempt, self._link
            why = self.failure or ("the broker is blocking publishes" if link and link.paused else "no channel")
            for lane in tuple(self._lanes):
                lane.expire(now - deadline, why)
            for lane in tuple(self._leaving):
                self._retire(lane)
            if self._crowded and link is not None and link.open:
                self._assign_channels(link)
                self.flush_soon()
            if attempt is not None and link is not None and link.open and link.heartbeat:
                if now - attempt.wrote_at >= link.heartbeat / 2:
                    link.to_send.append(HEARTBEAT_FRAME)
                    self._flush()
                if now - attempt.read_at > 2 * link.heartbeat:
                    self._lost(TimeoutError("missed heartbeats"))

    def give_up(self, why: str = _STOPPING) -> None:
        """Report all messages in progress as lost; `why` is for the log."""
        for lane in self._lanes:
            lane.expire(float("inf"), why)

    def _stop(self) -> None:
        link = self._link
        if link is not None:
            link.close()
            self._flush()
        self.give_up()
        if self._attempt is not None:
            self._attempt.socket.close()
        self._not_open(_STOPPING)

    def _not_open(self, reason: str) -> None:
        if not self.failure:
            self._counters.links -= 1
        self.failure = reason
