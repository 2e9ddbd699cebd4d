"""Checks whether the address table's destinations on other brokers exist.

Only destinations that are the same for every message can be checked. If a broker does not respond, the destinations on
that broker count as unknown, not as missing. The metric ``oxproxy_remote_up`` shows whether a broker is reachable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from oxproxy.addressing.targets import Remote
from oxproxy.broker.connection import ControlConnection, ControlSettings
from oxproxy.broker.reconcile.vhost_loop import VhostTopology
from oxproxy.errors import UpstreamError
from oxproxy.values import Destination

#: First and longest pause in seconds after a failed query of another broker. The pause doubles after each failure.
_PAUSE_SECONDS = (30.0, 600.0)


class RemoteObserver:
    """Checks destinations on other brokers.

    Args:
        settings_of: takes a local virtual host and another broker; returns the connection settings for that broker and
            the virtual host to use there, or None if that broker is not configured.
    """

    def __init__(self, settings_of: Callable[[str, Remote], tuple[ControlSettings, str] | None]) -> None:
        self._settings_of = settings_of
        #: For each local virtual host and other broker that could not be queried: the time of the next retry, and the
        #: pause that follows if the retry fails.
        self._resting: dict[tuple[str, Remote], tuple[float, float]] = {}

    async def observe(self, vhost: VhostTopology) -> None:
        """Check a virtual host's destinations on other brokers, and store the result in the virtual host's state."""
        state = vhost.state
        wanted: dict[Remote, dict[Destination, None]] = {}
        for remote, destination in vhost.reconciler.desired().remote_destinations:
            wanted.setdefault(remote, {})[destination] = None
        missing: dict[tuple[str, Destination], str] = {}
        for remote, destinations in wanted.items():
            lacking = await self._ask(state.name, remote, destinations)
            missing.update({(remote.label, destination): why for destination, why in lacking.items()})
        state.missing_remote = missing
        vhost.reconciler.log_missing()

    async def _ask(self, vhost: str, remote: Remote, destinations: Iterable[Destination]) -> dict[Destination, str]:
        now = asyncio.get_running_loop().time()
        first, longest = _PAUSE_SECONDS
        until, pause_seconds = self._resting.get((vhost, remote), (0.0, first))
        found = self._settings_of(vhost, remote)
        if found is None or now < until:
            return {}
        settings, remote_vhost = found
        connection = ControlConnection(settings, remote_vhost)
        try:
            await connection.connect()
            lacking = await connection.find_missing(destinations)
        except UpstreamError:
            self._resting[vhost, remote] = (now + pause_seconds, min(2 * pause_seconds, longest))
            return {}
        finally:
            await connection.close()
        self._resting.pop((vhost, remote), None)
        return lacking
