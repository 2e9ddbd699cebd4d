"""What of the chart is made from other files: its README (``readme``), copies of rules and dashboards (``build``)."""
