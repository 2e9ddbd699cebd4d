"""Metrics and logs; the only user of prometheus_client.

- `metrics`: every metric: name, labels, help text, source counter. Start here to add one.
- `exposition`: the page of ``/metrics``, written in a thread.
- `logs`: log lines on standard error: formats, masked secrets, limits on repeated lines.
"""
