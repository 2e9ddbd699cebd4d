"""Loads the configuration from a file, environment variables (which override the file) and defaults.

Errors contain the line in the file. TLS files are only checked for existence; they are read when TLS contexts are
created. No rules file is read and no socket is opened.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Mapping as Environment
from pathlib import Path
from typing import NamedTuple

from oxproxy.config.keys import differences, override
from oxproxy.config.secrets import read_secrets, read_tokens
from oxproxy.config.settings import ListenTls, Settings, UpstreamTls
from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.values import remember_secret
from oxproxy.yamlfile.document import (
    ConfigWarning,
    Faults,
    Mapping,
    Node,
    Place,
    Scalar,
    is_tests_file,
    join,
    read_document,
    walk,
)
from oxproxy.yamlfile.hosts import is_own_address, listen_conflict
from oxproxy.yamlfile.masking import is_secret_key
from oxproxy.yamlfile.models import Keys, key_names, read_model, warn_of_variables

#: Stands for standard input where a file is expected.
STANDARD_INPUT = Path("-")


def load_settings(
    path: Path, environ: Environment[str, str], secrets_required: bool = True
) -> tuple[Settings, list[ConfigWarning]]:
    """Read the configuration file and the environment; return the settings, and warnings.

    Args:
        path: the file; - is standard input.
        environ: the environment, whose variables with the prefix ``OXPROXY_`` override keys.
        secrets_required: whether TLS files, directories, and passwords stored outside the configuration file must
            exist; see `Faults`.

    Raises:
        ConfigErrors: the file can't be read, or contains errors. All errors are reported.
    """
    faults = Faults(secrets_required=secrets_required)
    try:
        data = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
    except OSError as error:
        raise ConfigErrors([ConfigError(str(path), 0, "", f"can't be read: {error.strerror or error}")]) from error
    return parse_settings(data, path, environ, faults), faults.warnings


def parse_settings(data: bytes, path: Path, environ: Environment[str, str], faults: Faults) -> Settings:
    """Read settings from a file's content; see `load_settings`."""
    return read_settings(read_document(data, str(path), faults), path, environ, faults)


def read_settings(root: Node | None, path: Path, environ: Environment[str, str], faults: Faults) -> Settings:
    """Read settings from a file's document; see `load_settings`. If the file is empty, `root` is None."""
    empty = root.value is None if isinstance(root, Scalar) else isinstance(root, Mapping) and not root.entries
    if root is None or empty:
        faults.check()
        # With default values only, a sidecar would run without rules. Such a file is usually truncated or misplaced.
        place = Place(str(path), 1, 1) if root is None else root.place
        expected = f"those of a configuration ({', '.join(key_names(Settings))})"
        raise ConfigErrors([place.error("", f"got the keys (none), expected {expected}")])
    root = override(root, environ, faults)
    for where, _, node in walk(root):
        # Errors in the file may be reported before the passwords are read.
        if isinstance(node, Scalar) and where.endswith("password_env"):
            remember_secret(environ.get(node.text, ""))
        elif isinstance(node, Scalar) and is_secret_key(where.rpartition(".")[2]):  # from a variable
            remember_secret(node.text)
    keys = Keys(root, faults)
    warn_of_variables(keys)
    settings = read_model(Settings, keys)
    if settings is None:
        raise ConfigErrors(faults.errors)
    places = {where: place for where, place, _ in walk(root) if where}
    settings = read_secrets(settings.model_copy(update={"file": path, "places": places}), environ, faults)
    _check_addresses(settings, faults)
    _check_tls(settings, faults)
    _check_tokens(settings, faults)
    if settings.audit.directory is not None:
        _check_audit_directory(settings, path.parent / settings.audit.directory, faults)
    faults.check()
    return settings


def _check_addresses(settings: Settings, faults: Faults) -> None:
    """Report listen addresses that conflict or have an unsuitable port, and broker addresses that are our own."""
    listening = [(f"listen[{index}].address", listener.address) for index, listener in enumerate(settings.listen)]
    if settings.admin.address is not None:
        listening.append(("admin.address", settings.admin.address))
    shared = {f"listen[{index}].address" for index, listener in enumerate(settings.listen) if listener.reuse_port}
    # An address that could not be read was replaced with the default, which must not be reported as a conflict.
    unreadable = {error.key for error in faults.errors}
    listening = [(key, address) for key, address in listening if key not in unreadable]
    for index, (key, address) in enumerate(listening):
        other = next((earlier for earlier in listening[:index] if listen_conflict(earlier[1], address)), None)
        if other is not None:
            if key not in settings.places:  # the key has its default value, so the other key's line is reported
                (key, address), other = other, (key, address)
            faults.error(settings.place(key), key, f"{address} conflicts with {other[0]} {other[1]}")
        if not address.port and key in shared:
            message = "port 0 would be a different port for each process, but reuse_port expects the same port"
            faults.error(settings.place(key), key, message)
        elif not address.port:
            message = "port 0 selects any free port, which differs at each start and is logged"
            faults.warn(settings.place(key), key, message)
    here = [address for _, address in listening]
    for address in () if "upstream.address" in unreadable else settings.upstream.addresses:
        if is_own_address(address.host, address.port, here):
            message = f"{address} is an address that this sidecar itself listens on"
            faults.error(settings.place("upstream.address"), "upstream.address", message)


def _check_tls(settings: Settings, faults: Faults) -> None:
    """Report incomplete or insecure TLS settings, and missing files."""
    servers = [(f"listen[{index}].tls", listener.tls) for index, listener in enumerate(settings.listen)]
    for section, server in (*servers, ("admin.tls", settings.admin.tls)):
        if server is None:
            continue
        _check_policy(settings, section, server, faults)
        for key in ("certificate", "key"):
            if getattr(server, key) is None:
                place = settings.place(join(section, key), section)
                faults.error(place, join(section, key), "missing, expected the name of a file")
        verify = join(section, "client_verify")
        if server.client_ca is None and verify in settings.places:
            faults.error(settings.place(verify), verify, "has no effect without client_ca")
        files = {"certificate": server.certificate, "key": server.key, "client_ca": server.client_ca}
        _check_files(settings, section, files, faults)
    client, section = settings.upstream.tls, "upstream.tls"
    if client is None:
        far = [str(address) for address in settings.upstream.addresses if not address.loopback]
        if far:
            message = f"without upstream.tls, passwords are sent to {far[0]} in plain text"
            faults.warn(settings.place("upstream.address", "upstream"), "upstream.address", message)
        return
    _check_policy(settings, section, client, faults)
    if (client.certificate is None) != (client.key is None):
        faults.error(settings.place(section), section, "certificate and key must be given together")
    if not client.verify:
        message = "anyone on the network path can impersonate the broker and read passwords"
        faults.warn(settings.place("upstream.tls.verify", section), "upstream.tls.verify", message)
    files = {"ca": client.ca, "certificate": client.certificate, "key": client.key}
    _check_files(settings, section, files, faults)


def _check_policy(settings: Settings, section: str, tls: ListenTls | UpstreamTls, faults: Faults) -> None:
    if tls.ciphers is not None and tls.minimum_version == "TLSv1.3":
        key = join(section, "ciphers")
        faults.error(settings.place(key), key, "has no effect with minimum_version: TLSv1.3")


def _check_tokens(settings: Settings, faults: Faults) -> None:
    """Report unusable tokens for the admin address, and settings that depend on tokens."""
    admin = settings.admin
    names = [section.name for section in admin.tokens]
    for index, name in enumerate(names):
        key = f"admin.tokens[{index}].name"
        if not name or name in names[:index]:
            seen = f'"{name}" again' if name else "an empty string"
            faults.error(settings.place(key), key, f"got {seen}, expected a different name for each token")
    read_tokens(settings, faults)
    if admin.metrics_role is not None and not admin.tokens:
        key = "admin.metrics_role"
        faults.error(settings.place(key), key, "has no effect without admin.tokens")
    if admin.tokens and admin.tls is None and admin.address is not None and not admin.address.loopback:
        message = f"without admin.tls, tokens are sent to {admin.address} in plain text"
        faults.warn(settings.place("admin.tokens"), "admin.tokens", message)


def _check_audit_directory(settings: Settings, directory: Path, faults: Faults) -> None:
    key = "audit.directory"
    if os.path.lexists(directory) and not os.path.isdir(directory):
        faults.error(settings.place(key), key, f"{directory}: got a file, expected a directory")
    elif faults.secrets_required is False and not os.path.isdir(
        directory.parent
    ):  # at startup, the audit log reports it
        faults.warn(settings.place(key), key, f"{directory}: the parent directory does not exist")


def _check_files(settings: Settings, section: str, names: Environment[str, str | None], faults: Faults) -> None:
    for key, name in names.items():
        reason = "" if name is None else _absence(settings.folder / name)
        if reason:
            path = join(section, key)
            faults.missing(settings.place(path, section), path, f"{settings.folder / (name or '')}: {reason}")


def _absence(file: Path) -> str:
    """Return the reason why a file can't be used; "" if the file exists."""
    try:
        return "" if file.is_file() else "file does not exist"
    except OSError as error:  # for example, a directory can't be accessed
        return error.strerror or str(error)


class ChangedSettings(NamedTuple):
    """Keys with new values, and errors, in a configuration file that has changed since the sidecar was started."""

    keys: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def changed_since(settings: Settings, environ: Environment[str, str]) -> ChangedSettings:
    """Read the configuration file again and compare it with the current settings."""
    # Standard input and pipes can't be read again.
    if settings.file == STANDARD_INPUT or (settings.file.exists() and not settings.file.is_file()):
        return ChangedSettings()
    try:
        now, _ = load_settings(settings.file, environ)
    except ConfigErrors as errors:
        return ChangedSettings(errors=tuple(map(str, errors.errors)))
    return ChangedSettings(tuple(differences(settings, now)))


def rules_files(settings: Settings) -> list[Path]:
    """Return the rules files named by the configuration, excluding test files, in the order in which they are read.

    Raises:
        ConfigErrors: a name or pattern matches no file.
    """
    files: set[Path] = set()
    errors = []
    for index, pattern in enumerate(settings.rules):
        paths = [path for path in matching_files(settings.folder, pattern) if not is_tests_file(path.name)]
        if not paths:
            problem = "pattern matches no file" if glob.has_magic(pattern) else _absence(settings.folder / pattern)
            if os.path.isdir(settings.folder / pattern):
                problem = "got a directory, expected a file, or a pattern such as rules/*.yaml"
            elif is_tests_file(pattern):
                problem = "is a test file according to its name, expected a rules file that names it under tests"
            errors.append(settings.fault(f"rules[{index}]", f"{settings.folder / pattern}: {problem}"))
        files.update(paths)
    if errors:
        raise ConfigErrors(errors)
    return sorted(files)


def tests_files(settings: Settings) -> list[Path]:
    """Return the test files that the configuration's patterns match."""
    matching = (path for pattern in settings.rules for path in matching_files(settings.folder, pattern))
    return sorted({path for path in matching if is_tests_file(path.name)})


def matching_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files that a name or a pattern such as ``rules/*.yaml`` matches, relative to a directory."""
    if "\0" in pattern:
        return []
    # As in a shell, a pattern does not match names that begin with a dot, such as editors' backups.
    names = glob.glob(pattern, root_dir=folder, recursive=True) if glob.has_magic(pattern) else [pattern]
    # os.path.isfile raises no error if, for example, a directory can't be accessed or a name is too long.
    return [folder / name for name in names if os.path.isfile(folder / name)]
