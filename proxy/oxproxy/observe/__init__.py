"""Metrics and logs. Only this package uses prometheus_client.

- `metrics`: name, labels, help text and source counter of every metric. Start here to add a metric.
- `exposition`: the ``/metrics`` page, which is written in a thread.
- `logs`: log lines on standard error: formats, masking of secrets, and limits on repeated lines.
"""
