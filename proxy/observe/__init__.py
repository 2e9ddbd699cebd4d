"""Metrics and logs. Owner of prometheus_client.

- `metrics`: every metric: name, labels, help text, which counter it is read from. Begin here to add one.
- `exposition`: the page of ``/metrics``, written in pieces so that the event loop is not held up.
- `merging`: the same page for several workers, their numbers added up.
- `logs`: events as lines on standard error: formats, masked secrets, limits on repeated lines.
"""
