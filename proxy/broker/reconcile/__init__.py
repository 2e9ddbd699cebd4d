"""Reconciles one virtual host with its rules: desired state, observed state, difference, execution.

| question | module |
|---|---|
| the loop of one virtual host: connect, reconcile, retry | `vhost_loop` |
| the needs of the rules on the broker: carriers, tokens, destinations that must exist | `desired` |
| the content of the broker: queues, exchanges, bindings of carriers | `observer`; queues and exchanges: `observed` |
| required actions, and unreachable destinations: pure functions | `diff` |
| which observations are conflicts, foreign bindings, bypasses or old tokens | `checks` |
| carrier types, and the form of tokens on topic carriers | `carrier_forms` |
| one pass: observe, diff, execute; replacing the rules | `reconciler` |
| executing actions in bulk; failures and retries | `executor` |
| queues declared and destinations bound between two passes, on behalf of relays | `relay_requests` |
| tokens that are no longer needed | `orphan_tokens` |
| migrating from unkeyed tokens, or those of a previous secret, to current ones | `token_migration` |
"""
