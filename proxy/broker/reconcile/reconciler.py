"""Observe, diff, execute: what a look does in one virtual host, and how its rules are replaced.

    desired   what rules and clients need: computed from the state that the relays see
    observed  queues and exchanges (`ObservedState`), bindings of carriers (into `TokenTable` and `DeclarationStore`)
    diff      the actions that lead from the one to the other
    execute   results go back into `ObservedState` and `TokenTable`, and from there to the relays

Tokens that a listing shows are trusted. Where nothing can be listed, a share of the tokens is bound again at each look,
which changes nothing if they exist. When a look is due is decided in `vhost_loop`.

Source: docs/explanation/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import structlog

from proxy.broker.connection import ControlConnection, ControlSettings
from proxy.broker.declared.store import DeclarationStore, inherit, inheriting
from proxy.broker.management_api import ExchangeInfo, ManagementApi
from proxy.broker.reconcile.carrier_forms import CarrierBindings, CarrierForms
from proxy.broker.reconcile.desired import DesiredState, TokenRights, WantedQueue, desired_state
from proxy.broker.reconcile.diff import (
    BindToken,
    DeclareCarrier,
    Observation,
    RemoveBinding,
    believed_tokens,
    diff,
    lost_bindings,
    may_bind,
    missing_destinations,
    needed_again,
    retired_tokens,
    share_tables,
)
from proxy.broker.reconcile.executor import Executor, Pins
from proxy.broker.reconcile.observed import ObservedState
from proxy.broker.reconcile.observer import Observer, log_missing
from proxy.broker.reconcile.orphan_tokens import OrphanTokens
from proxy.broker.reconcile.token_migration import TokenMigration, former_bindings
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.vhost import Delivery, OwnedExchange, VhostState
from proxy.routing.router import Router
from proxy.values import QUEUE, Destination

#: Tokens that the rules before a swap needed and those after it don't.
Retired: TypeAlias = tuple[BindToken, ...]

#: Clients' bindings put beside new rules between two pauses in which others may run.
_STEP = 64

log = structlog.get_logger(__name__)


class LookResult(NamedTuple):
    """What a look has come to.

    Args:
        missing: destinations that rules name and that can't be reached, with the reason.
        tokens_changed: whether other tokens are bound than before.
        unbound: whether tokens were unbound that nothing needs: an auto-delete exchange may have gone with the last.
    """

    missing: Mapping[Destination, str]
    tokens_changed: bool
    unbound: bool


class Reconciler:
    """Keeps what it has observed of one virtual host, and carries out the difference to what is desired."""

    def __init__(
        self,
        settings: ControlSettings,
        state: VhostState,
        connection: ControlConnection,
        management: ManagementApi | None,
        queues: Sequence[WantedQueue] = (),
    ) -> None:
        self._state = state
        self._settings = settings
        self._connection = connection
        self._management = management
        self.names = ObservedState()
        self.store = DeclarationStore(state, settings.declared.local_time)
        self.executor = Executor(
            connection, self.names, settings.username, state, management, settings.retries_per_look
        )
        self.observer = Observer(
            state.name, management, self.names, self.executor.find_missing, self.store, settings.retries_per_look
        )
        self.rights = TokenRights(settings.declared.own_routes)
        self.rights.learn(state.exchanges, state.router)
        self._coming_rights = self.rights
        self._migration = TokenMigration(state, self.names, self.executor, management)
        self.forms = CarrierForms(state, self.executor)
        self._orphans = OrphanTokens(state, self.executor, self.rights)
        self.queues = tuple(queues)
        #: Queues of the rules that have not been declared since the last thorough look.
        self._undeclared: Sequence[WantedQueue] = ()
        self._desired: DesiredState | None = None
        self._one_at_a_time = asyncio.Lock()
        #: What contradicts the rules, and what to do about it.
        self.conflicts: tuple[str, ...] = ()
        #: Destinations that rules name and that could not be reached at the last look, with the reason.
        self.missing: Mapping[Destination, str] = {}

    # -- desired -----------------------------------------------------------------------------------------------

    @property
    def desired(self) -> DesiredState:
        """What the rules need, computed when it is asked for and not known."""
        if self._desired is None:
            state = self._state
            self._desired = desired_state(state.exchanges, state.router, self.rights, state.addresses)
        return self._desired

    def count_unnamed(self) -> int:
        """Count the tokens on carriers of rules files that no rule needs."""
        return sum(len(item.bound - self.desired.tokens_of(item)) for item in self.desired.made)

    @property
    def carrier_bindings(self) -> list[CarrierBindings]:
        """How many bindings each carrier has, and whether its type fits."""
        state, observer = self._state, self.observer
        return [CarrierBindings(one, observer.binding_count(one), state.scans_bindings) for one in state.carried()]

    @property
    def unkept(self) -> bool:
        """See `TokenMigration.unkept`."""
        return self._migration.unkept

    def note_orphans(self, exchange: OwnedExchange) -> None:
        """An exchange has lost its last binding by something's end: its tokens count as use until they go."""
        self._orphans.note(exchange)

    def changed(self) -> None:
        """What clients declare has changed: `desired` is computed again when it is asked for next."""
        self._desired = None

    def _wanted(self) -> DesiredState:
        self.changed()
        self.rights.learn(self._state.exchanges, self._state.router)
        return self.desired

    # -- looks -------------------------------------------------------------------------------------------------

    async def look(self, *, thorough: bool) -> LookResult:
        """Look at everything, and put right what differs.

        Args:
            thorough: whether nothing from before is believed, and carriers that exist are declared again.

        Raises:
            UpstreamError: REFUSED with every conflict, else the connection was lost.
        """
        async with self._one_at_a_time:
            before = {name: set(exchange.bound) for name, exchange in self._state.exchanges.items()}
            conflicts = self.conflicts
            queues = self.queues if thorough else None
            missing = await self.reconcile(self._wanted, queues, remove_foreign=self._settings.remove_foreign)
            if thorough:
                await self.observer.warn(self.desired)
            desired = self.desired
            unbound = await self._orphans.unbind(desired)
            self.observer.note_bypasses(desired)
            self.observer.finish()
            log_missing(self._state.name, self.missing, missing)
            self.missing = missing
            for text in set(self.conflicts).difference(conflicts):
                log.error("rules and broker contradict each other", vhost=self._state.name, what=text)
            changed = any(one.bound != before.get(name) for name, one in self._state.exchanges.items())
            return LookResult(missing, changed, unbound)

    async def look_at(self, names: Collection[bytes]) -> None:
        """Look at some exchanges alone, since somebody said that they changed."""
        async with self._one_at_a_time:
            for name in sorted(names):
                try:
                    await self.find(name)
                except UpstreamError as error:
                    log.warning("announced change not seen yet", vhost=self._state.name, error=str(error))

    async def find(self, name: bytes) -> ExchangeInfo | None:
        """Look at one exchange and its bindings, and take them in where a client declared it or bound to it.

        Raises:
            UpstreamError: the management API did not answer.
        """
        if self._management is None:
            return None
        before = self.store.exchanges_before()
        known = self._state.exchanges.get(name)
        info = None
        if known is None or known.declared is not None:
            found = await self._management.find(self._state.name, "exchange", name)
            info = found if isinstance(found, ExchangeInfo) else None
            self.store.exchange_found(before, name, info)
        owned = self._state.exchanges.get(name)
        if owned is not None and owned.delivery is Delivery.CARRIER:
            await self.observer.read_bindings([owned])
            self._state.changed()
        self.changed()
        return info

    async def reconcile(
        self,
        wanted: Callable[[], DesiredState],
        queues: Sequence[WantedQueue] | None = None,
        *,
        remove_foreign: bool = False,
    ) -> dict[Destination, str]:
        """Look, and put right what differs; return the destinations that stay unreachable, with the reason.

        Args:
            wanted: gives what is desired, again after each step that may show what clients declared.
            queues: queues that the rules ask for, at a thorough look: nothing from before is believed, carriers that
                exist are declared again, and conflicts end the look.
            remove_foreign: whether bindings that others made on a carrier are removed.

        Raises:
            UpstreamError: REFUSED with every conflict, else the connection was lost.
        """
        last = self._undeclared
        if queues is not None:
            self.executor.forget_failures()
            self._undeclared = queues
        try:
            return await self._reconcile(wanted, remove_foreign, thorough=queues is not None)
        except UpstreamError:
            if queues is not None:
                self._undeclared = last  # rules that are refused declare nothing later
            raise

    async def _reconcile(
        self, wanted: Callable[[], DesiredState], remove_foreign: bool, *, thorough: bool
    ) -> dict[Destination, str]:
        executor, names, observer = self.executor, self.names, self.observer
        before = self.store.bindings()
        await observer.list_names()
        await self._migration.look()
        await observer.ask_names(wanted(), thorough=thorough)
        desired = wanted()
        self.forms.adopt_types(desired, names.exchanges if names.exchanges_complete else None)
        conflicts = observer.conflicts(desired)
        self._stop_at(conflicts.values() if thorough else ())
        listed = await observer.read_bindings([one for one in desired.carriers if one.name not in conflicts])
        desired = wanted()
        for exchange in desired.carriers:
            exchange.tokens.rules_need(desired.tokens_of(exchange))
        await self.forms.change_forms(desired, observer.has_eight_words)
        observation = self._observation(desired, listed, conflicts, remove_foreign, thorough)
        actions = diff(desired, self._undeclared, observation, declare_all=thorough)
        await executor.carry_out(actions, stop_at=self._stop_at if thorough else None)
        self._undeclared = [queue for queue in self._undeclared if not names.knows((QUEUE, queue.name))]
        refused = {action: failure.why for action, failure in executor.failures.items()}
        declares = [why for action, why in refused.items() if isinstance(action, DeclareCarrier)]
        self.conflicts = (*conflicts.values(), *declares)
        lacking = await observer.ask_unlisted(desired, thorough=thorough)
        missing = missing_destinations(desired, names, refused, lacking)
        lost = [stored for stored in lost_bindings(before, listed, missing) if self.store.binding_gone(stored)]
        if lost:
            desired = wanted()
            gone = {stored.destination for stored in lost}
            missing = {one: why for one, why in missing.items() if one not in gone or desired.names(one)}
        return missing

    def _observation(
        self,
        desired: DesiredState,
        listed: set[bytes],
        conflicts: Collection[bytes],
        remove_foreign: bool,
        thorough: bool,
    ) -> Observation:
        observer = self.observer
        believed, gone = believed_tokens(desired, listed, self.names)
        for exchange, destination in gone:
            exchange.tokens.not_bound(destination)
        if thorough:
            # What nobody has seen and is not ours to bind again: relays ask for it.
            for exchange in desired.carriers:
                if exchange.name not in listed:
                    for extra in [one for one in exchange.bound if not may_bind(desired, BindToken(exchange, one))]:
                        exchange.tokens.not_bound(extra)
        surplus = [action for actions in observer.superfluous.values() for action in actions]
        for exchange in desired.carriers:
            former = self.forms.removable(exchange, observer.carrier_tokens(exchange).former)
            surplus += former_bindings(exchange, former, self.names)
        if remove_foreign:
            surplus += [
                RemoveBinding(carrier, binding, "foreign binding removed")
                for carrier, bindings in observer.foreign.items()
                for binding in bindings
            ]
        # Messages may choose it by the rules of this sidecar, and nothing says so on the broker.
        router = self._state.router
        chosen = [
            BindToken(exchange, destination)
            for exchange in desired.made
            if exchange.name in router.exchanges
            for destination in exchange.tokens.handed_over()
            if destination not in exchange.receivers and router.may_choose(exchange.name, destination)
        ]
        standing = {
            one.name: desired.tokens_of(one)
            - one.tokens.lacking(desired.tokens_of(one), desired.plain[one.name])
            - observer.incomplete(one)
            for one in desired.carriers
        }
        unverified = observer.verified.share(believed, whole=thorough) + chosen
        return Observation(self.names, standing, unverified, surplus, conflicts)

    def _stop_at(self, conflicts: Collection[str]) -> None:
        if conflicts:
            raise UpstreamError(UpstreamFailure.REFUSED, f"vhost {self._state.name!r}: " + "; ".join(conflicts))

    # -- new rules ---------------------------------------------------------------------------------------------

    async def prepare(
        self, exchanges: dict[bytes, OwnedExchange], router: Router, queues: Sequence[WantedQueue]
    ) -> Retired:
        """Declare and bind what new rules need, before they are swapped in.

        Args:
            exchanges: the new exchanges; each gets its table of tokens here, what clients declared is put beside them.

        Returns:
            What goes after the swap.

        Raises:
            UpstreamError: REFUSED for conflicts, else the broker can't be reached. Nothing is swapped then.
        """
        async with self._one_at_a_time:
            old = self._wanted()
            self._coming_rights = rights = TokenRights(self.rights.own_routes)
            rights.learn(exchanges, router)
            for number, _ in enumerate(inheriting(self._state, exchanges, router)):
                if number % _STEP == _STEP - 1:
                    await asyncio.sleep(0)
            share_tables(old, exchanges)
            await self.reconcile(lambda: desired_state(exchanges, router, rights), queues)
            self.observer.finish()
            self.queues = tuple(queues)
            return retired_tokens(old, desired_state(exchanges, router, rights))

    def swap(self, exchanges: dict[bytes, OwnedExchange], router: Router) -> None:
        """Put prepared rules in the place of the old ones, with what clients declared until now."""
        self.rights.take(self._coming_rights)
        self.rights.learn(exchanges, router)
        for stored, why in inherit(self._state, exchanges, router):
            kind, name = stored.destination
            log.warning(
                "new rules don't take a client's binding",
                vhost=self._state.name,
                exchange=stored.binding.exchange.decode(errors="replace"),
                destination=f"{kind} {name.decode(errors='replace')}",
                error=why,
            )
        self._state.swap(exchanges, router)
        self._wanted()

    def release(self, tokens: Retired) -> None:
        """Begin to retire tokens: relays ask again before they use them."""
        desired = self._wanted()
        for token in tokens:
            if not needed_again(desired, token):
                token.exchange.tokens.unbinding(token.destination)
        self._state.changed()

    async def unbind(self, tokens: Retired) -> Pins:
        """End what `release` began; a token that was asked for meanwhile, or that prepared rules need, stays.

        Returns:
            Pins that stand in their place for other sidecars, for `handover_seconds`.
        """
        # Not while new rules are prepared: what they have just bound could be what goes.
        async with self._one_at_a_time:
            due = [token for token in tokens if token.exchange.tokens.is_unbinding(token.destination)]
            pins = await self.executor.hand_over(due)
            for token in due:
                token.exchange.tokens.unbound(token.destination)
            return pins
