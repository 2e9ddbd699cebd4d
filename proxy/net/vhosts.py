"""Data that sessions need for each virtual host: plans, control plane, and connections for checking permissions.

Virtual hosts that are not named in the rules also have plans, which are created when the first producer logs in.

Destinations chosen by a client's bindings must be within that client's permissions, which can be checked only on the
client's own connections. The message that is routed to the destination often comes from a different client.

Source: architecture, "The control plane"; `relay.token_table`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from proxy.relay.audit_record import PublishLog
from proxy.relay.connection_state import NO_INVENTORY, PermissionCheck, QueueInventory
from proxy.relay.counters import Counters
from proxy.relay.publish.plan import ClientRules, DecisionCaches, Plans, Sources
from proxy.relay.publish.tap import FailureSink, Tap
from proxy.relay.vhost import VhostState
from proxy.routing.router import Router
from proxy.values import Destination


class ClientConnection(Protocol):
    """A client's connection, on which the client's permissions can be checked."""

    def ask(self, asked: PermissionCheck, done: Callable[[], None]) -> None:
        """Check whether the broker permits the client to bind a destination, record the result, then call `done`."""


class ClientConnections:
    """The open connections, by virtual host and user."""

    def __init__(self) -> None:
        #: the connections in the order in which they were opened; the values are not used
        self._open: dict[tuple[str, str], dict[ClientConnection, None]] = {}

    def enter(self, vhost: str, user: str, connection: ClientConnection) -> None:
        self._open.setdefault((vhost, user), {})[connection] = None

    def leave(self, vhost: str, user: str, connection: ClientConnection) -> None:
        connections = self._open.get((vhost, user), {})
        connections.pop(connection, None)
        if not connections:
            self._open.pop((vhost, user), None)

    def present(self, vhost: str) -> bool:
        return any(name == vhost for name, _ in self._open)

    async def ask(self, vhost: str, asked: Iterable[PermissionCheck]) -> None:
        """Check permissions on clients' connections. For a client without a connection, a refusal is recorded."""
        waiting = []
        for check in asked:
            connections = self._open.get((vhost, check.reach.client))
            if connections:
                known = asyncio.Event()
                waiting.append(known)
                next(reversed(connections)).ask(check, known.set)
            else:
                check.reach.refuse(check.destination, f"{check.reach.client} is not connected")
        for known in waiting:
            await known.wait()


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
        #: connections on which clients' permissions can be checked
        self.client_connections = ClientConnections()

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
        if not self.client_connections.present(vhost):
            plans = self._plans.pop(vhost, None)
            if plans is not None:
                plans.forget()

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
            plans.state.changed()

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
