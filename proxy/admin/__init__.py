"""The admin address: HTTP for operators, probes and Prometheus. Only this package uses aiohttp's server.

- `server`: the server, access control, the pages ``/metrics``, ``/livez``, ``/readyz`` and ``/status``, and pages made
  from functions (`json_route`).
- `explain`: ``POST /explain``, which queues a message would reach, and why.
- `rules_pages`: ``GET /api/rules``, the rules in force as written, notes on their lines, and their differences from the
  files on disk; ``GET /api/routes``, their exchanges, bindings and destinations.
- `live`: ``GET /api/live``, events of changes; ``GET /api/traffic``. `traffic` samples the counters for them.
- `console`: ``GET /``, a page for browsers, based on the other pages; its files are in ``static``.
- `recent`: ``GET /api/recent``, the last publishes that were unroutable, rejected, nacked or returned.

`proxy.app.reload` and `proxy.app.shadow` provide ``POST /-/reload`` and ``/-/shadow``.
"""
