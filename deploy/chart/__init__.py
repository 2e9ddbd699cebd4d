"""Generates files of the chart: its README (``readme``), and copies of rules and dashboards (``build``)."""
