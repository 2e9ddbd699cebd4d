"""Defines every key of the configuration, with its default and description, in one model per section.

Every key has an effect, and unknown keys are errors. docs/reference/configuration.md is generated from this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping as Environment
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, SecretStr
from pydantic.json_schema import SkipJsonSchema

from oxproxy.errors import ConfigError
from oxproxy.routing.bindings.patterns import DEFAULT_BUDGET
from oxproxy.yamlfile.document import Place
from oxproxy.yamlfile.hosts import HostPort
from oxproxy.yamlfile.models import (
    LISTED,
    ONE_OR_MORE,
    Address,
    Duration,
    Expected,
    FileModel,
    HostName,
    HttpUrl,
    ListenAddress,
    Network,
    Password,
    Text,
    Texts,
    Whole,
)

TlsVersion: TypeAlias = Literal["TLSv1.2", "TLSv1.3"]
Wait: TypeAlias = Annotated[float, Duration(0.01, 3600)]
Places: TypeAlias = Environment[str, Place]
_HERE = HostPort("127.0.0.1", 5673)
_BROKER = HostPort("127.0.0.1", 5672)
_ADMIN = HostPort("127.0.0.1", 15693)
_GUEST = SecretStr("guest")


class ListenTls(FileModel):
    """TLS settings for connections from producers, and for the admin address."""

    certificate: Text | None = None
    """file with the sidecar's certificate chain (PEM); required with `tls`"""
    key: Text | None = None
    """file with the certificate's private key (PEM, no passphrase); required with `tls`"""
    client_ca: Text | None = None
    """file with CA certificates (PEM) for verifying clients' certificates; `null`: not verified"""
    client_verify: Literal["required", "optional"] = "required"
    """with `client_ca`: whether clients without a certificate are refused (`required`) or accepted (`optional`)"""
    minimum_version: TlsVersion = "TLSv1.2"
    """oldest accepted version of TLS: `TLSv1.2` or `TLSv1.3`"""
    ciphers: Text | None = None
    """cipher suites of TLS 1.2, as an OpenSSL cipher list; `null`: Python's defaults. Those of TLS 1.3 are fixed"""


class UpstreamTls(FileModel):
    """TLS settings for connections to the broker, and to its management API if the API's URL begins with https."""

    ca: Text | None = None
    """file with trusted CA certificates (PEM); `null`: the system's certificates"""
    verify: bool = True
    """whether the chain and host name of the broker's certificate are verified"""
    server_name: Text | None = None
    """host name expected in the broker's certificate; `null`: the host in the address"""
    certificate: Text | None = None
    """file with a client certificate (PEM), for a broker that requests one"""
    key: Text | None = None
    """file with the certificate's private key (PEM, no passphrase)"""
    minimum_version: TlsVersion = "TLSv1.2"
    """oldest accepted version of TLS: `TLSv1.2` or `TLSv1.3`"""
    ciphers: Text | None = None
    """cipher suites of TLS 1.2, as an OpenSSL cipher list; `null`: Python's defaults. Those of TLS 1.3 are fixed"""


class ControlSection(FileModel):
    """The user that declares carriers and reads the inventory."""

    username: Text = "guest"
    """name of the control user"""
    # Loading replaces this with the password from `password_env` or `password_file`, if one of them is set.
    password: Password = _GUEST
    """password of the control user; a warning is logged unless all broker addresses are loopback"""
    password_env: Text | None = None
    """environment variable that contains the password"""
    password_file: Text | None = None
    """file that contains the password; a trailing line break is removed"""


class SecretSource(FileModel):
    """The source of one secret: a file or an environment variable."""

    file: Text | None = None
    """file that contains a secret of 32 random bytes"""
    env: Text | None = None
    """environment variable that contains a secret"""
    #: the 32 bytes of the secret
    value: Annotated[SkipJsonSchema[bytes], Field(alias="\0value", repr=False)] = b""


class ListenSection(FileModel):
    """One address that producers connect to."""

    address: ListenAddress = _HERE
    """`host:port` that producers connect to"""
    reuse_port: bool = False
    """whether other sidecars of the same user may listen on this address too (`SO_REUSEPORT`). On Linux, the kernel
    distributes new connections among them"""
    tls: ListenTls | None = None


class UpstreamSection(FileModel):
    """The broker, and the connections to it."""

    addresses: Annotated[tuple[Address, ...], Field(min_length=1), ONE_OR_MORE] = Field(
        default=(_BROKER,), alias="address"
    )
    """`host:port` of the broker, or a list that is tried in order for each connection"""
    connect_timeout_seconds: Wait = Field(default=5.0, alias="connect_timeout")
    """timeout of a TCP connection attempt to one address"""
    reuse_seconds: Annotated[float, Duration(1, 3600)] | None = Field(default=None, alias="reuse")
    """how long an upstream connection is kept for reuse by the same login after its producer disconnects; `null`: not
    kept"""
    tls: UpstreamTls | None = None
    control: ControlSection = Field(default_factory=ControlSection)
    management: HttpUrl | None = None
    """URL of the management API, which is used to list queues and exchanges"""


class InventorySection(FileModel):
    """Settings for listing the broker's objects."""

    refresh_seconds: Annotated[float, Duration(0.1, 3600)] = Field(default=5.0, alias="refresh")
    """interval between reads of the management API"""
    foreign_bindings: Literal["report", "remove"] = "report"
    """how to handle bindings on a carrier that were not created by a sidecar and bypass the rules: `report` or
    `remove`"""


class DeclaredSection(FileModel):
    """Settings for declarations that clients make over AMQP."""

    unbind: Literal["strict", "broker"] = "strict"
    """result of an unbind that matches no binding: an error (`strict`) or success (`broker`)"""
    client_routes: Literal["own", "any"] = "own"
    """which routes client bindings may have: only those that name a destination which exists and which the client is
    permitted to bind (`own`), or all, with destinations that the control user binds (`any`)"""
    regexes: Annotated[int, Whole(0, 1_000_000)] = 100
    """maximum number of regular expressions in a user's bindings, per virtual host"""
    extensions: bool = False
    """whether clients may declare bindings with the operators `in` and `share` (`x-?hkvin`, `x-?hkv%`, ...), which the
    open-exchange plugin does not have; rules files may always use them"""
    announce: bool = False
    """whether sidecars notify each other of changes immediately, through a fanout exchange on the broker"""
    secrets: Annotated[tuple[SecretSource, ...], Field(min_length=1), LISTED] = ()


class AdminTokenSection(FileModel):
    """One token for the admin address."""

    name: Annotated[str, Expected("the name of the holder")]
    """name of the holder, for the log and the audit log; required"""
    role: Literal["view", "operate"]
    """`view`: status, rules, explanations, recent publishes; `operate`: also reload and shadow rules; required"""
    token_file: Text
    """file that contains the token: 32 to 512 printable ASCII characters; required"""


class AdminSection(FileModel):
    """The admin address, which operators and Prometheus use."""

    address: ListenAddress | None = _ADMIN
    """address of the Admin API, metrics and console; `null`: disabled"""
    allow: Annotated[tuple[Network, ...], ONE_OR_MORE] = ()
    """addresses or networks (CIDR), in addition to loopback, that may use the restricted endpoints, such as `/status`
    and reload"""
    hosts: Annotated[tuple[HostName, ...], ONE_OR_MORE] = ()
    """host names accepted by the restricted endpoints, in addition to `localhost`, IP addresses and the name of this
    host"""
    tls: ListenTls | None = None
    tokens: Annotated[tuple[AdminTokenSection, ...], LISTED] = ()
    metrics_role: Literal["view"] | None = None
    """with `tokens`: `view` if `/metrics` requires a token; `null`: it requires none"""


class AuditSection(FileModel):
    """The audit log. docs/reference/audit.md defines the guarantees of each mode."""

    directory: Text | None = None
    """directory of the audit log, created if its parent exists; `null`: no audit log"""
    scope: Literal["all", "ruled"] = "all"
    """which publishes are recorded: `all`, or only publishes to evaluated exchanges (`ruled`)"""
    mode: Literal["best_effort", "backpressure", "strict"] = "best_effort"
    """if the disk can't keep up, `best_effort` drops and counts records; `backpressure` and `strict` pause producers.
    `strict` confirms a publish only after its record is on disk"""
    instance: Text | None = None
    """name of this sidecar in records and file names; `null`: the host name"""
    buffer_mib: Annotated[int, Whole(1, 4096)] = 32
    """maximum size of buffered records in MiB"""
    segment_mib: Annotated[int, Whole(1, 128)] = 128
    """maximum size of one segment in MiB, before compression"""
    segment_seconds: Annotated[float, Duration(1, 86400)] = Field(default=300.0, alias="segment")
    """maximum time that a segment stays open"""
    keep_days: Annotated[int, Whole(1, 100_000)] | None = None
    """retention of segments in days; `null`: no limit"""
    keep_mib: Annotated[int, Whole(1, 2**40)] | None = None
    """maximum total size of retained segments in MiB; the oldest are deleted first; `null`: no limit"""
    headers: Texts = ()
    """headers whose values may appear in records"""
    facts: Literal[False, True, "all-mentioned"] = False
    """whether records contain what rules test, for `oxproxy backtest`: `true` for properties and for headers that
    `headers` lists, `all-mentioned` for properties and all headers that rules test"""
    hash: Annotated[tuple[Literal["message_id", "user", "rk"], ...], ONE_OR_MORE] = ()
    """fields written as keyed hashes: any of `message_id`, `user`, `rk`"""
    hash_key_env: Text | None = None
    """environment variable that contains the key for the hashes"""
    hash_key_file: Text | None = None
    """file that contains the key for the hashes"""
    hash_key: Annotated[SkipJsonSchema[bytes], Field(alias="\0hash_key", repr=False)] = b""


class MetricsSection(FileModel):
    """Limits on metrics."""

    bindings: Annotated[int, Whole(0, 1_000_000)] = 500
    """maximum number of bindings with their own series; the others are counted as `other`"""


class LimitsSection(FileModel):
    """Limits for producers."""

    connections: Annotated[int, Whole(1, 1_000_000)] = 10_000
    """maximum number of concurrent producer connections"""
    connections_per_peer: Annotated[int, Whole(1, 1_000_000)] | None = None
    """maximum number of producer connections per client address; `null`: no separate limit"""
    channels: Annotated[int, Whole(1, 65535)] | None = None
    """maximum number of channels per connection; `null`: the broker's limit"""
    message_size: Annotated[int, Whole(1, 2**40)] | None = None
    """maximum size of a message body in bytes; `null`: the broker's limit"""
    publish_rate: Annotated[int, Whole(1, 2**40)] | None = None
    """maximum messages per second per user, over all of the user's connections; `null`: no limit"""
    publish_bytes: Annotated[int, Whole(1, 2**40)] | None = None
    """maximum bytes per second per user, including frames and headers; `null`: no limit"""
    burst_seconds: Annotated[float, Duration(0.01, 3600)] = Field(default=1.0, alias="burst")
    """maximum burst, in seconds of traffic at the configured rate"""
    patience_seconds: Wait | None = Field(default=60.0, alias="patience")
    """how long a user may exceed a rate before the channel (406) or connection (320) is closed; `null`: no limit"""
    idle_timeout_seconds: Annotated[float, Duration(0.1, 604_800)] | None = Field(default=None, alias="idle_timeout")
    """how long a connection may carry only heartbeats before it is closed (320); `null`: no limit"""
    regex_budget: Annotated[int, Whole(1000, 1_000_000_000)] = DEFAULT_BUDGET
    """maximum cost of the regular expressions in one decision, separately for rules files, each user's bindings and
    message headers, in units of PCRE2's match limit; 1000000 is about 10 ms. It also limits how many bindings of a user
    are visited and how many names in a message are processed: 50000 each"""
    frame_max: Annotated[int, Whole(4096, 2**31 - 1)] = 131_072
    """maximum frame size in bytes (frame_max) offered to producers, unless the broker's limit is lower"""
    handshake_timeout_seconds: Wait = Field(default=10.0, alias="handshake_timeout")
    """maximum time from the TCP connection to Connection.OpenOk, including the time spent by the broker"""


class LogSection(FileModel):
    """Log settings."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """minimum severity: `debug`, `info`, `warning`, `error`"""
    format: Literal["text", "json"] = "text"
    """`text` (key=value) or `json` (one object per line)"""


class ShutdownSection(FileModel):
    """Shutdown settings."""

    deadline_seconds: Annotated[float, Duration(0, 86400)] = Field(default=25.0, alias="deadline")
    """maximum wait for unconfirmed publishes after SIGTERM"""


class Settings(FileModel):
    """The whole configuration. All file names in it are relative to the directory of the configuration file."""

    listen: Annotated[tuple[ListenSection, ...], Field(min_length=1), LISTED] = Field(
        default_factory=lambda: (ListenSection(),)
    )
    upstream: UpstreamSection = Field(default_factory=UpstreamSection)
    rules: Texts = ()
    """rules files: a file name, a pattern such as `rules/*.yaml`, or a list of these"""
    inventory: InventorySection = Field(default_factory=InventorySection)
    declared: DeclaredSection = Field(default_factory=DeclaredSection)
    audit: AuditSection = Field(default_factory=AuditSection)
    admin: AdminSection = Field(default_factory=AdminSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    log: LogSection = Field(default_factory=LogSection)
    shutdown: ShutdownSection = Field(default_factory=ShutdownSection)
    file: Annotated[SkipJsonSchema[Path], Field(alias="\0file")] = Path()
    #: position of each key in the file, by dotted path
    places: Annotated[SkipJsonSchema[Places], Field(alias="\0places", repr=False)] = Field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def listen_addresses(self) -> list[HostPort]:
        return [section.address for section in self.listen]

    def place(self, *keys: str) -> Place:
        """Return the position of the first given key that is in the file. A default value has no line."""
        return next((self.places[key] for key in keys if key in self.places), Place("configuration", 0))

    def fault(self, key: str, message: str) -> ConfigError:
        """Return an error at the position of a key, for problems that occur only when its value is used."""
        return self.place(key, key.partition("[")[0]).error(key, message)

    def cannot_listen(self, key: str, address: object, error: OSError) -> ConfigError:
        """Return the error for a key with an address on which the sidecar can't listen."""
        # asyncio's error message repeats the address. Errors in name resolution have negative numbers.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        return self.fault(key, f"can't listen on {address}: {why}")
