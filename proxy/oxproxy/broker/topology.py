"""The control plane's interface for other packages, which covers all managed virtual hosts.

A virtual host is managed if it is named in the rules, if clients have declared exchanges in it, or if a client logs in
to it. `app` creates a `Topology`, awaits `start` and runs `run` as a task. Sessions call `requests_of` for their
virtual host. Rules files are not read here; callers pass the shared states created from them.

Source: architecture, "The broker is the store".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from oxproxy.broker.connection import ControlSettings
from oxproxy.broker.management_api import ManagementApi, VhostDiscovery
from oxproxy.broker.methods import DeclareQueue
from oxproxy.broker.reconcile.relay_requests import RelayRequests
from oxproxy.broker.reconcile.vhost_loop import VhostTopology
from oxproxy.broker.remote_observer import RemoteObserver
from oxproxy.broker.task_supervisor import Supervisor
from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.relay.counters import Counters
from oxproxy.relay.vhost import VhostState
from oxproxy.routing.router import Router
from oxproxy.values import shown

log = structlog.get_logger(__name__)


def status_of(vhost: VhostTopology) -> dict[str, Any]:  # Any: JSON
    """Return the status of one virtual host for operators."""
    reconciler, observer, listings = vhost.reconciler, vhost.reconciler.observer, vhost.reconciler.store.listings
    broker = vhost.health.broker
    return {
        "vhost": vhost.state.name,
        "ready": vhost.health.ready,
        "connected": vhost.connected,
        "broker": None if broker is None else {**broker._asdict(), "supported": broker.is_supported},
        "fault": vhost.health.fault,
        "missing": dict(sorted(vhost.state.missing().items())),
        "foreign": {shown(carrier): list(map(str, bindings)) for carrier, bindings in observer.foreign.items()},
        "conflicts": reconciler.conflicts,
        "failing": reconciler.executor.failing(),
        "inventory_failures": observer.failures,
        "queues": len(reconciler.names.queues),
        "unsigned": {shown(name): texts for name, texts in sorted(listings.unsigned.items())},
        "stale_tokens": {shown(name): count for name, count in sorted(observer.stale.items())},
        "bypasses": observer.warnings.bypasses,
        "unfit_carriers": [str(carrier) for carrier in reconciler.carrier_bindings if not carrier.fits],
        "previous_secret": {shown(name): count for name, count in sorted(listings.previous.items())},
        "declared": {
            shown(name): len(owned.clients)
            for name, owned in sorted(vhost.state.exchanges.items())
            if owned.declared is not None or owned.clients
        },
        "refreshed_at": vhost.health.refreshed_at,
    }


#: Interval between checks of other brokers, as a multiple of the interval between passes.
_PASSES_PER_REMOTE_CHECK = 6


class Topology:
    """Manages the declarations on one broker.

    Args:
        states: the shared state of each virtual host that is named in the rules.
        queues: queues declared by the rules, by virtual host.
    """

    def __init__(
        self,
        settings: ControlSettings,
        states: Mapping[str, VhostState],
        queues: Mapping[str, Sequence[DeclareQueue]],
    ) -> None:
        self._settings = settings
        self.supervisor = Supervisor(settings.retry_seconds, settings.retry_limit_seconds)
        self._management = ManagementApi(settings, settings.management) if settings.management else None
        self._discovery = VhostDiscovery(settings, self._management)
        self._vhosts: dict[str, VhostTopology] = {}
        for name, state in states.items():
            self._follow(state, queues.get(name, ()))
        #: Virtual hosts that are named in the rules. A refusal in any of them prevents the sidecar from starting.
        self._ruled = frozenset(states)
        #: Virtual hosts required for readiness.
        self._awaited = self._ruled
        self._tasks: asyncio.TaskGroup | None = None
        #: Checks destinations on other brokers, if set.
        self.remote_observer: RemoteObserver | None = None
        #: Returns True if a client is logged in to a virtual host.
        self.in_use: Callable[[str], bool] = lambda vhost: False
        #: Called with the name of a virtual host that is no longer managed.
        self.released: Callable[[str], None] = lambda vhost: None

    # -- lifecycle ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Run the first pass of each virtual host. Must be followed by `run`.

        Raises:
            UpstreamError: the first failure. After REFUSED, the operator must correct the credentials or permissions,
                or resolve a conflict. After UNAVAILABLE or TIMEOUT, `run` can be started and will retry.
        """
        for name in sorted(await self._discovery.find() - self._vhosts.keys()):
            self._follow(VhostState(name, Router(())))
        self._awaited = frozenset(self._vhosts)
        names = list(self._vhosts)
        outcomes = await asyncio.gather(*(self._vhosts[name].connect() for name in names), return_exceptions=True)
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, UpstreamError):
                if name in self._ruled or outcome.failure is not UpstreamFailure.REFUSED:
                    raise outcome
                # Startup continues, since the refusal affects only a virtual host without rules.
                log.error("client declarations can't be read", vhost=name, error=str(outcome))
            elif isinstance(outcome, Exception):
                self.supervisor.failed("vhost", outcome, name)  # `run` retries
            elif outcome is not None:
                raise outcome

    async def run(self) -> None:
        """Keep all virtual hosts in sync until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for vhost in self._vhosts.values():
                    self._tasks.create_task(self._run(vhost))
                self._tasks.create_task(self.supervisor.keep("discovery", self._discover_later))
                self._tasks.create_task(self.supervisor.keep("remotes", self._observe_remotes))
                await asyncio.Event().wait()  # virtual hosts may be added until `run` is cancelled
        finally:
            self._tasks = None

    async def close(self) -> None:
        await asyncio.gather(*(vhost.close() for vhost in self._vhosts.values()))
        if self._management is not None:
            await self._management.close()

    async def _run(self, vhost: VhostTopology) -> None:
        """Keep one virtual host in sync until it is deleted, and then release it."""
        name = vhost.state.name
        await self.supervisor.keep("vhost", partial(vhost.run, partial(self._is_gone, vhost)), name)
        del self._vhosts[name]
        self.supervisor.forget(name)
        await vhost.close()
        log.info("virtual host was deleted and is no longer managed", vhost=name)
        self.released(name)

    def _is_gone(self, vhost: VhostTopology) -> bool:
        """Return True if neither rules nor clients need a deleted virtual host."""
        name = vhost.state.name
        return not (name in self._ruled or vhost.has_rules or self.in_use(name))

    async def _observe_remotes(self) -> None:
        """Check other brokers periodically, if there are any."""
        while self.remote_observer is not None:
            for vhost in list(self._vhosts.values()):
                await self.remote_observer.observe(vhost)
            self.supervisor.recovered("remotes")
            await asyncio.sleep(_PASSES_PER_REMOTE_CHECK * self._settings.refresh_seconds)

    async def _discover_later(self) -> None:
        for name in sorted(await self._discovery.find_later()):
            await self.adopt(name)

    def _follow(self, state: VhostState, queues: Sequence[DeclareQueue] = ()) -> VhostTopology:
        vhost = VhostTopology(self._settings, state, queues, self._management, self.supervisor)
        self._vhosts[state.name] = vhost
        return vhost

    # -- virtual hosts that are added later ------------------------------------------------------------------------

    def managed(self, vhost: str) -> VhostTopology:
        """Return the control plane of a virtual host that is managed."""
        return self._vhosts[vhost]

    def requests_of(self, vhost: str) -> RelayRequests | None:
        """Return the interface for sessions in a virtual host; None if the virtual host is not managed."""
        known = self._vhosts.get(vhost)
        return known.requests if known is not None else None

    def follows(self, vhost: str) -> bool:
        """Return True if the first pass of the virtual host has succeeded or failed."""
        known = self._vhosts.get(vhost)
        return known is not None and known.health.attempted.is_set()

    async def adopt(self, vhost: str, state: VhostState | None = None) -> None:
        """Manage another virtual host, and wait until its client declarations have been loaded.

        Returns without client declarations if the first pass fails or does not finish by the deadline.

        Args:
            vhost: name of the virtual host, which may already be managed.
            state: shared state of the virtual host; None to create it.
        """
        known = self._vhosts.get(vhost)
        if known is None:
            known = self._follow(state if state is not None else VhostState(vhost, Router(())))
            if self._tasks is not None:
                self._tasks.create_task(self._run(known))
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                await known.health.attempted.wait()
        except TimeoutError:
            log.warning("first pass of virtual host not finished in time", vhost=vhost)

    # -- state for operators ---------------------------------------------------------------------------------------

    @property
    def waiting(self) -> list[str]:
        """Virtual hosts that prevent readiness, because their first pass has not succeeded yet.

        A virtual host without rules does not prevent readiness if the broker refused the last attempt.
        """
        vhosts = [(name, self._vhosts[name]) for name in sorted(self._awaited & self._vhosts.keys())]
        return [
            name
            for name, vhost in vhosts
            if not vhost.health.ready and (name in self._ruled or not vhost.health.refused)
        ]

    @property
    def ready(self) -> bool:
        return not self.waiting

    @property
    def degraded(self) -> list[str]:
        """Current limitations that do not prevent routing."""
        reasons: list[str] = []
        if self._management is None:
            reasons.append("no management API: client declarations of other sidecars, or before a restart, are unknown")
        elif self._discovery.fault:
            reasons.append(f"virtual hosts with client declarations can't be listed: {self._discovery.fault}")
        for name, vhost in sorted(self._vhosts.items()):
            if vhost.health.fault:
                reasons.append(f"vhost {name}: {vhost.health.fault}")
            elif vhost.reconciler.observer.failures:
                reasons.append(f"vhost {name}: inventory not complete: {vhost.reconciler.observer.failures[0]}")
        return reasons

    def count(self, counters: Counters) -> None:
        """Update the gauges of the control plane."""
        reconcilers = [vhost.reconciler for vhost in self._vhosts.values()]
        observers = [reconciler.observer for reconciler in reconcilers]
        unsigned = [reconciler.store.listings.unsigned for reconciler in reconcilers]
        carriers: Counter[tuple[str, str, str]] = Counter()
        for reconciler in reconcilers:
            for carrier in reconciler.carrier_bindings:
                fits, unfit = (carrier.bindings, 0) if carrier.fits else (0, carrier.bindings)
                carriers[reconciler.state.name, carrier.exchange.carrier_type.value, "yes"] += fits
                # set even if the number is 0, so that an alert can resolve
                carriers[reconciler.state.name, carrier.exchange.carrier_type.value, "no"] += unfit
        counters.carrier_bindings = carriers
        counters.missing_destinations = sum(len(reconciler.state.missing()) for reconciler in reconcilers)
        counters.control_unreachable = self.supervisor.unreachable
        counters.foreign_bindings = sum(len(found) for observer in observers for found in observer.foreign.values())
        counters.unsigned_bindings = sum(len(texts) for exchanges in unsigned for texts in exchanges.values())
        counters.carrier_bypasses = sum(len(observer.warnings.bypasses) for observer in observers)

    def status(self) -> list[dict[str, Any]]:  # Any: JSON
        return [status_of(vhost) for vhost in self._vhosts.values()]
