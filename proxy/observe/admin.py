"""What an operator or a probe can ask a running sidecar over HTTP.

``/metrics`` for Prometheus, ``/livez`` (the event loop turns), ``/readyz`` (producers may come), ``/status``
and what else the application adds. It asks callables that the application gives it and knows nothing of what
they look at. It answers from the start of the process to the end of the drain.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Protocol, TypeAlias, TypeVar

from aiohttp import web
from prometheus_client.exposition import gzip_accepted

T = TypeVar("T")
#: An answer that is there, or that has to be waited for.
Soon: TypeAlias = T | Awaitable[T]
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Network: TypeAlias = IPv4Network | IPv6Network

#: Peers that guarded pages answer without `admin.allow`.
LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
#: Seconds that a stop waits for answers under way; the process is leaving, nobody may hold it.
STOP_SECONDS = 1.0
#: Bytes of a request's body: a message for `/explain` with its headers, not its body. More is 413.
MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class GuardedRoute:
    """A page that only loopback and `admin.allow` may use.

    Args:
        method: HTTP method.
        path: path with a leading slash.
        handler: answers it; what it raises becomes a 500 without text.
    """

    method: str
    path: str
    handler: Handler


class Page(Protocol):
    """The page of metrics."""

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """Write it in the format that is asked for; give it and its content type."""


class Admin:
    """The HTTP server of the admin address.

    Args:
        exposition: makes the page of metrics.
        readiness: gives the reasons why producers should not come now; none means ready.
        status: gives what `/status` shows; values that JSON lacks are shown as text.
        allow: networks beside loopback that may see guarded pages, as addresses or CIDR.
        routes: further guarded pages.
        degraded: gives what producers should not expect now, though they may come.

    Raises:
        ValueError: a network of `allow` is none.
    """

    def __init__(
        self,
        exposition: Page,
        readiness: Callable[[], Soon[Sequence[str]]],
        status: Callable[[], Soon[Mapping[str, object]]],
        allow: Iterable[str] = (),
        routes: Iterable[GuardedRoute] = (),
        degraded: Callable[[], Soon[Sequence[str]]] = tuple,
    ) -> None:
        """Prepare; nothing listens before `start`."""
        self._exposition = exposition
        self._readiness = readiness
        self._degraded = degraded
        self._status = status
        self._allowed = (*LOOPBACK, *map(ip_network, allow))
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/livez", self._get_livez)
        app.router.add_get("/readyz", self._get_readyz)
        for route in (GuardedRoute("GET", "/status", self._get_status), *routes):
            app.router.add_route(route.method, route.path, self._guarded(route.handler))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_SECONDS)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen.

        Args:
            host: address to bind.
            port: port to bind, 0 for a free one.

        Returns:
            Address and port that are bound. Call `stop` at the end, also where this raised.

        Raises:
            OSError: the address can't be bound.
        """
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound = self._runner.addresses[0]
        return bound[0], bound[1]

    async def start_on(self, listening: socket.socket) -> None:
        """Listen on a Unix socket, for our own user alone.

        Args:
            listening: the socket, which is listening already. Call `stop` at the end.
        """
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()

    async def stop(self) -> None:
        """Close the socket, wait for answers under way until a deadline, then end them."""
        await self._runner.cleanup()

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            if not (_is_own(request) or self._is_allowed(request.remote)):
                raise web.HTTPForbidden(text="only for loopback and for networks of admin.allow\n")
            # A page in an operator's browser can reach loopback as well; browsers say so, tools never do.
            if "Origin" in request.headers:
                raise web.HTTPForbidden(text="not for pages in a browser\n")
            return await handler(request)

        return guarded

    def _is_allowed(self, remote: str | None) -> bool:
        try:
            address = ip_address(remote or "")
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self._allowed)

    async def _get_metrics(self, request: web.Request) -> web.Response:
        page, content_type = await self._exposition.render(request.headers.get("Accept", ""))
        response = web.Response(body=page, headers={"Content-Type": content_type})
        if gzip_accepted(request.headers.get("Accept-Encoding", "")):
            # aiohttp compresses a page of this size in a thread, without the interpreter's lock.
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def _get_livez(self, request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _get_readyz(self, request: web.Request) -> web.Response:
        reasons = list(await _now(self._readiness()))
        degraded = list(await _now(self._degraded()))
        status = 503 if reasons else 200
        if "application/json" in request.headers.get("Accept", ""):
            return _json({"ready": not reasons, "reasons": reasons, "degraded": degraded}, status)
        lines = ["not ready", *reasons] if reasons else ["ready"]
        lines += [f"degraded: {reason}" for reason in degraded]
        return web.Response(status=status, text="".join(f"{line}\n" for line in lines))

    async def _get_status(self, request: web.Request) -> web.Response:
        return _json(await _now(self._status()))


async def _now(answer: Soon[T]) -> T:
    return await answer if isawaitable(answer) else answer


def _is_own(request: web.Request) -> bool:
    """Whether it comes over a Unix socket from a process of our own user (unix(7), SO_PEERCRED)."""
    transport = request.transport
    there = None if transport is None else transport.get_extra_info("socket")
    if there is None or there.family != socket.AF_UNIX:
        return False
    with socket.socket(fileno=os.dup(there.fileno())) as copy:
        _, user, _ = struct.unpack("3i", copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(user == os.geteuid())


def _json(value: object, status: int = 200) -> web.Response:
    text = json.dumps(value, indent=2, default=_as_text)
    return web.Response(status=status, text=text + "\n", content_type="application/json")


def _as_text(value: Any) -> object:  # Any: whatever json does not know
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return str(value)
