"""The HTTP server of the admin address: probes, metrics, status, and the pages that the application adds.

The pages are ``/metrics`` for Prometheus, ``/livez`` (the event loop is responsive), ``/readyz`` (producers can
connect) and ``/status``. The server calls functions of the application and does not interpret their results. It answers
requests from the start of the process to the end of the drain.

Connections are limited in number and duration, so that they don't exhaust the file descriptors that producers need.
With TLS, this includes the handshake, so connections are accepted here and not by the event loop. Requests are limited
to a share of the time (`Pace`), since they share the event loop with producers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError
from prometheus_client.exposition import gzip_accepted

from oxproxy.admin.access import Access, Handler, Role
from oxproxy.admin.pace import Pace
from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.net.listener import listening_sockets
from oxproxy.net.tls import ContextProvider, words
from oxproxy.observe.exposition import Exposition

_log = structlog.get_logger(__name__)


def _is_error(record: logging.LogRecord) -> bool:
    """Return False for an invalid request, which is the client's error, and log it without its content."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
        return True
    _log.info("invalid HTTP request", reason=type(error).__name__, repeat="admin")
    return False


#: The logger of aiohttp's server. Without the filter, invalid requests would be logged as errors with a traceback.
_http_log = logging.getLogger(f"{__name__}.http")
_http_log.addFilter(_is_error)

#: Time for which `stop` waits for responses in progress, in seconds. A client must not delay the exit of the process.
STOP_SECONDS = 1.0
#: Maximum size of a request's body, such as a message for `/explain` with its headers. Larger requests get 413.
MAX_BODY_BYTES = 1 << 20
#: Maximum number of connections, for which `net.listener` reserves descriptors. Once it is reached, a new connection
#: replaces the connection that has been idle for the longest time.
MOST_CONNECTIONS = 64
#: Seconds for which a connection that waits for a request does not count as idle, since its request may be in transit.
#: If no connection is idle, a further connection gets 503. The time is short, so that clients which open many
#: connections without sending requests don't lock out probes.
NEW_SECONDS = 0.05
#: Maximum number of excess connections that are kept open to send a 503, and the time limit in seconds for receiving
#: their requests.
MOST_REFUSED, REFUSED_SECONDS = 32, 1.0
#: Seconds within which the first request of a connection must be received, and within which each response must be read
#: and the next request received. There is no deadline while a page is being rendered.
REQUEST_SECONDS = 30.0
#: Share of the time in which requests are answered and metrics are rendered, and seconds of each that are permitted at
#: once. A probe or a page without metrics takes about `ANSWER_SECONDS`, so 200 per second are answered. Requests for
#: metrics have a separate share, so that probes do not wait for them.
SHARE, ANSWER_BURST_SECONDS, METRICS_BURST_SECONDS, ANSWER_SECONDS = 0.1, 0.1, 0.5, 0.0005
_BACKLOG = 128
#: Maximum number of connections accepted in one iteration of the event loop, and pause after an accept has failed.
_ACCEPTED_AT_ONCE, _ACCEPT_PAUSE_SECONDS = 16, 1.0
#: Timeout of a TLS handshake in seconds.
HANDSHAKE_SECONDS = 10.0
#: Sent with every response, since names and values from messages may look like HTML or scripts.
_NO_SNIFFING = {"X-Content-Type-Options": "nosniff"}
_NO_ROOM = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n"
    b"X-Content-Type-Options: nosniff\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class GuardedRoute:
    """A page with a guard (see `Access.guarded`).

    Args:
        path: path with a leading slash.
        handler: handles requests; exceptions become a 500 response without text.
        change: the change that the page makes, for records; empty if it makes none.
        is_data: whether the page shows or changes anything; False for the files of the console.
    """

    method: str
    path: str
    handler: Handler
    change: str = ""
    is_data: bool = True

    @property
    def role(self) -> Role | None:
        """The role that a token needs; None if no token is needed."""
        return Role.OPERATE if self.change else Role.VIEW if self.is_data else None


class AdminServer:
    """The HTTP server of the admin address.

    Args:
        exposition: renders the metrics page.
        readiness: returns the reasons why the sidecar is not ready; empty if it is ready.
        status: returns the content of `/status`, as plain data for JSON.
        access: guards pages.
        routes: further guarded pages.
        degraded: returns limitations that don't prevent readiness.
        metrics_role: role that the metrics page requires; None if it requires no token.
        tls: provides the TLS context for each new connection; None for plain TCP.
    """

    def __init__(
        self,
        exposition: Exposition,
        readiness: Callable[[], Sequence[str]],
        status: Callable[[], Mapping[str, object]],
        access: Access,
        routes: Iterable[GuardedRoute] = (),
        degraded: Callable[[], Sequence[str]] = tuple,
        metrics_role: Role | None = None,
        tls: ContextProvider | None = None,
    ) -> None:
        self._tls = tls
        self._sockets: list[socket.socket] = []
        #: connections by aiohttp's protocol, starting with the connection that has been idle for the longest time
        self._connections: dict[asyncio.BaseProtocol, _Connection] = {}
        self._refused: set[_Refused] = set()
        self._answers, self._renderings = Pace(SHARE, ANSWER_BURST_SECONDS), Pace(SHARE, METRICS_BURST_SECONDS)
        self._exposition = exposition
        self._readiness = readiness
        self._degraded = degraded
        self._status = status
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._watched])
        app.on_response_prepare.append(_forbid_sniffing)
        metrics = self._get_metrics if metrics_role is None else access.with_token(self._get_metrics, metrics_role)
        app.router.add_get("/metrics", metrics)
        app.router.add_get("/livez", self._get_livez)
        app.router.add_get("/readyz", self._get_readyz)
        for route in (GuardedRoute("GET", "/status", self._get_status), *routes):
            app.router.add_route(route.method, route.path, access.guarded(route.handler, route.role, route.change))
        self._runner = web.AppRunner(app, access_log=None, logger=_http_log, shutdown_timeout=STOP_SECONDS)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the bound address and port. `stop` must be called at the end, even after an error.

        Args:
            port: port to bind; 0 for any free port.

        Raises:
            OSError: the address can't be bound.
        """
        await self._runner.setup()
        self._sockets = await listening_sockets(host, port, _BACKLOG)
        for listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)
        bound = self._sockets[0].getsockname()
        return bound[0], bound[1]

    async def stop(self) -> None:
        """Close the socket, wait for responses in progress until a deadline, then abort them."""
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._sockets.clear()
        await self._runner.cleanup()
        for connection in tuple(self._connections.values()):
            connection.abort()

    def _accept(self, listening: socket.socket) -> None:
        """Accept pending connections up to a limit; the others are accepted in the next iteration of the event loop."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("no admin connection can be accepted", error=error.strerror or str(error), repeat="admin")
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again, listening)
                return
            accepted.setblocking(False)
            protocol = self._connect()
            if isinstance(protocol, _Refused) and self._tls is not None:
                accepted.close()  # a response would need a handshake
            else:
                protocol.join(accepted, self._tls)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _connect(self) -> _Connection | _Refused:
        server = self._runner.server
        assert server is not None  # noqa: S101 -- set while listening
        handler = server()
        handler.__class__ = _Handler  # the server can't be given a class
        if len(self._connections) >= MOST_CONNECTIONS:
            _log.warning("too many admin connections", limit=MOST_CONNECTIONS, repeat="admin")
            idle = next((connection for connection in self._connections.values() if connection.waiting), None)
            if idle is None or asyncio.get_running_loop().time() - idle.since < NEW_SECONDS:
                return _Refused(self._refused)
            idle.abort()
        connection = self._connections[handler] = _Connection(handler, self._connections)
        return connection

    @web.middleware
    async def _watched(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Suspend the deadline of a connection while its page is being rendered.

        Until the body of the request is complete, the connection counts as idle. Clients that send only parts of their
        requests therefore don't lock out probes.
        """
        connection = self._connections.get(request.protocol)
        if connection is None:
            return await handler(request)
        rendering = True

        def received() -> None:
            if rendering:  # the rest of the body may arrive after the response
                connection.answering()

        request.content.on_eof(received)
        try:
            await self._answers.wait(ANSWER_SECONDS)
            return await handler(request)
        finally:
            rendering = False
            connection.wait()

    async def _get_metrics(self, request: web.Request) -> web.Response:
        async with self._renderings.turn():
            page, content_type = await self._exposition.render(request.headers.get("Accept", ""))
        response = web.Response(body=page, headers={"Content-Type": content_type})
        if gzip_accepted(request.headers.get("Accept-Encoding", "")):
            # aiohttp compresses a page of this size in a thread, without the interpreter's lock.
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def _get_livez(self, request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _get_readyz(self, request: web.Request) -> web.Response:
        reasons, degraded = list(self._readiness()), list(self._degraded())
        status = 503 if reasons else 200
        if "application/json" in request.headers.get("Accept", ""):
            return json_response({"ready": not reasons, "reasons": reasons, "degraded": degraded}, status)
        lines = ["not ready", *reasons] if reasons else ["ready"]
        lines += [f"degraded: {reason}" for reason in degraded]
        return web.Response(status=status, text="".join(f"{line}\n" for line in lines))

    async def _get_status(self, request: web.Request) -> web.Response:
        return json_response(self._status())


async def _forbid_sniffing(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_NO_SNIFFING)


class _Handler(web.RequestHandler):
    """aiohttp's protocol, with the header of all other responses in its responses to invalid requests."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        response = super().handle_error(request, status, exc, message)
        response.headers.update(_NO_SNIFFING)
        return response


class _Refused(asyncio.Protocol):
    """A connection that exceeds the limit. If its request arrives within `REFUSED_SECONDS`, the response is 503.

    Args:
        among: all such connections. Beyond `MOST_REFUSED`, connections are closed immediately.
    """

    def __init__(self, among: set[_Refused]) -> None:
        self._among = among
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._joining: asyncio.Task[object] | None = None

    def join(self, accepted: socket.socket, _tls: ContextProvider | None) -> None:
        """Connect an accepted socket, in the background."""
        connecting = asyncio.get_running_loop().connect_accepted_socket(lambda: self, accepted)
        self._joining = asyncio.create_task(connecting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the request, since a client that is still sending would not read a response."""
        self._transport = cast(asyncio.Transport, transport)
        if len(self._among) >= MOST_REFUSED:
            self._transport.abort()
            return
        self._among.add(self)
        self._deadline = asyncio.get_running_loop().call_later(REFUSED_SECONDS, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(_NO_ROOM)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._among.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()


class _Connection(asyncio.Protocol):
    """One connection, with a deadline except while a request is being answered.

    Args:
        inner: aiohttp's protocol, to which all events are forwarded.
        among: all connections by their inner protocol; this connection removes itself when it is closed.
    """

    def __init__(self, inner: web.RequestHandler, among: dict[asyncio.BaseProtocol, _Connection]) -> None:
        self._inner = inner
        self._among = among
        self._transport: asyncio.Transport | None = None
        #: connects the accepted socket; with TLS, after the handshake
        self._joining: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        #: start of the current wait, in seconds of the event loop's clock
        self.since = 0.0

    @property
    def waiting(self) -> bool:
        return self._deadline is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.wait()
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.answering()
        self._among.pop(self._inner, None)
        self._transport = None
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        self._inner.eof_received()
        return None

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def join(self, accepted: socket.socket, tls: ContextProvider | None) -> None:
        """Connect an accepted socket, in the background."""
        self.wait()
        self._joining = asyncio.create_task(self._join(accepted, tls))

    async def _join(self, accepted: socket.socket, tls: ContextProvider | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            if tls is None:
                await loop.connect_accepted_socket(lambda: self, accepted)
            else:
                await loop.connect_accepted_socket(
                    lambda: self, accepted, ssl=tls(), ssl_handshake_timeout=HANDSHAKE_SECONDS
                )
        except (OSError, ConfigError) as error:
            _log.info("admin connection not established", reason=words(error), repeat="admin")
        finally:
            self._joining = None
            if self._transport is None:
                accepted.close()
                self.abort()

    def wait(self) -> None:
        """Start the deadline for sending the rest of the response and receiving the next request."""
        self.answering()
        if self._among.pop(self._inner, None) is not None:
            self._among[self._inner] = self
            loop = asyncio.get_running_loop()
            self.since = loop.time()
            self._deadline = loop.call_later(REQUEST_SECONDS, self.abort)

    def answering(self) -> None:
        """Cancel the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def abort(self) -> None:
        self.answering()
        self._among.pop(self._inner, None)
        if self._transport is not None:
            self._transport.abort()
        elif self._joining is not None:
            self._joining.cancel()


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, text=json.dumps(value, indent=2) + "\n", content_type="application/json")


def json_text(value: object) -> str:
    # An unpaired surrogate, such as in the name of a file, can't be encoded as UTF-8. Its escape is valid JSON.
    return json.dumps(value, indent=2, ensure_ascii=False).encode(errors="backslashreplace").decode()


#: Receives a request's body; returns the status, and the response as plain data or encoded JSON. Errors in files and
#: messages are raised as `ConfigErrors`, for which the status is 422.
Answering: TypeAlias = Callable[[bytes], Awaitable[tuple[int, object]]]


def json_route(
    method: str,
    path: str,
    answering: Answering,
    body_bytes: int = MAX_BODY_BYTES,
    texting: Answering | None = None,
    change: str = "",
) -> GuardedRoute:
    """Create the route of a page.

    Args:
        body_bytes: maximum size of a request's body; larger requests get 413.
        change: the change that the page makes, for records; empty if it makes none.
        texting: handler for text (``Accept: text/plain``). A response that is not a string is sent as JSON.
    """

    async def handle(request: web.Request) -> web.Response:
        wants_text = texting is not None and "text/plain" in request.headers.get("Accept", "")
        asked = texting if texting is not None and wants_text else answering
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                body = await request.clone(client_max_size=body_bytes).read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body was not received in time\n") from None
        except web.RequestPayloadError:
            raise web.HTTPBadRequest(text="the body can't be decoded\n") from None
        except ConnectionResetError:  # the client has disconnected; aiohttp would log an error
            raise web.HTTPBadRequest(text="the body is incomplete\n") from None
        try:
            status, content = await asked(body)
        except ConfigErrors as errors:
            status, content = 422, {"errors": [str(error) for error in errors.errors]}
        if wants_text and isinstance(content, str):
            return web.Response(status=status, text=content + "\n")
        text = content if isinstance(content, str) else json_text(content)
        return web.Response(status=status, text=text + "\n", content_type="application/json")

    return GuardedRoute(method, path, handle, change)
