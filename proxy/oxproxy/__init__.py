"""oxproxy: an AMQP 0-9-1 sidecar that routes messages by content in front of an existing RabbitMQ broker.

The names in `__all__` are the interface for other programs, see `oxproxy.library`.

A package imports only packages to its right in this list: (cli | library) > app > admin > net > (broker | rules |
config | audit | observe) > relay > amqp > routing > addressing > (yamlfile | values | errors | garbage | native). Only
the command line imports `report`, which needs PySpark. See docs/explanation/architecture.md; each package's docstring
lists its modules.
"""

import importlib
from typing import TYPE_CHECKING

import oxproxy.native  # noqa: F401  # must precede the import of any module that may be compiled

__all__ = ["ConfigErrors", "ExplainedMessage", "FailedRulesTest", "RuleSet", "load_rules"]

if TYPE_CHECKING:
    from oxproxy.errors import ConfigErrors
    from oxproxy.library.rule_set import ExplainedMessage, FailedRulesTest, RuleSet, load_rules
else:

    def __getattr__(name: str) -> object:
        """Import the library when one of its names is used, so that other imports of the package stay fast."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = "oxproxy.errors" if name == "ConfigErrors" else "oxproxy.library.rule_set"
        return getattr(importlib.import_module(module), name)
