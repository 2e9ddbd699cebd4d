"""What relays say of queues and exchanges that come and go through them, taken in at once, between two looks.

Everything here is cheap where thousands of bindings stand: ten thousand declares and binds in turn must not compute
ten thousand times what all rules need. It must not look at the broker (see `vhost_topology`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from proxy.broker.declarations import unnameable
from proxy.broker.declared.store import Store
from proxy.broker.declarer import Declarer
from proxy.broker.demand import Demand
from proxy.broker.needs import Naming
from proxy.broker.presence import Presence, with_name, without_name
from proxy.errors import UpstreamError
from proxy.relay.vhost import Destination, OwnedExchange, VhostState
from proxy.routing.exchange import Exchange

log = structlog.get_logger(__name__)


class Notices:
    """Takes notices in one virtual host.

    Args:
        state: what the relays see; written here.
        store: what clients declared.
        presence: what exists.
        demand: binds what publishes ask for.
        naming: what gives a right to a token.
        declarer: binds.
        deserted: called when an exchange that clients declared has lost its last binding with something's end.
    """

    def __init__(
        self,
        state: VhostState,
        store: Store,
        presence: Presence,
        demand: Demand,
        naming: Naming,
        declarer: Declarer,
        deserted: Callable[[OwnedExchange], None],
    ) -> None:
        """Remember the arguments."""
        self._state = state
        self._store = store
        self._presence = presence
        self._demand = demand
        self._naming = naming
        self._declarer = declarer
        self._deserted = deserted

    def interested(self, queue: bytes) -> bool:
        """Say whether a declare of the queue must wait for `ensure_queue`."""
        destination = ("queue", queue)
        rules = self._state.router.exchanges
        return any(
            rules[name].sees_queues
            or self._naming.awaits(owned, rules[name], destination)
            or self._believed(owned, destination)
            for name, owned in self._state.exchanges.items()
        )

    def queue_declared(self, queue: bytes, exclusive: bool = False) -> None:
        """Take note of a queue that exists now."""
        state, destination = self._state, ("queue", queue)
        self._presence.learn(queue, exclusive)
        self._demand.forget(destination)
        state.clear_refusals(destination=destination)
        names = with_name(state.queues, queue)
        changed = names is not state.queues and self._see_queues()
        state.queues = names
        if destination in state.missing and not self._naming.holders(state.exchanges, state.router, queue):
            del state.missing[destination]
            changed = True
        if changed:
            state.changed()

    def queue_deleted(self, queue: bytes) -> None:
        """Take note of a queue that is gone, and with it its bindings."""
        state, destination = self._state, ("queue", queue)
        self._presence.forget(queue)
        names = without_name(state.queues, queue)
        changed = names is not state.queues and self._see_queues()
        state.queues = names
        changed |= self._gone(destination)
        if self.named(destination) and destination not in state.missing:
            state.missing[destination] = "deleted"
            changed = True
        if changed:
            state.changed()

    def exchange_deleted(self, name: bytes) -> None:
        """Take note of an exchange that is gone, and with it its bindings and those to it."""
        owned = self._state.exchanges.get(name)
        if owned is not None and owned.declared is not None:
            self._store.exchange_gone(name)
        if self._gone(("exchange", name)):
            self._state.changed()

    async def ensure_queue(
        self, queue: bytes, exclusive: bool, connected: asyncio.Event, deadline_seconds: float
    ) -> None:
        """Bind the tokens of a queue that has just been declared; returns when bound, refused, or out of time.

        Args:
            queue: its name.
            exclusive: whether only the connection that declared it may bind it.
            connected: set while the control connection stands.
            deadline_seconds: longest wait.
        """
        self.queue_declared(queue, exclusive)
        if exclusive or unnameable(queue) is not None:
            return
        state, destination = self._state, ("queue", queue)
        # Bound or not: the queue may have been deleted beside us, and its bindings with it.
        waiting = self._naming.waiting(state.exchanges, state.router, queue)
        waiting += [one for one in state.carried() if one not in waiting and self._believed(one, destination)]
        tokens = [(exchange, destination) for exchange in waiting]
        if not tokens:
            return
        bound = all(destination in exchange.bound for exchange, _ in tokens)
        try:
            async with asyncio.timeout(deadline_seconds):
                await connected.wait()
                refused = await asyncio.gather(*map(self._declarer.bind_one, tokens))
        except (UpstreamError, TimeoutError) as error:
            log.warning(
                "queue declared but not bound yet",
                vhost=state.name,
                queue=queue.decode(errors="replace"),
                error=str(error) or "no answer in time",
            )
            return
        last = state.missing.pop(destination, None)
        reasons = [why for why in refused if why is not None]
        if reasons:
            state.missing[destination] = reasons[0]
        if reasons or last is not None or not bound:
            state.changed()

    def named(self, destination: Destination) -> bool:
        """Say whether some rule names the destination, by right or not."""
        return any(destination in exchange.destinations for exchange in self._rules())

    @staticmethod
    def _believed(exchange: OwnedExchange, destination: Destination) -> bool:
        """Whether an exchange of a rules file is believed to have a token that a message asked for."""
        ours = exchange.declared is None and destination not in exchange.receivers
        return ours and destination in exchange.bound

    def _gone(self, destination: Destination) -> bool:
        """Forget the bindings to a destination; answer whether relays must be told."""
        exchanges = list(self._state.exchanges.values())
        bound = [exchange for exchange in exchanges if destination in exchange.bound]
        for exchange in bound:
            exchange.bound.discard(destination)
        holders = [exchange for exchange in exchanges if destination in exchange.receivers]
        self._store.destination_gone(destination, holders)
        for exchange in holders:
            if exchange.declared is not None and not exchange.clients:
                self._deserted(exchange)
        return bool(bound)

    def _see_queues(self) -> bool:
        return any(exchange.sees_queues for exchange in self._rules())

    def _rules(self) -> list[Exchange]:
        return list(self._state.router.exchanges.values())
