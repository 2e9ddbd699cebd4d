"""Runs single passes, which establish the desired state of one virtual host on the broker, and replaces the rules.

The observed state consists of queues and exchanges (`ObservedState`) and the bindings of carriers (`TokenTable` and
`DeclarationStore`). Tokens in a listing are known to be bound. Without listings, each pass binds some tokens again to
verify them. `vhost_loop` schedules passes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import structlog

from proxy.broker.connection import ControlConnection, ControlSettings
from proxy.broker.declared.store import DeclarationStore, inherit
from proxy.broker.management_api import ExchangeInfo, ManagementApi
from proxy.broker.methods import DeclareQueue
from proxy.broker.reconcile.carrier_forms import CarrierBindings, CarrierForms, adopt_types
from proxy.broker.reconcile.desired import DesiredState, TokenRights, desired_state, record_file_destinations
from proxy.broker.reconcile.diff import (
    BindToken,
    DeclareCarrier,
    Observation,
    RemoveBinding,
    UnbindRows,
    believed_tokens,
    diff,
    find_conflicts,
    lost_bindings,
    missing_destinations,
    needed_again,
    retired_tokens,
    share_tables,
)
from proxy.broker.reconcile.executor import Executor
from proxy.broker.reconcile.observed import ObservedState
from proxy.broker.reconcile.observer import Observer, log_missing
from proxy.broker.reconcile.orphan_tokens import OrphanTokens
from proxy.broker.reconcile.token_migration import TokenMigration, former_bindings
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.vhost import Delivery, OwnedExchange, VhostState
from proxy.routing.router import Router
from proxy.values import QUEUE, Destination, describe, shown

#: Number of pass intervals for which pins stay bound for other sidecars, all of which run a pass in the meantime.
HANDOVER_LOOKS = 3
#: Number of client bindings that are carried over to new rules before control is returned to the event loop.
_STEP = 64
#: Maximum number of attempts to look up bindings that change during the lookup.
_LOOKUPS = 3

log = structlog.get_logger(__name__)


class LookResult(NamedTuple):
    """Result of a pass.

    Args:
        desired: the desired state at the end of the pass.
        tokens_changed: whether tokens were bound or unbound.
        unbound: whether orphan tokens or grants were unbound. This may have caused the broker to delete auto-delete
            exchanges.
    """

    desired: DesiredState
    tokens_changed: bool
    unbound: bool


class PreparedRules(NamedTuple):
    """New rules for which everything has been declared and bound.

    Args:
        retired: tokens that only the old rules need, and that are therefore retired after the swap.
    """

    exchanges: dict[bytes, OwnedExchange]
    router: Router
    queues: tuple[DeclareQueue, ...]
    retired: tuple[BindToken, ...]


class Reconciler:
    """Observes one virtual host, and carries out the actions that establish the desired state."""

    def __init__(
        self,
        settings: ControlSettings,
        state: VhostState,
        connection: ControlConnection,
        management: ManagementApi | None,
        queues: Sequence[DeclareQueue] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.state = state
        self.settings = settings
        self.connection = connection
        self.management = management
        self.names = ObservedState()
        self.store = DeclarationStore(state)
        self.executor = Executor(settings, state, connection, self.names, management)
        self.observer = Observer(self.store, management, self.names, connection.find_missing, settings.retries_per_look)
        self.rights = TokenRights(settings.declared.own_routes)
        record_file_destinations(state.exchanges, state.router)
        self.migration = TokenMigration(state, self.names, connection, management)
        self.forms = CarrierForms(state, self.executor)
        self.orphans = OrphanTokens(state, self.rights)
        #: Queues declared by the active rules.
        self.queues = tuple(queues)
        #: Exchanges whose bindings were listed in the last pass, or did not need to be listed.
        self._listed: Collection[bytes] = ()
        #: Queues from the rules that have not been declared since the last full pass.
        self._undeclared: Sequence[DeclareQueue] = ()
        self._one_at_a_time = asyncio.Lock()
        #: Conflicts between the broker and the rules, each with ways to resolve it.
        self.conflicts: tuple[str, ...] = ()
        #: Destinations that rules name and that the last pass found to be unreachable, with the reasons.
        self.missing: Mapping[Destination, str] = {}

    # -- desired -----------------------------------------------------------------------------------------------

    def desired(self) -> DesiredState:
        """Compute the desired state of the active rules and the current client declarations."""
        state = self.state
        return desired_state(state.exchanges, state.router, self.rights, state.addresses)

    @property
    def carrier_bindings(self) -> list[CarrierBindings]:
        """Number of bindings of each carrier."""
        state, observer = self.state, self.observer
        return [
            CarrierBindings(exchange, observer.reading(exchange).size, state.scans_bindings)
            for exchange in state.carried()
        ]

    # -- passes ------------------------------------------------------------------------------------------------

    async def look(self, *, thorough: bool, announced: bool = False) -> LookResult:
        """Run a pass: observe the virtual host, and correct differences.

        Args:
            thorough: whether earlier results are ignored, and existing carriers are declared again.
            announced: whether other sidecars announce changes, so that a long list of bindings can be reused.

        Raises:
            UpstreamError: see `reconcile`.
        """
        async with self._one_at_a_time:
            before = {name: set(exchange.bound) for name, exchange in self.state.exchanges.items()}
            conflicts = self.conflicts
            queues = self.queues if thorough else None
            remove_foreign = self.settings.remove_foreign
            missing = await self.reconcile(self.desired, queues, remove_foreign=remove_foreign, announced=announced)
            if thorough:
                await self.observer.warn(self.desired())
            desired = self.desired()
            orphans = self.orphans.find(desired, asyncio.get_running_loop().time())
            await self.executor.unbind(orphans)
            await self.executor.bind(self.orphans.needed_again(orphans))
            unused = self.orphans.unused_grants(desired)
            await self.executor.unbind_grants(unused)
            self.observer.note_bypasses(desired)
            self.observer.forget_others(desired)
            self.store.forget_deleted()
            self.observer.finish()
            log_missing(self.state.name, self.missing, missing, describe)
            self.missing = missing
            for text in set(self.conflicts).difference(conflicts):
                log.error("rules conflict with the broker", vhost=self.state.name, what=text)
            changed = any(exchange.bound != before.get(name) for name, exchange in self.state.exchanges.items())
            return LookResult(desired, changed, bool(unused) or any(action.needless for action in orphans))

    async def look_at(self, names: Collection[bytes]) -> None:
        """Observe only the given exchanges, for which changes were announced."""
        async with self._one_at_a_time:
            for name in sorted(names):
                try:
                    await self.find(name)
                except UpstreamError as error:
                    log.warning("announced change can't be read", vhost=self.state.name, error=str(error))

    async def find(self, name: bytes) -> ExchangeInfo | None:
        """Look up an exchange and its bindings, and apply client declarations.

        Raises:
            UpstreamError: the management API did not respond.
        """
        if self.management is None:
            return None
        before = self.store.exchanges_before()
        known = self.state.exchanges.get(name)
        info = None
        if known is None or known.declared is not None:
            result = await self.management.find(self.state.name, "exchange", name)
            info = result if isinstance(result, ExchangeInfo) else None
            self.store.exchange_found(before, name, info)
        owned = self.state.exchanges.get(name)
        if owned is not None and owned.delivery is Delivery.CARRIER:
            await self.observer.read_bindings([owned])
            self.state.changed()
        return info

    async def find_bindings(self, name: bytes, destination: Destination) -> None:
        """Look up the bindings of an exchange to one destination, and add clients' bindings that are unknown.

        Raises:
            UpstreamError: the management API did not respond.
        """
        for _ in range(_LOOKUPS):
            owned = self.state.exchanges.get(name)
            if self.management is None or owned is None or owned.delivery is Delivery.QUEUE:
                return
            before = dict(owned.receivers.get(destination, {}))
            listed = await self.management.changed_bindings(self.state.name, owned.carrier, b"", [destination])
            # If these bindings changed in the meantime, the list may contain removed bindings.
            if listed and self.state.exchanges.get(name) is owned and owned.receivers.get(destination, {}) == before:
                self.store.listings.found(owned, listed[1])
                return

    async def reconcile(
        self,
        wanted: Callable[[], DesiredState],
        queues: Sequence[DeclareQueue] | None = None,
        *,
        remove_foreign: bool = False,
        announced: bool = False,
    ) -> dict[Destination, str]:
        """Observe and correct differences; return the destinations that remain unreachable, with the reasons.

        Args:
            wanted: returns the desired state. Called again after each step that may find client declarations.
            queues: for a full pass, the queues declared by the rules. In a full pass, earlier results are ignored,
                existing carriers are declared again, and conflicts end the pass.
            remove_foreign: whether foreign bindings on carriers are removed.
            announced: see `look`.

        Raises:
            UpstreamError: REFUSED if there are conflicts, all of which are listed; otherwise, the connection was lost.
        """
        last = self._undeclared
        if queues is not None:
            self.executor.failures.clear()
            self._undeclared = queues
        try:
            began_at = self._clock()
            kept = self.observer.current(wanted()) if announced and queues is None else frozenset[bytes]()
            missing = await self._reconcile(wanted, remove_foreign, thorough=queues is not None, kept=kept)
            if queues is not None and self._clock() > began_at + self.state.handover_seconds / HANDOVER_LOOKS:
                # Other sidecars may have handed over rows since the rows were listed. Another pass detects such rows.
                # Only rows that rules files need are handed over, and RabbitMQ needs 10 s to list 100,000 bindings, so
                # this pass lists only the bindings of exchanges with such rows.
                plain = wanted().plain
                kept = frozenset(name for name in self._listed if not plain.get(name))
                missing = await self._reconcile(wanted, remove_foreign, thorough=False, kept=kept)
            return missing
        except UpstreamError:
            if queues is not None:
                self._undeclared = last  # the queues of rejected rules must not be declared later
            raise

    async def _reconcile(
        self,
        wanted: Callable[[], DesiredState],
        remove_foreign: bool,
        *,
        thorough: bool,
        kept: frozenset[bytes],
    ) -> dict[Destination, str]:
        """Run one pass; `kept` are exchanges whose bindings are listed again only if a destination was deleted."""
        executor, names, observer = self.executor, self.names, self.observer
        before = self.store.bindings()
        await observer.list_names()
        await self.migration.look()
        for kind, name in await observer.find_absent(wanted(), thorough=thorough):
            if kind == QUEUE:
                names.remove_queue(name)
            else:
                self.store.exchange_gone(name)
        desired = wanted()
        adopt_types(self.state, desired, names.exchanges if names.exchanges_complete else None)
        conflicts = find_conflicts(desired, names.exchanges)
        self._stop_at(conflicts.values() if thorough else ())
        kept = frozenset(
            exchange.name for exchange in desired.carriers if exchange.name in kept and self._has_all(exchange)
        )
        listed = kept | await observer.read_bindings(
            [exchange for exchange in desired.carriers if exchange.name not in kept and exchange.name not in conflicts],
            names_listed=names.queues_complete and names.exchanges_complete,
        )
        self._listed = listed
        desired = wanted()
        for exchange in desired.carriers:
            exchange.tokens.rules_need(desired.tokens_of(exchange), desired.plain[exchange.name])
        await self.forms.change_forms(desired, lambda exchange: observer.reading(exchange).has_eight_words)
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
            missing = {
                destination: why
                for destination, why in missing.items()
                if destination not in gone or desired.names(destination)
            }
        return missing

    def _has_all(self, exchange: OwnedExchange) -> bool:
        """Return True if no destination bound on a carrier was deleted. A deletion would also have removed bindings."""
        return not any(self.names.absence_reason(destination) for destination in exchange.bound)

    def _observation(
        self,
        desired: DesiredState,
        listed: Collection[bytes],
        conflicts: Collection[bytes],
        remove_foreign: bool,
        thorough: bool,
    ) -> Observation:
        observer = self.observer
        believed, gone = believed_tokens(desired, listed, self.names, thorough=thorough)
        for exchange, destination in gone:
            exchange.tokens.not_bound(destination)
        surplus = [action for last in observer.readings.values() for action in last.superfluous]
        for exchange in desired.carriers:
            former = self.forms.removable(exchange, observer.reading(exchange).carrier_tokens.former)
            surplus += former_bindings(exchange, former, self.names)
        if remove_foreign:
            surplus += [
                RemoveBinding(carrier, binding, "foreign binding removed")
                for carrier, bindings in observer.foreign.items()
                for binding in bindings
            ]
        # Other sidecars have handed over the rows of these destinations, since they do not know that this sidecar's
        # rules let messages choose the destinations. The plain rows are bound again.
        router = self.state.router
        chosen = [
            BindToken(exchange, destination)
            for exchange in desired.made
            if exchange.name in router.exchanges
            for destination in exchange.tokens.handed_over()
            if destination not in exchange.receivers and router.may_choose(exchange.name, destination)
        ]
        standing = {
            exchange.name: desired.tokens_of(exchange)
            - exchange.tokens.lacking(desired.tokens_of(exchange), desired.plain[exchange.name])
            - observer.incomplete(exchange)
            for exchange in desired.carriers
        }
        unverified = observer.verified.share(believed, whole=thorough) + chosen
        return Observation(self.names, standing, unverified, surplus, conflicts)

    def _stop_at(self, conflicts: Collection[str]) -> None:
        if conflicts:
            raise UpstreamError(UpstreamFailure.REFUSED, f"vhost {self.state.name!r}: " + "; ".join(conflicts))

    # -- new rules ---------------------------------------------------------------------------------------------

    async def prepare(
        self, exchanges: dict[bytes, OwnedExchange], router: Router, queues: Sequence[DeclareQueue]
    ) -> PreparedRules:
        """Declare and bind everything that new rules need, before the new rules replace the old rules.

        Args:
            exchanges: the new exchanges, to which token tables and client declarations are added.

        Raises:
            UpstreamError: there are conflicts (REFUSED), or the broker is unreachable.
        """
        async with self._one_at_a_time:
            old = self.desired()
            record_file_destinations(exchanges, router)
            for number, _ in enumerate(inherit(self.state, exchanges, router)):
                if number % _STEP == _STEP - 1:
                    await asyncio.sleep(0)
            share_tables(old, exchanges)
            await self.reconcile(lambda: desired_state(exchanges, router, self.rights), queues)
            self.observer.finish()
            retired = retired_tokens(old, desired_state(exchanges, router, self.rights))
            return PreparedRules(exchanges, router, tuple(queues), retired)

    def swap(self, new: PreparedRules) -> None:
        """Replace the old rules with prepared rules, including the latest client declarations."""
        for stored, why in filter(None, inherit(self.state, new.exchanges, new.router)):
            log.warning(
                "new rules reject a client's binding",
                vhost=self.state.name,
                exchange=shown(stored.binding.exchange),
                destination=describe(stored.destination),
                error=why,
            )
        self.state.swap(new.exchanges, new.router)
        self.queues = new.queues

    def release(self, tokens: Sequence[BindToken]) -> None:
        """Start to retire tokens. From now on, relays request these tokens before using them."""
        desired = self.desired()
        for token in tokens:
            if not needed_again(desired, token):
                token.exchange.tokens.release(token.destination)
        self.state.changed()

    async def unbind(self, tokens: Sequence[BindToken]) -> list[UnbindRows]:
        """Finish retiring tokens. Tokens that relays have requested or that prepared rules need stay bound.

        Returns:
            The actions that unbind the tokens' replacements (pins), to be run after `handover_seconds`.

        Raises:
            UpstreamError: the connection was lost. The tokens still have to be retired.
        """
        # Wait while new rules are being prepared, since `prepare` may have just bound these tokens.
        async with self._one_at_a_time:
            due = [token for token in tokens if token.exchange.tokens.retire(token.destination)]
            try:
                pins = await self.executor.hand_over(due)
            except UpstreamError:
                for token in due:
                    token.exchange.tokens.release(token.destination)
                raise
            for token in due:
                token.exchange.tokens.unbound(token.destination)
            return pins
