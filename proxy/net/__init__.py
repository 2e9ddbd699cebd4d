"""Sockets: listener, producer sessions, upstream and remote connections, TLS, heartbeats, limits.

Nothing here decides about AMQP: `relay` is given the bytes and returns what to send.

| question | open |
|---|---|
| accepting producers, limits on connections, TLS handshakes, drain at shutdown | `listener` |
| one producer connection and its upstream connection, from open to close | `session` |
| the AMQP handshake of both, with deadlines | `opening` |
| a socket: back-pressure, pausing, closing | `link` |
| heartbeats and the idle timeout | `heartbeats` |
| slowing down producers above their limits | `throttle` |
| connecting to RabbitMQ; upstream connections kept for the next producer | `upstream` |
| links to other brokers | `remote` |
| TLS contexts, certificates and error texts | `tls` |
| TLS as configured, and files that can't be used | `tls_config` |
| what sessions need of their virtual host; asking clients for permissions | `vhosts` |
| what all sessions share | `context` |
| background tasks of sessions | `tasks` |
"""
