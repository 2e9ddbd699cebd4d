"""Resolves a remote target to host, login, TLS and limits by combining the address with the configured broker.

An address takes precedence over the configured broker but never weakens security: plain TCP is refused if TLS is
configured. Source: the messenger-addressing specification, section 3.2, "Where a translated address leads".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oxproxy.addressing.targets import Remote
from oxproxy.net.tls import ClientTls
from oxproxy.relay.remote_link import Credentials
from oxproxy.yamlfile.hosts import can_be_looked_up

#: Default user name and password of AMQP clients.
_GUEST = b"guest"


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """Limits of one link.

    Args:
        deadline_seconds: how long a message waits for its confirm.
        messages: number of unconfirmed messages at which producers are paused.
        message_bytes: total size of unconfirmed messages at which producers are paused.
    """

    deadline_seconds: float = 10.0
    messages: int = 50_000
    message_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class RemoteBroker:
    """A configured broker.

    Args:
        tls: None for plain TCP.
        user: user name; None if it is given only in addresses.
        vhost: virtual host to log in to; None: the name of the producer's virtual host is used.
    """

    host: str
    port: int
    tls: ClientTls | None = None
    user: bytes | None = None
    password: bytes = field(default=b"", repr=False)
    vhost: str | None = None
    limits: RemoteLimits = RemoteLimits()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Identifies a link. `label` is its name in metrics and logs."""

    label: str
    host: str
    port: int
    tls: ClientTls | None
    credentials: Credentials
    limits: RemoteLimits = field(compare=False)


def endpoint(remote: Remote, brokers: Mapping[bytes, RemoteBroker], vhost: str) -> Endpoint | str:
    """Return the endpoint of a target, or the reason why there is none. The reason contains no credentials.

    Args:
        brokers: the brokers configured for the virtual host.
        vhost: virtual host of the producer.
    """
    if not remote.broker:
        tls = ClientTls() if remote.tls else None
        credentials = Credentials(remote.user or _GUEST, _password(remote, None), vhost.encode())
        host = remote.host.decode("ascii", "replace")
        if not can_be_looked_up(host):
            return "a host whose name is not valid"
        return Endpoint(remote.label, host, remote.port or 5672, tls, credentials, RemoteLimits())
    broker = brokers.get(remote.broker)
    if broker is None:
        return "a broker that is no longer configured"
    if remote.tls is False and broker.tls is not None:
        return "plain TCP to a broker that is configured with TLS"
    tls = broker.tls or ClientTls() if remote.tls else broker.tls
    user = remote.user if remote.user is not None else broker.user or _GUEST
    credentials = Credentials(user, _password(remote, broker), (broker.vhost or vhost).encode())
    return Endpoint(remote.label, broker.host, broker.port, tls, credentials, broker.limits)


def _password(remote: Remote, broker: RemoteBroker | None) -> bytes:
    if remote.password is not None:
        return remote.password
    if remote.user is None and (broker is None or broker.user is None):
        return _GUEST
    return broker.password if broker is not None and remote.user in (None, broker.user) else b""
