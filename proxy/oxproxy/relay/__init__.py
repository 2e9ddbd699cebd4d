"""Relays one producer connection, sans-IO: receives bytes from both sides and produces bytes for both sides.

No module in this package opens a socket, reads a clock or draws a random number. The `net` package passes the received
bytes and the current time to a `Relay`.

| subject | module |
|---|---|
| interface for the driver (`net`), which passes bytes, the time and the results of requests | `relay` |
| state shared by both directions; output and requests for the driver; closing | `connection_state` |
| states of a channel and the table of transitions | `channel_state` |
| state of one channel: content in progress, held frames, pending confirms, expected replies | `channel` |
| what is sent for a publish: facts, decision, outgoing form, cache | `plan` |
| frames from the producer: publishes, and a handler for each other method | `publish` |
| declares and deletes of exchanges and queues; binds and unbinds of open exchanges | `declare` |
| frames from the broker: deliveries, returns, acks, nacks, replies and closes | `broker_frames` |
| description of the errors for which the broker closes a channel or connection | `broker_close` |
| combining the acks, nacks and returns of publishes that were split | `confirm_ledger` |
| publishes to other brokers: the publishes of one connection, and the link to a broker | `remote`, `remote_link` |
| login and negotiation of limits | `handshake` |
| the state of a virtual host, shared with the control plane | `vhost` |
| which destinations are bound or missing, and why | `token_table` |
| destination tokens, storage keys and signatures | `tokens` |
| ``x-original-address`` and ``x-original-cc`` | `original_address` |
| the channel of the upstream connection that is reserved for the sidecar | `sidecar_channel` |
| audit records of a connection, and confirms that wait for these records | `connection_audit` |
| the format of an audit record; which fields are hashed or shown in it; records of facts | `records` |
| counters | `counters` |
| publish rate limits per user | `rate_limits` |
"""
