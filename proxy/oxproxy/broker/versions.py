"""The product and version that a broker announces, and what follows from them.

docs/reference/brokers.md lists the versions on which the tests run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_PRODUCT = "RabbitMQ"
#: The oldest and the newest supported release.
OLDEST, NEWEST = (3, 8), (4, 3)
SUPPORTED = f"{_PRODUCT} {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
#: The first release that looks up the bindings of a direct exchange by routing key, without scanning them.
_LOOKS_UP = (3, 13)


class BrokerVersion(NamedTuple):
    """A broker's product and version; empty if the broker does not announce them."""

    product: str
    version: str

    def __str__(self) -> str:
        return f"{self.product} {self.version}".strip() or "unknown"

    @property
    def release(self) -> tuple[int, int] | None:
        """The first two numbers of the version; None if it has another form."""
        major, _, rest = self.version.partition(".")
        minor = rest.partition(".")[0]
        return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None

    @property
    def is_supported(self) -> bool:
        return self.product == _PRODUCT and self.release is not None and OLDEST <= self.release <= NEWEST

    @property
    def scans_bindings(self) -> bool:
        """True if this version compares a message's keys with all bindings of a direct exchange."""
        return self.release is not None and self.release < _LOOKS_UP


def announced(properties: Mapping[str, object]) -> BrokerVersion:
    """Return the version in the server properties of a connection."""

    def text(key: str) -> str:
        value = properties.get(key, "")
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    return BrokerVersion(text("product"), text("version"))
