"""The reconcile loop, which keeps one virtual host on the broker in sync with its rules.

A pass observes queues, exchanges and bindings, declares missing objects, binds missing tokens, and provides the result
to the relays through `VhostState`. A full pass ignores the results of earlier passes. It is run
at startup, after a reconnect, and before new rules take effect. Client declarations made through the sidecar are
applied at once, between passes (`relay_requests`).

`RefreshSchedule` decides when the next pass is due: at the regular interval, or soon after a request. Passes take a
limited share of the time, regardless of their duration and of the number of requests.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from oxproxy.addressing.targets import AddressBook
from oxproxy.broker.connection import ControlConnection, ControlSettings, VhostNotFound
from oxproxy.broker.declared.announcements import Announcements
from oxproxy.broker.management_api import ManagementApi
from oxproxy.broker.methods import DeclareQueue
from oxproxy.broker.reconcile.reconciler import PreparedRules, Reconciler
from oxproxy.broker.reconcile.relay_requests import RelayRequests
from oxproxy.broker.task_supervisor import Supervisor, end_if_cancelled
from oxproxy.broker.versions import SUPPORTED, BrokerVersion
from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.relay.vhost import OwnedExchange, VhostState
from oxproxy.routing.router import Router

log = structlog.get_logger(__name__)

#: Minimum pause before a requested pass, which handles all requests made during the pause.
_PAUSE_SECONDS = 0.05
#: Minimum pauses before a requested and before a regular pass, as multiples of the duration of the last pass. The load
#: on the broker must be limited, since reading 100,000 bindings occupies one of its cores for several seconds.
_REQUESTED_PAUSE_FACTOR, _REGULAR_PAUSE_FACTOR = 9, 3
#: Maximum number of exchanges that are looked up one by one; if there are more, everything is observed. Any client with
#: write permission on the exchange for announcements can announce any number of names.
_LOOKED_UP = 100


class RefreshSchedule:
    """Schedules passes; `refresh_seconds` is the maximum delay until external changes are detected."""

    def __init__(self, refresh_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refresh_seconds = refresh_seconds
        self._wake = asyncio.Event()
        #: the exchanges for which a pass was requested; None for everything
        self._names: set[bytes] | None = set()
        self._regular_at = 0.0
        self._requested_at = 0.0

    def request_refresh(self, names: set[bytes] | None = None) -> None:
        """Request that a pass be run soon, for the given exchanges or, if None, for everything."""
        self._names = None if names is None or self._names is None else self._names | names
        if self._names is not None and len(self._names) > _LOOKED_UP:
            self._names = None
        self._wake.set()

    def take(self) -> set[bytes] | None:
        """Start a pass that is due; return the names of the exchanges to observe, or None for everything."""
        regular = self._clock() >= self._regular_at
        names = self._names if self._wake.is_set() and not regular else None
        self._names = set()
        self._wake.clear()
        return names

    def ended(self, began_at: float, everything: bool) -> None:
        now = self._clock()
        took_seconds = now - began_at
        self._requested_at = now + max(_PAUSE_SECONDS, _REQUESTED_PAUSE_FACTOR * took_seconds)
        if everything:
            # A change made just after the start of this pass is detected by the next pass, which should end at most
            # `refresh_seconds` after the change. If passes are long, limiting the load on the broker is more important.
            self._regular_at = now + max(self._refresh_seconds - 2 * took_seconds, _REGULAR_PAUSE_FACTOR * took_seconds)

    async def wait(self, connection: ControlConnection) -> bool:
        """Wait until a pass is due or the connection is lost; return whether the connection is lost."""
        if await connection.wait_lost(max(0.0, self._regular_at - self._clock()), self._wake):
            return True
        if not self._wake.is_set():
            return False
        seconds = min(self._requested_at, self._regular_at) - self._clock()
        return await connection.wait_lost(seconds) if seconds > 0 else not connection.connected


#: If this number of consecutive logins is refused because the virtual host does not exist, it is considered deleted.
_SURE_REFUSALS = 3


@dataclass(slots=True)
class Health:
    """Health of a virtual host, for operators.

    Args:
        refreshed_at: time of the last pass in seconds since the epoch; None before the first pass.
        fault: error of the last attempt to connect and reconcile; empty if it succeeded.
        refused: whether the broker refused the last attempt. A retry is then unlikely to succeed soon.
        attempted: set when the first pass has succeeded or failed.
        broker: version of the broker at the last connection; None before the first one.
    """

    ready: bool = False
    refreshed_at: float | None = None
    fault: str = ""
    refused: bool = False
    attempted: asyncio.Event = field(default_factory=asyncio.Event)
    broker: BrokerVersion | None = None


class VhostTopology:
    """The control plane of one virtual host."""

    def __init__(
        self,
        settings: ControlSettings,
        state: VhostState,
        queues: Sequence[DeclareQueue],
        management: ManagementApi | None,
        supervisor: Supervisor,
    ) -> None:
        state.client_routes = settings.declared.client_routes
        state.set_secrets(settings.declared.secrets)
        state.shared = management is not None
        self.state = state
        self.health = Health()
        self.connection = ControlConnection(settings, state.name)
        self.reconciler = Reconciler(settings, state, self.connection, management, queues)
        self._settings = settings
        self._supervisor = supervisor
        self._schedule = RefreshSchedule(settings.refresh_seconds)
        self._announcements = Announcements(self.connection, state.name, self._announced, supervisor)
        self.requests = RelayRequests(
            self.reconciler, supervisor, self._announcements.announce, self._schedule.request_refresh
        )

    @property
    def connected(self) -> bool:
        """True if the connection is up and the first pass has succeeded."""
        return self.requests.connected.is_set()

    @property
    def has_rules(self) -> bool:
        """True if a rules file has rules for the virtual host."""
        return bool(self.reconciler.queues) or any(owned.declared is None for owned in self.state.exchanges.values())

    # -- passes ------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect and run a full pass.

        Raises:
            UpstreamError: the broker is unreachable or refused a request. If there are conflicts (REFUSED), the message
                lists all of them.
        """
        health = self.health
        try:
            await self.connection.connect()
            self._note_version()
            if self._settings.declared.announce:
                await self._announcements.subscribe()
            await self.refresh(thorough=True)
            if not health.ready:
                self._stop_at_unread()
        except Exception as error:
            health.fault, health.refused = f"failed with {type(error).__name__}", False
            if isinstance(error, UpstreamError):
                health.fault, health.refused = str(error), error.failure is UpstreamFailure.REFUSED
                if not health.refused and not self.connection.connected:
                    self._supervisor.unreachable += 1
            await self.disconnect()
            raise
        finally:
            health.attempted.set()
        health.fault, health.refused = "", False
        health.ready = True
        log.info("control connection established", vhost=self.state.name, broker=str(health.broker))

    def _note_version(self) -> None:
        """Adapt to the broker's version, which can change with each reconnect, and warn if it is not supported."""
        broker, before = self.connection.version, self.health.broker
        self.health.broker = broker
        self.state.scans_bindings = self.state.shared and broker.scans_bindings
        if broker != before and not broker.is_supported:
            log.warning("broker is not supported", vhost=self.state.name, broker=str(broker), supported=SUPPORTED)

    def _stop_at_unread(self) -> None:
        """Prevent readiness if reading the bindings of a client's exchange timed out.

        Without the bindings, messages published to the exchange would be unroutable. Other errors, such as a response
        that RabbitMQ cannot encode, do not prevent readiness, since a retry would not help.

        Raises:
            UpstreamError: TIMEOUT, because the listing was too slow.
        """
        for error in self.reconciler.observer.unread:
            if error.failure is UpstreamFailure.TIMEOUT:
                raise error

    async def disconnect(self) -> None:
        """Close the connection. Requests from relays wait until `connect` succeeds."""
        self.requests.connected.clear()
        await self.connection.close()

    async def run(self, is_gone: Callable[[], bool]) -> None:
        """Stay connected and run passes until cancelled, or until the virtual host has been deleted.

        Exceptions other than `UpstreamError` are handled by the supervisor, which restarts the method. The connection
        stays open in the meantime, so that destinations can still be bound for publishes.

        Args:
            is_gone: returns True if a deleted virtual host no longer needs to be managed.
        """
        settings = self._settings
        pause_seconds = settings.retry_seconds
        last_error = ""
        refusals = 0
        while True:
            end_if_cancelled()
            try:
                await (self._next_pass() if self.connected else self.connect())
            except UpstreamError as error:
                await self.disconnect()
                # After any other refusal, for example because of a wrong password, the client declarations are kept.
                refusals = refusals + 1 if isinstance(error, VhostNotFound) else 0
                if refusals >= _SURE_REFUSALS and is_gone():
                    return
                if str(error) != last_error:
                    last_error = str(error)
                    log.error("control connection failed", vhost=self.state.name, error=last_error)
                await self._pause(pause_seconds)
                pause_seconds = min(2 * pause_seconds, settings.retry_limit_seconds)
                continue
            self._supervisor.recovered("vhost", self.state.name)
            last_error = ""
            refusals = 0
            pause_seconds = settings.retry_seconds
            if await self._schedule.wait(self.connection):
                await self.disconnect()
                log.warning("control connection lost", vhost=self.state.name)

    async def _pause(self, seconds: float) -> None:
        """Wait before reconnecting. If relays are waiting for the connection, wait only for the shortest pause."""
        jitter = random.uniform(0.5, 1.0)  # noqa: S311 - so that sidecars don't all reconnect at the same time
        first_seconds = min(seconds, self._settings.retry_seconds)
        await asyncio.sleep(first_seconds * jitter)
        with suppress(TimeoutError):
            async with asyncio.timeout((seconds - first_seconds) * jitter):
                await self.requests.awaited.wait()

    async def _next_pass(self) -> None:
        names = self._schedule.take()
        if names is None:
            await self.refresh()
            return
        began_at = time.monotonic()
        await self.reconciler.read_announced(names)
        self.requests.confirm()
        self._schedule.ended(began_at, everything=False)

    async def refresh(self, *, thorough: bool = False) -> None:
        """Run a pass and update the relays. For errors, see `Reconciler.reconcile`."""
        began_at = time.monotonic()
        state, reconciler, requests = self.state, self.reconciler, self.requests
        management = self.reconciler.management if self._settings.declared.announce and not thorough else None
        announced = management is not None and await self._announcements.check(management)
        await reconciler.run_pass(thorough=thorough, announced=announced)
        state.set_queues(reconciler.names.names(state.queues))
        desired = reconciler.desired()
        requests.bound_count = sum(
            len(exchange.tokens.bound.keys() - desired.tokens_of(exchange)) for exchange in desired.made
        )
        # This is not set earlier, since requests from relays would use carriers that do not exist yet.
        requests.connected.set()
        self.health.refreshed_at = time.time()
        self._schedule.ended(began_at, everything=True)
        requests.confirm()

    def _announced(self, names: set[bytes] | None) -> None:
        """Request a pass because another sidecar has changed these exchanges; None means any exchange."""
        self.reconciler.observer.announced(names)
        self._schedule.request_refresh(names)

    # -- new rules ---------------------------------------------------------------------------------------------

    async def prepare(
        self,
        exchanges: dict[bytes, OwnedExchange],
        router: Router,
        queues: Sequence[DeclareQueue],
        book: AddressBook | None = None,
    ) -> PreparedRules:
        """Declare and bind everything that new rules need; see `Reconciler.prepare`.

        Must be followed by `Reconciler.swap`.
        """
        try:
            return await self.reconciler.prepare(exchanges, router, queues, book)
        except UpstreamError as error:
            if self.connected or not self.health.fault:
                raise
            raise UpstreamError(error.failure, f"{error.message} ({self.health.fault})") from error

    async def close(self) -> None:
        """Stop all tasks and close the connection; declarations on the broker are kept."""
        await self._announcements.close()
        await self.requests.close()
        await self.connection.close()
