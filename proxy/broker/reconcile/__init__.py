"""Reconciles one virtual host with its rules: desired state, observed state, difference, execution.

| question | module |
|---|---|
| the loop of one virtual host: connect, reconcile, retry | `vhost_loop` |
| what the rules need on the broker: carriers, tokens, destinations that must exist | `desired` | | what the broker
contains: queues, exchanges, bindings of carriers | `observer`; queues and exchanges: `observed` | | required actions,
and unreachable destinations, as pure functions | `diff` | | which observations are conflicts, foreign bindings,
bypasses or old tokens | `checks` | | carrier types, and the form of tokens on topic carriers | `carrier_forms` | | one
pass: observe, diff, execute; replacing the rules | `reconciler` | | executing actions in bulk; failures and retries |
`executor` | | queues declared and destinations bound between two passes, on behalf of relays | `relay_requests` | |
tokens that are no longer needed | `orphan_tokens` | | migrating from unkeyed tokens, or tokens of a previous secret, to
current tokens | `token_migration` |
"""
