"""Declarations that clients make over AMQP: open exchanges, their bindings, and the storage of both on the broker.

| subject | module |
|---|---|
| exchange.declare and exchange.delete | `exchanges` |
| queue.declare and queue.delete | `queues` |
| binds and unbinds; destinations that a client's routes may reach | `bindings` |
| the storage format of exchanges and bindings on the broker | `storage` |
| running the sidecar's methods on a client's own channel | `injected_methods` |
| binding tokens and checking permissions on that channel | `token_bindings` |
"""
