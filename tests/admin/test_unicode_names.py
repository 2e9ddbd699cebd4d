from __future__ import annotations

import json

import aiohttp

from proxy.admin.server import AdminServer, json_route
from proxy.app.shadow import _compiled, uploaded_files
from proxy.observe.exposition import Exposition
from proxy.relay.counters import Counters


async def test_a_file_name_that_is_not_unicode_does_not_cause_an_internal_error() -> None:
    async def compile_candidate(body: bytes) -> tuple[int, object]:
        return 200, _compiled(uploaded_files(body))[0].rules.version

    routes = [json_route("POST", "/-/shadow", compile_candidate)]
    server = AdminServer(Exposition(Counters()), tuple, dict, routes=routes)
    host, port = await server.start("127.0.0.1", 0)
    body = rb'{"files": [["\udcff.yaml", "unknown: 1"]]}'
    async with aiohttp.ClientSession() as http, http.post(f"http://{host}:{port}/-/shadow", data=body) as answer:
        assert answer.status == 422
        assert json.loads(await answer.read())["errors"][0].startswith("\udcff.yaml:1:1: unknown: unknown key")
    await server.stop()
