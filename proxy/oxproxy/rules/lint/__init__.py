"""Reports errors that involve several rules files, and warns about rules that are valid but certainly unintended.

`files` finds files of one virtual host that contradict each other or the broker. `bindings` finds bindings that never
match, are never visited or add nothing, `satisfiability` finds contradictory conditions, and `mistakes` finds valid
definitions that look like a mistake. `addresses` checks address tables, and finds addresses that lead back to this
sidecar. `destinations` lists objects that must exist on the broker,
for ``oxproxy check --broker``.
"""
