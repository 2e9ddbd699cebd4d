"""Declarations of clients over AMQP: open exchanges, their bindings, and how the broker keeps them.

| question | open |
|---|---|
| the reply to exchange.declare and exchange.delete | `exchanges` |
| queue.declare and queue.delete | `queues` |
| the reply to a bind or unbind; how far a client's routes reach | `bindings` |
| the form in which the broker keeps exchanges and bindings | `storage` |
| methods of the sidecar on a client's own channel | `injected_methods` |
| the channel of the upstream connection that the sidecar keeps for itself | `sidecar_channel` |
| binding tokens and checking permissions on that channel | `token_bindings` |
"""
