"""The console at ``/``: a page for a browser, made of the documented pages of the admin address.

Plain HTML, CSS and a JavaScript module, in the package as they are. They come from nowhere else, and the policy that
goes with them lets the browser ask no other server than this sidecar and run nothing that stands in the page itself.
"""

from __future__ import annotations

from functools import partial
from importlib.resources import files

from aiohttp import web

from proxy.admin.server import GuardedRoute

_FILES = {
    "/": ("index.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    "/console.js": ("console.js", "text/javascript"),
}
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
    folder = files("proxy.admin") / "static"
    return [
        GuardedRoute("GET", path, partial(_answer, (folder / name).read_bytes(), kind))
        for path, (name, kind) in _FILES.items()
    ]


async def _answer(content: bytes, kind: str, _request: web.Request) -> web.Response:
    return web.Response(body=content, content_type=kind, charset="utf-8", headers=_HEADERS)
