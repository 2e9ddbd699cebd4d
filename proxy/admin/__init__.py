"""The admin address: HTTP for operators, probes and Prometheus. Owner of aiohttp's server.

- `server`: the server, who may request which page, the pages ``/metrics``, ``/livez``, ``/readyz`` and ``/status``, and
  how a page is made of a function (`json_route`).
- `explain`: ``POST /explain``, why a message would reach which queues.
- `rules_pages`: ``GET /api/rules``, the rules in force as written, notes at their lines, and how they differ from the
  disk; ``GET /api/routes``, what they route where.
- `live`: ``GET /api/live``, events of what changes; ``GET /api/traffic``. `traffic` samples the counters for them.
- `console`: ``GET /``, a page for a browser, made of the others; its files are in ``static``.
- `recent`: ``GET /api/recent``, the last publishes that were unroutable, rejected, nacked or returned.

``POST /-/reload`` and ``/-/shadow`` are pages of `proxy.app.reload` and `proxy.app.shadow`.
"""
