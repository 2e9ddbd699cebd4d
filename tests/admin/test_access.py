"""Attacks the admin address with tokens: no token, guessed tokens, another role, records of changes, TLS."""

from __future__ import annotations

import asyncio
import gzip
import hmac
import json
import secrets
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from oxproxy.admin import server as admin
from oxproxy.admin.access import GUESS_SECONDS, GUESSES, Access, AdminChange, AdminToken, Role
from oxproxy.admin.server import AdminServer, json_route
from oxproxy.net.tls import ServerTls
from oxproxy.observe.exposition import Exposition
from oxproxy.relay.counters import Counters
from tests.admin.test_openapi import DESCRIBED
from tests.certificates import Authority
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar, oxproxy, request_page

VIEW, OPERATE = "v" * 20 + secrets.token_hex(16), "o" * 20 + secrets.token_hex(16)
RULES = "exchanges: [{name: orders, bindings: [{queue: lost}]}]\n"
#: The role that each endpoint requires. An endpoint that is not listed fails `test_every_endpoint_has_a_role`.
ROLES = {
    ("GET", "/livez"): None,
    ("GET", "/readyz"): None,
    ("GET", "/"): None,
    ("GET", "/api/openapi.json"): None,
    ("GET", "/metrics"): "view",
    ("GET", "/status"): "view",
    ("GET", "/api/traffic"): "view",
    ("GET", "/api/live"): "view",
    ("GET", "/api/rules"): "view",
    ("GET", "/api/rules/notes"): "view",
    ("GET", "/api/rules/changes"): "view",
    ("GET", "/api/routes"): "view",
    ("GET", "/api/recent"): "view",
    ("POST", "/explain"): "view",
    ("GET", "/-/shadow"): "view",
    ("POST", "/-/reload"): "operate",
    ("POST", "/-/shadow"): "operate",
    ("DELETE", "/-/shadow"): "operate",
}


class Guarded(NamedTuple):
    """A running sidecar with tokens and an audit log."""

    sidecar: Sidecar
    rules: Path

    def ask(self, method: str, path: str, token: str | None = None, body: bytes | None = None) -> int:
        """Return the status of a response; its body may be endless."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(self.sidecar.admin + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def audited(self) -> list[dict[str, Any]]:
        """Return the records of changes, in open and closed segments."""
        lines = []
        for path in (self.sidecar.folder / "audit").rglob("*audit-*.jsonl*"):
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            lines += [json.loads(line) for line in content.splitlines()]
        return [line for line in lines if line["kind"] == "admin"]


@pytest.fixture(scope="module")
def guarded(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    for name, token in (("viewer", VIEW), ("operator", OPERATE)):
        (folder / name).write_text(token + "\n")
    tokens = [
        {"name": "vera", "role": "view", "token_file": "viewer"},
        {"name": "otto", "role": "operate", "token_file": "operator"},
    ]
    rules = folder / "rules.yaml"
    rules.write_text(RULES)
    settings = {"admin": {"tokens": tokens, "metrics_role": "view"}, "audit": {"directory": "audit"}}
    with Sidecar(broker, [rules], settings, folder) as sidecar:
        yield Guarded(sidecar, rules)


# -- roles -------------------------------------------------------------------------------------------------------------


def test_every_endpoint_has_a_role() -> None:
    described = {
        (method.upper(), path): entry for path, of in DESCRIBED["paths"].items() for method, entry in of.items()
    }
    assert described.keys() == ROLES.keys()
    for endpoint, entry in described.items():
        roles = [role for alternative in entry["security"] for role in alternative.get("token", ())]
        assert roles == ([] if ROLES[endpoint] is None else [ROLES[endpoint]]), endpoint


@pytest.mark.parametrize(("method", "path"), ROLES)
def test_an_endpoint_is_open_only_to_its_role(guarded: Guarded, method: str, path: str) -> None:
    body = b"{exchange: orders}" if path == "/explain" else b"nonsense: 1" if method == "POST" else None
    refused = {token: guarded.ask(method, path, token, body) for token in (None, VIEW, OPERATE)}
    role = ROLES[method, path]
    assert (refused[None] == 401) == (role is not None)
    assert (refused[VIEW] == 403) == (role == "operate")
    assert refused[OPERATE] not in (401, 403, 429)


def test_files_of_the_console_need_no_token(guarded: Guarded) -> None:
    for path in ("/console.js", "/console.css", "/feed.js"):
        assert guarded.ask("GET", path) == 200


# -- records -----------------------------------------------------------------------------------------------------------


def test_a_change_is_logged_and_audited_with_its_author(guarded: Guarded) -> None:
    start = datetime.now(UTC).isoformat()
    assert guarded.ask("POST", "/-/reload", VIEW, b"") == 403
    assert guarded.ask("POST", "/-/reload", OPERATE, b"") == 200
    assert guarded.ask("POST", "/-/shadow", OPERATE, b"nonsense: 1") == 422
    assert guarded.ask("DELETE", "/-/shadow", OPERATE) == 404
    until(lambda: sum(record["ts"] >= start for record in guarded.audited()) == 3)
    author = {"name": "otto", "role": "operate", "address": "127.0.0.1"}
    expected = [("reload", "ok"), ("shadow start", "failed"), ("shadow stop", "failed")]
    records = [record for record in guarded.audited() if record["ts"] >= start]
    assert [{key: record[key] for key in (*author, "what", "result")} for record in records] == [
        {**author, "what": what, "result": result} for what, result in expected
    ]
    logged = [line for line in guarded.sidecar.logged("admin change") if 'what="shadow start"' in line][-1]
    assert "name=otto role=operate address=127.0.0.1 result=failed" in logged
    assert any("name=vera" in line for line in guarded.sidecar.logged("admin request refused"))


def test_tokens_appear_nowhere(guarded: Guarded) -> None:
    guessed = "g" * 40
    assert guarded.ask("GET", "/status", guessed) == 401
    header = {"Authorization": f"Bearer {OPERATE}"}
    pages = [
        request_page(guarded.sidecar.admin + path, None, **header)[1]
        for path in ("/status", "/metrics", "/api/rules", "/api/routes", "/api/recent", "/api/traffic")
    ]
    seen = "".join([*pages, guarded.sidecar.log.read_text(), json.dumps(guarded.audited())])
    for token in (VIEW, OPERATE, guessed):
        assert token not in seen


def test_a_replaced_token_is_used_after_a_reload_and_ends_the_streams_of_the_old_one(guarded: Guarded) -> None:
    file = guarded.sidecar.folder / "viewer"
    new = secrets.token_hex(16)
    stream = urllib.request.Request(guarded.sidecar.admin + "/api/live", headers={"Authorization": f"Bearer {VIEW}"})
    try:
        with urllib.request.urlopen(stream, timeout=60) as events:
            assert events.readline().startswith(b"event: ")
            file.write_text(new)
            assert guarded.ask("POST", "/-/reload", OPERATE, b"") == 200
            while events.readline():
                pass  # until the stream ends
        assert guarded.ask("GET", "/status", new) == 200
        assert guarded.ask("GET", "/status", VIEW) == 401
        file.write_text("short")
        assert guarded.ask("POST", "/-/reload", OPERATE, b"") == 422
        assert guarded.ask("GET", "/status", new) == 200
    finally:
        file.write_text(VIEW)
        assert guarded.ask("POST", "/-/reload", OPERATE, b"") == 200


# -- guesses -----------------------------------------------------------------------------------------------------------


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


TOKENS = [AdminToken.of("vera", Role.VIEW, VIEW.encode()), AdminToken.of("otto", Role.OPERATE, OPERATE.encode())]


class Served(NamedTuple):
    """A server in this process, with the changes that it recorded."""

    base: str
    clock: Clock
    changes: list[AdminChange]

    async def ask(self, http: aiohttp.ClientSession, token: str, path: str = "/status") -> int:
        async with http.get(self.base + path, headers={"Authorization": f"Bearer {token}"}) as answer:
            return answer.status


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    clock, changes = Clock(), list[AdminChange]()
    access = Access(tokens=TOKENS, record=changes.append, timer=clock)
    running = AdminServer(
        Exposition(Counters()), tuple, dict, access, [json_route("POST", "/-/fail", failing, change="fail")]
    )
    host, port = await running.start("127.0.0.1", 0)
    yield Served(f"http://{host}:{port}", clock, changes)
    await running.stop()


async def failing(_body: bytes) -> tuple[int, object]:
    raise RuntimeError("secret")


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_guesses_are_slowed_down_and_probes_stay_open(served: Served, http: aiohttp.ClientSession) -> None:
    assert [await served.ask(http, f"guess{number}") for number in range(GUESSES)] == [401] * GUESSES
    assert await served.ask(http, "guess") == 429
    assert await served.ask(http, OPERATE) == 429  # otherwise, a guess would be recognized as correct
    async with http.get(served.base + "/status", headers={"Authorization": "Bearer x"}) as answer:
        assert answer.headers["Retry-After"] == str(int(GUESS_SECONDS))
    async with http.get(served.base + "/status") as answer:
        assert answer.status == 401
    for open_page in ("/livez", "/readyz", "/metrics"):
        assert await served.ask(http, "guess", open_page) == 200
    served.clock.now += GUESS_SECONDS
    assert await served.ask(http, OPERATE) == 200
    assert await served.ask(http, "guess") == 401
    assert await served.ask(http, "guess") == 429


async def test_addresses_are_counted_separately_but_those_of_an_ipv6_network_and_of_loopback_together(
    served: Served, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    access_to = {"10.0.0.5": 401, "::ffff:10.0.0.5": 429, "10.0.0.6": 401, "2001:db8::1": 401, "2001:db8::2": 429}
    access_to |= {"127.0.0.1": 401, "127.0.0.2": 429, "127.200.3.4": 429, "::1": 429, "::ffff:127.0.0.9": 429}
    seen = {}
    allowed = Access(["0.0.0.0/0", "::/0"], (), TOKENS, timer=Clock())
    running = AdminServer(Exposition(Counters()), tuple, dict, allowed)
    host, port = await running.start("127.0.0.1", 0)
    for address in access_to:
        monkeypatch.setattr(web.BaseRequest, "remote", address)
        there = Served(f"http://{host}:{port}", served.clock, [])
        seen[address] = await there.ask(http, "guess")
        for _ in range(GUESSES - 1):
            await there.ask(http, "guess")
    assert seen == access_to
    await running.stop()


@pytest.mark.parametrize(
    "header",
    ["", "Basic dXNlcjpwYXNz", "Bearer", "Bearer ", "Token " + VIEW, VIEW, f"Bearer {VIEW}x", "Bearer \udcff"],
    ids=range(8),  # tokens are random, and all workers must collect the same names
)
async def test_any_other_header_is_refused(served: Served, header: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.base.rpartition(":")[2]))
    writer.write(
        f"GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: {header}\r\n\r\n".encode(errors="surrogateescape")
    )
    assert (await reader.readline()).split()[1] == b"401"
    writer.close()


async def test_every_token_is_compared_in_constant_time(
    served: Served, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    original = hmac.compare_digest

    def compare(known: bytes, presented: bytes) -> bool:
        compared.append((known, presented))
        return original(known, presented)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for token in (VIEW, OPERATE, "", "x", "x" * 2000):
        compared.clear()
        await served.ask(http, token)
        assert [known for known, _ in compared] == [token.digest for token in TOKENS]
        assert {len(digest) for pair in compared for digest in pair} == {32}


async def test_a_change_that_fails_is_recorded_as_failed(served: Served, http: aiohttp.ClientSession) -> None:
    async with http.post(served.base + "/-/fail", headers={"Authorization": f"bearer {OPERATE}"}) as answer:
        assert (answer.status, "secret" in await answer.text()) == (500, False)
    assert served.changes == [AdminChange("fail", "otto", "operate", "127.0.0.1", "failed")]


async def test_without_tokens_a_change_is_recorded_without_a_name(http: aiohttp.ClientSession) -> None:
    changes: list[AdminChange] = []

    async def done(_body: bytes) -> tuple[int, object]:
        return 200, {}

    running = AdminServer(
        Exposition(Counters()),
        tuple,
        dict,
        Access(record=changes.append),
        [json_route("POST", "/-/do", done, change="do")],
    )
    host, port = await running.start("127.0.0.1", 0)
    with capture_logs() as logged:
        async with http.post(f"http://{host}:{port}/-/do") as answer:
            assert answer.status == 200
    await running.stop()
    assert changes == [AdminChange("do", None, None, "127.0.0.1", "ok")]
    assert [event["event"] for event in logged] == ["admin change"]


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize("with_client_ca", [False, True])
async def test_pages_are_served_over_tls_and_the_context_can_change(authority: Authority, with_client_ca: bool) -> None:
    ours = authority.certificate("localhost")
    contexts = [ServerTls(*ours, authority.ca if with_client_ca else None).context()]
    body = "x" * 900_000

    async def echo(received: bytes) -> tuple[int, object]:
        return 200, json.dumps(received.decode())

    running = AdminServer(
        Exposition(Counters()),
        tuple,
        dict,
        Access(),
        [json_route("POST", "/echo", echo, 1 << 23)],
        tls=lambda: contexts[-1],
    )
    _, port = await running.start("127.0.0.1", 0)
    client = authority.client(ours if with_client_ca else None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client)) as http:
        async with http.post(f"https://localhost:{port}/echo", data=body) as answer:
            assert (answer.status, await answer.json()) == (200, body)
        own = {"Origin": f"https://localhost:{port}"}
        async with http.get(f"https://localhost:{port}/status", headers=own) as answer:
            assert answer.status == 200
        async with http.get(
            f"https://localhost:{port}/status", headers={"Origin": f"http://localhost:{port}"}
        ) as answer:
            assert answer.status == 403
    contexts.append(ServerTls(*authority.certificate("other")).context())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client)) as http:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await http.get(f"https://localhost:{port}/status")
    await running.stop()


async def test_a_client_without_a_certificate_is_refused(authority: Authority) -> None:
    tls = ServerTls(*authority.certificate("localhost"), authority.ca).context()
    running = AdminServer(Exposition(Counters()), tuple, dict, Access(), tls=lambda: tls)
    _, port = await running.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=authority.client())) as http:
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await http.get(f"https://localhost:{port}/livez")
    await running.stop()


async def test_a_connection_without_a_handshake_is_closed_and_counts_as_idle(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(admin, "NEW_SECONDS", 0.0)
    tls = ServerTls(*authority.certificate("localhost")).context()
    running = AdminServer(Exposition(Counters()), tuple, dict, Access(), tls=lambda: tls)
    _, port = await running.start("127.0.0.1", 0)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=authority.client())) as http:
        async with http.get(f"https://localhost:{port}/livez") as answer:
            assert answer.status == 200
    assert await ended(silent[0][0])
    plain = await asyncio.open_connection("127.0.0.1", port)
    plain[1].write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"alive" not in await ended(plain[0], b"")
    monkeypatch.setattr(admin, "HANDSHAKE_SECONDS", 0.2)
    slow = await asyncio.open_connection("127.0.0.1", port)
    await ended(slow[0])
    for _, writer in (*silent, plain, slow):
        writer.close()
    await running.stop()


async def ended(reader: asyncio.StreamReader, end: bytes | None = None) -> Any:
    """Wait for the end of a connection; return True, or the received data if `end` is given."""
    async with asyncio.timeout(20):
        try:
            data = await reader.read()
        except ConnectionResetError:
            data = b""
    return True if end is None else data


def test_a_sidecar_serves_its_admin_address_over_tls_and_reloads_its_certificate(
    broker: Broker, tmp_path: Path, authority: Authority
) -> None:
    certificate, key = authority.certificate("localhost")
    for name, source in (("cert.pem", certificate), ("key.pem", key)):
        (tmp_path / name).write_bytes(source.read_bytes())
    (tmp_path / "token").write_text(OPERATE)
    settings = {
        "admin": {
            "tls": {"certificate": "cert.pem", "key": "key.pem", "minimum_version": "TLSv1.3"},
            "tokens": [{"name": "otto", "role": "operate", "token_file": "token"}],
        }
    }
    with Sidecar(broker, [], settings, tmp_path, tls=authority.client()) as sidecar:
        status = oxproxy("status", "--config", sidecar.configuration, "--token-file", tmp_path / "token")
        assert (status.returncode, status.stderr) == (0, "")
        assert "https://127.0.0.1" in status.stdout
        (policy,) = sidecar.logged("TLS policy")
        assert "section=admin.tls minimum_version=TLSv1.3 ciphers=" in policy
        assert ("TLS_AES_256_GCM_SHA384" in policy, "ECDHE" in policy) == (True, False)
        url = sidecar.admin
        known = oxproxy("status", "--admin", url, "--ca-file", authority.ca, env={"OXPROXY_TOKEN": OPERATE})
        assert known.stderr == ""
        unknown = oxproxy("status", "--admin", url, "--token-file", tmp_path / "token")
        assert (unknown.returncode, "certificate verify failed" in unknown.stderr) == (2, True)
        without = oxproxy("status", "--config", sidecar.configuration)
        assert (without.returncode, without.stderr) == (
            2,
            f"oxproxy status: https://127.0.0.1:{sidecar.admin_port}/status: 401 expected the header Authorization: "
            "Bearer TOKEN, with a token of admin.tokens; use --token-file or OXPROXY_TOKEN\n",
        )
        for name, source in zip(("cert.pem", "key.pem"), authority.certificate("other"), strict=True):
            (tmp_path / name).write_bytes(source.read_bytes())
        until(lambda: _subject(sidecar.admin_port) == "other")


def _subject(port: int) -> str:
    """Return the name in the certificate of a server."""
    text = ssl.get_server_certificate(("127.0.0.1", port), timeout=30)
    return "other" if b"other" in ssl.PEM_cert_to_DER_cert(text) else "localhost"
