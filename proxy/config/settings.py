"""How the sidecar itself is to run: the configuration file, the environment over it, the defaults under both.

Every key that is accepted has an effect; unknown keys are errors. It reads no rules file and opens no socket.
docs/configuration.md lists every key; a test compares the two.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping as Environment
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from proxy.config.declaration import Key, differences, read_section
from proxy.config.environment import override
from proxy.config.passwords import ControlSection, Passwords, SecretSource
from proxy.config.tls import ListenTls, TlsChecks, UpstreamTls
from proxy.errors import ConfigError, ConfigErrors
from proxy.routing.bindings.patterns import DEFAULT_BUDGET
from proxy.yamlfile.document import read_document
from proxy.yamlfile.faults import ConfigWarning, Faults, Place
from proxy.yamlfile.fields import Fields
from proxy.yamlfile.kinds import (
    ADDRESSES,
    FLAG,
    HTTP_URL,
    LISTEN_ADDRESS,
    NETWORKS,
    TEXT,
    TEXTS,
    HostPort,
    collide,
    duration,
    leads_back,
    optional,
    whole,
    word,
    words,
)
from proxy.yamlfile.nodes import Mapping

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
        Key(word("report", "remove"), "bindings that others made on a carrier, past the rules: `report` or `remove`"),
    ] = "report"


@dataclass(frozen=True, slots=True)
class DeclaredSection:
    """What clients declare over AMQP."""

    delivery: Annotated[
        str,
        Key(
            word("carrier", "queue"),
            "how messages of exchanges leave that clients declare without `x-delivery`: `carrier` or `queue`",
        ),
    ] = "carrier"
    unbind: Annotated[
        str,
        Key(
            word("strict", "broker"),
            "unbinding with arguments that no binding has: an error (`strict`) or nothing (`broker`)",
        ),
    ] = "strict"
    client_routes: Annotated[
        str,
        Key(
            word("own", "any"),
            "what routes of clients' bindings and messages reach: queues the client could bind (`own`) or `any`",
        ),
    ] = "own"
    regexes: Annotated[
        int, Key(whole(0, 1_000_000), "most regular expressions in the bindings of one user in one virtual host")
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
        str, Key(word("all", "ruled"), "`all` publishes, or only those to exchanges that are evaluated here: `ruled`")
    ] = "all"
    mode: Annotated[
        str,
        Key(
            word("best_effort", "backpressure", "strict"),
            "when disk or writer can't keep up: `best_effort` drops and counts lines, `backpressure` lets producers "
            "wait, `strict` confirms a publish only when its line is on disk",
        ),
    ] = "best_effort"
    instance: Annotated[
        str | None, Key(optional(TEXT), "name of this sidecar in records and file names; `null`: the host's name")
    ] = None
    buffer_mib: Annotated[int, Key(whole(1, 4096), "MiB of lines that may wait for the disk")] = 32
    segment_mib: Annotated[int, Key(whole(1, 128), "most MiB of text in one segment")] = 128
    segment_seconds: Annotated[float, Key(duration(1, 86400), "longest time a segment is open", "segment")] = 300.0
    keep_days: Annotated[
        int | None, Key(optional(whole(1, 100_000)), "days that segments are kept; `null`: age does not matter")
    ] = None
    keep_mib: Annotated[
        int | None,
        Key(optional(whole(1, 2**40)), "MiB of segments that are kept, oldest go first; `null`: size does not matter"),
    ] = None
    headers: Annotated[tuple[str, ...], Key(TEXTS, "headers whose values may stand in records")] = ()
    hash: Annotated[
        tuple[str, ...],
        Key(words("message_id", "user", "rk"), "fields written as keyed hashes: `message_id`, `user`, `rk`"),
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
        int, Key(whole(0, 1_000_000), "bindings with a series of their own; the rest counts as `other`")
    ] = 500


@dataclass(frozen=True, slots=True)
class LimitsSection:
    """What producers may ask for."""

    connections: Annotated[int, Key(whole(1, 1_000_000), "producer connections at one time")] = 10_000
    connections_per_peer: Annotated[
        int | None, Key(optional(whole(1, 1_000_000)), "of these, from one address; `null`: no limit of its own")
    ] = None
    channels: Annotated[
        int | None,
        Key(optional(whole(1, 65535)), "most channels of a connection; `null`: as many as the broker gives"),
    ] = None
    message_size: Annotated[
        int | None,
        Key(optional(whole(1, 2**40)), "largest body of a message, in bytes; `null`: as large as the broker takes"),
    ] = None
    publish_rate: Annotated[
        int | None,
        Key(optional(whole(1, 2**40)), "messages a second of one user, over all its connections; `null`: no limit"),
    ] = None
    publish_bytes: Annotated[
        int | None,
        Key(optional(whole(1, 2**40)), "bytes a second of one user, frames and headers included; `null`: no limit"),
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
            whole(1000, 1_000_000_000),
            "what regular expressions of rules files, and those of each client, may cost in one decision, in units of "
            "PCRE2's match limit; 1000000 is about 10 ms",
        ),
    ] = DEFAULT_BUDGET
    frame_max: Annotated[
        int,
        Key(whole(4096, 2**31 - 1), "largest frame offered to producers, in bytes; the broker may say less"),
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
        Key(word("debug", "info", "warning", "error"), "least severity: `debug`, `info`, `warning`, `error`"),
    ] = "info"
    format: Annotated[str, Key(word("text", "json"), "`text` (key=value) or `json` (one object a line)")] = "text"


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
        int, Key(whole(1, 64), "processes that share the addresses of `listen`; more than one needs Linux")
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


class Changed(NamedTuple):
    """What a configuration file says by now that a running sidecar does not follow.

    Args:
        keys: that have other values.
        errors: why it can't be used as it is now.
    """

    keys: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def changed_since(settings: Settings, environ: Environment[str, str]) -> Changed:
    """Read the configuration file again and compare."""
    if settings.file.exists() and not settings.file.is_file():  # standard input and pipes can't be read again
        return Changed()
    try:
        now, _ = load_settings(settings.file, environ)
    except ConfigErrors as errors:
        return Changed(errors=tuple(map(str, errors.errors)))
    return Changed(tuple(differences(settings, now)))


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
    passwords = Passwords(path.parent, environ, places, faults, secrets_required)
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
        other = next((each for each in listening[:index] if collide(each[1], address)), None)
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
        if leads_back(address.host, address.port, here):
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
