"""Publishes that the address table redirects to other brokers.

`forwarding` converts a publish to messages for other brokers, and combines their results. The connection to another
broker is in `relay.remote_link`.
"""
