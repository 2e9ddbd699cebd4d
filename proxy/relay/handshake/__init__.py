"""From the protocol header to Connection.OpenOk, on both sides.

| question | open |
|---|---|
| which method may come in which state, and the answer | `machine` |
| what changes in Start, StartOk, Tune and TuneOk | `greeting` |
| using a kept upstream connection instead of a new one | `lease` |
"""
