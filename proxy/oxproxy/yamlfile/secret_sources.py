"""Reads secrets from environment variables or from separate files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from oxproxy.values import remember_secret

#: The variable with the token that commands present to the admin address. It does not override a key.
TOKEN_VARIABLE = "OXPROXY_TOKEN"  # noqa: S105 -- the name of a variable


class MissingSecret(Exception):  # noqa: N818 - an operator's mistake, not a program error
    """A secret can't be read; the message contains no part of the secret."""


def read_secret_source(source: str | Path, environ: Mapping[str, str]) -> bytes:
    """Read an environment variable, given by its name, or a file, given by its path.

    Raises:
        MissingSecret: the source does not exist or can't be read.
    """
    if isinstance(source, Path):
        try:
            return source.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: NUL in the name
            raise MissingSecret(f"{source} can't be read: {getattr(error, 'strerror', None) or error}") from None
    if source not in environ:
        raise MissingSecret(f'there is no environment variable "{source}"')
    remember_secret(environ[source].strip())
    return os.fsencode(environ[source])


def read_password_source(source: str | Path, environ: Mapping[str, str]) -> str:
    """Read a password; one line break at the end of a file is removed.

    Raises:
        MissingSecret: the source does not exist, can't be read or is not UTF-8.
    """
    data = read_secret_source(source, environ)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        shown = source if isinstance(source, Path) else f'the environment variable "{source}"'
        raise MissingSecret(f"{shown} is not UTF-8 text") from None
    password = text.removesuffix("\n").removesuffix("\r") if isinstance(source, Path) else text
    remember_secret(password)
    return password
