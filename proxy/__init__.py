"""oxproxy: an AMQP 0-9-1 sidecar that routes messages by content in front of an existing RabbitMQ.

The house, arrows one way: cli > app > net > (broker | rules | audit | observe) > amqp > routing > errors.
`amqp` and `routing` are pure: no sockets, clocks or files. `report` (PySpark) stands apart from all of it.
"""

import proxy.native  # noqa: F401  # before any module that may be compiled
