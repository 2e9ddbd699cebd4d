"""Bindings: what their arguments mean, and how they affect the routing of a message.

| subject | module |
|---|---|
| a declared binding, its identity, what its client is permitted to bind | `binding` |
| how each exchange type reads a binding: open, direct, fanout, topic, headers | `exchange_types` |
| operators and routes by argument key; order of checks; adding an operator | `arguments` |
| how operators compare headers, routing keys (including topics), properties and times | `operators` |
| match types (all, any, eq, set), and the compiled binding | `compiled` |
| effects of a binding: destinations that it adds and deletes, goto, stop | `routes` |
| routes that producers request in headers | `producer_routes` |
| regular expressions: PCRE2 and its budgets | `patterns` |
"""
