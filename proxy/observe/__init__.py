"""Metrics and logs. Only this package uses prometheus_client.

- `metrics`: name, labels, help text and source counter of every metric. Start here to add a metric.
- `exposition`: the page of ``/metrics``, written in a thread.
- `logs`: log lines on standard error, with formats, masking of secrets, and limits on repeated lines.
"""
