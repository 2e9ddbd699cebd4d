"""The keys of the configuration file with their defaults, and how a configuration is loaded.

Every key has an effect and unknown keys are errors. Passwords, the secrets that sign clients' bindings and the key of
the audit log's hashes are read here from where the configuration says; files of TLS are only looked for, since whether
they can be used is seen when contexts are made of them. No rules file is read and no socket is opened.
docs/configuration.md lists every key; a test compares the two.
"""

from __future__ import annotations

import glob
import os
from base64 import b64decode
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Environment
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from proxy.config.keys import Key, differences, override, read_section
from proxy.errors import ConfigError, ConfigErrors
from proxy.routing.bindings.patterns import DEFAULT_BUDGET
from proxy.yamlfile.document import read_document
from proxy.yamlfile.fields import Fields
from proxy.yamlfile.kinds import (
    ADDRESSES,
    FLAG,
    HTTP_URL,
    LISTEN_ADDRESS,
    NETWORKS,
    SECRET,
    TEXT,
    TEXTS,
    HostPort,
    Secret,
    choice,
    choices,
    duration,
    is_own_address,
    listen_conflict,
    optional,
    whole_number,
)
from proxy.yamlfile.nodes import ConfigWarning, Faults, Mapping, Place, join


@dataclass(frozen=True, slots=True)
class ListenTls:
    """TLS for producers."""

    certificate: Annotated[
        str | None, Key(optional(TEXT), "file of our certificate and those that lead to its authority (PEM); required")
    ] = None
    key: Annotated[str | None, Key(optional(TEXT), "file of its private key (PEM, without a passphrase); required")] = (
        None
    )
    client_ca: Annotated[
        str | None, Key(optional(TEXT), "file of authorities: producers need a certificate of one of them")
    ] = None
    client_verify: Annotated[
        str,
        Key(
            choice("required", "optional"),
            "with `client_ca`: whether a producer without a certificate is refused (`required`) or not (`optional`)",
        ),
    ] = "required"


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """TLS to the broker, and to its management API where that is https."""

    ca: Annotated[str | None, Key(optional(TEXT), "file of the authorities to trust (PEM); `null`: the system's")] = (
        None
    )
    verify: Annotated[bool, Key(FLAG, "whether chain and name of the broker's certificate are checked")] = True
    server_name: Annotated[
        str | None, Key(optional(TEXT), "name that the certificate must have; `null`: the host of the address")
    ] = None
    certificate: Annotated[
        str | None, Key(optional(TEXT), "file of our certificate (PEM), for a broker that asks for one")
    ] = None
    key: Annotated[str | None, Key(optional(TEXT), "file of its private key (PEM, without a passphrase)")] = None


@dataclass(frozen=True, slots=True)
class TlsChecks:
    """Finds what is wrong with settings of TLS.

    Args:
        folder: that of the configuration.
        places: of every key that was written.
        faults: takes the faults.
        required: whether files must be there; where not, their absence is a warning.
    """

    folder: Path
    places: dict[str, Place]
    faults: Faults
    required: bool

    def listener(self, tls: ListenTls | None, path: str) -> None:
        """Check one listener's."""
        if tls is None:
            return
        for name in ("certificate", "key"):
            if getattr(tls, name) is None:
                self._error(join(path, name), path, "seen nothing, expected the name of a file")
        if tls.client_ca is None and join(path, "client_verify") in self.places:
            self._error(join(path, "client_verify"), path, "without client_ca no certificate is asked for")
        self._files(path, certificate=tls.certificate, key=tls.key, client_ca=tls.client_ca)

    def upstream(self, tls: UpstreamTls | None, path: str, addresses: Iterable[HostPort]) -> None:
        """Check the broker's, and say where passwords would cross a network in plain text."""
        if tls is None:
            far = [str(address) for address in addresses if not address.loopback]
            if far:
                message = f"without upstream.tls, passwords go to {far[0]} as plain text"
                self.faults.warn(self._place("upstream.address", "upstream"), "upstream.address", message)
            return
        if (tls.certificate is None) != (tls.key is None):
            self._error(path, path, "certificate and key go together")
        if not tls.verify:
            message = "whoever is in between can pretend to be the broker, and read passwords"
            self.faults.warn(self._place(join(path, "verify"), path), join(path, "verify"), message)
        self._files(path, ca=tls.ca, certificate=tls.certificate, key=tls.key)

    def _files(self, path: str, **names: str | None) -> None:
        for key, name in names.items():
            why = "" if name is None else _absence(self.folder / name)
            if why:
                report = self.faults.error if self.required else self.faults.warn
                where = join(path, key)
                report(self._place(where, path), where, f"{self.folder / (name or '')}: {why}")

    def _error(self, path: str, above: str, message: str) -> None:
        self.faults.error(self._place(path, above), path, message)

    def _place(self, path: str, above: str) -> Place:
        return self.places.get(path) or self.places.get(above) or Place("configuration", 0)


def _absence(file: Path) -> str:
    """Say why a file can't be found; nothing where it is there."""
    try:
        return "" if file.is_file() else "there is no such file"
    except OSError as error:  # such as a folder that we may not look into
        return error.strerror or str(error)


_GUEST = Secret("guest")
#: Bytes of each secret that signs clients' bindings.
SECRET_BYTES = 32
#: Bytes of the key of the audit log's hashes, as `audit.record` wants it.
HASH_KEY_BYTES = (16, 64)


@dataclass(frozen=True, slots=True)
class ControlSection:
    """The user that declares carriers and reads the inventory; `password` holds the one to use."""

    username: Annotated[str, Key(TEXT, "name of the control user")] = "guest"
    password: Annotated[
        Secret, Key(SECRET, "its password; here it is a warning unless every broker address is loopback")
    ] = _GUEST
    password_env: Annotated[
        str | None, Key(optional(TEXT), "name of an environment variable that holds the password")
    ] = None
    password_file: Annotated[
        str | None, Key(optional(TEXT), "file that holds the password; one line break at its end is left out")
    ] = None


@dataclass(frozen=True, slots=True)
class SecretSource:
    """Where one secret is: in a file or in a variable; `value` holds its 32 bytes."""

    file: Annotated[
        str | None, Key(optional(TEXT), "file with a secret of 32 random bytes: as they are, in hexadecimal or base64")
    ] = None
    env: Annotated[
        str | None, Key(optional(TEXT), "name of an environment variable with a secret in hexadecimal or base64")
    ] = None
    value: bytes = field(default=b"", repr=False)


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

    def control(self, control: ControlSection, loopback: bool) -> ControlSection:
        """Give the control user with the password to use.

        Args:
            control: as configured.
            loopback: whether the broker is on this host.
        """
        return replace(control, password=self._password(control, loopback))

    def secrets(self, sources: Sequence[SecretSource]) -> tuple[SecretSource, ...]:
        """Give the sources of `declared.secrets` with their values, as far as they can be read."""
        return tuple(
            replace(source, value=self._secret(source, f"declared.secrets[{index}]"))
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

    def _password(self, control: ControlSection, loopback: bool) -> Secret:
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
        if not control.password.reveal():
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
        if control.username != ControlSection().username:
            expected = "expected password_env, password_file or password"
            self._missing(place, key, f'seen nothing for the user "{control.username}", {expected}')
        elif not loopback:
            message = "seen nothing: guest with its default password is for brokers on loopback, RabbitMQ refuses it"
            self.faults.warn(place, key, f"{message} elsewhere")

    def _from_variable(self, name: str, key: str, place: Place) -> Secret:
        if name not in self.environ:
            self._missing(place, key, f'there is no environment variable "{name}"')
        elif not self.environ[name]:
            self._missing(place, key, f'the environment variable "{name}" is empty, expected a password')
        return Secret(self.environ.get(name, ""))

    def _from_file(self, path: Path, key: str, place: Place) -> Secret:
        try:
            found = path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
            if not found:
                self._missing(place, key, f"{path} is empty, expected a password")
            return Secret(found)
        except OSError as error:
            self._missing(place, key, f"{path} can't be read: {error.strerror or error}")
        except UnicodeDecodeError:
            self.faults.error(place, key, f"{path} is not UTF-8 text")
        return Secret("")

    def _missing(self, place: Place, key: str, message: str) -> None:
        report = self.faults.error if self.required else self.faults.warn
        report(place, key, message)


Places: TypeAlias = Environment[str, Place]
_HERE = HostPort("127.0.0.1", 5673)
_BROKER = HostPort("127.0.0.1", 5672)
_ADMIN = HostPort("127.0.0.1", 15693)
_WAIT = duration(0.01, 3600)
_NO_SECRETS = (
    "seen nothing, expected a secret of its own for a broker elsewhere: without one the key that signs clients' "
    "bindings is derived from the control user's password"
)


@dataclass(frozen=True, slots=True)
class ListenSection:
    """One address where producers connect."""

    address: Annotated[HostPort, Key(LISTEN_ADDRESS, "`host:port` where producers connect")] = _HERE
    tls: ListenTls | None = None


@dataclass(frozen=True, slots=True)
class UpstreamSection:
    """The broker."""

    addresses: Annotated[
        tuple[HostPort, ...],
        Key(ADDRESSES, "`host:port` of the broker, or a list, tried in turn at each connect", "address"),
    ] = (_BROKER,)
    connect_timeout_seconds: Annotated[
        float, Key(_WAIT, "longest wait for a TCP connection to one address", "connect_timeout")
    ] = 5.0
    reuse_seconds: Annotated[
        float | None,
        Key(
            optional(duration(1, 3600)),
            "how long a connection that a producer has left waits for another one of the same login; `null`: closed",
            "reuse",
        ),
    ] = None
    tls: UpstreamTls | None = None
    control: ControlSection = field(default_factory=ControlSection)
    management: Annotated[
        str | None,
        Key(optional(HTTP_URL), "address of the management API, which lists queues and exchanges"),
    ] = None


@dataclass(frozen=True, slots=True)
class InventorySection:
    """What exists on the broker."""

    refresh_seconds: Annotated[float, Key(duration(0.1, 3600), "how often the management API is read", "refresh")] = 5.0
    foreign_bindings: Annotated[
        str,
        Key(choice("report", "remove"), "bindings that others made on a carrier, past the rules: `report` or `remove`"),
    ] = "report"


@dataclass(frozen=True, slots=True)
class DeclaredSection:
    """What clients declare over AMQP."""

    delivery: Annotated[
        str,
        Key(
            choice("carrier", "queue"),
            "how messages of exchanges leave that clients declare without `x-delivery`: `carrier` or `queue`",
        ),
    ] = "carrier"
    unbind: Annotated[
        str,
        Key(
            choice("strict", "broker"),
            "unbinding with arguments that no binding has: an error (`strict`) or nothing (`broker`)",
        ),
    ] = "strict"
    client_routes: Annotated[
        str,
        Key(
            choice("own", "any"),
            "what routes of clients' bindings and messages reach: queues the client could bind (`own`) or `any`",
        ),
    ] = "own"
    regexes: Annotated[
        int, Key(whole_number(0, 1_000_000), "most regular expressions in the bindings of one user in one virtual host")
    ] = 100
    announce: Annotated[
        bool, Key(FLAG, "whether sidecars tell each other of changes at once, over a fanout exchange on the broker")
    ] = False
    snapshot: Annotated[
        str | None, Key(optional(TEXT), "file that keeps what the broker can't; each sidecar needs one of its own")
    ] = None
    #: The first signs clients' bindings and keys destination tokens, all are accepted.
    secrets: tuple[SecretSource, ...] = ()


@dataclass(frozen=True, slots=True)
class AdminSection:
    """The port for operators."""

    address: Annotated[
        HostPort | None,
        Key(optional(LISTEN_ADDRESS), "where `/metrics`, `/livez`, `/readyz` are served; `null`: not"),
    ] = _ADMIN
    allow: Annotated[
        tuple[str, ...],
        Key(NETWORKS, "addresses or networks (CIDR) beside loopback that may read `/status`, reload, explain, shadow"),
    ] = ()
    hosts: Annotated[
        tuple[str, ...],
        Key(TEXTS, "names under which these pages may be asked for, beside `localhost`, addresses and the host's name"),
    ] = ()


@dataclass(frozen=True, slots=True)
class AuditSection:
    """The audit log; see docs/audit.md for what each mode promises. `hash_key` holds the key of the hashes."""

    directory: Annotated[
        str | None, Key(optional(TEXT), "folder of the audit log, made if its parent exists; `null`: no audit log")
    ] = None
    scope: Annotated[
        str, Key(choice("all", "ruled"), "`all` publishes, or only those to exchanges that are evaluated here: `ruled`")
    ] = "all"
    mode: Annotated[
        str,
        Key(
            choice("best_effort", "backpressure", "strict"),
            "when disk or writer can't keep up: `best_effort` drops and counts lines, `backpressure` lets producers "
            "wait, `strict` confirms a publish only when its line is on disk",
        ),
    ] = "best_effort"
    instance: Annotated[
        str | None, Key(optional(TEXT), "name of this sidecar in records and file names; `null`: the host's name")
    ] = None
    buffer_mib: Annotated[int, Key(whole_number(1, 4096), "MiB of lines that may wait for the disk")] = 32
    segment_mib: Annotated[int, Key(whole_number(1, 128), "most MiB of text in one segment")] = 128
    segment_seconds: Annotated[float, Key(duration(1, 86400), "longest time a segment is open", "segment")] = 300.0
    keep_days: Annotated[
        int | None, Key(optional(whole_number(1, 100_000)), "days that segments are kept; `null`: age does not matter")
    ] = None
    keep_mib: Annotated[
        int | None,
        Key(
            optional(whole_number(1, 2**40)),
            "MiB of segments that are kept, oldest go first; `null`: size does not matter",
        ),
    ] = None
    headers: Annotated[tuple[str, ...], Key(TEXTS, "headers whose values may stand in records")] = ()
    hash: Annotated[
        tuple[str, ...],
        Key(choices("message_id", "user", "rk"), "fields written as keyed hashes: `message_id`, `user`, `rk`"),
    ] = ()
    hash_key_env: Annotated[
        str | None, Key(optional(TEXT), "name of an environment variable that holds the key of the hashes")
    ] = None
    hash_key_file: Annotated[str | None, Key(optional(TEXT), "file that holds the key of the hashes")] = None
    hash_key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """What is counted."""

    bindings: Annotated[
        int, Key(whole_number(0, 1_000_000), "bindings with a series of their own; the rest counts as `other`")
    ] = 500


@dataclass(frozen=True, slots=True)
class LimitsSection:
    """What producers may ask for."""

    connections: Annotated[int, Key(whole_number(1, 1_000_000), "producer connections at one time")] = 10_000
    connections_per_peer: Annotated[
        int | None, Key(optional(whole_number(1, 1_000_000)), "of these, from one address; `null`: no limit of its own")
    ] = None
    channels: Annotated[
        int | None,
        Key(optional(whole_number(1, 65535)), "most channels of a connection; `null`: as many as the broker gives"),
    ] = None
    message_size: Annotated[
        int | None,
        Key(
            optional(whole_number(1, 2**40)),
            "largest body of a message, in bytes; `null`: as large as the broker takes",
        ),
    ] = None
    publish_rate: Annotated[
        int | None,
        Key(
            optional(whole_number(1, 2**40)),
            "messages a second of one user, over all its connections; `null`: no limit",
        ),
    ] = None
    publish_bytes: Annotated[
        int | None,
        Key(
            optional(whole_number(1, 2**40)),
            "bytes a second of one user, frames and headers included; `null`: no limit",
        ),
    ] = None
    burst_seconds: Annotated[float, Key(duration(0.01, 3600), "how much of either rate may come at once", "burst")] = (
        1.0
    )
    patience_seconds: Annotated[
        float | None,
        Key(
            optional(_WAIT),
            "longest time a user above its rate is only slowed down, then 406 or 320; `null`: without end",
            "patience",
        ),
    ] = 60.0
    idle_timeout_seconds: Annotated[
        float | None,
        Key(
            optional(duration(0.1, 604_800)),
            "longest time without any frame but heartbeats, then 320; `null`: without end",
            "idle_timeout",
        ),
    ] = None
    regex_budget: Annotated[
        int,
        Key(
            whole_number(1000, 1_000_000_000),
            "what regular expressions of rules files, and those of each client, may cost in one decision, in units of "
            "PCRE2's match limit; 1000000 is about 10 ms",
        ),
    ] = DEFAULT_BUDGET
    frame_max: Annotated[
        int,
        Key(whole_number(4096, 2**31 - 1), "largest frame offered to producers, in bytes; the broker may say less"),
    ] = 131_072
    handshake_timeout_seconds: Annotated[
        float,
        Key(
            _WAIT, "longest time from a TCP connection to Connection.OpenOk, the broker's part too", "handshake_timeout"
        ),
    ] = 10.0


@dataclass(frozen=True, slots=True)
class LogSection:
    """What is logged and how."""

    level: Annotated[
        str,
        Key(choice("debug", "info", "warning", "error"), "least severity: `debug`, `info`, `warning`, `error`"),
    ] = "info"
    format: Annotated[str, Key(choice("text", "json"), "`text` (key=value) or `json` (one object a line)")] = "text"


@dataclass(frozen=True, slots=True)
class ShutdownSection:
    """How the sidecar ends."""

    deadline_seconds: Annotated[
        float, Key(duration(0, 86400), "after SIGTERM, longest wait for unsettled publishes", "deadline")
    ] = 25.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration.

    `file` is the configuration, `folder` its directory: `rules`, `password_file`, `declared.snapshot` and files of TLS
    are relative to it. `places` has the dotted path of each key that was written.
    """

    listen: tuple[ListenSection, ...] = field(default_factory=lambda: (ListenSection(),))
    upstream: UpstreamSection = field(default_factory=UpstreamSection)
    rules: Annotated[
        tuple[str, ...], Key(TEXTS, "rules files: a name or pattern such as `rules/*.yaml`, or a list of them")
    ] = ()
    workers: Annotated[
        int, Key(whole_number(1, 64), "processes that share the addresses of `listen`; more than one needs Linux")
    ] = 1
    inventory: InventorySection = field(default_factory=InventorySection)
    declared: DeclaredSection = field(default_factory=DeclaredSection)
    audit: AuditSection = field(default_factory=AuditSection)
    admin: AdminSection = field(default_factory=AdminSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    log: LogSection = field(default_factory=LogSection)
    shutdown: ShutdownSection = field(default_factory=ShutdownSection)
    folder: Path = field(default=Path())
    file: Path = field(default=Path())
    places: Places = field(default_factory=dict, repr=False, compare=False)

    def place(self, key: str) -> Place:
        """Where a key was written; a default has no line."""
        return self.places.get(key) or Place("configuration", 0)

    def fault(self, key: str, message: str) -> ConfigError:
        """Give an error at a key, for what only turns out when its value is used."""
        place = self.place(key)
        return ConfigError(place.source, place.line, key, message, place.column)


def load_settings(
    path: Path, environ: Environment[str, str], secrets_required: bool = True
) -> tuple[Settings, list[ConfigWarning]]:
    """Read the configuration file and the environment over it.

    Args:
        path: the file.
        environ: the environment; variables that begin with ``OXPROXY_`` override keys.
        secrets_required: whether a password that is kept elsewhere, and the files of TLS, must be there; False makes
            their absence a warning, and that of the folder for the audit log (of which serve makes an error later), for
            checks on a machine that must not know them.

    Returns:
        The settings, and what the operator should know about them.

    Raises:
        ConfigErrors: every fault that was found.
    """
    faults = Faults()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigErrors([ConfigError(str(path), 0, "", f"can't be read: {error.strerror or error}")]) from error
    settings = parse_settings(data, path, environ, faults, secrets_required)
    return settings, faults.warnings


class ChangedSettings(NamedTuple):
    """What a configuration file says by now that a running sidecar does not follow.

    Args:
        keys: that have other values.
        errors: why it can't be used as it is now.
    """

    keys: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def changed_since(settings: Settings, environ: Environment[str, str]) -> ChangedSettings:
    """Read the configuration file again and compare."""
    if settings.file.exists() and not settings.file.is_file():  # standard input and pipes can't be read again
        return ChangedSettings()
    try:
        now, _ = load_settings(settings.file, environ)
    except ConfigErrors as errors:
        return ChangedSettings(errors=tuple(map(str, errors.errors)))
    return ChangedSettings(tuple(differences(settings, now)))


def parse_settings(
    data: bytes, path: Path, environ: Environment[str, str], faults: Faults, secrets_required: bool = True
) -> Settings:
    """Read settings from a file's content; see `load_settings`."""
    root = read_document(data, str(path), faults)
    if root is None:
        faults.check()
        root = Mapping(Place(str(path), 1), [])
    places: dict[str, Place] = {}
    settings = read_section(Settings, Fields(override(root, environ, faults), "", faults), places)
    passwords = SecretReader(path.parent, environ, places, faults, secrets_required)
    upstream = settings.upstream
    loopback = all(each.loopback for each in upstream.addresses)
    upstream = replace(upstream, control=passwords.control(upstream.control, loopback))
    declared = replace(settings.declared, secrets=passwords.secrets(settings.declared.secrets))
    if not declared.secrets and not loopback:
        faults.warn(places.get("declared") or places["upstream.address"], "declared.secrets", _NO_SECRETS)
    audit = settings.audit
    if audit.hash:
        audit = replace(audit, hash_key=passwords.hash_key(audit.hash_key_env, audit.hash_key_file))
    settings = replace(settings, upstream=upstream, declared=declared, audit=audit)
    settings = replace(settings, folder=path.parent, file=path, places=places)
    _check_addresses(settings, faults)
    tls = TlsChecks(path.parent, places, faults, secrets_required)
    for index, listener in enumerate(settings.listen):
        tls.listener(listener.tls, f"listen[{index}].tls")
    tls.upstream(settings.upstream.tls, "upstream.tls", settings.upstream.addresses)
    directory = settings.audit.directory
    if directory is not None and not secrets_required and not (path.parent / directory).parent.is_dir():
        message = f"{path.parent / directory}: there is no folder {(path.parent / directory).parent} to make it in"
        faults.warn(settings.place("audit.directory"), "audit.directory", message)
    faults.check()
    return settings


def _check_addresses(settings: Settings, faults: Faults) -> None:
    """Report addresses that can't be listened on together, and a broker that is this sidecar itself."""
    listening = [(f"listen[{index}].address", each.address) for index, each in enumerate(settings.listen)]
    if settings.admin.address is not None:
        listening.append(("admin.address", settings.admin.address))
    for index, (key, address) in enumerate(listening):
        other = next((each for each in listening[:index] if listen_conflict(each[1], address)), None)
        if other is not None:
            if key not in settings.places:  # a default: the line to look at is the other's
                (key, address), other = other, (key, address)
            message = f"{address} can't be listened on together with {other[0]} {other[1]}"
            faults.error(settings.place(key), key, message)
        if not address.port:
            message = "port 0 is any free port, another one at each start; the log says which"
            faults.warn(settings.place(key), key, message)
    here = [(address.host, address.port) for _, address in listening]
    for address in settings.upstream.addresses:
        if is_own_address(address.host, address.port, here):
            message = f"{address} is an address that this sidecar listens on itself"
            faults.error(settings.place("upstream.address"), "upstream.address", message)


def rules_files(settings: Settings) -> list[Path]:
    """Find the files that the configuration names, in the order in which they are read.

    Raises:
        ConfigErrors: a name or pattern that leads to no file.
    """
    found: set[Path] = set()
    errors = []
    for pattern in settings.rules:
        paths = _matching(settings.folder, pattern)
        if not paths:
            what = "pattern matches no file" if _is_pattern(pattern) else "file does not exist"
            errors.append(ConfigError(str(settings.folder / pattern), 0, "rules", f"this {what}"))
        found.update(paths)
    if errors:
        raise ConfigErrors(errors)
    return sorted(found)


def _is_pattern(pattern: str) -> bool:
    return glob.has_magic(pattern)


def _matching(folder: Path, pattern: str) -> list[Path]:
    # As a shell does: a pattern leaves out names that begin with a dot, such as editors' backups.
    names = glob.glob(pattern, root_dir=folder, recursive=True) if _is_pattern(pattern) else [pattern]
    return [folder / name for name in names if (folder / name).is_file()]
