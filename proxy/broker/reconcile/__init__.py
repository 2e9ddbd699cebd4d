"""Reconciles one virtual host with its rules: compares the desired and the observed state, and corrects differences.

| subject | module |
|---|---|
| the loop for one virtual host: connect, reconcile, retry | `vhost_loop` |
| desired state: carriers, tokens, destinations that must exist | `desired` |
| observing the broker: queues, exchanges, bindings of carriers | `observer` |
| queues and exchanges that are known to exist | `observed` |
| comparing desired and observed state: required actions, unreachable destinations | `diff` |
| detecting conflicts, foreign bindings, bypasses and old tokens | `checks` |
| carrier types, and the form of tokens on topic carriers | `carrier_forms` |
| one pass: observe, diff, execute; replacing the rules | `reconciler` |
| executing actions in bulk; failures and retries | `executor` |
| requests and reports from relays, handled between passes | `relay_requests` |
| tokens that are no longer needed | `orphan_tokens` |
| migrating from unkeyed tokens, or tokens of a previous secret, to current tokens | `token_migration` |
"""
