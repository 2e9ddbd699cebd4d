"""The AMQP handshake on both sides, from the protocol header to Connection.OpenOk.

| subject | module |
|---|---|
| which method is allowed in which state, and the reply to it | `machine` |
| changes to Start, StartOk, Tune and TuneOk | `greeting` |
| reusing an idle upstream connection instead of opening a new one | `lease` |
"""
