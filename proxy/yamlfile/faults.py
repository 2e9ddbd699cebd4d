"""What is wrong with an operator's files: every fault of one load, collected before any is raised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from proxy.errors import ConfigError, ConfigErrors, located


class Place(NamedTuple):
    """Where something was written: file or environment variable; line and column from 1, 0 where unknown."""

    source: str
    line: int
    column: int = 0


class ConfigWarning(NamedTuple):
    """Something that works and that its author may not want."""

    place: Place
    key: str
    message: str

    def __str__(self) -> str:
        """``file:line:column: key: warning: message``."""
        where = located(*self.place)
        return f"{where}: {self.key}: warning: {self.message}" if self.key else f"{where}: warning: {self.message}"


@dataclass(slots=True)
class Faults:
    """Collects errors and warnings while files are read; `check` raises what was found."""

    errors: list[ConfigError] = field(default_factory=list)
    warnings: list[ConfigWarning] = field(default_factory=list)

    def error(self, place: Place, key: str, message: str) -> None:
        """Note a fault.

        Args:
            place: where it was seen.
            key: dotted path of the key.
            message: what was seen and what was expected; never a secret.
        """
        self.errors.append(ConfigError(place.source, place.line, key, message, place.column))

    def warn(self, place: Place, key: str, message: str) -> None:
        """Note something that works but looks unintended."""
        self.warnings.append(ConfigWarning(place, key, message))

    def check(self) -> None:
        """Raise everything noted so far.

        Raises:
            ConfigErrors: if there was any error.
        """
        if self.errors:
            raise ConfigErrors(self.errors)
