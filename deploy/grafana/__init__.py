"""Dashboards as code: content (``overview``, ``rules``, ``broker``), and conversion to JSON (other modules).

Grafana's JSON is not written by hand, although only three dashboards exist: 58 panels take 9,900 lines of JSON, about
170 for each panel, which mostly repeat data source, units, colours, legends and positions. These modules take 1,200
lines, about ten for each panel. The label selectors of all queries and the colours of outcomes are defined once, and a
diff shows the changed query.
"""
