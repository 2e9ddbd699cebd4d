"""The console at ``/``, a page for browsers, and the OpenAPI description of all pages on the admin address.

The console consists of plain HTML, CSS and JavaScript modules, served unmodified from the package. The content security
policy permits no requests to other servers and no inline scripts.
"""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from pathlib import PurePath

from aiohttp import web

from oxproxy.admin.server import GuardedRoute

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
#: Paths that are not simply the name of the file.
_PATHS = {"index.html": "/", "openapi.json": "/api/openapi.json"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def console_routes() -> list[GuardedRoute]:
    """Return the routes for the page and its files. The files are read only once, during this call."""
    return [
        GuardedRoute(
            "GET",
            _PATHS.get(file.name, f"/{file.name}"),
            partial(_answer, file.read_bytes(), _TYPES[PurePath(file.name).suffix]),
            is_data=False,
        )
        for file in (files("oxproxy.admin") / "static").iterdir()
    ]


async def _answer(content: bytes, kind: str, _request: web.Request) -> web.Response:
    return web.Response(body=content, content_type=kind, charset="utf-8", headers=_HEADERS)
