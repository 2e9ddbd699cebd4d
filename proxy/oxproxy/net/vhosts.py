"""Data that sessions need for each virtual host: plans and control plane.

Virtual hosts that are not named in the rules also have plans, which are created when the first producer logs in.

Source: architecture, "The control plane".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import structlog

from oxproxy.relay.connection_state import NO_INVENTORY, QueueInventory
from oxproxy.relay.counters import Counters
from oxproxy.relay.plan.plan import ClientRules, DecisionCaches, Plans, Sources
from oxproxy.relay.plan.tap import FailureSink, Tap
from oxproxy.relay.records.audit_record import PublishLog
from oxproxy.relay.vhost import OwnedExchange, VhostState
from oxproxy.routing.router import Router
from oxproxy.values import Destination

_log = structlog.get_logger(__name__)
#: Interval between checks for address rules that expose passwords.
_WARN_SECONDS = 1.0


class VhostControl(Protocol):
    """The control plane of one virtual host, as used by sessions and their relays."""

    state: VhostState

    def interested(self, queue: bytes) -> bool:
        """Return True if a rule has the queue as a destination, or depends on queue names."""

    def declared(self, destination: Destination, exclusive: bool) -> None:
        """Record that a queue was declared, or that one of the broker's own exchanges exists."""

    def queue_deleted(self, queue: bytes) -> None:
        """Record that a queue was deleted."""

    def changed(self, exchange: bytes) -> None:
        """Record that a client has changed an exchange or its bindings."""

    async def ensure(self, destination: Destination) -> None:
        """Bind the tokens of a newly declared queue, or rebind those of an exchange that was declared again."""

    async def bind(self, exchange: bytes, destinations: Iterable[Destination]) -> set[Destination]:
        """Bind destinations that a publish is waiting for."""

    async def end(self, owned: OwnedExchange) -> bool:
        """Unbind the tokens of an exchange that has no client's bindings; return False if it has some."""

    async def hold(self, owned: OwnedExchange) -> None:
        """Bind no more tokens of an exchange that a client deletes; return when earlier binds have been answered."""

    async def restore(self, owned: OwnedExchange) -> None:
        """Bind the tokens of an exchange again whose end the broker has refused."""

    async def look_up(self, exchange: bytes, destination: Destination | None) -> str | None:
        """Look up an exchange, or its bindings to a destination, on the broker.

        Returns:
            The type of the exchange; None if it does not exist or is an open exchange, or if a destination is given.
        """


class ControlPlane(Protocol):
    """The control plane as used by sessions."""

    def requests_of(self, vhost: str) -> VhostControl | None:
        """Return the control plane of a virtual host; None if the virtual host is not managed."""

    def follows(self, vhost: str) -> bool:
        """Return True if the control plane manages the virtual host."""

    async def adopt(self, vhost: str, state: VhostState) -> None:
        """Start managing another virtual host. Its client declarations are loaded when this method returns."""


class Vhosts:
    """Plans, state and control plane of each virtual host.

    Args:
        states: states of the virtual hosts that are named in the rules.
        control: the control plane; None if no rules need it.
        sources: clocks and random numbers.
        rules: settings for client declarations.
        journal: the audit log, if there is one.
    """

    def __init__(
        self,
        states: Iterable[VhostState],
        control: ControlPlane | None,
        counters: Counters,
        sources: Sources,
        rules: ClientRules | None = None,
        journal: PublishLog | None = None,
    ) -> None:
        self._rules = rules
        self._journal = journal
        self.control = control
        self._counters = counters
        self._sources = sources
        self._tap: Tap | None = None
        self._failures: FailureSink | None = None
        self._decisions = DecisionCaches()
        self._plans = {state.name: self._make(state) for state in states}
        #: number of clients' open connections by virtual host
        self.open_connections: Counter[str] = Counter()

    def plans(self, vhost: str) -> Plans:
        """Return the plans of a virtual host.

        Call this only after a producer has logged in to the virtual host, so that the number of plans stays limited.
        """
        plans = self._plans.get(vhost)
        if plans is None:
            control = self.control_of(vhost)
            state = control.state if control is not None else VhostState(vhost, Router(()))
            plans = self._plans[vhost] = self._make(state)
        return plans

    def forget(self, vhost: str) -> None:
        """Forget a deleted virtual host, unless clients are still connected to it.

        A new virtual host with the same name then starts from scratch.
        """
        if not self.in_use(vhost):
            plans = self._plans.pop(vhost, None)
            if plans is not None:
                plans.forget()

    def in_use(self, vhost: str) -> bool:
        """Return True if a client is connected to a virtual host."""
        return self.open_connections[vhost] > 0

    @property
    def states(self) -> list[VhostState]:
        """Return the states of all virtual hosts that are named in the rules or to which a producer has logged in."""
        return [plans.state for plans in self._plans.values()]

    async def warn(self) -> None:
        """Log a warning once for each address rule that matches addresses with passwords. Run until cancelled."""
        while True:
            for state in self.states:
                for rule in state.addresses.rules_exposing_passwords() if state.addresses is not None else ():
                    # The receiver sees the sender's address unchanged (messenger-addressing specification, 3.3).
                    _log.warning(
                        "producers' addresses contain passwords that receivers can see", vhost=state.name, rule=rule
                    )
            await asyncio.sleep(_WARN_SECONDS)

    def set_tap(self, tap: Tap | None) -> None:
        """Set or remove the observer of publishes in all virtual hosts."""
        self._tap = tap
        for plans in self._plans.values():
            plans.set_tap(tap)

    def set_failures(self, failures: FailureSink) -> None:
        """Set the sink for failed publishes. This must be called again whenever the sink's `watched` changes."""
        self._failures = failures
        for plans in self._plans.values():
            plans.failures = failures
            plans.state.settings_changed()

    def _make(self, state: VhostState) -> Plans:
        plans = Plans(state, self._counters, self._sources, self._rules, self._journal, self._decisions)
        plans.tap = self._tap
        plans.failures = self._failures
        return plans

    def control_of(self, vhost: str) -> VhostControl | None:
        """Return the control plane of a virtual host, if it has one."""
        return self.control.requests_of(vhost) if self.control is not None else None

    def inventory(self, vhost: str) -> QueueInventory:
        """Return non-blocking callbacks through which relays use the control plane for a virtual host."""
        control = self.control_of(vhost)
        if control is None:
            return NO_INVENTORY
        return QueueInventory(control.interested, control.declared, control.queue_deleted, control.changed)
