"""Checks of rules files: errors that only several files show, and warnings about what works and is surely not meant.

`files`: files of one virtual host that contradict each other or the broker. `bindings`: bindings that never match, are
never visited or add nothing, by `satisfiability` (whether the conditions of a binding contradict each other). `loops`:
address tables that lead back to this sidecar. `destinations`: what must exist on the broker, for ``oxproxy check
--broker``.
"""
