"""Reads passwords, the secrets that sign clients' bindings and the key of the audit log's hashes.

Each stands in the configuration, in an environment variable or in a file. No fault shows a value.
"""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Mapping as Environment
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from proxy.config.settings import ControlSection, SecretSource
from proxy.yamlfile.document import Faults, Place

#: Bytes of each secret that signs clients' bindings.
SECRET_BYTES = 32
#: Bytes of the key of the audit log's hashes, as `audit.record` wants it.
HASH_KEY_BYTES = (16, 64)


def read_secret(data: bytes) -> bytes | None:
    """Give the 32 bytes of a secret, None where it is not as expected.

    Args:
        data: 32 bytes, or the same in hexadecimal or base64, with blanks and line breaks around it.
    """
    if len(data) == SECRET_BYTES:
        return data
    text = data.strip()
    try:
        found = bytes.fromhex(text.decode("ascii")) if len(text) == 2 * SECRET_BYTES else b64decode(text, validate=True)
    except ValueError:
        return None
    return found if len(found) == SECRET_BYTES else None


@dataclass(frozen=True, slots=True)
class SecretReader:
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

    def secrets(self, sources: Sequence[SecretSource]) -> tuple[SecretSource, ...]:
        """Give the sources of `declared.secrets` with their values, as far as they can be read."""
        return tuple(
            source.model_copy(update={"value": self._secret(source, f"declared.secrets[{index}]")})
            for index, source in enumerate(sources)
        )

    def _secret(self, source: SecretSource, path: str) -> bytes:
        given = [key for key, value in (("file", source.file), ("env", source.env)) if value is not None]
        if len(given) != 1:
            seen = "file and env, expected one of them" if given else "nothing, expected file or env"
            place = self.places[f"{path}.{given[-1]}" if given else "declared.secrets"]
            self.faults.error(place, path, f"seen {seen}")
            return b""
        key, place = f"{path}.{given[0]}", self.places[f"{path}.{given[0]}"]
        if source.env is not None:
            if source.env not in self.environ:
                self._missing(place, key, f'there is no environment variable "{source.env}"')
                return b""
            where, data = f"environment variable {source.env}", os.fsencode(self.environ[source.env])
        else:
            where = str(self.folder / (source.file or ""))
            try:
                data = Path(where).read_bytes()
            except OSError as error:
                self._missing(place, key, f"{where} can't be read: {error.strerror or error}")
                return b""
        found = read_secret(data)
        if found is None:
            expected = f"{SECRET_BYTES} random bytes: as they are (in a file), in hexadecimal or in base64"
            self.faults.error(place, key, f"{where}: seen {len(data)} bytes of something else, expected {expected}")
        return found or b""

    def hash_key(self, variable: str | None, file: str | None) -> bytes:
        """Give the key of the audit log's hashes; nothing where it can't be read."""
        if variable is not None:
            key, place = "audit.hash_key_env", self.places["audit.hash_key_env"]
            if variable not in self.environ:
                self._missing(place, key, f'there is no environment variable "{variable}"')
                return b""
            found = os.fsencode(self.environ[variable])
        elif file is not None:
            key, place = "audit.hash_key_file", self.places["audit.hash_key_file"]
            where = self.folder / file
            try:
                found = where.read_bytes().removesuffix(b"\n")
            except OSError as error:
                self._missing(place, key, f"{where} can't be read: {error.strerror or error}")
                return b""
        else:
            message = "hashes need a key of their own under hash_key_env or hash_key_file"
            self.faults.error(self.places["audit.hash"], "audit.hash", message)
            return b""
        least, most = HASH_KEY_BYTES
        if not least <= len(found) <= most:
            self.faults.error(place, key, f"seen a key of {len(found)} bytes, expected {least} to {most}")
        return found

    def control(self, control: ControlSection, loopback: bool) -> SecretStr:
        """Find the control user's password; `loopback`: the broker is on this host."""
        path = "upstream.control."
        ways = {"password_env": control.password_env, "password_file": control.password_file}
        given = [key for key in ("password", *ways) if path + key in self.places]
        given = [key for key in given if key == "password" or ways[key] is not None]
        # A variable overrides the file, whichever way each of them takes.
        given = [key for key in given if not self.places[path + key].line] or given
        if not given:
            self._default(control, loopback)
            return control.password
        key, place = path + given[0], self.places[path + given[0]]
        if len(given) > 1:
            message = f"seen {' and '.join(given)}, expected one of them"
            self.faults.error(self.places[path + given[1]], path + given[1], message)
        if given[0] == "password_env":
            return self._from_variable(control.password_env or "", key, place)
        if given[0] == "password_file":
            return self._from_file(self.folder / (control.password_file or ""), key, place)
        if not control.password.get_secret_value():
            self.faults.error(place, key, "seen an empty text, expected a password")
        elif place.line and not loopback:
            message = "a password as text, for a broker elsewhere: use password_env or password_file"
            self.faults.warn(place, key, message)
        return control.password

    def _default(self, control: ControlSection, loopback: bool) -> None:
        """Say so where nothing was written and the default password would be sent."""
        section, key = "upstream.control", "upstream.control.password"
        place = self.places.get(f"{section}.username") or self.places.get(section) or self.places.get("upstream")
        place = place or Place("configuration", 0)
        if control.username != ControlSection.model_fields["username"].default:
            expected = "expected password_env, password_file or password"
            self._missing(place, key, f'seen nothing for the user "{control.username}", {expected}')
        elif not loopback:
            message = "seen nothing: guest with its default password is for brokers on loopback, RabbitMQ refuses it"
            self.faults.warn(place, key, f"{message} elsewhere")

    def _from_variable(self, name: str, key: str, place: Place) -> SecretStr:
        if name not in self.environ:
            self._missing(place, key, f'there is no environment variable "{name}"')
        elif not self.environ[name]:
            self._missing(place, key, f'the environment variable "{name}" is empty, expected a password')
        return SecretStr(self.environ.get(name, ""))

    def _from_file(self, path: Path, key: str, place: Place) -> SecretStr:
        try:
            found = path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
            if not found:
                self._missing(place, key, f"{path} is empty, expected a password")
            return SecretStr(found)
        except OSError as error:
            self._missing(place, key, f"{path} can't be read: {error.strerror or error}")
        except UnicodeDecodeError:
            self.faults.error(place, key, f"{path} is not UTF-8 text")
        return SecretStr("")

    def _missing(self, place: Place, key: str, message: str) -> None:
        report = self.faults.error if self.required else self.faults.warn
        report(place, key, message)
