"""The console at ``/``: a page for a browser, made of the documented pages of the admin address; and their description.

Plain HTML, CSS and JavaScript modules, in the package as they are. They come from nowhere else, and the policy that
goes with them lets the browser ask no other server than this sidecar and run nothing that stands in the page itself.
"""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from pathlib import PurePath

from aiohttp import web

from proxy.admin.server import GuardedRoute

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
#: Where files are that do not have their own name as path.
_PATHS = {"index.html": "/", "openapi.json": "/api/openapi.json"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def console_routes() -> list[GuardedRoute]:
    """Return the page and its files, read now."""
    return [
        GuardedRoute(
            "GET",
            _PATHS.get(file.name, f"/{file.name}"),
            partial(_answer, file.read_bytes(), _TYPES[PurePath(file.name).suffix]),
        )
        for file in (files("proxy.admin") / "static").iterdir()
    ]


async def _answer(content: bytes, kind: str, _request: web.Request) -> web.Response:
    return web.Response(body=content, content_type=kind, charset="utf-8", headers=_HEADERS)
