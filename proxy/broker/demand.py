"""How a destination that no rule names gets its token the moment a publish wants it.

Producers and regex routes choose such destinations, so everything here is bounded: one attempt per destination at a
time, a limited number bound, a limited memory of those that can't be. It must not know what the rules name statically
but through `needed`. Source: docs/architecture.md (destination tokens).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

from proxy.broker.declarations import ABSENT, EXCLUSIVE, INTERNAL, unnameable
from proxy.broker.declarer import Declarer, Token
from proxy.broker.inventory import ManagementApi
from proxy.broker.listed import ExchangeInfo, QueueInfo
from proxy.broker.presence import Presence
from proxy.broker.settings import ControlSettings
from proxy.broker.supervision import Supervisor
from proxy.errors import UpstreamError
from proxy.relay.vhost import Destination, OwnedExchange, VhostState


class Demand:
    """Binding on demand in one virtual host.

    What could not be bound is written into the state's `missing`, so that publishes don't ask again and again, and
    stays there until the next look at the broker after `refresh_seconds`.

    Args:
        settings: limits.
        state: the virtual host.
        presence: what exists there.
        inventory: asked about what presence does not know; None where there is no management API.
        declarer: binds.
        connected: set while the control connection stands.
        supervisor: runs what is in flight; None: its own.
    """

    def __init__(
        self,
        settings: ControlSettings,
        state: VhostState,
        presence: Presence,
        inventory: ManagementApi | None,
        declarer: Declarer,
        connected: asyncio.Event,
        supervisor: Supervisor | None = None,
    ) -> None:
        """Remember the arguments."""
        self._settings = settings
        self._supervisor = supervisor or Supervisor()
        self._state = state
        self._presence = presence
        self._inventory = inventory
        self._declarer = declarer
        self._connected = connected
        self._flights: dict[tuple[bytes, Destination], asyncio.Task[None]] = {}
        self._remembered: OrderedDict[Destination, tuple[str, float]] = OrderedDict()
        #: Tokens bound that no rule needs; counted anew at every look.
        self.bound_count = 0
        #: Whether a rule names the destination: those don't count.
        self.needed: Callable[[Destination], bool] = lambda destination: False

    async def bind(self, exchange: OwnedExchange, destinations: Iterable[Destination]) -> set[Destination]:
        """Bind destinations to the carrier of an exchange, waiting at most the deadline.

        Returns:
            Those of the destinations that are bound now.
        """
        wanted = set(destinations)
        flights = {
            self._flight(exchange, destination)
            for destination in wanted - exchange.bound
            if destination not in self._state.missing
        }
        if flights:
            # asyncio.wait leaves the flights alone when the caller goes: others may wait for the same.
            await asyncio.wait(flights, timeout=self._settings.deadline_seconds)
        return wanted & exchange.bound

    async def look_for(self, exchange: OwnedExchange, destinations: Iterable[Destination]) -> set[Destination]:
        """Look which destinations can be published to, where nothing is bound since there is no carrier.

        Returns:
            Those of the destinations that can; they count as bound from now on.
        """
        wanted = sorted(set(destinations) - exchange.bound)
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                await self._connected.wait()
                for destination in wanted:
                    why = unnameable(destination[1]) or await self._unpublishable(destination)
                    if why is None:
                        exchange.bound.add(destination)
                    else:
                        self._remember(destination, why)
        except (UpstreamError, TimeoutError) as error:
            for destination in wanted:
                self._remember(destination, str(error) or "the broker did not answer in time")
        return exchange.bound.intersection(destinations)

    async def _unpublishable(self, destination: Destination) -> str | None:
        kind, name = destination
        if self._inventory is None:
            return (await self._declarer.lacking([destination])).get(destination)
        found = await self._inventory.find(self._state.name, kind, name)
        if found is None:
            return ABSENT
        return INTERNAL if isinstance(found, ExchangeInfo) and found.internal else None

    def forget(self, destination: Destination) -> None:
        """A destination may be reachable now: ask again when it is wanted next."""
        self._remembered.pop(destination, None)

    def missing(self) -> dict[Destination, str]:
        """Give what could not be bound and is still believed, forgetting what has been believed long enough."""
        now = asyncio.get_running_loop().time()
        while self._remembered:
            destination, (_, until) = next(iter(self._remembered.items()))
            if until > now:
                break
            del self._remembered[destination]
        return {destination: why for destination, (why, _) in self._remembered.items()}

    async def close(self) -> None:
        """End what is in flight."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    def _flight(self, exchange: OwnedExchange, destination: Destination) -> asyncio.Task[None]:
        key = (exchange.name, destination)
        flight = self._flights.get(key)
        if flight is None:
            work = self._supervisor.keep("demand", partial(self._fly, (exchange, destination)), self._state.name)
            flight = asyncio.get_running_loop().create_task(work)
            self._flights[key] = flight
            flight.add_done_callback(lambda _: self._flights.pop(key, None))
        return flight

    async def _fly(self, token: Token) -> None:
        destination = token[1]
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                await self._connected.wait()
                why = await self._reach(token)
        except UpstreamError as error:
            why = str(error)
        except TimeoutError:
            why = "the broker did not answer in time"
        if why is not None:
            self._remember(destination, why)
        elif self._state.missing.pop(destination, None) is not None:
            self._state.changed()  # a plan that counts it as missing may be cached

    async def _reach(self, token: Token) -> str | None:
        exchange, destination = token
        why = unnameable(destination[1]) or await self._lacking(destination)
        if why is not None:
            return why
        extra = not self.needed(destination)
        if extra and self.bound_count >= self._settings.bind_limit:
            return f"{self._settings.bind_limit} destinations are bound on demand already"
        # Counted before the broker is asked: many flights may be under way.
        self.bound_count += extra
        why = None
        try:
            why = await self._declarer.bind_one(token)
        finally:
            if destination not in exchange.bound:
                self.bound_count -= extra
        return why

    async def _lacking(self, destination: Destination) -> str | None:
        why = self._presence.absent(destination)
        if why is not None and self._inventory is not None:
            # The last look may be seconds old; asking for one name costs the broker little.
            kind, name = destination
            try:
                found = await self._inventory.find(self._state.name, kind, name)
            except UpstreamError:
                return None  # let the broker itself answer
            if found is None:
                return why
            if isinstance(found, QueueInfo):
                self._presence.learn(name, found.exclusive)
        return EXCLUSIVE if self._presence.exclusive(destination) else None

    def _remember(self, destination: Destination, why: str) -> None:
        now = asyncio.get_running_loop().time()
        self._remembered.pop(destination, None)
        self._remembered[destination] = (why, now + self._settings.refresh_seconds)
        # No `changed`: plans that wait for a destination are never cached, so nothing stale is kept.
        self._state.missing[destination] = why
        if len(self._remembered) > self._settings.remember_limit:
            oldest, _ = self._remembered.popitem(last=False)
            if not self.needed(oldest):
                self._state.missing.pop(oldest, None)
