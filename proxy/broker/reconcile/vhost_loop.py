"""Keeps one virtual host of the broker in step with its rules: the reconcile loop.

A pass observes queues, exchanges and bindings, declares and binds what is missing, unbinds orphaned tokens, and
publishes the result to the relays through `VhostState`. A full pass (at the start, after a reconnect, before new
rules) trusts nothing from earlier passes. What clients do through the sidecar is applied at once, between passes
(`relay_requests`).

`RefreshSchedule` decides when the next pass is due: at the regular interval, or soon after a request. However many
requests come, the passes they cause take a bounded share of the time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from secrets import token_hex
from typing import TypeAlias

import structlog

from proxy.broker.connection import ControlConnection, ControlSettings
from proxy.broker.declared.announcements import Announcements
from proxy.broker.declared.store import DeclarationStore, inherit, inheriting
from proxy.broker.management_api import ExchangeInfo, ManagementApi
from proxy.broker.reconcile.carrier_forms import CarrierBindings, CarrierForms, scans_bindings
from proxy.broker.reconcile.desired import DesiredState, TokenRights, WantedQueue, desired_state
from proxy.broker.reconcile.diff import BindToken, needed_again, retired_tokens, share_tables
from proxy.broker.reconcile.executor import Executor, Pins
from proxy.broker.reconcile.observed import ObservedState
from proxy.broker.reconcile.observer import Observer, log_missing
from proxy.broker.reconcile.orphan_tokens import OrphanTokens
from proxy.broker.reconcile.reconciler import Reconciler
from proxy.broker.reconcile.relay_requests import RelayRequests
from proxy.broker.reconcile.token_migration import TokenMigration
from proxy.broker.task_supervisor import Supervisor, end_if_cancelled
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.token_table import LEASE_SECONDS
from proxy.relay.tokens import Tokens
from proxy.relay.vhost import Delivery, Destination, OwnedExchange, VhostState
from proxy.routing.router import Router

#: Shortest pause before a look that was asked for; more such words meanwhile are one look.
_PAUSE_SECONDS = 0.05
#: Such a pause is at least so many times what the last look took.
_SHARE = 9


class RefreshSchedule:
    """The rhythm of looks.

    Args:
        refresh_seconds: what changed beside us is known after that long at the latest.
        clock: monotonic seconds.
    """

    def __init__(self, refresh_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refresh_seconds = refresh_seconds
        self._wake = asyncio.Event()
        self._names: set[bytes] = set()
        self._everything = False
        self._regular_at = 0.0
        self._requested_at = 0.0

    def request_refresh(self, names: set[bytes] | None = None) -> None:
        """Ask for a look soon, at some exchanges or (None) at everything."""
        if names is None:
            self._everything = True
        else:
            self._names |= names
        self._wake.set()

    def take(self) -> set[bytes] | None:
        """Begin the look that is due: give the names of the exchanges to look at, None for everything."""
        regular = self._clock() >= self._regular_at
        names = None if regular or self._everything or not self._wake.is_set() else self._names
        self._names, self._everything = set(), False
        self._wake.clear()
        return names

    def looked(self, began_at: float, everything: bool) -> None:
        """Take note of the end of a look.

        Args:
            began_at: the clock's time at its beginning.
            everything: whether it was a look at everything.
        """
        now = self._clock()
        took_seconds = now - began_at
        self._requested_at = now + max(_PAUSE_SECONDS, _SHARE * took_seconds)
        if everything:
            # What changes right behind this look is known when the next one ends.
            pause = max(self._refresh_seconds - 2 * took_seconds, self._refresh_seconds / 4)
            self._regular_at = now + pause

    async def wait(self, connection: ControlConnection) -> bool:
        """Wait until a look is due or the connection is lost; say whether it is lost."""
        if await connection.wait_lost(max(0.0, self._regular_at - self._clock()), self._wake):
            return True
        if not self._wake.is_set():
            return False
        seconds = min(self._requested_at, self._regular_at) - self._clock()
        return await connection.wait_lost(seconds) if seconds > 0 else not connection.connected


#: Tokens that the rules before a swap needed and those after it don't.
Retired: TypeAlias = tuple[BindToken, ...]

#: Pins are left to the rules of other sidecars for so many intervals between looks: in one of them these have looked.
_HANDOVER_LOOKS = 3
#: Clients' bindings put beside new rules between two pauses in which others may run.
_STEP = 64
#: Refusals in a row after which it is asked whether the virtual host is gone: a producer may be logging in to it.
_SURE_REFUSALS = 3

log = structlog.get_logger(__name__)


async def _never() -> bool:
    return False


class VhostTopology:
    """One virtual host.

    Args:
        settings: limits.
        state: what the relays see; written here.
        queues: queues that the rules ask for.
        management: the management API, None where there is none.
        record: called when what clients declared has changed.
        supervisor: takes note of what goes wrong beyond what is expected; None: its own.
    """

    def __init__(
        self,
        settings: ControlSettings,
        state: VhostState,
        queues: Sequence[WantedQueue],
        management: ManagementApi | None,
        record: Callable[[], None] = lambda: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor = supervisor or Supervisor()
        self.state = state
        self.observed = observed = ObservedState()
        self.store = store = DeclarationStore(state, settings.declared.local_time)
        self.connection = ControlConnection(settings, state.name)
        self._executor = Executor(
            self.connection, observed, settings.username, state, management, settings.retries_per_look
        )
        self.observer = Observer(
            state.name, management, observed, self._executor.find_missing, store, settings.retries_per_look
        )
        self.ready = False
        self.refreshed_at: float | None = None
        #: Why the last attempt to connect and look failed; empty where it did not.
        self.fault = ""
        #: Whether the broker itself refused that attempt: it won't be otherwise soon.
        self.refused = False
        #: Set when it has been looked over, or could not be, for the first time.
        self.settled = asyncio.Event()
        self._settings = settings
        self._queues = tuple(queues)
        self._management = management
        self._record = record
        self._rights = TokenRights(settings.declared.own_routes)
        state.own_routes, state.secrets = settings.declared.own_routes, settings.declared.secrets
        state.set_tokens(Tokens(state.name, state.secrets.token_keys))
        state.set_sharing(
            management is not None, token_hex(4), max(LEASE_SECONDS, _HANDOVER_LOOKS * settings.refresh_seconds)
        )
        self._rights.learn(state.exchanges, state.router)
        self._token_migration = TokenMigration(state, observed, self._executor, management)
        self.observer.looked = self._token_migration.look
        self.forms = CarrierForms(state, self._executor)
        self._reconciler = Reconciler(state.name, self.observer, observed, self._executor, store, self.forms)
        self._orphans = OrphanTokens(state, self._executor, self._rights)
        self.requests = RelayRequests(
            settings,
            state,
            store,
            observed,
            self._executor,
            self._rights,
            self.forms,
            management,
            self._note_orphans,
            supervisor,
        )
        self._coming_rights = self._rights
        self._schedule = RefreshSchedule(settings.refresh_seconds)
        self._announcements = Announcements(self.connection, state.name, self._schedule.request_refresh, supervisor)
        self._desired: DesiredState | None = None
        self._look = asyncio.Lock()
        #: Destinations that rules name and that could not be reached at the last look, with the reason.
        self.missing: Mapping[Destination, str] = {}

    @property
    def desired(self) -> DesiredState:
        """What the rules need, computed when it is asked for and not known."""
        if self._desired is None:
            self._desired = desired_state(self.state.exchanges, self.state.router, self._rights, self.state.addresses)
        return self._desired

    @property
    def conflicts(self) -> tuple[str, ...]:
        """What on the broker contradicts the rules, and what to do about it."""
        return self._reconciler.conflicts

    @property
    def failing(self) -> list[str]:
        """What the broker refused to do and is tried again, for operators."""
        return [f"{action}: {why}" for action, why in self._executor.failing()]

    @property
    def carrier_bindings(self) -> list[CarrierBindings]:
        """How many bindings each carrier has, and whether its type fits."""
        state = self.state
        return [
            CarrierBindings(exchange, self.observer.binding_count(exchange), state.scans_bindings)
            for exchange in state.carried()
        ]

    @property
    def unfit_carriers(self) -> list[str]:
        """Carriers whose type does not fit, in sentences for operators."""
        return [str(carrier) for carrier in self.carrier_bindings if not carrier.fits]

    @property
    def connected(self) -> bool:
        """Whether the connection stands and has been looked over."""
        return self.requests.connected.is_set()

    # -- looks -------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect and look thoroughly.

        Raises:
            UpstreamError: what can't be reached or was refused; REFUSED names every conflict.
        """
        try:
            await self.connection.connect()
            self.state.scans_bindings = self._management is not None and scans_bindings(self.connection.version)
            if self._settings.declared.announce:
                await self._announcements.subscribe()
            await self._refresh(thorough=True)
        except UpstreamError as error:
            self.fault, self.refused = str(error), error.failure is UpstreamFailure.REFUSED
            await self.disconnect()
            raise
        except Exception as error:
            self.fault, self.refused = f"failed with {type(error).__name__}", False
            await self.disconnect()
            raise
        finally:
            self.settled.set()
        self.fault, self.refused = "", False
        self.ready = True
        log.info("control connection established", vhost=self.state.name)

    async def disconnect(self) -> None:
        """Give the connection up; on-demand work waits until `connect` succeeds."""
        self.requests.connected.clear()
        await self.connection.close()

    async def refresh(self) -> None:
        """Look at the broker and put right what has changed.

        Raises:
            UpstreamError: the connection was lost meanwhile.
        """
        await self._refresh(thorough=False)

    @property
    def has_rules(self) -> bool:
        """Whether a rules file says something of it."""
        return bool(self._queues) or any(owned.declared is None for owned in self.state.exchanges.values())

    async def run(self, is_gone: Callable[[], Awaitable[bool]] = _never) -> None:
        """Stay connected and look again and again; returns by cancellation, or once the virtual host is gone.

        What it raises beyond `UpstreamError` is for the supervisor, which runs it again: the connection stays, so that
        publishes still get the destinations that they ask for.

        Args:
            is_gone: says whether a virtual host that refuses us need not be followed any more.
        """
        settings = self._settings
        pause_seconds = settings.retry_seconds
        said = ""
        refusals = 0
        while True:
            end_if_cancelled()
            try:
                await (self._next_pass() if self.connected else self.connect())
            except UpstreamError as error:
                await self.disconnect()
                refusals = refusals + 1 if error.failure is UpstreamFailure.REFUSED else 0
                if refusals >= _SURE_REFUSALS and await is_gone():
                    return
                if str(error) != said:
                    said = str(error)
                    log.error("control connection failed", vhost=self.state.name, error=said)
                # Jitter, so that sidecars don't come back to a restarted broker all at once.
                await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
                pause_seconds = min(2 * pause_seconds, settings.retry_limit_seconds)
                continue
            self._supervisor.recovered("vhost", self.state.name)
            said = ""
            refusals = 0
            pause_seconds = settings.retry_seconds
            if await self._schedule.wait(self.connection):
                await self.disconnect()
                log.warning("control connection lost", vhost=self.state.name)

    async def _next_pass(self) -> None:
        names = self._schedule.take()
        if names is None:
            await self.refresh()
        else:
            began_at = time.monotonic()
            await self._reconcile_exchanges(names)
            self._schedule.looked(began_at, everything=False)

    async def _refresh(self, thorough: bool) -> None:
        began_at = time.monotonic()
        async with self._look:
            before = {name: set(exchange.bound) for name, exchange in self.state.exchanges.items()}
            conflicts, changes = self.conflicts, self.store.changes
            strict = self._settings.remove_foreign
            if thorough:
                missing = await self._reconciler.reconcile_all(self._wanted, self._queues, remove_foreign=strict)
                await self.observer.warn(self.desired)
            else:
                missing = await self._reconciler.reconcile_changes(self._wanted, remove_foreign=strict)
            desired = self.desired
            unbound = await self._orphans.unbind(desired)
            await self._retire(desired)
            self.observer.note_bypasses(desired)
            self.observer.finish()
            self._tell(desired, missing, before)
            for text in set(self.conflicts).difference(conflicts):
                log.error("rules and broker contradict each other", vhost=self.state.name, what=text)
            # Not before: on-demand work would meet carriers that do not exist yet.
            self.requests.connected.set()
            self.refreshed_at = time.time()
        self._schedule.looked(began_at, everything=True)
        if unbound:
            self._schedule.request_refresh()
        self._after_changes(changes)

    async def _retire(self, desired: DesiredState) -> None:
        """Take away what stands under tokens that are bound no more."""
        for exchange in desired.carriers:
            former = self.forms.removable(exchange, self.observer.carrier_tokens(exchange).former)
            try:
                await self._token_migration.retire(exchange, former)
            except UpstreamError as error:
                if not self.connection.connected:
                    raise
                self.observer.failed(error)

    async def _reconcile_exchanges(self, names: Collection[bytes]) -> None:
        """Look at some exchanges alone, since somebody said that they changed."""
        if self._management is None:
            return
        changes = self.store.changes
        async with self._look:
            for name in sorted(names):
                try:
                    await self._find(self._management, name)
                except UpstreamError as error:
                    log.warning("announced change not seen yet", vhost=self.state.name, error=str(error))
        self._after_changes(changes)

    async def _find(self, management: ManagementApi, name: bytes) -> ExchangeInfo | None:
        """Look at one exchange and its bindings, and take them in where a client declared it or bound to it."""
        before = self.store.exchanges_before()
        known = self.state.exchanges.get(name)
        info = None
        if known is None or known.declared is not None:
            found = await management.find(self.state.name, "exchange", name)
            info = found if isinstance(found, ExchangeInfo) else None
            self.store.exchange_found(before, name, info)
        owned = self.state.exchanges.get(name)
        if owned is not None and owned.delivery is Delivery.CARRIER:
            await self.observer.read_bindings([owned])
            self.state.changed()
        self._desired = None
        return info

    def _after_changes(self, changes: int) -> None:
        """Go on after a look that may have found something new."""
        if self.store.changes != changes:
            self._desired = None
            self._record()
        if self.store.has_unverified and not self.observer.failures:
            self._schedule.request_refresh()

    def _wanted(self) -> DesiredState:
        """Compute the desired state again."""
        self._desired = None
        self._rights.learn(self.state.exchanges, self.state.router)
        return self.desired

    def _tell(
        self, desired: DesiredState, missing: dict[Destination, str], before: Mapping[bytes, set[Destination]]
    ) -> None:
        """Let the relays and the log see what a look found."""
        state = self.state
        names = self.observed.names(state.queues)
        self.requests.bound_count = sum(len(item.bound - desired.tokens_of(item)) for item in desired.made)
        log_missing(state.name, self.missing, missing)
        everything = {**self.requests.missing(), **missing}
        changed = (
            (desired.regex and names is not state.queues)
            or everything != state.missing
            or any(item.bound != before.get(name) for name, item in state.exchanges.items())
        )
        self.missing = missing
        state.clear_refusals()
        state.queues = names
        state.missing = everything
        if changed:
            state.changed()

    # -- what relays ask and say ---------------------------------------------------------------------------------

    def changed(self, exchange: bytes) -> None:
        """A client has declared, deleted, bound or unbound an exchange through us."""
        self._desired = None
        if exchange not in self.state.exchanges:
            self.requests.exchange_deleted(exchange)
        self._record()
        if self._token_migration.unkept:
            self._schedule.request_refresh()
        if self._settings.declared.announce:
            self._announcements.announce(exchange)

    def queue_deleted(self, queue: bytes) -> None:
        """Take note of a queue that is gone, and with it its bindings."""
        changes = self.store.changes
        self.requests.queue_deleted(queue)
        self._after_changes(changes)

    async def lookup_exchange(self, name: bytes) -> str | None:
        """Look for an exchange now.

        Returns:
            Its type where it is not one that a client declared. None where it is, and then it is in the state; where
            there is none; where nobody can say, since there is no management API: then the broker compares types.

        Raises:
            UpstreamError: the management API did not answer.
        """
        if self._management is None:
            return None
        changes = self.store.changes
        info = await self._find(self._management, name)
        self._after_changes(changes)
        if info is None or name in self.state.exchanges:
            return None
        return info.type

    def _note_orphans(self, exchange: OwnedExchange) -> None:
        """An exchange has lost its last binding by something's end: its tokens count as use until they go."""
        self._orphans.note(exchange)
        self._schedule.request_refresh()

    # -- new rules ---------------------------------------------------------------------------------------------

    async def prepare(
        self, exchanges: dict[bytes, OwnedExchange], router: Router, queues: Sequence[WantedQueue]
    ) -> Retired:
        """Declare and bind what new rules need, before they are swapped in.

        Args:
            exchanges: the new exchanges; each gets its table of tokens here, what clients declared is put beside them.
            router: the new rules; likewise.
            queues: queues that the new rules ask for.

        Returns:
            What to hand to `retire` after the swap.

        Raises:
            UpstreamError: REFUSED for conflicts, else the broker can't be reached. Nothing is swapped then.
        """
        async with self._look:
            old = self._wanted()
            self._coming_rights = rights = TokenRights(self._rights.own_routes)
            rights.learn(exchanges, router)
            for number, _ in enumerate(inheriting(self.state, exchanges, router)):
                if number % _STEP == _STEP - 1:
                    await asyncio.sleep(0)
            share_tables(old, exchanges)
            await self._reconciler.reconcile_all(lambda: desired_state(exchanges, router, rights), queues)
            self.observer.finish()
            self._queues = tuple(queues)
            return retired_tokens(old, desired_state(exchanges, router, rights))

    def swap(self, exchanges: dict[bytes, OwnedExchange], router: Router) -> None:
        """Put prepared rules in the place of the old ones, with what clients declared until now; call `retire` next.

        Args:
            exchanges: as given to `prepare`.
            router: as given to `prepare`.
        """
        self._rights.take(self._coming_rights)
        self._rights.learn(exchanges, router)
        for stored, why in inherit(self.state, exchanges, router):
            kind, name = stored.destination
            log.warning(
                "new rules don't take a client's binding",
                vhost=self.state.name,
                exchange=stored.binding.exchange.decode(errors="replace"),
                destination=f"{kind} {name.decode(errors='replace')}",
                error=why,
            )
        self.state.swap(exchanges, router)
        self._wanted()

    async def retire(self, tokens: Retired) -> None:
        """Unbind what the rules before the last swap needed, once publishes decided by them have gone."""
        self.release(tokens)
        await asyncio.sleep(self._settings.grace_seconds)
        pins = await self.unbind(tokens)
        await asyncio.sleep(self.state.handover_seconds)
        # Those of carriers that are still followed go when looks find them needless.
        await self._executor.unbind([pin for pin in pins if pin[0][0].carrier not in self.state.carriers])

    def release(self, tokens: Retired) -> None:
        """Begin to retire: relays ask again before they use these tokens."""
        desired = self._wanted()
        for token in tokens:
            if not needed_again(desired, token):
                token.exchange.tokens.unbinding(token.destination)
        self.state.changed()

    async def unbind(self, tokens: Retired) -> Pins:
        """End what `release` began; a token that was asked for meanwhile, or that prepared rules need, stays.

        Returns:
            Pins that stand in their place for other sidecars, for `handover_seconds`.
        """
        # Not while new rules are prepared: what they have just bound could be what goes.
        async with self._look:
            due = [token for token in tokens if token.exchange.tokens.is_unbinding(token.destination)]
            pins = await self._executor.hand_over(due)
            for token in due:
                token.exchange.tokens.unbound(token.destination)
            return pins

    async def close(self) -> None:
        """End everything; what is declared stays."""
        await self._announcements.close()
        await self.requests.close()
        await self.connection.close()
