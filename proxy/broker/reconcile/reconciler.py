"""Computes the difference between desired and observed state and has it executed, for a look and for a swap of rules.

`Reconciler`: tokens that a listing shows are trusted. Where nothing can be listed, a share of the tokens is bound again
at each pass, which changes nothing where they exist. Refused declarations are retried, a limited number at a time. The
relays are told by `vhost_loop`, not here.

`RulesSwap` replaces the rules of one virtual host: it binds new tokens before the swap and retires old ones after it.
Tokens that only the old rules need are unbound some time after the swap: publishes that the old rules decided may still
be on their way. What clients declared carries over. Nothing here waits for the grace period; the caller does.

Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog

from proxy.broker.declared.store import DeclarationStore, inherit, inheriting
from proxy.broker.methods import ABSENT, EXCLUSIVE, unnameable
from proxy.broker.reconcile.desired import DesiredState, TokenRights, WantedQueue, desired_state
from proxy.broker.reconcile.executor import Executor, Token
from proxy.broker.reconcile.observer import ObservedState, Observer
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.vhost import Delivery, Destination, OwnedExchange, StoredBinding, VhostState
from proxy.routing.router import Router

#: Clients' bindings put beside new rules between two pauses in which others may run.
_STEP = 64

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Retirement:
    """Tokens that the rules before a swap needed and those after it don't."""

    tokens: tuple[Token, ...]

    def released(self, desired: DesiredState) -> set[tuple[bytes, Destination]]:
        """Take the tokens out of `bound` of the exchanges that are evaluated now.

        Args:
            desired: what the rules need now.

        Returns:
            Carrier and destination of each: they stand on the broker but must not be relied on.
        """
        current = _by_carrier(desired)
        leaving: set[tuple[bytes, Destination]] = set()
        for exchange, destination in self.tokens:
            now = current.get(exchange.carrier)
            if now is not None and destination not in desired.tokens_of(now):
                now.mark_unconfirmed(destination)
                leaving.add((exchange.carrier, destination))
        return leaving


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
        #: Exchanges of rules that are prepared and not yet in force: what stands for them must not be taken away.
        self._coming: Mapping[bytes, OwnedExchange] = {}
        #: By carrier, the exchange of the old rules and the tokens it had when new ones were begun to be prepared.
        self._before: Mapping[bytes, tuple[OwnedExchange, frozenset[Destination]]] = {}

    async def prepare(
        self, old: DesiredState, exchanges: dict[bytes, OwnedExchange], router: Router, queues: Sequence[WantedQueue]
    ) -> Retirement:
        """Declare and bind what new rules need; see `VhostTopology.prepare`."""
        self._prepared = rights = TokenRights(self._rights.own_routes)
        rights.learn(exchanges, router)
        for number, _ in enumerate(inheriting(self._state, exchanges, router)):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
        self._before = {
            carrier: (exchange, frozenset(exchange.bound)) for carrier, exchange in _by_carrier(old).items()
        }
        carry_over_tokens(old, exchanges)
        self._coming = {}
        await self._reconciler.reconcile_all(lambda: desired_state(exchanges, router, rights), queues)
        self._observer.finish()
        self._coming = exchanges
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
        for exchange in exchanges.values():
            last, tokens = self._before.get(exchange.carrier, (exchange, exchange.bound))
            exchange.bound -= tokens - last.bound  # clients have taken them away meanwhile
        self._before = {}
        self._state.swap(exchanges, router)
        self._coming = {}

    def release(self, retirement: Retirement, desired: DesiredState) -> None:
        """Begin to take tokens away: relays ask again before they use them."""
        self._observer.leaving |= retirement.released(desired)
        self._state.changed()

    async def unbind(self, retirement: Retirement, desired: DesiredState) -> None:
        """End what `release` began; a token that was asked for meanwhile stays."""
        self._observer.leaving -= {(exchange.carrier, destination) for exchange, destination in retirement.tokens}
        await self._executor.unbind(retirement.tokens, lambda token: is_bound(desired, token) or self._is_coming(token))

    def _is_coming(self, token: Token) -> bool:
        carrier, destination = token[0].carrier, token[1]
        return any(one.carrier == carrier and destination in one.bound for one in self._coming.values())


def carry_over_tokens(old: DesiredState, exchanges: Mapping[bytes, OwnedExchange]) -> None:
    """Let new exchanges know the tokens that stand on the carriers they share with old ones."""
    current = _by_carrier(old)
    for exchange in exchanges.values():
        if exchange.delivery is Delivery.CARRIER and exchange.carrier in current:
            exchange.bound |= current[exchange.carrier].bound


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


def is_bound(desired: DesiredState, token: Token) -> bool:
    """Say whether some exchange that is evaluated now relies on a token."""
    exchange, destination = token
    now = _by_carrier(desired).get(exchange.carrier)
    return now is not None and destination in now.bound


def _by_carrier(desired: DesiredState) -> dict[bytes, OwnedExchange]:
    return {exchange.carrier: exchange for exchange in desired.carriers}


T = TypeVar("T")


class Reconciler:
    """Puts one virtual host right.

    Args:
        vhost: its name, for texts.
        observer: looks.
        observed: what the survey saw.
        executor: declares.
        store: what clients declared.
        retries_per_look: see ``ControlSettings``.
    """

    def __init__(
        self,
        vhost: str,
        observer: Observer,
        observed: ObservedState,
        executor: Executor,
        store: DeclarationStore,
        retries_per_look: int,
    ) -> None:
        """Remember the arguments."""
        self._store = store
        self._vhost = vhost
        self._observer = observer
        self._observed = observed
        self._executor = executor
        self._retries = retries_per_look
        #: Queues of the rules that could not be declared at the last thorough look.
        self._undeclared: dict[Destination, str] = {}
        #: Refused tokens, in the order in which they are tried again.
        self._refused: dict[Token, str] = {}
        #: Where the next verification of tokens, of destinations and of declared carriers goes on.
        self._verified = _RoundRobin()
        self._asked = _RoundRobin()
        self._carriers = _RoundRobin()
        #: What the broker said of destinations that nobody lists.
        self._lacking: dict[Destination, str] = {}
        #: What contradicts the rules, and what to do about it.
        self.conflicts: tuple[str, ...] = ()

    async def reconcile_all(
        self, wanted: Callable[[], DesiredState], queues: Sequence[WantedQueue]
    ) -> dict[Destination, str]:
        """Look, believe nothing from before, and declare everything that the rules need.

        Args:
            wanted: gives what the rules need, anew after each step that may show what clients declared.
            queues: queues that they ask for.

        Returns:
            Destinations that stay unreachable, with the reason.

        Raises:
            UpstreamError: REFUSED with every conflict, else the connection was lost.
        """
        self._refused.clear()
        self._lacking.clear()
        before = self._store.bindings()
        await self._observer.observe()
        await self._forget_carriers(wanted(), None)
        desired = wanted()
        self._refuse(self._observer.conflicts(desired).values())
        if not self._observed.queues_complete:
            await self._forget_lacking()
        self._undeclared = await self._executor.declare_queues(queues)
        self._refuse(await self._executor.declare_carriers(desired.made))
        self.conflicts = ()
        listed = await self._observer.read_bindings(desired.carriers)
        desired = wanted()
        self._forget_extra(desired, listed)
        await self._bind(desired, desired.carriers, self._believed(desired, listed))
        missing = await self._missing(desired, None)
        return self._reported(desired, self._forget_bindings(before, listed, missing, wanted))

    async def reconcile_changes(self, wanted: Callable[[], DesiredState]) -> dict[Destination, str]:
        """Look, and put right what has changed since the last look.

        Returns:
            Destinations that stay unreachable, with the reason.

        Raises:
            UpstreamError: the connection was lost.
        """
        before = self._store.bindings()
        await self._observer.observe()
        await self._forget_carriers(wanted(), self._retries)
        desired = wanted()
        conflicts = self._observer.conflicts(desired)
        gone = [exchange for exchange in desired.made if exchange.name not in conflicts and not self._stands(exchange)]
        self.conflicts = (*conflicts.values(), *await self._executor.declare_carriers(gone))
        usable = [exchange for exchange in desired.carriers if exchange.name not in conflicts]
        listed = await self._observer.read_bindings(usable)
        desired = wanted()
        usable = [exchange for exchange in desired.carriers if exchange.name not in conflicts]
        await self._bind(desired, usable, self._verified.share(self._believed(desired, listed), self._retries))
        missing = await self._missing(desired, self._retries)
        return self._reported(desired, self._forget_bindings(before, listed, missing, wanted))

    async def _forget_lacking(self) -> None:
        """Ask for every queue known from before: the broker may have lost them, and nobody lists them."""
        known = [("queue", name) for name in self._observed.queues if unnameable(name) is None]
        for destination, why in (await self._executor.find_missing(known)).items():
            if why == ABSENT:
                self._observed.remove_queue(destination[1])

    async def _forget_carriers(self, desired: DesiredState, limit: int | None) -> None:
        """Ask for exchanges that clients declared, where nobody lists them."""
        if self._observed.exchanges_complete:
            return
        declared: list[Destination] = [
            ("exchange", one.carrier) for one in desired.carriers if one.declared is not None
        ]
        for (_, name), why in (await self._executor.find_missing(self._carriers.share(declared, limit))).items():
            if why == ABSENT:
                self._store.exchange_gone(name)

    def _forget_bindings(
        self,
        before: Collection[StoredBinding],
        listed: set[bytes],
        missing: dict[Destination, str],
        wanted: Callable[[], DesiredState],
    ) -> dict[Destination, str]:
        """Take clients' bindings away whose destination does not exist, where no listing of bindings says so.

        Args:
            before: bindings that were there before the look.
            listed: exchanges whose bindings were listed.
            missing: destinations that can't be reached.
            wanted: gives what the rules need.

        Returns:
            What is still missing.
        """
        if ABSENT not in missing.values():
            return missing
        gone = [
            stored
            for stored in before
            if stored.binding.exchange not in listed
            and missing.get((stored.binding.destination_type, stored.binding.destination)) == ABSENT
        ]
        if not sum(self._store.binding_gone(stored) for stored in gone):
            return missing
        desired = wanted()
        lost = {(stored.binding.destination_type, stored.binding.destination) for stored in gone}
        return {one: why for one, why in missing.items() if one not in lost or desired.names(one)}

    def _refuse(self, conflicts: Collection[str]) -> None:
        if conflicts:
            raise UpstreamError(UpstreamFailure.REFUSED, f"vhost {self._vhost!r}: " + "; ".join(conflicts))

    def _stands(self, exchange: OwnedExchange) -> bool:
        return self._observed.exchanges_complete and exchange.carrier in self._observed.exchanges

    async def _bind(self, desired: DesiredState, carriers: Sequence[OwnedExchange], believed: list[Token]) -> None:
        """Bind what is not bound, as far as it can be, and verify what is believed."""
        fresh: list[Token] = []
        again: set[Token] = set()
        for exchange in carriers:
            incomplete = self._observer.carrier_tokens(exchange).incomplete
            for destination in desired.tokens_of(exchange) - (exchange.bound - incomplete):
                if self._unreachable(destination) is None:
                    token = (exchange, destination)
                    if token in self._refused:
                        again.add(token)
                    else:
                        fresh.append(token)
        waiting = [token for token in self._refused if token in again]
        turn = waiting[: self._retries]
        refused = await self._executor.bind(fresh + turn + believed)
        self._refused = {token: self._refused[token] for token in waiting[self._retries :]} | refused

    def _believed(self, desired: DesiredState, listed: set[bytes]) -> list[Token]:
        """Give the tokens that nobody has seen at this look; drop those that can't stand."""
        believed: list[Token] = []
        for exchange in desired.carriers:
            if exchange.name in listed:
                continue
            for destination in sorted(exchange.bound):
                if self._observed.absence_reason(destination) is not None:
                    exchange.bound.discard(destination)
                elif not self._observed.exclusive(destination) and self._ours(desired, exchange, destination):
                    believed.append((exchange, destination))
        return believed

    @staticmethod
    def _ours(desired: DesiredState, exchange: OwnedExchange, destination: Destination) -> bool:
        """Say whether we may bind a token again: not one that was bound with a client's rights alone."""
        ours = exchange.declared is None and not exchange.clients
        return ours or destination in desired.tokens_of(exchange)

    def _forget_extra(self, desired: DesiredState, listed: set[bytes]) -> None:
        """Believe no token that nobody has seen and that is not ours to bind again: relays ask for it anew."""
        for exchange in desired.carriers:
            if exchange.name not in listed:
                lost = {one for one in exchange.bound if not self._ours(desired, exchange, one)}
                exchange.bound.difference_update(lost)

    async def _missing(self, desired: DesiredState, limit: int | None) -> dict[Destination, str]:
        """Say what can't be reached; where nobody lists for us, ask the broker for `limit` of the names."""
        missing = {
            destination: why for destination, why in self._undeclared.items() if not self._observed.knows(destination)
        }
        refused = {destination: why for (_, destination), why in self._refused.items()}
        for destination, holders in desired.holders.items():
            if any(destination not in exchange.bound for exchange in holders):
                why = self._unreachable(destination) or refused.get(destination) or "not bound yet"
                missing.setdefault(destination, why)
        unknown: list[Destination] = []
        for destination, role in desired.existing.items():
            absent = unnameable(destination[1]) or self._observed.absence_reason(destination)
            if absent is not None:
                missing.setdefault(destination, f"{role}: {absent}" if role else absent)
            elif not self._complete(destination[0]):
                unknown.append(destination)
        asked = self._asked.share(unknown, limit)
        answers = await self._executor.find_missing(asked)
        silent = set(unknown) - set(asked)
        self._lacking = {one: why for one, why in self._lacking.items() if one in silent} | answers
        return missing | self._lacking

    def _reported(self, desired: DesiredState, missing: dict[Destination, str]) -> dict[Destination, str]:
        """Leave out what no message goes to, since the address table sends it elsewhere; add what leads nowhere."""
        reported = {
            destination: why
            for destination, why in missing.items()
            if destination not in desired.translated
            or desired.existing.get(destination)
            or destination in self._undeclared
        }
        for destination, found in desired.translated.items():
            if found.failure:
                reported[destination] = f"its translation by the address table leads nowhere: {found.failure}"
        return reported

    def _unreachable(self, destination: Destination) -> str | None:
        """Say why a token can't be bound, by what is known."""
        why = unnameable(destination[1]) or self._observed.absence_reason(destination)
        if why is None and self._observed.exclusive(destination):
            return EXCLUSIVE
        return why

    def _complete(self, kind: str) -> bool:
        return self._observed.queues_complete if kind == "queue" else self._observed.exchanges_complete


class _RoundRobin:
    """Takes a share of a list at a time, so that everything has its turn."""

    def __init__(self) -> None:
        self._first = 0

    def share(self, items: list[T], limit: int | None) -> list[T]:
        if limit is None or len(items) <= limit:
            return items
        first = self._first % len(items)
        self._first = first + limit
        return (items[first:] + items[:first])[:limit]
