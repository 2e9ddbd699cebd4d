"""Messenger addresses: the table that translates the address of a publish.

Pure, and without knowledge of exchanges and their bindings: `routing` asks for destinations, `relay` for publishes.

| question | module |
|---|---|
| which rule fits an address, and what it makes of it; wildcards of patterns | `table` |
| parts of an address; hiding its password | `address` |
| address of a publish; broker, exchange and routing key that a translation leads to | `targets` |
| errors and warnings about a table before it is used | `lint` |
"""
