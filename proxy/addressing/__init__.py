"""Messenger addresses, and the table that translates the address of a publish.

The package is pure and independent of exchanges and bindings: `routing` looks up destinations, and `relay` publishes.

| question | module |
|---|---|
| which rule matches an address, and the result; wildcards in patterns | `table` |
| parts of an address; masking the password in it | `address` |
| address of a publish; broker, exchange and routing key of a translated address | `targets` |
"""
