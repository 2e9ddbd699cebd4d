"""Generates files of the chart: the README (``readme``), and copies of rules and dashboards (``build``)."""
