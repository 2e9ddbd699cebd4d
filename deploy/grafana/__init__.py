"""Dashboards as code: what they show (``overview``, ``rules``, ``broker``), how that becomes JSON (the others)."""
