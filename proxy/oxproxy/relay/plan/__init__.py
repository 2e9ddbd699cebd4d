"""What is sent for a publish: the facts that the rules need, the decision, and its outgoing form.

| subject | module |
|---|---|
| the facts that the rules for an address need, and the cache of decisions | `plan` |
| outgoing exchange, routing key and BCC for a decision | `outgoing` |
| observing publishes | `tap` |
"""
