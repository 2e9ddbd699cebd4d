from __future__ import annotations

import aiohttp

from proxy.admin.server import AdminServer, json_route
from proxy.observe.exposition import Exposition
from proxy.relay.counters import Counters


async def test_a_page_answers_with_what_it_was_given() -> None:
    async def answering(body: bytes) -> tuple[int, object]:
        return (200, {"got": body.decode()}) if body else (422, '{"text": "ready-made"}')

    async def texting(body: bytes) -> tuple[int, object]:
        return (200, "a line") if body else (422, {"errors": []})

    routes = [json_route("POST", "/ask", answering, texting=texting), json_route("POST", "/short", answering, 4)]
    admin = AdminServer(Exposition(Counters()), tuple, dict, routes=routes)
    host, port = await admin.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as http:
            async with http.post(f"http://{host}:{port}/ask", data=b"hello") as answer:
                assert (answer.status, await answer.json()) == (200, {"got": "hello"})
            async with http.post(f"http://{host}:{port}/ask") as answer:
                assert (answer.status, await answer.json()) == (422, {"text": "ready-made"})
            plain = {"Accept": "text/plain"}
            async with http.post(f"http://{host}:{port}/ask", data=b"hello", headers=plain) as answer:
                assert (answer.content_type, await answer.text()) == ("text/plain", "a line\n")
            async with http.post(f"http://{host}:{port}/ask", headers=plain) as answer:
                assert (answer.status, await answer.json()) == (422, {"errors": []})
            async with http.post(f"http://{host}:{port}/short", data=b"hello") as answer:
                assert answer.status == 413
    finally:
        await admin.stop()
