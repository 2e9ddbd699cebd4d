"""Keeps one virtual host in step with its rules: desired state, observed state, the difference, and its execution.

| question | open |
|---|---|
| the loop of one virtual host: connect, reconcile, retry, reload, orphaned tokens | `vhost_loop` |
| what the rules need on the broker: carriers, tokens, destinations that must exist | `desired` |
| what the broker has: queues, exchanges, bindings of carriers | `observer` |
| which observations are conflicts, foreign bindings, bypasses or old tokens | `checks` |
| what a pass declares, binds again and reports as missing; replacing the rules after a reload | `reconciler` |
| sending the declarations, in bulk, and reading the refusals | `executor` |
| queues declared and destinations bound between two passes, on behalf of relays | `relay_requests` |
| moving from unkeyed tokens, or those of a previous secret, to current ones | `token_migration` |
"""
