"""The configuration: every key with its default and what it does, one model per section, and `Settings` for all of it.

Every key has an effect and unknown keys are errors. docs/reference/configuration.md lists every key; a test compares
the two.
"""

from __future__ import annotations

from collections.abc import Mapping as Environment
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, SecretStr

from proxy.errors import ConfigError
from proxy.routing.bindings.patterns import DEFAULT_BUDGET
from proxy.yamlfile.document import Place
from proxy.yamlfile.hosts import HostPort
from proxy.yamlfile.models import (
    LISTED,
    NO_KEY,
    ONE_OR_MORE,
    Address,
    Duration,
    FileModel,
    HttpUrl,
    ListenAddress,
    Network,
    Password,
    Text,
    Texts,
    Whole,
)

Wait: TypeAlias = Annotated[float, Duration(0.01, 3600)]
Places: TypeAlias = Environment[str, Place]
_HERE = HostPort("127.0.0.1", 5673)
_BROKER = HostPort("127.0.0.1", 5672)
_ADMIN = HostPort("127.0.0.1", 15693)
_GUEST = SecretStr("guest")


class ListenTls(FileModel):
    """TLS for producers."""

    certificate: Text | None = Field(
        default=None, description="file of our certificate and those that lead to its authority (PEM); required"
    )
    key: Text | None = Field(default=None, description="file of its private key (PEM, without a passphrase); required")
    client_ca: Text | None = Field(
        default=None, description="file of authorities: producers need a certificate of one of them"
    )
    client_verify: Literal["required", "optional"] = Field(
        default="required",
        description="with `client_ca`: whether a producer without a certificate is refused (`required`) or not "
        "(`optional`)",
    )


class UpstreamTls(FileModel):
    """TLS to the broker, and to its management API where that is https."""

    ca: Text | None = Field(default=None, description="file of the authorities to trust (PEM); `null`: the system's")
    verify: bool = Field(default=True, description="whether chain and name of the broker's certificate are checked")
    server_name: Text | None = Field(
        default=None, description="name that the certificate must have; `null`: the host of the address"
    )
    certificate: Text | None = Field(
        default=None, description="file of our certificate (PEM), for a broker that asks for one"
    )
    key: Text | None = Field(default=None, description="file of its private key (PEM, without a passphrase)")


class ControlSection(FileModel):
    """The user that declares carriers and reads the inventory; `password` holds the one to use."""

    username: Text = Field(default="guest", description="name of the control user")
    password: Password = Field(
        default=_GUEST, description="its password; here it is a warning unless every broker address is loopback"
    )
    password_env: Text | None = Field(
        default=None, description="name of an environment variable that holds the password"
    )
    password_file: Text | None = Field(
        default=None, description="file that holds the password; one line break at its end is left out"
    )


class SecretSource(FileModel):
    """Where one secret is: in a file or in a variable; `value` holds its 32 bytes."""

    file: Text | None = Field(
        default=None, description="file with a secret of 32 random bytes: as they are, in hexadecimal or base64"
    )
    env: Text | None = Field(
        default=None, description="name of an environment variable with a secret in hexadecimal or base64"
    )
    value: Annotated[bytes, Field(alias="\0value", repr=False), NO_KEY] = b""


class ListenSection(FileModel):
    """One address where producers connect."""

    address: ListenAddress = Field(default=_HERE, description="`host:port` where producers connect")
    tls: ListenTls | None = None


class UpstreamSection(FileModel):
    """The broker."""

    addresses: Annotated[tuple[Address, ...], Field(min_length=1), ONE_OR_MORE] = Field(
        default=(_BROKER,),
        alias="address",
        description="`host:port` of the broker, or a list, tried in turn at each connect",
    )
    connect_timeout_seconds: Wait = Field(
        default=5.0, alias="connect_timeout", description="longest wait for a TCP connection to one address"
    )
    reuse_seconds: Annotated[float, Duration(1, 3600)] | None = Field(
        default=None,
        alias="reuse",
        description="how long an upstream connection is kept for another producer of the same login after its own has "
        "closed; `null`: not kept",
    )
    tls: UpstreamTls | None = None
    control: ControlSection = Field(default_factory=ControlSection)
    management: HttpUrl | None = Field(
        default=None, description="address of the management API, which lists queues and exchanges"
    )


class InventorySection(FileModel):
    """What exists on the broker."""

    refresh_seconds: Annotated[float, Duration(0.1, 3600)] = Field(
        default=5.0, alias="refresh", description="how often the management API is read"
    )
    foreign_bindings: Literal["report", "remove"] = Field(
        default="report", description="bindings of others on a carrier, which bypass the rules: `report` or `remove`"
    )


class DeclaredSection(FileModel):
    """What clients declare over AMQP."""

    delivery: Literal["carrier", "queue"] = Field(
        default="carrier",
        description="how messages of exchanges leave that clients declare without `x-delivery`: `carrier` or `queue`",
    )
    unbind: Literal["strict", "broker"] = Field(
        default="strict",
        description="unbinding with arguments that no binding has: an error (`strict`) or nothing (`broker`)",
    )
    client_routes: Literal["own", "any"] = Field(
        default="own",
        description="what routes of clients' bindings and messages reach: queues the client could bind (`own`) "
        "or `any`",
    )
    regexes: Annotated[int, Whole(0, 1_000_000)] = Field(
        default=100, description="most regular expressions in the bindings of one user in one virtual host"
    )
    announce: bool = Field(
        default=False,
        description="whether sidecars tell each other of changes at once, over a fanout exchange on the broker",
    )
    snapshot: Text | None = Field(
        default=None, description="file that keeps what the broker can't; each sidecar needs one of its own"
    )
    secrets: Annotated[tuple[SecretSource, ...], Field(min_length=1), LISTED] = ()


class AdminSection(FileModel):
    """The port for operators."""

    address: ListenAddress | None = Field(
        default=_ADMIN, description="where `/metrics`, `/livez`, `/readyz` are served; `null`: not"
    )
    allow: Annotated[tuple[Network, ...], ONE_OR_MORE] = Field(
        default=(),
        description="addresses or networks (CIDR), in addition to loopback, that may read `/status`, reload, explain, "
        "shadow",
    )
    hosts: Texts = Field(
        default=(),
        description="names under which these endpoints may be requested, in addition to `localhost`, addresses and the "
        "host's name",
    )


class AuditSection(FileModel):
    """The audit log; see docs/reference/audit.md for what each mode promises.

    `hash_key` holds the key of the hashes.
    """

    directory: Text | None = Field(
        default=None, description="directory of the audit log, created if its parent exists; `null`: no audit log"
    )
    scope: Literal["all", "ruled"] = Field(
        default="all", description="`all` publishes, or only those to exchanges that are evaluated here: `ruled`"
    )
    mode: Literal["best_effort", "backpressure", "strict"] = Field(
        default="best_effort",
        description="when disk or writer can't keep up: `best_effort` drops and counts lines, `backpressure` makes "
        "producers wait, `strict` confirms a publish only when its line is on disk",
    )
    instance: Text | None = Field(
        default=None, description="name of this sidecar in records and file names; `null`: the host's name"
    )
    buffer_mib: Annotated[int, Whole(1, 4096)] = Field(
        default=32, description="MiB of lines that may wait for the disk"
    )
    segment_mib: Annotated[int, Whole(1, 128)] = Field(default=128, description="most MiB of text in one segment")
    segment_seconds: Annotated[float, Duration(1, 86400)] = Field(
        default=300.0, alias="segment", description="longest time that a segment stays open"
    )
    keep_days: Annotated[int, Whole(1, 100_000)] | None = Field(
        default=None, description="retention of segments in days; `null`: no limit"
    )
    keep_mib: Annotated[int, Whole(1, 2**40)] | None = Field(
        default=None, description="MiB of segments that are kept, oldest go first; `null`: size does not matter"
    )
    headers: Texts = Field(default=(), description="headers whose values may appear in records")
    hash: Annotated[tuple[Literal["message_id", "user", "rk"], ...], ONE_OR_MORE] = Field(
        default=(), description="fields written as keyed hashes: `message_id`, `user`, `rk`"
    )
    hash_key_env: Text | None = Field(
        default=None, description="name of an environment variable that holds the key of the hashes"
    )
    hash_key_file: Text | None = Field(default=None, description="file that holds the key of the hashes")
    hash_key: Annotated[bytes, Field(alias="\0hash_key", repr=False), NO_KEY] = b""


class MetricsSection(FileModel):
    """What is counted."""

    bindings: Annotated[int, Whole(0, 1_000_000)] = Field(
        default=500, description="bindings with a series of their own; the rest counts as `other`"
    )


class LimitsSection(FileModel):
    """What producers may ask for."""

    connections: Annotated[int, Whole(1, 1_000_000)] = Field(
        default=10_000, description="producer connections at one time"
    )
    connections_per_peer: Annotated[int, Whole(1, 1_000_000)] | None = Field(
        default=None, description="of these, from one address; `null`: no limit of its own"
    )
    channels: Annotated[int, Whole(1, 65535)] | None = Field(
        default=None, description="most channels of a connection; `null`: as many as the broker gives"
    )
    message_size: Annotated[int, Whole(1, 2**40)] | None = Field(
        default=None, description="largest body of a message, in bytes; `null`: as large as the broker takes"
    )
    publish_rate: Annotated[int, Whole(1, 2**40)] | None = Field(
        default=None, description="messages a second of one user, over all its connections; `null`: no limit"
    )
    publish_bytes: Annotated[int, Whole(1, 2**40)] | None = Field(
        default=None, description="bytes a second of one user, frames and headers included; `null`: no limit"
    )
    burst_seconds: Annotated[float, Duration(0.01, 3600)] = Field(
        default=1.0, alias="burst", description="how much of either rate may come at once"
    )
    patience_seconds: Wait | None = Field(
        default=60.0,
        alias="patience",
        description="longest time a user above its rate is only slowed down, then 406 or 320; `null`: no limit",
    )
    idle_timeout_seconds: Annotated[float, Duration(0.1, 604_800)] | None = Field(
        default=None,
        alias="idle_timeout",
        description="longest time without any frame but heartbeats, then 320; `null`: no limit",
    )
    regex_budget: Annotated[int, Whole(1000, 1_000_000_000)] = Field(
        default=DEFAULT_BUDGET,
        description="what regular expressions of rules files, and those of each client, may cost in one decision, in "
        "units of PCRE2's match limit; 1000000 is about 10 ms",
    )
    frame_max: Annotated[int, Whole(4096, 2**31 - 1)] = Field(
        default=131_072, description="largest frame offered to producers, in bytes; the broker may say less"
    )
    handshake_timeout_seconds: Wait = Field(
        default=10.0,
        alias="handshake_timeout",
        description="longest time from a TCP connection to Connection.OpenOk, the broker's part too",
    )


class LogSection(FileModel):
    """What is logged and how."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severity: `debug`, `info`, `warning`, `error`"
    )
    format: Literal["text", "json"] = Field(
        default="text", description="`text` (key=value) or `json` (one object a line)"
    )


class ShutdownSection(FileModel):
    """How the sidecar ends."""

    deadline_seconds: Annotated[float, Duration(0, 86400)] = Field(
        default=25.0, alias="deadline", description="after SIGTERM, longest wait for unsettled publishes"
    )


class Settings(FileModel):
    """The whole configuration.

    `file` is the configuration, `folder` its directory: `rules`, `password_file`, `declared.snapshot` and files of TLS
    are relative to it. `places` has the dotted path of each key that was written.
    """

    listen: Annotated[tuple[ListenSection, ...], Field(min_length=1), LISTED] = Field(
        default_factory=lambda: (ListenSection(),)
    )
    upstream: UpstreamSection = Field(default_factory=UpstreamSection)
    rules: Texts = Field(
        default=(), description="rules files: a name or pattern such as `rules/*.yaml`, or a list of them"
    )
    workers: Annotated[int, Whole(1, 64)] = Field(
        default=1,
        description="independent sidecars that share the addresses of `listen`; worker i, from 0, has the port of "
        "`admin.address` + i. More than one needs Linux",
    )
    inventory: InventorySection = Field(default_factory=InventorySection)
    declared: DeclaredSection = Field(default_factory=DeclaredSection)
    audit: AuditSection = Field(default_factory=AuditSection)
    admin: AdminSection = Field(default_factory=AdminSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    log: LogSection = Field(default_factory=LogSection)
    shutdown: ShutdownSection = Field(default_factory=ShutdownSection)
    folder: Annotated[Path, Field(alias="\0folder"), NO_KEY] = Path()
    file: Annotated[Path, Field(alias="\0file"), NO_KEY] = Path()
    places: Annotated[Places, Field(alias="\0places", repr=False), NO_KEY] = Field(default_factory=dict)

    @property
    def admin_addresses(self) -> tuple[HostPort, ...]:
        """Where the admin pages of all workers are, in the order of their numbers: worker i has port + i."""
        address = self.admin.address
        if address is None:
            return ()
        return tuple(HostPort(address.host, address.port + number) for number in range(self.workers))

    def place(self, *keys: str) -> Place:
        """Where the first of some keys that was written is; a default has no line."""
        return next((self.places[key] for key in keys if key in self.places), Place("configuration", 0))

    def fault(self, key: str, message: str) -> ConfigError:
        """Return an error at a key, for what only turns out when its value is used."""
        place = self.place(key)
        return ConfigError(place.source, place.line, key, message, place.column)
