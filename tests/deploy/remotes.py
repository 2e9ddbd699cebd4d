"""A page of metrics as a sidecar has it whose address rules lead to other brokers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from proxy.observe.exposition import Exposition
from proxy.relay.counters import Counters, RemoteCounters


@contextlib.contextmanager
def page_with_other_brokers() -> Iterator[str]:
    """Give the address of a page with the numbers of a link to another broker."""
    counters = Counters()
    counters.remotes["archive"] = RemoteCounters(up=True)
    counters.remotes["archive"].results["acked"] = 10
    page, kind = asyncio.run(Exposition(counters).render())

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
