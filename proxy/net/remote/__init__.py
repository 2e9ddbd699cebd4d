"""Docstring to write."""
