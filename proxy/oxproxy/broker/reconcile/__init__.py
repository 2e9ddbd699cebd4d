"""Reconciles one virtual host with its rules: compares the desired and the observed state, and corrects differences.

| subject | module |
|---|---|
| the loop for one virtual host: connect, reconcile, retry | `vhost_loop` |
| desired state: carriers, tokens, destinations that must exist | `desired` |
| observing the broker: queues, exchanges, bindings of carriers | `observer` |
| queues and exchanges that are known to exist | `observed` |
| comparing desired and observed state: required actions, unreachable destinations | `diff` |
| detecting conflicts, foreign bindings and bypasses | `checks` |
| warnings and bypasses, each logged once | `warnings` |
| types of carriers | `carrier_types` |
| one pass: observe, diff, execute; replacing the rules | `reconciler` |
| executing actions in bulk; failures and retries | `executor` |
| requests and reports from relays, handled between passes | `relay_requests` |
"""
