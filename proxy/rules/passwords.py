"""Which of the ways to give a password holds? As a text, in a variable, in a file.

Source: the interface of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping as Environment
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.rules.faults import Faults, Place
from proxy.rules.kinds import Secret

if TYPE_CHECKING:
    from proxy.rules.settings import Upstream


@dataclass(frozen=True, slots=True)
class Passwords:
    """Finds the control user's password among the three ways to give it.

    Args:
        folder: that of the configuration.
        environ: the environment.
        places: of every key that was written.
        faults: takes the faults.
        required: whether it must be there; where not, its absence is a warning.
    """

    folder: Path
    environ: Environment[str, str]
    places: dict[str, Place]
    faults: Faults
    required: bool

    def control(self, upstream: Upstream) -> Secret:
        """Give the password to use."""
        control, path = upstream.control, "upstream.control."
        ways = {"password_env": control.password_env, "password_file": control.password_file}
        given = [key for key in ("password", *ways) if path + key in self.places]
        given = [key for key in given if key == "password" or ways[key] is not None]
        # A variable overrides the file, whichever way each of them takes.
        given = [key for key in given if not self.places[path + key].line] or given
        if not given:
            return control.password
        key, place = path + given[0], self.places[path + given[0]]
        if len(given) > 1:
            message = f"seen {' and '.join(given)}, expected one of them"
            self.faults.error(self.places[path + given[1]], path + given[1], message)
        if given[0] == "password_env":
            return self._from_variable(control.password_env or "", key, place)
        if given[0] == "password_file":
            return self._from_file(self.folder / (control.password_file or ""), key, place)
        if place.line and not all(each.loopback for each in upstream.addresses):
            message = "a password as text, for a broker elsewhere: use password_env or password_file"
            self.faults.warn(place, key, message)
        return control.password

    def _from_variable(self, name: str, key: str, place: Place) -> Secret:
        if name not in self.environ:
            self._missing(place, key, f'there is no environment variable "{name}"')
        return Secret(self.environ.get(name, ""))

    def _from_file(self, path: Path, key: str, place: Place) -> Secret:
        try:
            return Secret(path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r"))
        except OSError as error:
            self._missing(place, key, f"{path} can't be read: {error.strerror or error}")
        except UnicodeDecodeError:
            self.faults.error(place, key, f"{path} is not UTF-8 text")
        return Secret("")

    def _missing(self, place: Place, key: str, message: str) -> None:
        report = self.faults.error if self.required else self.faults.warn
        report(place, key, message)
