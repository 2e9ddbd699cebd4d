"""Messenger addresses, and the table that translates the address of a publish.

The package is pure and does not depend on bindings. `routing` looks up destinations in the table, and `relay` looks up
publishes.

| subject | module |
|---|---|
| which rule matches an address, and the result; wildcards in patterns | `table` |
| parts of an address; masking the password in it | `address` |
| address of a publish; broker, exchange and routing key of a translated address | `targets` |
"""
