"""Dashboards as code: content (``overview``, ``rules``, ``broker``), and conversion to JSON (other modules)."""
