"""Metrics, admin endpoint, logs. Owner of prometheus_client."""
