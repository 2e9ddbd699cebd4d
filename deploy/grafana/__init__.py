"""Dashboards as code: their content (``overview``, ``rules``, ``broker``), and its conversion to JSON (other
modules).
"""
