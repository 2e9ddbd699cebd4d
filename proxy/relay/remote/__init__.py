"""Publishes that the address table sends to other brokers.

| question | module |
|---|---|
| converting a publish to messages for other brokers, and joining their results | `forwarding` |
| the publishes of one channel: waiting for a link, and their results | `lane` |
| the connection to another broker: login, frames, channels | `link` |
"""
