"""The keys of the configuration file with their defaults: one dataclass per section, and `Settings` for all of it.

Every key has an effect and unknown keys are errors. docs/configuration.md lists every key; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping as Environment
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

from proxy.config.section_reader import Key
from proxy.errors import ConfigError
from proxy.routing.bindings.patterns import DEFAULT_BUDGET
from proxy.yamlfile.document import Place
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
    optional,
    whole_number,
)


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


_GUEST = Secret("guest")


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


Places: TypeAlias = Environment[str, Place]
_HERE = HostPort("127.0.0.1", 5673)
_BROKER = HostPort("127.0.0.1", 5672)
_ADMIN = HostPort("127.0.0.1", 15693)
_WAIT = duration(0.01, 3600)


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
        int,
        Key(
            whole_number(1, 64),
            "independent sidecars that share the addresses of `listen`; worker i, from 0, has the port of "
            "`admin.address` + i. More than one needs Linux",
        ),
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

    @property
    def admin_addresses(self) -> tuple[HostPort, ...]:
        """Where the admin pages of all workers are, in the order of their numbers: worker i has port + i."""
        address = self.admin.address
        if address is None:
            return ()
        return tuple(HostPort(address.host, address.port + number) for number in range(self.workers))

    def place(self, key: str) -> Place:
        """Where a key was written; a default has no line."""
        return self.places.get(key) or Place("configuration", 0)

    def fault(self, key: str, message: str) -> ConfigError:
        """Give an error at a key, for what only turns out when its value is used."""
        place = self.place(key)
        return ConfigError(place.source, place.line, key, message, place.column)
