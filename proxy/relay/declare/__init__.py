"""Declarations of clients over AMQP: open exchanges, their bindings, and their storage on the broker.

| question | module |
|---|---|
| the reply to exchange.declare and exchange.delete | `exchanges` |
| queue.declare and queue.delete | `queues` |
| the reply to a bind or unbind; reach of a client's routes | `bindings` |
| the storage format of exchanges and bindings on the broker | `storage` |
| methods of the sidecar on a client's own channel | `injected_methods` |
| the channel of the upstream connection that is reserved for the sidecar | `sidecar_channel` |
| binding tokens and checking permissions on that channel | `token_bindings` |
"""
