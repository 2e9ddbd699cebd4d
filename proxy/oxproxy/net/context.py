"""Data shared by all sessions: upstream connections, virtual hosts, counters, limits and the audit log."""

from __future__ import annotations

from dataclasses import dataclass, field

from oxproxy.audit.writer import AuditWriter
from oxproxy.net.remote.pool import RemotePool
from oxproxy.net.throttle import RegexPacing
from oxproxy.net.upstream import Upstream, UpstreamPool
from oxproxy.net.vhosts import Vhosts
from oxproxy.relay.connection_state import RelayLimits
from oxproxy.relay.counters import Counters
from oxproxy.relay.rate_limits import RateLimits, UserRateLimits


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Deadlines and limits of one session.

    Args:
        handshake_seconds: maximum time from accepting the connection to Connection.OpenOk.
        close_seconds: maximum time from a Connection.Close to the closing of the socket.
        bind_seconds: how long a publish or a declare waits for the control plane.
        frame_max: frame_max offered to producers, in bytes.
        channels: maximum number of channels per connection.
        idle_seconds: time after which a connection is considered idle if only heartbeats are received; 0: no timeout.
    """

    handshake_seconds: float = 10.0
    close_seconds: float = 5.0
    bind_seconds: float = 5.0
    frame_max: int = 131072
    channels: int = 65535
    idle_seconds: float = 0.0
    relay: RelayLimits = field(default_factory=RelayLimits)


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Data shared by all sessions.

    Args:
        version: our version, sent to both sides.
        audit: the audit log, for which confirms or producers may have to wait; None if it is disabled.
        allowances: rate limits of users.
        reuse: upstream connections kept for reuse, if enabled.
    """

    upstream: Upstream
    vhosts: Vhosts
    counters: Counters
    limits: SessionLimits
    version: str
    remotes: RemotePool
    audit: AuditWriter | None = None
    allowances: UserRateLimits = field(default_factory=lambda: UserRateLimits(RateLimits()))
    reuse: UpstreamPool | None = None
    pacing: RegexPacing = field(default_factory=RegexPacing)
