"""Reads passwords, tokens, the secrets that sign client bindings, and the key for the hashes in the audit log.

Each value is stored in an environment variable or in a file; a password may also be part of the configuration. Errors
never contain a value. Tokens for the admin address are not part of the settings, since they are read again at each
reload.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping as Environment
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from oxproxy.config.settings import ControlSection, SecretSource, Settings
from oxproxy.values import remember_secret, shown_user
from oxproxy.yamlfile.document import Faults
from oxproxy.yamlfile.models import FileModel, path_in
from oxproxy.yamlfile.secret_sources import MissingSecret, read_password_source, read_secret_source

#: Size of each secret that signs client bindings.
SECRET_BYTES = 32
#: Size limits of the key for the hashes in the audit log, the same as in `relay.records.privacy`.
HASH_KEY_BYTES = (16, 64)
#: Size limits of a token for the admin address. A shorter token could be guessed.
TOKEN_BYTES = (32, 512)
_NO_SECRETS = (
    "missing, expected a secret, because the broker is not on loopback: without a secret, the key that signs client "
    "bindings is derived from the control user's password"
)


def read_secret(data: bytes) -> bytes | None:
    """Return the 32 bytes of a secret; None if it is malformed.

    Args:
        data: 32 bytes, or their hexadecimal or base64 form, optionally surrounded by whitespace.
    """
    if len(data) == SECRET_BYTES:
        return data
    text = data.strip()
    try:
        secret = (
            bytes.fromhex(text.decode("ascii")) if len(text) == 2 * SECRET_BYTES else b64decode(text, validate=True)
        )
    except ValueError:
        return None
    return secret if len(secret) == SECRET_BYTES else None


def read_tokens(settings: Settings, faults: Faults) -> list[bytes]:
    """Return the tokens for the admin address, in the order of `admin.tokens`, and report unusable tokens."""
    tokens: list[bytes] = []
    least, most = TOKEN_BYTES
    for index, section in enumerate(settings.admin.tokens):
        key = f"admin.tokens[{index}].token_file"
        try:
            token = read_secret_source(settings.folder / section.token_file, {}).strip()
        except MissingSecret as missing:
            faults.missing(settings.place(key), key, str(missing))
            token = b""
        else:
            if not least <= len(token) <= most or not all(0x20 < byte < 0x7F for byte in token):
                expected = f"expected {least} to {most} printable ASCII characters without spaces"
                faults.error(settings.place(key), key, f"got a token of {len(token)} bytes, {expected}")
            elif token in tokens:
                other = settings.admin.tokens[tokens.index(token)].name
                faults.error(settings.place(key), key, f'got the token of "{other}", expected a token of its own')
        remember_secret(token.decode("ascii", "replace"))
        tokens.append(token)
    return tokens


def read_secrets(settings: Settings, environ: Environment[str, str], faults: Faults) -> Settings:
    """Return the settings with the values of the secrets, and report malformed and missing secrets."""
    reader = _SecretReader(settings, environ, faults)
    control = settings.upstream.control.model_copy(update={"password": reader.control()})
    return settings.model_copy(
        update={
            "upstream": settings.upstream.model_copy(update={"control": control}),
            "declared": settings.declared.model_copy(update={"secrets": reader.secrets()}),
            "audit": settings.audit.model_copy(update={"hash_key": reader.hash_key() if settings.audit.hash else b""}),
        }
    )


@dataclass(frozen=True, slots=True)
class _SecretReader:
    """Reads the secrets of one configuration and reports malformed secrets."""

    settings: Settings
    environ: Environment[str, str]
    faults: Faults

    @property
    def _loopback(self) -> bool:
        return all(address.loopback for address in self.settings.upstream.addresses)

    def _error(self, key: str, message: str) -> None:
        self.faults.error(self.settings.place(key), key, message)

    def _missing(self, key: str, message: str) -> None:
        self.faults.missing(self.settings.place(key), key, message)

    def secrets(self) -> tuple[SecretSource, ...]:
        """Return the sources in `declared.secrets` with their values. A value is b"" if it can't be read."""
        sources = self.settings.declared.secrets
        if not sources and not self._loopback:
            self.faults.warn(self.settings.place("declared", "upstream.address"), "declared.secrets", _NO_SECRETS)
        return tuple(
            source.model_copy(update={"value": self._secret(source, f"declared.secrets[{index}]")})
            for index, source in enumerate(sources)
        )

    def _secret(self, source: SecretSource, path: str) -> bytes:
        given = [key for key in ("file", "env") if getattr(source, key) is not None]
        if len(given) != 1:
            problem = "got file and env, expected one of them" if given else "missing, expected file or env"
            place = self.settings.place(f"{path}.{given[-1]}" if given else "declared.secrets")
            self.faults.error(place, path, problem)
            return b""
        origin = source.env if source.file is None else self.settings.folder / source.file
        data = self._kept(f"{path}.{given[0]}", origin)
        secret = None if data is None else read_secret(data)
        if data is not None and secret is None:
            shown = origin if source.env is None else f"environment variable {origin}"
            expected = f"{SECRET_BYTES} random bytes: raw (in a file), in hexadecimal or in base64"
            message = f"{shown}: got {len(data)} bytes in a different format, expected {expected}"
            self._error(f"{path}.{given[0]}", message)
        return secret or b""

    def hash_key(self) -> bytes:
        """Return the key for the hashes in the audit log; b"" if it can't be read."""
        audit = self.settings.audit
        given = self._given("audit", audit, "hash_key_env", "hash_key_file")
        if given is None:
            self._error("audit.hash", "hashes need a key: set hash_key_env or hash_key_file")
            return b""
        key = f"audit.{given}"
        if given == "hash_key_env":
            hash_key = self._kept(key, audit.hash_key_env)
        else:
            hash_key = self._kept(key, path_in(self.settings.folder, audit.hash_key_file))
            hash_key = None if hash_key is None else hash_key.removesuffix(b"\n")
        least, most = HASH_KEY_BYTES
        if hash_key is not None and not least <= len(hash_key) <= most:
            self._error(key, f"got a key of {len(hash_key)} bytes, expected {least} to {most}")
        return hash_key or b""

    def control(self) -> SecretStr:
        """Return the control user's password."""
        control = self.settings.upstream.control
        given = self._given("upstream.control", control, "password", "password_env", "password_file")
        if given is None:
            self._default(control)
            return control.password
        key = f"upstream.control.{given}"
        if given != "password":
            file = path_in(self.settings.folder, control.password_file)
            source = control.password_env if given == "password_env" else file
            return SecretStr(self._password(key, source or ""))
        place = self.settings.place(key)
        if not control.password.get_secret_value():
            self._error(key, "got an empty string, expected a password")
        elif place.line and not self._loopback:
            message = (
                "the password is in plain text and the broker is not on loopback; use password_env or password_file"
            )
            self.faults.warn(place, key, message)
        return control.password

    def _given(self, section: str, model: FileModel, *keys: str) -> str | None:
        """Return which of the given keys is set in a section; None if none is. Report an error if several are set."""
        places = {key: self.settings.places.get(f"{section}.{key}") for key in keys}
        given = {key: place for key, place in places.items() if place is not None and getattr(model, key) is not None}
        # A variable overrides the file, even if they use different keys.
        given = {key: place for key, place in given.items() if not place.line} or given
        if len(given) > 1:
            self._error(f"{section}.{[*given][1]}", f"got {' and '.join(given)}, expected one of them")
        return next(iter(given), None)

    def _default(self, control: ControlSection) -> None:
        """Report a missing password of a user other than guest, or warn that guest can log in only over loopback."""
        section, key = "upstream.control", "upstream.control.password"
        place = self.settings.place(f"{section}.username", section, "upstream")
        if control.username != ControlSection.model_fields["username"].default:
            expected = "expected password_env, password_file or password"
            self.faults.missing(place, key, f'no password for the user "{shown_user(control.username)}", {expected}')
        elif not self._loopback:
            message = "no password is set, and the default password of guest works only for brokers on loopback"
            self.faults.warn(place, key, message)

    def _password(self, key: str, source: str | Path) -> str:
        try:
            password = read_password_source(source, self.environ)
        except MissingSecret as missing:
            self._missing(key, str(missing))
            return ""
        if not password:
            origin = source if isinstance(source, Path) else f'the environment variable "{source}"'
            self._missing(key, f"{origin} is empty, expected a password")
        return password

    def _kept(self, key: str, source: str | Path | None) -> bytes | None:
        try:
            return read_secret_source(source or "", self.environ)
        except MissingSecret as missing:
            self._missing(key, str(missing))
            return None
