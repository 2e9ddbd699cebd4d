"""Relay of one producer connection, sans-IO: bytes of both sides in, bytes for both sides out.

Nothing here opens a socket, reads a clock or draws a random number: `net` drives a `Relay` and gives it bytes and time.

| question | open |
|---|---|
| what a driver calls: bytes, time and answers in | `relay` |
| what both directions share, and a driver reads: bytes and requests out; closing | `connection_state` |
| the states of a channel and the table of transitions | `channel_state` |
| what a channel keeps: content under way, held frames, pending confirms, expected replies | `channel` |
| frames of the producer: publishes, and a handler for each other method | `publish` |
| exchange.declare and delete, binds and unbinds of open exchanges | `declare` |
| the read buffer of the broker's frames; deliveries and returns | `broker_frames` |
| what an ack, nack, return, declare-ok or close of the broker does | `broker_methods` |
| joining the acks, nacks and returns of publishes that left as several | `confirm_ledger` |
| publishes to other brokers | `remote` |
| logging in and agreeing on limits | `handshake` |
| the state of a virtual host, shared with the control plane | `vhost` |
| whether the token of a destination is bound, and what to bind and unbind | `token_table` |
| destination tokens, grant keys and signatures | `tokens` |
| ``x-original-address`` and ``x-original-cc`` | `original_address` |
| audit lines of a connection, and confirms that wait for them | `connection_audit` |
| the interface of the audit log | `audit_sink` |
| what is counted | `counters` |
| how much a user may publish | `rate_limits` |
"""
