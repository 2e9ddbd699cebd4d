"""Credentials, deadlines and limits of the control plane. `app` fills them in from the configuration."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path

from proxy.relay.tokens import Secrets


@dataclass(frozen=True, slots=True)
class DeclaredSettings:
    """What holds for what clients declare.

    Args:
        own_routes: whether routes of clients' bindings reach only queues that the client could have bound itself;
            then the control user gives them no tokens.
        local_time: time zone of ``dtl`` operators.
        announce: whether sidecars tell each other of changes, over a fanout exchange on the broker.
        snapshot: file that keeps what the broker does not, None for none.
        secrets: sign what is stored on the broker.
    """

    own_routes: bool = True
    local_time: tzinfo = UTC
    announce: bool = False
    snapshot: Path | None = None
    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How a connection is made over TLS.

    Args:
        context: gives the context for the connection that is made now.
        server_name: name to expect in the certificate, None for the host's.
        words: says what an error of TLS means.
    """

    context: Callable[[], ssl.SSLContext]
    server_name: str | None = None
    words: Callable[[BaseException], str] = str


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Where the broker is, as whom we declare, and every limit of the control plane.

    Args:
        hosts: (host, port) of the AMQP listeners, tried in turn.
        username: the control user.
        password: its password; never shown.
        tls: TLS to the AMQP listeners, None for plain TCP.
        management: base URL of the management API, None where there is none.
        management_tls: TLS to an ``https`` management API, None for the system's trust.
        connection_name: shown on the broker's management pages.
        refresh_seconds: time between two looks at the broker.
        deadline_seconds: longest wait for one answer, and for a destination to be bound.
        heartbeat_seconds: AMQP heartbeat of the control connections.
        retry_seconds: first pause before a lost connection is tried again; doubles up to `retry_limit_seconds`.
        retry_limit_seconds: longest such pause.
        grace_seconds: how long tokens that new rules don't need stay bound.
        lanes: channels used at a time for bulk declarations. The broker takes one declaration after another
            on a channel and syncs each to disk; 32 channels bind four times as fast as one.
        bind_limit: destinations of one virtual host that producers and regex routes may make us bind.
        remember_limit: destinations that could not be reached on demand, remembered at most.
        retries_per_look: refused or unverified destinations tried again at one look, so that thousands of them
            don't occupy the broker.
        listing_bytes: longest answer of the management API; 10,000 queues are 0.5 MB.
        remove_foreign: whether bindings that others made on a carrier are removed (needs the management API).
        patience_seconds: how long a start waits for a management API that does not answer, before it goes on without
            what clients declared.
        declared: what clients declare.
    """

    hosts: tuple[tuple[str, int], ...]
    username: str
    password: str = field(repr=False)
    tls: TlsSettings | None = None
    management: str | None = None
    management_tls: TlsSettings | None = None
    connection_name: str = "oxproxy control"
    refresh_seconds: float = 5.0
    deadline_seconds: float = 10.0
    heartbeat_seconds: int = 30
    retry_seconds: float = 0.5
    retry_limit_seconds: float = 30.0
    grace_seconds: float = 5.0
    lanes: int = 32
    bind_limit: int = 10_000
    remember_limit: int = 10_000
    retries_per_look: int = 256
    listing_bytes: int = 256 * 1024 * 1024
    remove_foreign: bool = False
    patience_seconds: float = 10.0
    declared: DeclaredSettings = field(default_factory=DeclaredSettings)
