"""How one virtual host of the broker is kept in step with its rules, from the first look to the last.

A look: read what exists, declare what lacks, bind what is unbound, tell the relays through `VhostState`. A
thorough look (at the start, after a reconnect, before new rules) trusts nothing from before. What clients do through
the sidecar is taken in at once, between looks. It must not know how declarations are made.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Mapping, Sequence

import structlog

from proxy.amqp.vhost import Delivery, Destination, OwnedExchange, VhostState
from proxy.broker.changeover import Retirement, carry_over, is_bound, retirement_of
from proxy.broker.connection import ControlConnection
from proxy.broker.declarations import unnameable
from proxy.broker.declarer import Declarer
from proxy.broker.demand import Demand
from proxy.broker.inventory import Inventory
from proxy.broker.needs import Needs, WantedQueue, needs_of
from proxy.broker.presence import Presence, with_name, without_name
from proxy.broker.repair import Repair
from proxy.broker.settings import ControlSettings
from proxy.broker.survey import Survey, log_missing
from proxy.errors import UpstreamError
from proxy.routing.router import Router

log = structlog.get_logger(__name__)


class VhostTopology:
    """One virtual host.

    Args:
        settings: limits.
        state: what the relays see; written here.
        queues: queues that the rules ask for.
        inventory: the management API, None where there is none.
    """

    def __init__(
        self,
        settings: ControlSettings,
        state: VhostState,
        queues: Sequence[WantedQueue],
        inventory: Inventory | None,
    ) -> None:
        """Prepare; nothing is asked or declared yet."""
        self.state = state
        self.presence = Presence()
        self.survey = Survey(state.name, inventory, self.presence, settings.remove_foreign)
        self.connection = ControlConnection(settings, state.name)
        self.ready = False
        self.refreshed_at: float | None = None
        self._settings = settings
        self._queues = tuple(queues)
        self._declarer = Declarer(self.connection, self.presence, settings.username)
        self._repair = Repair(state.name, self.survey, self.presence, self._declarer, settings.retries_per_look)
        self._connected = asyncio.Event()
        self._demand = Demand(settings, state, self.presence, inventory, self._declarer, self._connected)
        self._needs = needs_of(state.exchanges, state.router)
        self._look = asyncio.Lock()
        self._missing: dict[Destination, str] = {}

    @property
    def missing(self) -> Mapping[Destination, str]:
        """Destinations that rules name and that could not be reached at the last look, with the reason."""
        return self._missing

    @property
    def conflicts(self) -> tuple[str, ...]:
        """What on the broker contradicts the rules, and what to do about it."""
        return self._repair.conflicts

    @property
    def connected(self) -> bool:
        """Whether the connection stands and has been looked over."""
        return self._connected.is_set()

    async def connect(self) -> None:
        """Connect and look thoroughly.

        Raises:
            UpstreamError: what can't be reached or was refused; REFUSED names every conflict.
        """
        try:
            await self.connection.connect()
            await self._refresh(thorough=True)
        except UpstreamError:
            await self.disconnect()
            raise
        self.ready = True
        log.info("control connection established", vhost=self.state.name)

    async def disconnect(self) -> None:
        """Give the connection up; on-demand work waits until `connect` succeeds."""
        self._connected.clear()
        await self.connection.close()

    async def refresh(self) -> None:
        """Look at the broker and put right what has changed.

        Raises:
            UpstreamError: the connection was lost meanwhile.
        """
        await self._refresh(thorough=False)

    async def run(self) -> None:
        """Stay connected and look again and again; returns only by cancellation."""
        settings = self._settings
        pause_seconds = settings.retry_seconds
        said = ""
        while True:
            try:
                await (self.refresh() if self.connected else self.connect())
            except UpstreamError as error:
                await self.disconnect()
                if str(error) != said:
                    said = str(error)
                    log.error("control connection failed", vhost=self.state.name, error=said)
                # Jitter, so that sidecars don't come back to a restarted broker all at once.
                await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
                pause_seconds = min(2 * pause_seconds, settings.retry_limit_seconds)
                continue
            said = ""
            pause_seconds = settings.retry_seconds
            if await self.connection.wait_lost(settings.refresh_seconds):
                await self.disconnect()
                log.warning("control connection lost", vhost=self.state.name)

    def recompute(self) -> None:
        """Read anew what the rules need, after rules or client bindings have changed."""
        self._needs = needs = needs_of(self.state.exchanges, self.state.router)
        self._demand.needed = needs.holders.__contains__

    def interested(self, queue: bytes) -> bool:
        """Say whether a declare of the queue must wait for `ensure_queue`."""
        destination = ("queue", queue)
        needs = self._needs
        return (
            needs.regex or needs.names(destination) or any(destination in exchange.bound for exchange in needs.carriers)
        )

    def queue_declared(self, queue: bytes, exclusive: bool = False) -> None:
        """Take note of a queue that exists now."""
        destination = ("queue", queue)
        self.presence.learn(queue, exclusive)
        self._demand.forget(destination)
        names = with_name(self.state.queues, queue)
        changed = self._needs.regex and names is not self.state.queues
        self.state.queues = names
        if destination in self.state.missing and destination not in self._needs.holders:
            del self.state.missing[destination]
            changed = True
        if changed:
            self.state.changed()

    def queue_deleted(self, queue: bytes) -> None:
        """Take note of a queue that is gone, and with it its bindings."""
        destination = ("queue", queue)
        self.presence.forget(queue)
        names = without_name(self.state.queues, queue)
        changed = self._needs.regex and names is not self.state.queues
        self.state.queues = names
        for exchange in self._needs.carriers:
            if destination in exchange.bound:
                exchange.bound.discard(destination)
                changed = True
        if self._needs.names(destination) and destination not in self.state.missing:
            self.state.missing[destination] = "deleted"
            changed = True
        if changed:
            self.state.changed()

    async def ensure_queue(self, queue: bytes, exclusive: bool = False) -> None:
        """Bind the tokens of a queue that has just been declared; returns when bound, refused, or out of time."""
        self.queue_declared(queue, exclusive)
        destination = ("queue", queue)
        if exclusive:
            return  # only its owner's connection may bind it
        # Bound or not: the queue may have been deleted beside us, and its bindings with it.
        tokens = [
            (exchange, destination)
            for exchange in self._needs.carriers
            if destination in self._needs.of(exchange) or destination in exchange.bound
        ]
        if not tokens or unnameable(queue) is not None:
            return
        bound = all(destination in exchange.bound for exchange, _ in tokens)
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                await self._connected.wait()
                refused = await asyncio.gather(*map(self._declarer.bind_one, tokens))
        except (UpstreamError, TimeoutError) as error:
            log.warning(
                "queue declared but not bound yet",
                vhost=self.state.name,
                queue=queue.decode(errors="replace"),
                error=str(error) or "no answer in time",
            )
            return
        last = self.state.missing.pop(destination, None)
        reasons = [why for why in refused if why is not None]
        if reasons:
            self.state.missing[destination] = reasons[0]
        if reasons or last is not None or not bound:
            self.state.changed()

    async def bind(self, exchange: bytes, destinations: Iterable[Destination]) -> set[Destination]:
        """Bind destinations on demand; see `Demand.bind`."""
        owned = self.state.exchanges.get(exchange)
        if owned is None:
            return set()
        if owned.delivery is not Delivery.CARRIER:
            return set(destinations)
        return await self._demand.bind(owned, destinations)

    async def prepare(
        self, exchanges: Mapping[bytes, OwnedExchange], router: Router, queues: Sequence[WantedQueue]
    ) -> Retirement:
        """Declare and bind what new rules need, before they are swapped in.

        Args:
            exchanges: the new exchanges; `bound` of each is filled here.
            router: the new rules.
            queues: queues that the new rules ask for.

        Returns:
            What to hand to `retire` after the swap.

        Raises:
            UpstreamError: REFUSED for conflicts, else the broker can't be reached. Nothing is swapped then.
        """
        async with self._look:
            old = self._needs
            carry_over(old, exchanges)
            new = needs_of(exchanges, router)
            await self._repair.thorough(new, queues)
            self.survey.finish()
            self._queues = tuple(queues)
        return retirement_of(old, new)

    async def retire(self, retirement: Retirement) -> None:
        """Unbind what the rules before the last swap needed, once publishes decided by them have gone."""
        self.release(retirement)
        await asyncio.sleep(self._settings.grace_seconds)
        await self.unbind(retirement)

    def release(self, retirement: Retirement) -> None:
        """Begin to retire: relays ask again before they use these tokens."""
        self.recompute()
        self.survey.leaving |= retirement.released(self._needs)
        self.state.changed()

    async def unbind(self, retirement: Retirement) -> None:
        """End what `release` began; a token that was asked for meanwhile stays."""
        self.survey.leaving -= {(exchange.carrier, destination) for exchange, destination in retirement.tokens}
        needs = self._needs
        await self._declarer.unbind(retirement.tokens, lambda token: is_bound(needs, token))

    async def close(self) -> None:
        """End everything; what is declared stays."""
        await self._demand.close()
        await self.connection.close()

    async def _refresh(self, thorough: bool) -> None:
        async with self._look:
            self.recompute()
            needs = self._needs
            before = {name: set(exchange.bound) for name, exchange in self.state.exchanges.items()}
            conflicts = self.conflicts
            if thorough:
                missing = await self._repair.thorough(needs, self._queues)
                await self.survey.warn(needs)
            else:
                missing = await self._repair.usual(needs)
            self.survey.finish()
            self._tell(needs, missing, before)
            for text in set(self.conflicts).difference(conflicts):
                log.error("rules and broker contradict each other", vhost=self.state.name, what=text)
            # Not before: on-demand work would meet carriers that do not exist yet.
            self._connected.set()
            self.refreshed_at = time.time()

    def _tell(self, needs: Needs, missing: dict[Destination, str], before: Mapping[bytes, set[Destination]]) -> None:
        """Let the relays and the log see what a look found."""
        state = self.state
        names = self.presence.names(state.queues)
        self._demand.bound_count = sum(len(item.bound - needs.of(item)) for item in needs.carriers)
        log_missing(state.name, self._missing, missing)
        everything = {**self._demand.missing(), **missing}
        changed = (
            (needs.regex and names is not state.queues)
            or everything != state.missing
            or any(item.bound != before.get(name) for name, item in state.exchanges.items())
        )
        self._missing = missing
        state.queues = names
        state.missing = everything
        if changed:
            state.changed()
