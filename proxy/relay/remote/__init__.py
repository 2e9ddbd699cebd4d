"""Publishes that the address table redirects to other brokers.

| subject | module |
|---|---|
| converting a publish to messages for other brokers, and combining their results | `forwarding` |
| the connection to another broker, and the publishes of each channel on it | `link` |
"""
