"""Keeps one virtual host in step with its rules: desired state, observed state, the difference, and its execution.

| question | open |
|---|---|
| the loop of one virtual host: connect, look, retry | `vhost_loop` |
| what the rules need on the broker: carriers, tokens, destinations that must exist | `desired` |
| what the broker has: queues, exchanges, bindings of carriers | `observer`; queues and exchanges: `observed` |
| what has to be done, and which destinations can't be reached: pure functions | `diff` |
| which observations are conflicts, foreign bindings, bypasses or old tokens | `checks` |
| which type a carrier gets, and how tokens on topic carriers are written | `carrier_forms` |
| one look: observe, diff, execute; replacing the rules | `reconciler` |
| carrying actions out, in bulk; what failed and when it is retried | `executor` |
| queues declared and destinations bound between two passes, on behalf of relays | `relay_requests` |
| tokens that nothing needs any more | `orphan_tokens` |
| moving from unkeyed tokens, or those of a previous secret, to current ones | `token_migration` |
"""
