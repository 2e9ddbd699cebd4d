"""What all sessions share: the way to RabbitMQ, virtual hosts, counters, limits, the audit log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from proxy.net.remote.pool import RemotePool
from proxy.net.throttle import RegexPacing
from proxy.net.upstream import Upstream, UpstreamPool
from proxy.net.vhosts import Vhosts
from proxy.relay.connection_audit import AuditCommits
from proxy.relay.connection_state import RelayLimits
from proxy.relay.counters import Counters
from proxy.relay.rate_limits import RateLimits, UserRateLimits


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Deadlines and limits of one session.

    Args:
        handshake_seconds: from the first byte to Connection.OpenOk.
        close_seconds: from a Connection.Close to the end of the socket.
        bind_seconds: a publish or a declare waits this long for the control plane.
        frame_max: largest frame offered to producers, in bytes.
        channels: most channels of one connection.
        idle_seconds: longest time without a frame but heartbeats; 0: without end.
        relay: limits of the relay.
    """

    handshake_seconds: float = 10.0
    close_seconds: float = 5.0
    bind_seconds: float = 5.0
    frame_max: int = 131072
    channels: int = 65535
    idle_seconds: float = 0.0
    relay: RelayLimits = field(default_factory=RelayLimits)


class AuditGate(AuditCommits, Protocol):
    """The audit log as sessions see it: what has to wait for it."""

    @property
    def strict(self) -> bool:
        """Whether no confirm may be relayed before its line is on disk."""

    #: whether producers have to wait
    full: bool


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What all sessions share.

    Args:
        version: our version, told to both sides.
        audit: the audit log, where confirms have to wait for it or producers for its disk.
        remotes: links to other brokers.
        allowances: what each user may publish.
        reuse: upstream connections that wait for another producer, where they do.
    """

    upstream: Upstream
    vhosts: Vhosts
    counters: Counters
    limits: SessionLimits
    version: str
    audit: AuditGate | None = None
    remotes: RemotePool | None = None
    allowances: UserRateLimits = field(default_factory=lambda: UserRateLimits(RateLimits()))
    reuse: UpstreamPool | None = None
    pacing: RegexPacing = field(default_factory=RegexPacing)
