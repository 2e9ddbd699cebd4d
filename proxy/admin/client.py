"""Requests to the admin pages of another process of ours, over its Unix socket."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp

#: Longest wait for an answer: a reload of ten thousand bindings takes seconds, all else milliseconds.
ANSWER_SECONDS = 60.0
#: Forms of an answer, as HTTP calls them.
JSON, TEXT = "application/json", "text/plain"


async def request_page(
    path: str, method: str, page: str, body: bytes = b"", seconds: float = ANSWER_SECONDS, accept: str = JSON
) -> tuple[int, bytes] | None:
    """Request a page over a Unix socket.

    Args:
        path: of the socket; one that begins with NUL is in the abstract namespace (unix(7)).
        method: HTTP method.
        page: path of the page.
        body: what is sent along.
        seconds: longest wait.
        accept: form of the answer, where the page has several.

    Returns:
        Status and body of the answer; None where there is none.
    """
    with contextlib.suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError):
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path), timeout=timeout) as session,
            session.request(method, f"http://worker{page}", data=body, headers={"Accept": accept}) as answer,
        ):
            return answer.status, await answer.read()
    return None
