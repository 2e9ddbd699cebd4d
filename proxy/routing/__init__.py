"""The decision: facts of a message in, destinations out. Pure: no sockets, clocks, files, randomness.

From the question to its parts: `router` follows a message through the exchanges of a virtual host, each an
`exchange`; its `filters` let the message in, its `index` finds the bindings worth a visit, and the `engine` visits
them. What a visit needs is a `compiled` binding; `exchange_types` makes one of a declared one (`bindings`), for an
open exchange by way of `arguments`, `operator_arguments`, `route_arguments` and a `draft`. In it, `operators` answer
for a `message` (by `comparison`, `patterns`, `topics`), `matching` folds their answers, and `routes` say what follows
from the result, the `producer`'s own among them, within the `reach` of the client that declared the binding.

Around it: `decision` and `values` are what goes in and out, `interest` is what a decision can depend on, `trace` why
it came out so, `topic_tree` a part of the index, `erlang_text` how the broker words a refusal, and `addresses` the
table that translates the address of what leaves: asked for a publish through `address_targets`, for the destinations of
a decision in `departure`.
"""
