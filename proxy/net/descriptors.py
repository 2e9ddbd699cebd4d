"""Are there file descriptors for as many producers as may come? Asked once, before the first of them.

A process may raise its own limit as far as the system allows; where that is not enough, fewer producers are let in, so
that the last one too many is closed with a line in the log, and not accepted by a process that can open nothing more:
admin pages, control plane and audit log go on while as many producers are connected as may be.
Source: getrlimit(2), RLIMIT_NOFILE.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

import structlog

_log = structlog.get_logger(__name__)
#: A producer's own socket and the one to the broker.
PER_PRODUCER = 2
#: For everything else: 64 producers that are told why they can't come in (`listener.TOLD_AT_ONCE`), 64 connections to
#: the admin address (`admin.MOST_CONNECTIONS`), and 128 for listeners, control plane, audit log and remote brokers.
RESERVE = 256


@dataclass(frozen=True, slots=True)
class Descriptors:
    """What there is.

    Args:
        limit: descriptors that this process may have open.
        wanted: descriptors that the permitted connections need.
        connections: producers that can be let in.
    """

    limit: int
    wanted: int
    connections: int

    @property
    def enough(self) -> bool:
        """Whether every permitted connection can be let in."""
        return self.limit >= self.wanted


def provide(connections: int, kept: int = 0) -> Descriptors:
    """Raise this process's limit as far as needed and permitted.

    Args:
        connections: producers that may come at a time.
        kept: upstream connections that may wait for another producer.
    """
    reserve = RESERVE + kept
    wanted = PER_PRODUCER * connections + reserve
    soft, hard = (wanted if limit == resource.RLIM_INFINITY else limit for limit in _limits())
    limit = max(soft, min(wanted, hard))
    if limit > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, _limits()[1]))
        except (OSError, ValueError):  # a system that permits less than it says
            limit = soft
    return Descriptors(limit, wanted, max(1, min(connections, (limit - reserve) // PER_PRODUCER)))


def admitted(connections: int, kept: int = 0, asked: bool = True) -> int:
    """Say how many producers can be let in at a time, and log where they are fewer than permitted.

    Args:
        connections: how many are permitted.
        kept: upstream connections that may wait for another producer.
        asked: whether the operator asked for so many; fewer than the default are no reason to warn.
    """
    found = provide(connections, kept)
    if not found.enough:
        log = _log.warning if asked else _log.info
        log(
            "too few file descriptors for limits.connections: fewer producers are let in",
            descriptors=found.limit,
            needed=found.wanted,
            permitted=connections,
            admitted=found.connections,
        )
    return found.connections


def _limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
