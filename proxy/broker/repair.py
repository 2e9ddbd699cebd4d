"""What one look at the broker puts right: carriers, tokens, and the answer to what stays unreachable.

Tokens that a listing shows are believed; where nothing can be listed, a share of them is bound again at each
look, which changes nothing where they stand. What was refused is tried again, a limited number at a time. It must not
tell the relays (see `vhost_topology`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from proxy.amqp.vhost import Destination, OwnedExchange
from proxy.broker.declarations import ABSENT, EXCLUSIVE, unnameable
from proxy.broker.declarer import Declarer, Token
from proxy.broker.needs import Needs, WantedQueue
from proxy.broker.presence import Presence
from proxy.broker.survey import Survey
from proxy.errors import Failure, UpstreamError


class Repair:
    """Puts one virtual host right.

    Args:
        vhost: its name, for texts.
        survey: looks.
        presence: what the survey saw.
        declarer: declares.
        retries_per_look: see ``ControlSettings``.
    """

    def __init__(
        self, vhost: str, survey: Survey, presence: Presence, declarer: Declarer, retries_per_look: int
    ) -> None:
        """Remember the arguments."""
        self._vhost = vhost
        self._survey = survey
        self._presence = presence
        self._declarer = declarer
        self._retries = retries_per_look
        #: Queues of the rules that could not be declared at the last thorough look.
        self._undeclared: dict[Destination, str] = {}
        #: Refused tokens, in the order in which they are tried again.
        self._refused: dict[Token, str] = {}
        #: Where the next verification of tokens goes on.
        self._verified = 0
        #: What contradicts the rules, and what to do about it.
        self.conflicts: tuple[str, ...] = ()

    async def thorough(self, needs: Needs, queues: Sequence[WantedQueue]) -> dict[Destination, str]:
        """Look, believe nothing from before, and declare everything that the rules need.

        Args:
            needs: what the rules need.
            queues: queues that they ask for.

        Returns:
            Destinations that stay unreachable, with the reason.

        Raises:
            UpstreamError: REFUSED with every conflict, else the connection was lost.
        """
        self._refused.clear()
        await self._survey.look()
        self._refuse(self._survey.conflicts(needs).values())
        if not self._presence.queues_complete:
            await self._forget_lacking()
        self._undeclared = await self._declarer.queues(queues)
        self._refuse(await self._declarer.carriers(needs.carriers))
        self.conflicts = ()
        listed = await self._survey.read_tokens(needs.carriers)
        await self._bind(needs, needs.carriers, self._believed(needs, listed))
        return await self._missing(needs, None)

    async def usual(self, needs: Needs) -> dict[Destination, str]:
        """Look, and put right what has changed since the last look.

        Returns:
            Destinations that stay unreachable, with the reason.

        Raises:
            UpstreamError: the connection was lost.
        """
        await self._survey.look()
        conflicts = self._survey.conflicts(needs)
        usable = [exchange for exchange in needs.carriers if exchange.name not in conflicts]
        gone = [exchange for exchange in usable if not self._stands(exchange)]
        self.conflicts = (*conflicts.values(), *await self._declarer.carriers(gone))
        listed = await self._survey.read_tokens(usable)
        await self._bind(needs, usable, self._turn(needs, listed))
        return await self._missing(needs, self._retries)

    async def _forget_lacking(self) -> None:
        """Ask for every queue known from before: the broker may have lost them, and nobody lists them."""
        known = [("queue", name) for name in self._presence.queues if unnameable(name) is None]
        for destination, why in (await self._declarer.lacking(known)).items():
            if why == ABSENT:
                self._presence.forget(destination[1])

    def _refuse(self, conflicts: Collection[str]) -> None:
        if conflicts:
            raise UpstreamError(Failure.REFUSED, f"vhost {self._vhost!r}: " + "; ".join(conflicts))

    def _stands(self, exchange: OwnedExchange) -> bool:
        return self._presence.exchanges_complete and exchange.carrier in self._presence.exchanges

    async def _bind(self, needs: Needs, carriers: Sequence[OwnedExchange], believed: list[Token]) -> None:
        """Bind what is not bound, as far as it can be, and verify what is believed."""
        fresh: list[Token] = []
        again: set[Token] = set()
        for exchange in carriers:
            for destination in needs.of(exchange) - exchange.bound:
                if self._unreachable(destination) is None:
                    token = (exchange, destination)
                    if token in self._refused:
                        again.add(token)
                    else:
                        fresh.append(token)
        waiting = [token for token in self._refused if token in again]
        turn = waiting[: self._retries]
        refused = await self._declarer.bind(fresh + turn + believed)
        self._refused = {token: self._refused[token] for token in waiting[self._retries :]} | refused

    def _believed(self, needs: Needs, listed: set[bytes]) -> list[Token]:
        """Give the tokens that nobody has seen at this look; drop those that can't stand."""
        believed: list[Token] = []
        for exchange in needs.carriers:
            if exchange.name in listed:
                continue
            for destination in sorted(exchange.bound):
                if self._presence.absent(destination) is not None:
                    exchange.bound.discard(destination)
                elif not self._presence.exclusive(destination):
                    believed.append((exchange, destination))
        return believed

    def _turn(self, needs: Needs, listed: set[bytes]) -> list[Token]:
        believed = self._believed(needs, listed)
        if not believed:
            return []
        first = self._verified % len(believed)
        share = (believed[first:] + believed[:first])[: self._retries]
        self._verified = first + len(share)
        return share

    async def _missing(self, needs: Needs, limit: int | None) -> dict[Destination, str]:
        """Say what can't be reached; where nobody lists for us, ask the broker for `limit` of the names."""
        missing = {
            destination: why for destination, why in self._undeclared.items() if not self._presence.knows(destination)
        }
        refused = {destination: why for (_, destination), why in self._refused.items()}
        for destination, holders in needs.holders.items():
            if any(destination not in exchange.bound for exchange in holders):
                why = self._unreachable(destination) or refused.get(destination) or "not bound yet"
                missing.setdefault(destination, why)
        unknown: list[Destination] = []
        for destination, role in needs.existing.items():
            absent = unnameable(destination[1]) or self._presence.absent(destination)
            if absent is not None:
                missing.setdefault(destination, f"{role}: {absent}" if role else absent)
            elif not self._complete(destination[0]):
                unknown.append(destination)
        return missing | await self._declarer.lacking(unknown[:limit])

    def _unreachable(self, destination: Destination) -> str | None:
        """Say why a token can't be bound, by what is known."""
        why = unnameable(destination[1]) or self._presence.absent(destination)
        if why is None and self._presence.exclusive(destination):
            return EXCLUSIVE
        return why

    def _complete(self, kind: str) -> bool:
        return self._presence.queues_complete if kind == "queue" else self._presence.exchanges_complete
