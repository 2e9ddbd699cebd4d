"""Sockets: listener, links, back-pressure, deadlines."""
