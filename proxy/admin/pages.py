"""How a guarded page that answers with JSON is made of a function that knows no HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import web

from proxy.admin.server import MAX_BODY_BYTES, REQUEST_SECONDS, GuardedRoute

#: Gets a request's body, gives status and what to answer: plain data, or text that is JSON already.
Answering: TypeAlias = Callable[[bytes], Awaitable[tuple[int, object]]]


def json_route(
    method: str, path: str, answering: Answering, body_bytes: int = MAX_BODY_BYTES, texting: Answering | None = None
) -> GuardedRoute:
    """Make a page.

    Args:
        method: HTTP method.
        path: path with a leading slash.
        answering: is asked.
        body_bytes: of the longest request's body; more is 413.
        texting: is asked instead by who wants text (``Accept: text/plain``); what it gives that is no text is JSON.
    """

    async def handle(request: web.Request) -> web.Response:
        wants_text = texting is not None and "text/plain" in request.headers.get("Accept", "")
        asked = texting if texting is not None and wants_text else answering
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                body = await request.clone(client_max_size=body_bytes).read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body has not come\n") from None
        status, found = await asked(body)
        if wants_text and isinstance(found, str):
            return web.Response(status=status, text=found + "\n")
        text = found if isinstance(found, str) else json.dumps(found, indent=2, ensure_ascii=False)
        return web.Response(status=status, text=text + "\n", content_type="application/json")

    return GuardedRoute(method, path, handle)
