"""oxproxy: an AMQP 0-9-1 sidecar that routes messages by content in front of an existing RabbitMQ broker.

A package imports only packages to its right in this list: cli > app > admin > net > (broker | rules | config | audit |
observe) > relay > amqp > routing > addressing > (yamlfile | values | errors | garbage | native). Only the command line
imports `report`, which needs PySpark. See docs/explanation/architecture.md; each package's docstring lists its modules.
"""

import proxy.native  # noqa: F401  # must precede the import of any module that may be compiled
