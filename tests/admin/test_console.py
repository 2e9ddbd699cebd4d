"""Who may ask for the console and what it uses, and what goes with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from proxy.admin.console import console_routes
from proxy.admin.server import AdminServer
from proxy.observe.exposition import Exposition
from proxy.relay.counters import Counters


@pytest.fixture
async def url() -> AsyncIterator[str]:
    admin = AdminServer(Exposition(Counters()), tuple, dict, routes=console_routes())
    host, port = await admin.start("127.0.0.1", 0)
    try:
        yield f"http://{host}:{port}"
    finally:
        await admin.stop()


@pytest.mark.parametrize(
    ("path", "kind"), [("/", "text/html"), ("/console.css", "text/css"), ("/console.js", "text/javascript")]
)
async def test_every_file_comes_with_its_type_and_a_strict_policy(url: str, path: str, kind: str) -> None:
    async with aiohttp.ClientSession() as http, http.get(url + path) as answer:
        assert (answer.status, answer.content_type) == (200, kind)
        policy = answer.headers["Content-Security-Policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(policy)
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_page_itself_may_ask_and_no_other_page(url: str) -> None:
    origins = {url: 200, url.rpartition(":")[0] + ":1": 403, "http://evil.example": 403, "null": 403}
    async with aiohttp.ClientSession() as http:
        for origin, status in origins.items():
            async with http.get(url + "/status", headers={"Origin": origin}) as answer:
                assert answer.status == status, origin


async def test_a_name_that_was_made_to_lead_here_is_no_origin_of_ours(url: str) -> None:
    headers = {"Host": "evil.example", "Origin": "http://evil.example"}
    async with aiohttp.ClientSession() as http, http.get(url + "/", headers=headers) as answer:
        assert answer.status == 403
