"""Observe, diff, execute: what a look does in one virtual host, and how its rules are swapped.

`Reconciler`: tokens that a listing shows are trusted. Where nothing can be listed, a share of the tokens is bound again
at each look, which changes nothing where they exist. The relays are told by `vhost_loop`, not here.

`RulesSwap` replaces the rules of one virtual host: it binds new tokens before the swap and retires old ones after it.
Tokens that only the old rules need are unbound some time after the swap: publishes that the old rules decided may still
be on their way. What clients declared carries over. Nothing here waits for the grace period; the caller does.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from proxy.broker.declared.store import DeclarationStore, inherit, inheriting
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
)
from proxy.broker.reconcile.executor import Executor, Token
from proxy.broker.reconcile.observed import ObservedState
from proxy.broker.reconcile.observer import Observer
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.token_table import PLAIN
from proxy.relay.vhost import Delivery, Destination, OwnedExchange, VhostState
from proxy.routing.router import Router
from proxy.values import QUEUE

#: Clients' bindings put beside new rules between two pauses in which others may run.
_STEP = 64

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Retirement:
    """Tokens that the rules before a swap needed and those after it don't."""

    tokens: tuple[Token, ...]

    def release(self, desired: DesiredState) -> None:
        """Announce that the tokens go, except those that the rules need again.

        Args:
            desired: what the rules need now.
        """
        current = _by_carrier(desired)
        for exchange, destination in self.tokens:
            now = current.get(exchange.carrier)
            if now is None or destination not in desired.tokens_of(now):
                exchange.tokens.unbinding(destination)


class RulesSwap:
    """Replaces the rules of one virtual host.

    Args:
        state: what the relays see; written here.
        observer: looks.
        reconciler: declares and binds.
        executor: unbinds.
        rights: what gives a right to a token.
    """

    def __init__(
        self, state: VhostState, observer: Observer, reconciler: Reconciler, executor: Executor, rights: TokenRights
    ) -> None:
        """Remember the arguments."""
        self._state = state
        self._observer = observer
        self._reconciler = reconciler
        self._executor = executor
        self._rights = rights
        self._prepared = rights

    async def prepare(
        self, old: DesiredState, exchanges: dict[bytes, OwnedExchange], router: Router, queues: Sequence[WantedQueue]
    ) -> Retirement:
        """Declare and bind what new rules need; see `VhostTopology.prepare`."""
        self._prepared = rights = TokenRights(self._rights.own_routes)
        rights.learn(exchanges, router)
        for number, _ in enumerate(inheriting(self._state, exchanges, router)):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
        carry_over_tokens(old, exchanges)
        await self._reconciler.reconcile_all(lambda: desired_state(exchanges, router, rights), queues)
        self._observer.finish()
        return retirement_of(old, desired_state(exchanges, router, rights))

    def swap(self, exchanges: dict[bytes, OwnedExchange], router: Router) -> None:
        """Put prepared rules in the place of the old ones, with what clients declared until now."""
        self._rights.take(self._prepared)
        self._rights.learn(exchanges, router)
        for stored, why in inherit(self._state, exchanges, router):
            binding = stored.binding
            log.warning(
                "new rules don't take a client's binding",
                vhost=self._state.name,
                exchange=binding.exchange.decode(errors="replace"),
                destination=f"{binding.destination_type} {binding.destination.decode(errors='replace')}",
                error=why,
            )
        self._state.swap(exchanges, router)

    def release(self, retirement: Retirement, desired: DesiredState) -> None:
        """Begin to take tokens away: relays ask again before they use them."""
        retirement.release(desired)
        self._state.changed()

    async def unbind(self, retirement: Retirement) -> None:
        """End what `release` began; a token that was asked for meanwhile, or that prepared rules need, stays."""
        due = [token for token in retirement.tokens if token[0].tokens.is_unbinding(token[1])]
        await self._executor.unbind((token, (PLAIN,)) for token in due)
        for exchange, destination in due:
            exchange.tokens.unbound(destination)


def carry_over_tokens(old: DesiredState, exchanges: Mapping[bytes, OwnedExchange]) -> None:
    """Give new exchanges the table of tokens of the carriers that they share with old ones."""
    current = _by_carrier(old)
    for exchange in exchanges.values():
        if exchange.delivery is Delivery.CARRIER and exchange.carrier in current:
            exchange.tokens = current[exchange.carrier].tokens


def retirement_of(old: DesiredState, new: DesiredState) -> Retirement:
    """Find the tokens that go: needed before, and not any more."""
    coming = _by_carrier(new)
    tokens = [
        (exchange, destination)
        for exchange in old.carriers
        for destination in sorted(old.tokens_of(exchange))
        if exchange.carrier not in coming or destination not in new.tokens_of(coming[exchange.carrier])
    ]
    return Retirement(tuple(tokens))


def _by_carrier(desired: DesiredState) -> dict[bytes, OwnedExchange]:
    return {exchange.carrier: exchange for exchange in desired.carriers}


class Reconciler:
    """Observes one virtual host, and carries out the difference to what is desired.

    Args:
        vhost: its name, for texts.
        observer: observes.
        observed: queues and exchanges that exist.
        executor: carries out.
        store: what clients declared.
    """

    def __init__(
        self, vhost: str, observer: Observer, observed: ObservedState, executor: Executor, store: DeclarationStore
    ) -> None:
        """Remember the arguments."""
        self._store = store
        self._vhost = vhost
        self._observer = observer
        self._observed = observed
        self._executor = executor
        #: Queues of the rules that have not been declared since the last thorough look.
        self._undeclared: Sequence[WantedQueue] = ()
        #: What contradicts the rules, and what to do about it.
        self.conflicts: tuple[str, ...] = ()

    async def reconcile_all(
        self, wanted: Callable[[], DesiredState], queues: Sequence[WantedQueue], *, remove_foreign: bool = False
    ) -> dict[Destination, str]:
        """Look, believe nothing from before, and declare everything that the rules need.

        Args:
            wanted: gives what is desired, again after each step that may show what clients declared.
            queues: queues that the rules ask for.
            remove_foreign: whether bindings that others made on a carrier are removed.

        Returns:
            Destinations that stay unreachable, with the reason.

        Raises:
            UpstreamError: REFUSED with every conflict, else the connection was lost.
        """
        self._executor.forget_failures()
        self._undeclared = queues
        return await self._reconcile(wanted, remove_foreign, thorough=True)

    async def reconcile_changes(
        self, wanted: Callable[[], DesiredState], *, remove_foreign: bool = False
    ) -> dict[Destination, str]:
        """Look, and put right what differs.

        Args:
            wanted: gives what is desired, as above.
            remove_foreign: as above.

        Returns:
            Destinations that stay unreachable, with the reason.

        Raises:
            UpstreamError: the connection was lost.
        """
        return await self._reconcile(wanted, remove_foreign, thorough=False)

    async def _reconcile(
        self, wanted: Callable[[], DesiredState], remove_foreign: bool, *, thorough: bool
    ) -> dict[Destination, str]:
        executor, observed, observer = self._executor, self._observed, self._observer
        before = self._store.bindings()
        await observer.observe(wanted, thorough=thorough)
        desired = wanted()
        conflicts = observer.conflicts(desired)
        self._stop_at(conflicts.values() if thorough else ())
        listed = await observer.read_bindings([one for one in desired.carriers if one.name not in conflicts])
        desired = wanted()
        for exchange in desired.carriers:
            exchange.tokens.rules_need(desired.tokens_of(exchange))
        actions = diff(
            desired,
            self._undeclared,
            self._observation(desired, listed, conflicts, remove_foreign, thorough),
            declare_all=thorough,
        )
        await executor.carry_out(actions, stop_at=self._stop_at if thorough else None)
        self._undeclared = [queue for queue in self._undeclared if not observed.knows((QUEUE, queue.name))]
        refused = {action: failure.why for action, failure in executor.failures.items()}
        declares = [why for action, why in refused.items() if isinstance(action, DeclareCarrier)]
        self.conflicts = (*conflicts.values(), *declares)
        lacking = await observer.ask_unlisted(desired, thorough=thorough)
        missing = missing_destinations(desired, observed, refused, lacking)
        lost = [stored for stored in lost_bindings(before, listed, missing) if self._store.binding_gone(stored)]
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
        observer = self._observer
        believed, gone = believed_tokens(desired, listed, self._observed)
        for exchange, destination in gone:
            exchange.tokens.not_bound(destination)
        if thorough:
            # What nobody has seen and is not ours to bind again: relays ask for it.
            for exchange in desired.carriers:
                if exchange.name not in listed:
                    for extra in [one for one in exchange.bound if not may_bind(desired, BindToken(exchange, one))]:
                        exchange.tokens.not_bound(extra)
        surplus = [action for actions in observer.superfluous.values() for action in actions]
        if remove_foreign:
            surplus += [
                RemoveBinding(carrier, binding, "foreign binding removed")
                for carrier, bindings in observer.foreign.items()
                for binding in bindings
            ]
        return Observation(
            self._observed,
            {one.name: one.bound - observer.carrier_tokens(one).incomplete for one in desired.carriers},
            observer.verified.share(believed, whole=thorough),
            surplus,
            conflicts,
        )

    def _stop_at(self, conflicts: Collection[str]) -> None:
        if conflicts:
            raise UpstreamError(UpstreamFailure.REFUSED, f"vhost {self._vhost!r}: " + "; ".join(conflicts))
