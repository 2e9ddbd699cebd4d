"""Decides the destinations of a message according to the rules of the exchange to which it was published.

The package is pure: it uses no sockets, clocks, files or random number generators. The time, the names of the queues
and a function for random picks are passed in as arguments.

| subject | module |
|---|---|
| input and result of a decision | `decision` (`Facts`, `Interest`, `Decision`, `Trace`) |
| path of a message through the exchanges of a virtual host: chains, alternate exchanges | `router` |
| an exchange: adding and removing bindings, and which facts matter to it | `exchange` |
| filters of an open exchange: body size, header depth and size | `filters` |
| conditions that every message to an exchange must satisfy | `contract` |
| which bindings are visited for a message | `index` |
| how bindings are visited: order, goto, stop | `engine` |
| headers, clock, producer's routes and regex budgets of the current message | `message` |
| meaning of a binding's arguments: operators, routes, match types | `bindings` |
| translation of a decision's destinations by the address table | `destination_translation` |
| error messages, identical to those of RabbitMQ and the plugin | `error_texts` |
"""
