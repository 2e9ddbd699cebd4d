from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from oxproxy.admin import server as admin
from oxproxy.admin.access import Access
from oxproxy.admin.console import console_routes
from oxproxy.admin.server import AdminServer, GuardedRoute, json_route
from oxproxy.app.shadow import RULES_BYTES, _compiled, uploaded_files
from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.native import BUILD
from oxproxy.observe.exposition import Exposition
from oxproxy.relay.counters import Counters

Start = Callable[..., Awaitable[str]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    running: list[AdminServer] = []

    async def run(
        readiness: Callable[[], Sequence[str]] = tuple,
        status: Callable[[], Mapping[str, object]] = dict,
        allow: Iterable[str] = (),
        routes: Iterable[GuardedRoute] = (),
        degraded: Callable[[], Sequence[str]] = tuple,
        hosts: Iterable[str] = (),
        access: Access | None = None,
        **more: Any,
    ) -> str:
        access = access or Access(allow, hosts)
        made = AdminServer(Exposition(Counters(version="1.2.3")), readiness, status, access, routes, degraded, **more)
        running.append(made)
        host, port = await made.start("127.0.0.1", 0)
        return f"http://{host}:{port}"

    yield run
    for made in running:
        await made.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def accepted(_body: bytes) -> tuple[int, object]:
    """A page that accepts every request."""
    return 200, {}


async def test_metrics_are_negotiated(start: Start, http: aiohttp.ClientSession) -> None:
    base = await start()
    async with http.get(base + "/metrics") as plain:
        assert plain.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert plain.headers["Content-Encoding"] == "gzip"
        assert f'oxproxy_build_info{{build="{BUILD}",version="1.2.3"}} 1.0' in await plain.text()
    accept = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "identity"}
    async with http.get(base + "/metrics", headers=accept) as openmetrics:
        assert openmetrics.headers["Content-Type"].startswith("application/openmetrics-text")
        assert "Content-Encoding" not in openmetrics.headers
        assert (await openmetrics.text()).endswith("# EOF\n")


async def test_degraded_is_reported_and_readiness_stays_200(start: Start, http: aiohttp.ClientSession) -> None:
    base = await start(degraded=lambda: ["no management API"])
    async with http.get(f"{base}/readyz") as response:
        assert (response.status, await response.text()) == (200, "ready\ndegraded: no management API\n")
    async with http.get(f"{base}/readyz", headers={"Accept": "application/json"}) as response:
        assert await response.json() == {"ready": True, "reasons": [], "degraded": ["no management API"]}


async def test_readiness_follows_its_reasons(start: Start, http: aiohttp.ClientSession) -> None:
    reasons = ["carriers of / are not declared yet", "inventory of / not read yet"]
    base = await start(readiness=lambda: reasons)
    async with http.get(base + "/readyz") as response:
        assert response.status == 503
        assert await response.text() == "not ready\n" + "\n".join(reasons) + "\n"
    async with http.get(base + "/readyz", headers={"Accept": "application/json"}) as response:
        assert response.status == 503
        assert await response.json() == {"ready": False, "reasons": reasons, "degraded": []}
    reasons.clear()
    async with http.get(base + "/readyz") as response:
        assert (response.status, await response.text()) == (200, "ready\n")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nX: " + b"hunter2" * 2000 + b"\r\n\r\n",
        b"GET /livez HTTP/9.9\r\nHost: a\r\n\r\n",
        b"POST /page HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_a_request_that_is_no_http_is_the_clients_fault_and_logged_as_such_without_its_content(
    start: Start, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    base = await start(routes=[json_route("POST", "/page", accepted)])
    with capture_logs() as logged:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(base.rpartition(":")[2]))
        writer.write(request_bytes)
        answer = await reader.read()
        assert answer.split()[1] == b"400"
        assert b"X-Content-Type-Options: nosniff\r\n" in answer
        writer.close()
    assert [(event["event"], event["log_level"]) for event in logged] == [("invalid HTTP request", "info")]
    assert "hunter2" not in str(logged)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_client_that_disconnects_within_a_body_is_not_an_error_of_the_sidecar(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    route, reading = json_route("POST", "/page", accepted), asyncio.Event()

    async def observed(request: web.Request) -> web.StreamResponse:
        reading.set()
        return await route.handler(request)

    base = await start(routes=[GuardedRoute("POST", "/page", observed)])
    _, writer = await asyncio.open_connection("127.0.0.1", int(base.rpartition(":")[2]))
    async with asyncio.timeout(20):
        writer.write(b"POST /page HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabc")
        await reading.wait()
        writer.close()
        while any("RequestHandler.start" in repr(task.get_coro()) for task in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_errors_in_files_and_messages_are_listed_with_status_422(
    start: Start, http: aiohttp.ClientSession
) -> None:
    async def page(_body: bytes) -> tuple[int, object]:
        raise ConfigErrors([ConfigError("a.yaml", 2, "b", "unknown key", 1)])

    base = await start(routes=[json_route("POST", "/page", page)])
    async with http.post(f"{base}/page") as answer:
        assert (answer.status, await answer.json()) == (422, {"errors": ["a.yaml:2:1: b: unknown key"]})


async def test_a_body_that_can_not_be_decoded_is_the_clients_fault(
    start: Start, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    base = await start(routes=[json_route("POST", "/page", accepted)])
    async with http.post(f"{base}/page", data=b"abcde", headers={"Content-Encoding": "gzip"}) as response:
        assert (response.status, await response.text()) == (400, "the body can't be decoded\n")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    ("remote", "allow", "expected"),
    [
        ("127.0.0.1", (), True),
        ("127.9.9.9", (), True),
        ("::1", (), True),
        ("::ffff:127.0.0.1", (), True),
        ("10.0.0.5", (), False),
        ("10.0.0.5", ("10.0.0.0/8",), True),
        ("::ffff:10.0.0.5", ("10.0.0.5",), True),
        ("fe80::1%eth0", (), False),
        (None, ("0.0.0.0/0",), False),
        ("", (), False),
    ],
)
async def test_guarded_pages_allow_loopback_and_configured_networks(
    start: Start,
    http: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    remote: str | None,
    allow: tuple[str, ...],
    expected: bool,
) -> None:
    monkeypatch.setattr(web.BaseRequest, "remote", remote)
    base = await start(allow=allow)
    async with http.get(base + "/status") as response:
        assert response.status == (200 if expected else 403)
    async with http.get(base + "/metrics") as response:
        assert response.status == 200


async def test_json_and_text_responses_are_negotiated(start: Start, http: aiohttp.ClientSession) -> None:
    async def as_json(body: bytes) -> tuple[int, object]:
        return (200, {"got": body.decode()}) if body else (422, '{"text": "ready-made"}')

    async def as_text(body: bytes) -> tuple[int, object]:
        return (200, "a line") if body else (422, {"errors": []})

    routes = [json_route("POST", "/ask", as_json, texting=as_text), json_route("POST", "/short", as_json, 4)]
    base = await start(routes=routes)
    plain = {"Accept": "text/plain"}
    async with http.post(base + "/ask", data=b"hello") as answer:
        assert (answer.status, await answer.json()) == (200, {"got": "hello"})
    async with http.post(base + "/ask") as answer:
        assert (answer.status, await answer.json()) == (422, {"text": "ready-made"})
    async with http.post(base + "/ask", data=b"hello", headers=plain) as answer:
        assert (answer.content_type, await answer.text()) == ("text/plain", "a line\n")
    async with http.post(base + "/ask", headers=plain) as answer:
        assert (answer.status, await answer.json()) == (422, {"errors": []})
    async with http.post(base + "/short", data=b"hello") as answer:
        assert answer.status == 413


def test_an_invalid_network_is_an_error() -> None:
    with pytest.raises(ValueError, match="everybody"):
        Access(["everybody"])


async def test_a_port_in_use_is_an_error_and_the_server_can_be_stopped() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        admin = AdminServer(Exposition(Counters()), tuple, dict, Access())
        with pytest.raises(OSError, match="in use"):
            await admin.start("127.0.0.1", taken.getsockname()[1])
        await admin.stop()


async def test_stop_ends_a_request_without_response(http: aiohttp.ClientSession) -> None:
    received = asyncio.Event()

    async def never(request: web.Request) -> web.Response:
        received.set()
        await asyncio.Event().wait()
        raise AssertionError

    admin = AdminServer(Exposition(Counters()), tuple, dict, Access(), [GuardedRoute("GET", "/never", never)])
    host, port = await admin.start("127.0.0.1", 0)
    pending = asyncio.ensure_future(http.get(f"http://{host}:{port}/never"))
    await received.wait()
    await admin.stop()
    with pytest.raises(aiohttp.ClientError):
        await pending


# -- DNS rebinding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST.:15693", 200),
        ("127.0.0.1:15693", 200),
        ("10.1.2.3", 200),
        ("[::1]:15693", 200),
        ("[::1]", 200),
        (socket.gethostname(), 200),
        ("sidecar.internal:15693", 200),
        ("", 200),
        ("evil.example", 403),
        ("evil.example:15693", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:15693", 403),
        ("127.0.0.1:80@evil.example", 403),
        ("127.0.0.1:80x", 403),
        ("localhost:15693/@evil.example", 403),
        ("[::1]:1:2", 403),
        ("[::1", 403),
    ],
)
async def test_a_guarded_page_checks_the_host_header(
    start: Start, http: aiohttp.ClientSession, host: str, status: int
) -> None:
    base = await start(hosts=["Sidecar.internal"])
    async with http.get(base + "/status", headers={"Host": host}) as response:
        assert response.status == status
        if status == 403:
            assert await response.text() == (
                f"Host {host}: expected localhost, an IP address, the name of this host, or a name in admin.hosts\n"
            )
    async with http.get(base + "/metrics", headers={"Host": host}) as response:
        assert response.status == 200


async def test_no_response_may_be_sniffed(start: Start, http: aiohttp.ClientSession) -> None:
    async def fail(_request: web.Request) -> web.Response:
        raise RuntimeError

    base = await start(routes=[GuardedRoute("GET", "/fail", fail), json_route("POST", "/page", accepted)])
    for path, status in {
        "/livez": 200,
        "/metrics": 200,
        "/status": 200,
        "/nowhere": 404,
        "/page": 405,
        "/fail": 500,
    }.items():
        async with http.get(base + path) as answer:
            assert (answer.status, answer.headers.getall("X-Content-Type-Options")) == (status, ["nosniff"])
    async with http.get(base + "/status", headers={"Host": "evil.example"}) as answer:
        assert (answer.status, answer.headers["X-Content-Type-Options"]) == (403, "nosniff")


# -- the console -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"), [("/", "text/html"), ("/console.css", "text/css"), ("/console.js", "text/javascript")]
)
async def test_files_of_the_console_have_a_type_and_a_strict_policy(
    start: Start, http: aiohttp.ClientSession, path: str, kind: str
) -> None:
    base = await start(routes=console_routes())
    async with http.get(base + path) as answer:
        assert (answer.status, answer.content_type) == (200, kind)
        policy = answer.headers["Content-Security-Policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(policy)
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_only_the_consoles_own_origin_is_allowed(start: Start, http: aiohttp.ClientSession) -> None:
    base = await start(routes=console_routes())
    origins = {base: 200, base.rpartition(":")[0] + ":1": 403, "http://evil.example": 403, "null": 403}
    for origin, status in origins.items():
        async with http.get(base + "/status", headers={"Origin": origin}) as answer:
            assert answer.status == status, origin


async def test_a_rebound_name_is_refused_as_origin(start: Start, http: aiohttp.ClientSession) -> None:
    base = await start(routes=console_routes())
    headers = {"Host": "evil.example", "Origin": "http://evil.example"}
    async with http.get(base + "/", headers=headers) as answer:
        assert answer.status == 403


# -- slow and idle connections -----------------------------------------------------------------------------------------


async def raw(base: str, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(base.rpartition(":")[2]))
    writer.write(sent)
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return all data until the end of a connection."""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
    return b""


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /-/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhal",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /livez",
    ],
    ids=["silent", "half a request", "half a body", "idle after its answer", "half a second request"],
)
async def test_an_incomplete_request_times_out(start: Start, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 0.5)  # a busy machine may need 0.1 s for the first response

    async def echo(body: bytes) -> tuple[int, object]:
        return 200, body.decode()

    base = await start(routes=[json_route("POST", "/-/echo", echo)])
    reader, writer = await raw(base, sent)
    answer = await ended(reader)
    assert answer.startswith(b"HTTP/1.1 200" if b"\r\n\r\n" in sent and b"POST" not in sent else b"")
    assert answer.count(b"alive") == sent.count(b"\r\n\r\n") - sent.count(b"POST")
    writer.close()


async def test_a_connection_keeps_its_deadline_if_the_body_is_completed_after_the_response(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 0.5)
    base = await start()
    reader, writer = await raw(base, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n")
    assert (await reader.readuntil(b"alive\n")).startswith(b"HTTP/1.1 200 ")
    writer.write(b"hello")
    assert await ended(reader) == b""
    writer.close()


async def test_an_unread_response_ends_its_connection(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 0.1)
    connection_ended = asyncio.Event()
    original = admin._Connection.connection_lost

    def losing(self: admin._Connection, error: Exception | None) -> None:
        original(self, error)
        connection_ended.set()

    monkeypatch.setattr(admin._Connection, "connection_lost", losing)

    async def large(request: web.Request) -> web.Response:
        return web.Response(body=bytes(50_000_000))

    base = await start(routes=[GuardedRoute("GET", "/large", large)])
    reader, writer = await raw(base)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(20):
        await connection_ended.wait()
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert len(await ended(reader)) < 50_000_000
    writer.close()


async def test_a_slow_page_does_not_time_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 0.1)

    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.Response(text="done")

    base = await start(routes=[GuardedRoute("GET", "/slow", slow)])
    async with aiohttp.ClientSession() as http, http.get(base + "/slow") as response:
        assert await response.text() == "done"


async def test_above_the_limit_the_longest_idle_connection_is_closed(
    start: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(admin, "NEW_SECONDS", 0.0)
    base = await start()
    silent = [await raw(base) for _ in range(3)]
    async with http.get(base + "/livez") as response:
        assert response.status == 200
    assert await ended(silent[0][0]) == b""
    assert not silent[2][0].at_eof()
    for _, writer in silent:
        writer.close()


async def test_above_the_limit_of_new_connections_another_gets_503(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(admin, "NEW_SECONDS", 60.0)
    base = await start()
    silent = [await raw(base) for _ in range(3)]
    surplus = await raw(base, b"GET /livez HTTP/1.1\r\n")
    assert (await ended(surplus[0])).startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\n")
    assert not silent[0][0].at_eof()
    for _, writer in (*silent, surplus):
        writer.close()


async def test_requests_with_unfinished_bodies_do_not_lock_out_probes(
    start: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(admin, "NEW_SECONDS", 0.0)
    received = asyncio.Semaphore(0)

    async def page(request: web.Request) -> web.Response:
        received.release()
        return web.Response(body=await request.read())

    base = await start(routes=[GuardedRoute("POST", "/explain", page)])
    head = b"POST /explain HTTP/1.0\r\nContent-Length: 5\r\n\r\nhe"
    unfinished = [await raw(base, head) for _ in range(3)]
    for _ in unfinished:
        await received.acquire()
    for _ in range(2):
        async with http.get(base + "/livez", headers={"Connection": "close"}) as response:
            assert response.status == 200
    unfinished[2][1].write(b"llo")
    assert (await ended(unfinished[2][0])).endswith(b"\r\n\r\nhello")
    for _, writer in unfinished:
        writer.close()


async def test_above_the_limit_of_busy_connections_another_gets_503(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "MOST_CONNECTIONS", 2)
    received, release = asyncio.Semaphore(0), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        received.release()
        await release.wait()
        return web.Response(text="done")

    base = await start(routes=[GuardedRoute("GET", "/slow", slow)])
    busy = [await raw(base, b"GET /slow HTTP/1.0\r\n\r\n") for _ in range(2)]
    for _ in busy:
        await received.acquire()
    surplus = await raw(base, b"GET /livez HTTP/1.1\r\n")
    assert (await ended(surplus[0])).startswith(b"HTTP/1.1 503 ")
    release.set()
    for reader, _ in busy:
        assert (await ended(reader)).endswith(b"done")
    for _, writer in (*busy, surplus):
        writer.close()


async def test_only_the_first_errors_in_uploaded_files_are_listed(start: Start, http: aiohttp.ClientSession) -> None:
    async def compile_candidate(body: bytes) -> tuple[int, object]:
        return 200, _compiled(uploaded_files(body))[0].rules.version

    base = await start(routes=[json_route("POST", "/-/shadow", compile_candidate, RULES_BYTES)])
    rules = "exchanges:\n" + "- {name: same}\n" * 1000
    files = json.dumps({"files": [("f.yaml", rules)]})
    async with http.post(base + "/-/shadow", data=files) as response:
        assert response.status == 422
        errors = (await response.json())["errors"]
    assert len(errors) == 101
    assert errors[0] == "f.yaml:3:4: exchanges[1].name: f.yaml:2 already defines an exchange with this name"
    assert errors[100] == "f.yaml:1001:4: and 899 more errors"


async def test_a_file_name_that_is_not_unicode_does_not_cause_an_internal_error(
    start: Start, http: aiohttp.ClientSession
) -> None:
    async def compile_candidate(body: bytes) -> tuple[int, object]:
        return 200, _compiled(uploaded_files(body))[0].rules.version

    base = await start(routes=[json_route("POST", "/page", compile_candidate)])
    async with http.post(f"{base}/page", data=rb'{"files": [["\udcff.yaml", "unknown: 1"]]}') as answer:
        assert answer.status == 422
        assert json.loads(await answer.read())["errors"][0].startswith("\udcff.yaml:1:1: unknown: unknown key")
