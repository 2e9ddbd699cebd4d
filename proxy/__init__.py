"""oxproxy: an AMQP 0-9-1 sidecar that routes messages by content in front of an existing RabbitMQ.

Packages import downwards only: cli > app > admin > net > (broker | rules | config | audit | observe) > relay > amqp >
routing > addressing > (yamlfile | values | errors). `report` (PySpark) is imported by the command line alone.
docs/explanation/architecture.md is the map; each package's docstring says which module answers which question.
"""

import proxy.native  # noqa: F401  # before any module that may be compiled
