from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator

import pytest

from proxy.admin.client import request_page
from proxy.admin.server import AdminServer, json_route
from proxy.observe.exposition import Exposition
from proxy.relay.counters import Counters


@pytest.fixture
async def path() -> AsyncIterator[str]:
    """A Unix socket on which admin pages answer, for our own user."""
    name = f"\0oxproxy-test-{secrets.token_hex(8)}"

    async def echo(body: bytes) -> tuple[int, object]:
        return 422, {"said": body.decode()}

    async def soon() -> list[str]:
        return ["not yet"]

    admin = AdminServer(Exposition(Counters(), "1"), soon, lambda: {"a": 1}, (), [json_route("POST", "/echo", echo)])
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        await admin.start_on(listening)
        yield name
        await admin.stop()


async def test_guarded_pages_answer_our_own_user_over_a_unix_socket(path: str) -> None:
    status, text = await request_page(path, "GET", "/status") or (0, b"")
    assert (status, b'"a": 1' in text) == (200, True)


async def test_body_and_status_go_both_ways(path: str) -> None:
    status, text = await request_page(path, "POST", "/echo", b"hello") or (0, b"")
    assert (status, b'"said": "hello"' in text) == (422, True)


async def test_an_answer_may_have_to_be_waited_for(path: str) -> None:
    status, text = await request_page(path, "GET", "/readyz") or (0, b"")
    assert (status, b"not yet" in text) == (503, True)


async def test_nobody_there_is_no_answer() -> None:
    assert await request_page(f"\0oxproxy-test-{secrets.token_hex(8)}", "GET", "/livez") is None


async def test_who_does_not_answer_in_time_is_no_answer() -> None:
    name = f"\0oxproxy-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        assert await request_page(name, "GET", "/livez", seconds=0.05) is None
