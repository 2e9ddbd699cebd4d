"""``GET /api/live``, which sends changes as events to connected clients, and ``GET /api/traffic``, which returns rates.

One task samples the counters, and renders each event once for all streams. Each stream has a short queue of events. A
client that does not read its events is disconnected, so that other streams never wait for it. The number of streams is
limited; further requests get 503.

Source: HTML Living Standard, 9.2 "Server-sent events".
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import web

from oxproxy.admin.server import GuardedRoute, json_response
from oxproxy.admin.traffic import LEAST_SECONDS, SAMPLE_SECONDS, TrafficSampler

#: Maximum number of streams: half of the admin address's connections. The other half is for probes and Prometheus.
MOST_STREAMS = 32
#: Number of queued events above which a client is disconnected.
QUEUED_EVENTS = 8
#: Minimum number of seconds between two samples if there are no clients.
QUIET_SECONDS = 10.0
#: Minimum pause as a multiple of the duration of the last sample, with and without clients.
PAUSE_FACTOR, QUIET_FACTOR = 100, 500
#: After a request for `/api/traffic`, rates of bindings are sampled for this many seconds, in case of further requests.
_READ_SECONDS = 10.0
_TRAFFIC = "traffic"
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
#: Sent if there are no events: keeps the connection alive, and detects that a client has disconnected.
_COMMENT = b":\n\n"


class LiveTopic:
    """A topic of event streams.

    Args:
        whole: returns all data, for a new stream.
        news: returns the changes since the last call, or None. By default, all data is returned after any change.
    """

    def __init__(self, whole: Callable[[], object], news: Callable[[], object] | None = None) -> None:
        self.whole = whole
        self._news = news
        self._last = b""

    def event(self, name: str) -> bytes:
        """Return an event with the changes; empty if there are none."""
        if self._news is not None:
            news = self._news()
            return b"" if news is None else _event(name, news)
        last, self._last = self._last, _event(name, self.whole())
        return b"" if self._last == last else self._last


@dataclass(slots=True, eq=False)
class _Stream:
    """One event stream to a client.

    Args:
        request: the client's request, through which its connection can be aborted.
        events: queued events; None ends the stream.
    """

    topics: tuple[str, ...]
    request: web.Request
    events: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(QUEUED_EVENTS))

    def put(self, event: bytes) -> None:
        """Queue an event. Disconnect the client if it has not read earlier events."""
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            if self.request.transport is not None:
                self.request.transport.abort()

    def end(self) -> None:
        with suppress(asyncio.QueueFull):
            self.events.put_nowait(None)


class LiveFeed:
    """Samples traffic, and sends changes to event streams.

    Args:
        traffic: the sampler, which provides the topic `traffic`.
        topics: other topics, by name.
        timer: returns monotonic seconds.
    """

    def __init__(
        self, traffic: TrafficSampler, topics: Mapping[str, LiveTopic], timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._traffic = traffic
        self._topics = topics
        self._timer = timer
        self._streams: set[_Stream] = set()
        self._read_until = 0.0
        #: set while there are streams or recent requests for `/api/traffic`
        self._wanted = asyncio.Event()

    @property
    def routes(self) -> list[GuardedRoute]:
        return [
            GuardedRoute("GET", "/api/live", self._follow),
            GuardedRoute("GET", "/api/traffic", self._get_traffic),
        ]

    async def run(self) -> None:
        """Sample and send events until cancelled, which ends all streams."""
        try:
            while True:
                began = self._timer()
                await self._turn()
                spent = self._timer() - began
                if self._timer() >= self._read_until and not self._streams:
                    self._wanted.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(max(QUIET_SECONDS, QUIET_FACTOR * spent)):
                            await self._wanted.wait()
                else:
                    # The first rates need a second sample.
                    seconds = SAMPLE_SECONDS if self._traffic.rated else LEAST_SECONDS
                    await asyncio.sleep(max(seconds, PAUSE_FACTOR * spent))
        finally:
            self.end_streams()

    def end_streams(self) -> None:
        """End all streams. Their clients connect again, if they are still permitted to."""
        for stream in tuple(self._streams):
            stream.end()

    async def _turn(self) -> None:
        followed = {topic for stream in self._streams for topic in stream.topics}
        detailed = _TRAFFIC in followed or self._timer() < self._read_until
        await self._traffic.sample(detailed)
        events = {name: topic.event(name) for name, topic in self._topics.items() if name in followed}
        if _TRAFFIC in followed:
            # This runs in a thread, since there may be thousands of bindings.
            events[_TRAFFIC] = await asyncio.to_thread(lambda: _event(_TRAFFIC, self._traffic.news()))
        for stream in tuple(self._streams):
            stream.put(b"".join(events.get(name, b"") for name in stream.topics) or _COMMENT)

    async def _get_traffic(self, _request: web.Request) -> web.Response:
        self._read_until = self._timer() + _READ_SECONDS
        self._wanted.set()
        return json_response(await self._traffic.snapshot())

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        names = (_TRAFFIC, *self._topics)
        topics = tuple(dict.fromkeys(request.query.get("topics", ",".join(names)).split(",")))
        unknown = [topic for topic in topics if topic not in names]
        if unknown:
            return json_response({"errors": [f"topics: got {unknown[0]!r}, expected any of {', '.join(names)}"]}, 422)
        if len(self._streams) >= MOST_STREAMS:
            text = f"{MOST_STREAMS} event streams are open, which is the limit\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "5", "Connection": "close"})
        stream = _Stream(topics, request)
        self._streams.add(stream)
        self._wanted.set()
        response = web.StreamResponse(headers=_HEADERS)
        try:
            await response.prepare(request)
            await response.write(b"".join([event async for event in self._whole(topics)]))
            while (event := await stream.events.get()) is not None:
                await response.write(event)
        except ConnectionError:
            pass  # the client has disconnected or has been disconnected
        finally:
            self._streams.discard(stream)
        return response

    async def _whole(self, topics: Iterable[str]) -> AsyncIterator[bytes]:
        for name in topics:
            whole = await self._traffic.snapshot() if name == _TRAFFIC else self._topics[name].whole()
            yield await asyncio.to_thread(_event, name, whole)


def _event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode(errors="replace")
