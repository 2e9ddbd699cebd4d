"""Metrics and logs. Owner of prometheus_client.

- `metrics`: every metric: name, labels, help text, which counter it is read from. Begin here to add one.
- `exposition`: the page of ``/metrics``, written in a thread.
- `logs`: events as lines on standard error: formats, masked secrets, limits on repeated lines.
"""
