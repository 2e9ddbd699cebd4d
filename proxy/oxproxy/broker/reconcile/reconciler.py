"""Runs single passes, which establish the desired state of one virtual host on the broker, and replaces the rules.

A pass observes queues and exchanges (`ObservedState`) and the bindings of carriers (`TokenTable` and
`DeclarationStore`), and then declares and binds what is lacking. A pass never removes anything, with two exceptions: it
removes foreign bindings if the configuration says so, and it ends auto-delete exchanges that have lost their last
binding. Tokens in a listing are known to be bound. Without listings, each pass binds some tokens again to verify them.
`vhost_loop` schedules passes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import structlog

from oxproxy.addressing.targets import AddressBook
from oxproxy.broker.connection import ControlConnection, ControlSettings
from oxproxy.broker.declared.store import DeclarationStore
from oxproxy.broker.management_api import ExchangeInfo, ManagementApi
from oxproxy.broker.methods import ABSENT, DeclareQueue
from oxproxy.broker.reconcile.carrier_types import CarrierBindings, adopt_types
from oxproxy.broker.reconcile.desired import DesiredState, desired_state
from oxproxy.broker.reconcile.diff import (
    DeclareCarrier,
    Observation,
    RemoveBinding,
    believed_tokens,
    diff,
    find_conflicts,
    first_token,
    missing_destinations,
)
from oxproxy.broker.reconcile.executor import Executor
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.broker.reconcile.observer import Observer, log_missing
from oxproxy.broker.steps import compile_again
from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.relay.token_table import TokenTable
from oxproxy.relay.tokens import is_token
from oxproxy.relay.vhost import Delivery, OwnedExchange, VhostState
from oxproxy.routing.router import Router
from oxproxy.values import EXCHANGE, QUEUE, Destination, describe, shown

#: Maximum number of attempts to look up bindings that change during the lookup.
_LOOKUPS = 3

log = structlog.get_logger(__name__)


class PassResult(NamedTuple):
    """What a pass has found.

    Args:
        missing: the destinations that can't be reached, with the reasons.
        events: the number of events of each token table when the pass began.
    """

    missing: Mapping[Destination, str] = MappingProxyType({})
    events: Mapping[TokenTable, int] = MappingProxyType({})


class PreparedRules(NamedTuple):
    """New rules for which everything has been declared and bound."""

    exchanges: dict[bytes, OwnedExchange]
    router: Router
    queues: tuple[DeclareQueue, ...]
    result: PassResult = PassResult()


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
        self.executor = Executor(settings, state, connection, self.names, management, clock)
        self.observer = Observer(
            self.store,
            management,
            self.names,
            connection.find_missing,
            connection.find_existing,
            settings.retries_per_pass,
        )
        #: Queues declared by the active rules.
        self.queues = tuple(queues)
        #: Queues from the rules that have not been declared since the last full pass.
        self._undeclared: Sequence[DeclareQueue] = ()
        self._one_at_a_time = asyncio.Lock()
        #: Conflicts between the broker and the rules, each with ways to resolve it.
        self.conflicts: tuple[str, ...] = ()
        #: Missing destinations as of the last log entry.
        self._logged_missing: Mapping[str, str] = {}

    # -- desired -----------------------------------------------------------------------------------------------

    def desired(self) -> DesiredState:
        """Compute the desired state of the active rules and the current client declarations."""
        state = self.state
        return desired_state(state.exchanges, state.router, state.addresses)

    @property
    def carrier_bindings(self) -> list[CarrierBindings]:
        """Number of bindings of each carrier."""
        state, observer = self.state, self.observer
        return [
            CarrierBindings(exchange, observer.reading(exchange).size, state.scans_bindings)
            for exchange in state.carried()
        ]

    # -- passes ------------------------------------------------------------------------------------------------

    async def run_pass(self, *, thorough: bool, announced: bool = False) -> None:
        """Run a pass: observe the virtual host, and declare and bind what is lacking.

        Args:
            thorough: whether earlier results are ignored, and existing carriers are declared again.
            announced: whether other sidecars announce changes, so that a long list of bindings can be reused.

        Raises:
            UpstreamError: see `reconcile`.
        """
        async with self._one_at_a_time:
            conflicts = self.conflicts
            queues = self.queues if thorough else None
            remove_foreign = self.settings.remove_foreign
            result = await self.reconcile(self.desired, queues, remove_foreign=remove_foreign, announced=announced)
            if thorough:
                await self.observer.warnings.warn(self.desired())
            for exchange in self.state.carried():
                if exchange.ends and self.observer.reading(exchange).ends:
                    await self.end(exchange)
            self._note(result)
            desired = self.desired()
            self.observer.warnings.note_bypasses(desired)
            self.observer.forget_others(desired)
            self.store.forget_deleted()
            self.observer.finish()
            self.log_missing()
            for text in set(self.conflicts).difference(conflicts):
                log.error("rules conflict with the broker", vhost=self.state.name, what=text)

    def _note(self, result: PassResult) -> None:
        """Record which destinations can't be reached, so that publishes leave them out.

        What happened since the pass began takes precedence. Destinations that no rule names and that could not be
        reached for a while are forgotten, so that publishes request them again.
        """
        state, now, missing = self.state, self._clock(), result.missing
        others = dict(missing)
        for exchange in state.exchanges.values():
            table, events = exchange.tokens, result.events.get(exchange.tokens)
            for destination in state.named(exchange).intersection(missing):
                # A token may have been bound since the pass began. With queue delivery, only this pass finds that a
                # destination is gone.
                if exchange.delivery is Delivery.QUEUE or state.token_of(exchange, destination) is None:
                    table.refused(destination, missing[destination], now, events)
                    others.pop(destination, None)
            is_named = partial(state.names, exchange)
            for destination in [name for name in table.missing if name not in missing and is_named(name)]:
                if events is not None:
                    table.declared(destination, events)
            table.forget_missing(now - self.settings.refresh_seconds, is_named)
        state.missing_others = others

    def log_missing(self) -> None:
        """Log destinations that have become missing, or have been found, since the last call."""
        last, self._logged_missing = self._logged_missing, self.state.missing()
        log_missing(self.state.name, last, self._logged_missing)

    async def read_announced(self, names: Collection[bytes]) -> None:
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
        return info

    async def end(self, owned: OwnedExchange) -> bool:
        """Unbind the tokens of an exchange that a client declared, if it has no client's binding.

        Tokens keep an exchange in use, so RabbitMQ would refuse to delete it, and would keep an auto-delete exchange.
        An auto-delete exchange that is then deleted is removed from the state. If it is not deleted, since another
        sidecar has stored a binding in the meantime, its tokens are bound again. Messages to it may be lost until then.

        Returns:
            False if the exchange has bindings, which have been added to the state.

        Raises:
            UpstreamError: the broker did not respond.
        """
        await self.executor.hold(owned.name)
        ended = False
        try:
            ended = await self._unbind_tokens(owned)
        finally:
            if not ended:
                self.executor.release(owned.name)
        if owned.declared is not None and owned.declared.auto_delete:
            await self._ended(owned)
        return ended

    async def _unbind_tokens(self, owned: OwnedExchange) -> bool:
        """Unbind the tokens of an exchange; see `end`."""
        state, management = self.state, self.management
        if management is not None:
            listed = await management.bindings(state.name, owned.carrier)
            if any(info.stores for info in listed):
                self.store.listings.found(owned, listed)
                return False
            rows = [(info.destination, info.routing_key) for info in listed if is_token(info.routing_key)]
        elif owned.clients:
            return False
        else:
            rows = [(destination, token) for destination, tokens in owned.tokens.bound.items() for token in tokens]
        await self.executor.unbind(owned, rows)
        return True

    async def _ended(self, owned: OwnedExchange) -> None:
        """Find out whether the broker has deleted an exchange whose last token was unbound."""
        before = self.store.exchanges_before()
        absent = await self.connection.find_missing([(EXCHANGE, owned.carrier)])
        if absent.get((EXCHANGE, owned.carrier)) == ABSENT:
            self.store.exchange_found(before, owned.name, None)
            self.executor.release(owned.name)
            return
        await self.restore(owned)

    async def restore(self, owned: OwnedExchange) -> None:
        """Bind the tokens of an exchange again that did not end, since another sidecar has stored a binding on it.

        Raises:
            UpstreamError: the broker did not respond.
        """
        await self.find(owned.name)
        await self.bind_again(owned)

    async def bind_again(self, owned: OwnedExchange) -> None:
        """Bind the tokens that an exchange needs, whether or not they are believed to be bound."""
        self.executor.release(owned.name)
        desired, tokens = self.desired(), self.state.tokens
        if self.state.exchanges.get(owned.name) is owned:
            await self.executor.bind(
                [first_token(desired, tokens, owned, destination) for destination in sorted(desired.tokens_of(owned))]
            )

    async def find_bindings(self, name: bytes, destination: Destination) -> None:
        """Look up the bindings of an exchange to one destination, and add clients' bindings that are unknown.

        Raises:
            UpstreamError: the management API did not respond.
        """
        for _ in range(_LOOKUPS):
            owned = self.state.exchanges.get(name)
            if self.management is None or owned is None or owned.delivery is Delivery.QUEUE:
                return
            receivers = owned.clients.receivers
            before = dict(receivers.get(destination, {}))
            listed = await self.management.changed_bindings(self.state.name, owned.carrier, b"", [destination])
            # If these bindings changed in the meantime, the list may contain removed bindings.
            if listed and self.state.has(owned) and receivers.get(destination, {}) == before:
                self.store.listings.found(owned, listed[1])
                return

    async def reconcile(
        self,
        wanted: Callable[[], DesiredState],
        queues: Sequence[DeclareQueue] | None = None,
        *,
        remove_foreign: bool = False,
        announced: bool = False,
    ) -> PassResult:
        """Observe and correct differences; return the destinations that remain unreachable, with the reasons.

        Args:
            wanted: returns the desired state. Called again after each step that may find client declarations.
            queues: for a full pass, the queues declared by the rules. In a full pass, earlier results are ignored,
                existing carriers are declared again, and conflicts end the pass.
            remove_foreign: whether foreign bindings on carriers are removed.
            announced: see `run_pass`.

        Raises:
            UpstreamError: REFUSED if there are conflicts, all of which are listed; otherwise, the connection was lost.
        """
        last = self._undeclared
        if queues is not None:
            self.executor.failures.clear()
            self._undeclared = queues
        try:
            kept = self.observer.current(wanted()) if announced and queues is None else frozenset[bytes]()
            return await self._reconcile(wanted, remove_foreign, thorough=queues is not None, kept=kept)
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
    ) -> PassResult:
        """Run one pass; `kept` are exchanges whose bindings are listed again only if a destination was deleted."""
        executor, names, observer = self.executor, self.names, self.observer
        events = {exchange.tokens: exchange.tokens.events for exchange in self.state.exchanges.values()}
        await observer.list_names()
        # A client may declare these again before the broker's reply has been read.
        queues_before, exchanges_before = dict(names.queues), self.store.exchanges_before()
        for kind, name in await observer.find_absent(wanted(), thorough=thorough):
            if kind != QUEUE:
                self.store.exchange_found(exchanges_before, name, None)
            elif names.queues.get(name) is queues_before.get(name):
                names.remove_queue(name)
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
        desired = wanted()
        for exchange in desired.carriers:
            if exchange.name not in listed and exchange.tokens in events:
                self._note_absent(exchange.tokens, events[exchange.tokens])
        observation = self._observation(desired, listed, conflicts, remove_foreign, thorough)
        actions = diff(desired, self._undeclared, observation, declare_all=thorough)
        await executor.carry_out(actions, stop_at=self._stop_at if thorough else None)
        self._undeclared = [queue for queue in self._undeclared if not names.knows((QUEUE, queue.name))]
        refused = {action: failure.why for action, failure in executor.failures.items()}
        declares = [why for action, why in refused.items() if isinstance(action, DeclareCarrier)]
        self.conflicts = (*conflicts.values(), *declares)
        lacking = await observer.ask_unlisted(desired, thorough=thorough)
        missing = missing_destinations(desired, observation, refused, lacking)
        absent = [destination for destination, why in missing.items() if why == ABSENT]
        gone = self._drop_lost(absent, listed, events)
        if gone:
            desired = wanted()
            missing = {
                destination: why
                for destination, why in missing.items()
                if destination not in gone or desired.names(destination)
            }
        return PassResult(missing, events)

    def _drop_lost(
        self, absent: Sequence[Destination], listed: Collection[bytes], events: Mapping[TokenTable, int]
    ) -> set[Destination]:
        """Forget clients' bindings that the broker has deleted together with their destinations.

        Args:
            absent: destinations that do not exist.
            listed: exchanges to skip, since the list of their bindings has already shown which bindings still exist.
            events: as in `PassResult`; other exchanges were declared since the pass began.

        Returns:
            The destinations of these bindings.
        """
        gone: set[Destination] = set()
        for exchange in [item for item in self.state.exchanges.values() if item.name not in listed]:
            for destination in absent if exchange.tokens in events else ():
                lost = exchange.clients.receivers.get(destination)
                if lost and destination not in exchange.tokens.bound:  # bound by a client since the pass began
                    gone.add(destination)
                    for stored in list(lost.values()):
                        self.store.remove_binding(stored)
        return gone

    def _has_all(self, exchange: OwnedExchange) -> bool:
        """Return True if no destination bound on a carrier was deleted. A deletion would also have removed bindings."""
        return not any(self.names.absence_reason(destination) for destination in exchange.tokens.bound)

    def _note_absent(self, table: TokenTable, events: int) -> None:
        for destination in [name for name in table.bound if self.names.absence_reason(name) is not None]:
            table.absent(destination, events)

    def _observation(
        self,
        desired: DesiredState,
        listed: Collection[bytes],
        conflicts: Mapping[bytes, str],
        remove_foreign: bool,
        thorough: bool,
    ) -> Observation:
        observer, tokens = self.observer, self.state.tokens
        foreign = [
            RemoveBinding(carrier, binding)
            for carrier, bindings in observer.foreign.items()
            for binding in bindings
            if remove_foreign
        ]
        observation = Observation(self.names, tokens, (), foreign, conflicts)
        believed = believed_tokens(desired, listed, observation)
        return observation._replace(unverified=observer.verified.share(believed, whole=thorough))

    def _stop_at(self, conflicts: Collection[str]) -> None:
        if conflicts:
            raise UpstreamError(UpstreamFailure.REFUSED, f"vhost {self.state.name!r}: " + "; ".join(conflicts))

    # -- new rules ---------------------------------------------------------------------------------------------

    async def prepare(
        self,
        exchanges: dict[bytes, OwnedExchange],
        router: Router,
        queues: Sequence[DeclareQueue],
        book: AddressBook | None = None,
    ) -> PreparedRules:
        """Declare and bind everything that new rules need, before the new rules replace the old rules.

        Args:
            exchanges: the new exchanges, which then refer to tokens and client declarations (`VhostState.overlay`).
            book: the new address table.

        Raises:
            UpstreamError: there are conflicts (REFUSED), or the broker is unreachable.
        """
        async with self._one_at_a_time:
            await compile_again(self.state, exchanges, router)
            self.state.overlay(exchanges, router)
            result = await self.reconcile(lambda: desired_state(exchanges, router, book), queues)
            self.observer.finish()
            return PreparedRules(exchanges, router, tuple(queues), result)

    def swap(self, new: PreparedRules) -> None:
        """Replace the old rules with prepared rules, including the latest client declarations."""
        for stored, why in self.state.swap(new.exchanges, new.router):
            log.warning(
                "new rules reject a client's binding",
                vhost=self.state.name,
                exchange=shown(stored.binding.exchange),
                destination=describe(stored.destination),
                error=why,
            )
        self.queues = new.queues
        self._note(new.result)
        self.log_missing()
