"""Serves HTTP on the admin address, for operators, probes and Prometheus. Only this package uses aiohttp's server.

- `access`: tokens and roles, checks of a request's origin, and records of changes.
- `pace`: limits the share of time in which requests are answered.
- `server`: the server, the pages ``/metrics``, ``/livez``, ``/readyz`` and ``/status``, and
  `json_route`, which creates a page from a function.
- `explain`: ``POST /explain``, which returns the queues that a message would reach, and the reasons.
- `rules_pages`: ``GET /api/rules``, ``/api/rules/notes`` and ``/api/rules/changes``, which return the active rules
  files, notes about their lines, and differences from the files on disk; ``GET /api/routes``, which returns the
  exchanges, bindings and destinations in the rules.
- `live`: ``GET /api/live``, which sends changes as events, and ``GET /api/traffic``, which returns rates. `traffic`
  samples the counters for both.
- `console`: ``GET /``, a page for browsers, which displays the data of the other pages. Its files are in ``static``.
- `recent`: ``GET /api/recent``, which returns the most recent publishes that were unroutable, violating, rejected,
  nacked or returned.

`oxproxy.app.reload` and `oxproxy.app.shadow` provide ``POST /-/reload`` and ``/-/shadow``.
"""
