"""The decision: which destinations a message has, by the rules of the exchange it was published to.

Pure: no sockets, clocks, files or randomness; time, queue names and random draws are arguments.

| question | module |
|---|---|
| what goes into a decision and what comes out | `decision` (`Facts`, `Interest`, `Decision`, `Trace`) |
| how a message goes through the exchanges of a virtual host: chains, alternate exchanges | `router` |
| what an exchange holds; adding and removing bindings; which facts matter to it | `exchange` |
| filters of an open exchange: body size, header depth and size | `filters` |
| which bindings are visited for a message | `index` |
| how bindings are visited: order, goto, stop | `engine` |
| headers, clock, producer's routes and regex budgets of the message under decision | `message` |
| what the arguments of a binding mean: operators, routes, match types | `bindings` |
| what the address table makes of the destinations of a decision | `destination_translation` |
| error texts, byte by byte those of RabbitMQ and the plugin | `error_texts` |
"""
