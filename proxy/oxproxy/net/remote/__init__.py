"""Links to other brokers, for translated addresses.

| responsibility | module |
|---|---|
| which links exist and which producers use them | `pool` |
| one link: socket, TLS, deadlines, reconnects, back-pressure | `connection` |
| host, credentials, TLS and limits of a link | `endpoints` |
"""
