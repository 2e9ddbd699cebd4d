"""Checks of rules files: errors across files, and warnings about rules that are valid but certainly not intended.

`files`: files of one virtual host that contradict each other or the broker. `bindings`: bindings that never match, are
never visited or add nothing; `satisfiability` finds contradictory conditions. `loops`: address tables that lead back to
this sidecar. `destinations`: objects that must exist on the broker, for ``oxproxy check --broker``.
"""
