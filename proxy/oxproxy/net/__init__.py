"""Sockets: listener, producer sessions, upstream and remote connections, TLS, heartbeats, limits.

This package makes no decisions about AMQP: it passes received bytes to `relay`, which returns the bytes to send.

| responsibility | module |
|---|---|
| accepting producers, limits on connections, TLS handshakes, drain at shutdown | `listener` |
| one producer connection and its upstream connection, from open to close | `session` |
| the AMQP handshakes of both connections, with deadlines | `opening` |
| a socket: back-pressure, pausing, closing | `link` |
| heartbeats and the idle timeout | `heartbeats` |
| slowing down producers that exceed their limits | `throttle` |
| connecting to RabbitMQ; upstream connections kept for reuse | `upstream` |
| links to other brokers | `remote` |
| blocking connection to a sidecar, for commands | `client` |
| TLS contexts, certificates and error messages | `tls` |
| TLS settings, and checks of the files that they name | `tls_config` |
| data that sessions need about a virtual host; connections for checking permissions | `vhosts` |
| data shared by all sessions | `context` |
| background tasks of sessions | `tasks` |
"""
