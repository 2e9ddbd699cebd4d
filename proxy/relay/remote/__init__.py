"""Publishes that the address table redirects to other brokers.

| question | module |
|---|---|
| converting a publish to messages for other brokers, and joining their results | `forwarding` |
| publishes of one channel: waiting for a link, and the results | `lane` |
| the connection to another broker: login, frames, channels | `link` |
"""
