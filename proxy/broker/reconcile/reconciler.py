"""Computes the difference between desired and observed state, has it executed, and reports what stays missing.

Tokens that a listing shows are trusted. Where nothing can be listed, a share of the tokens is bound again at each pass,
which changes nothing where they exist. Refused declarations are retried, a limited number at a time. The relays are
told by `vhost_topology`, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from proxy.broker.declared.store import DeclarationStore
from proxy.broker.methods import ABSENT, EXCLUSIVE, unnameable
from proxy.broker.reconcile.desired import DesiredState, WantedQueue
from proxy.broker.reconcile.executor import Executor, Token
from proxy.broker.reconcile.observer import ObservedState, Observer
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.vhost import Destination, OwnedExchange, StoredBinding

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
