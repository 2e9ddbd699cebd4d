"""Handles requests from relays to bind destinations, and their reports of created or deleted objects, between passes.

Producers and regex routes can choose any number of destinations that no rule names. Attempts to bind the same
destination therefore never run concurrently, and both the number of destinations bound on demand and the size of the
cache of failed destinations are limited. When objects are declared or deleted through a relay, this is recorded
immediately. This must remain cheap even with thousands of bindings, so the desired state is computed only in passes.

Source: architecture, "The control plane".
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import structlog

from proxy.broker.management_api import ExchangeInfo, QueueInfo
from proxy.broker.methods import ABSENT, EXCLUSIVE, INTERNAL, unnameable
from proxy.broker.reconcile.diff import BindToken
from proxy.broker.reconcile.reconciler import Reconciler
from proxy.broker.task_supervisor import Supervisor, gather_all
from proxy.errors import UpstreamError
from proxy.relay.token_table import Need
from proxy.relay.vhost import Delivery, OwnedExchange
from proxy.values import EXCHANGE, QUEUE, Destination, counted, shown

#: Takes the place of the destination in the key that identifies an attempt to change a carrier's form.
_FORM: Destination = (EXCHANGE, b"")
#: Pause before work is repeated after a loss of the connection, which `vhost_loop` may not have noticed yet.
_RETRY_SECONDS = 0.05

T = TypeVar("T")

log = structlog.get_logger(__name__)


class RelayRequests:
    """Requests and reports from relays in one virtual host.

    Destinations that could not be bound stay in the state's `missing` until the end of the first pass that finishes at
    least `refresh_seconds` later, so that publishes don't request them repeatedly.

    Args:
        reconciler: provides the inventory and the client declarations, and binds tokens.
        record: called when client declarations have changed.
        announce: called with an exchange that a client of this sidecar has changed.
        request_refresh: called when a pass must be run soon.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        supervisor: Supervisor,
        record: Callable[[], None],
        announce: Callable[[bytes], None],
        request_refresh: Callable[[], None],
    ) -> None:
        self.state = reconciler.state
        self._reconciler = reconciler
        self._settings = reconciler.settings
        self._store = reconciler.store
        self._observed = reconciler.names
        self._executor = reconciler.executor
        self._rights = reconciler.rights
        self._management = reconciler.management
        self._supervisor = supervisor
        self._record = record
        self._announce = announce
        self._request_refresh = request_refresh
        #: Set while the control connection is up and the first pass has succeeded.
        self.connected = asyncio.Event()
        #: Set while requests wait for the control connection; a reconnect is then attempted soon.
        self.awaited = asyncio.Event()
        self._waiting = 0
        self._attempts: dict[tuple[bytes, Destination], asyncio.Task[None]] = {}
        self._remembered: OrderedDict[Destination, tuple[str, float]] = OrderedDict()
        #: For the current pass and for each attempt in progress, the destinations that have been declared since it
        #: started.
        self._declared: list[set[Destination]] = []
        #: The store's number of changes when it was last recorded.
        self._recorded_changes = 0
        #: Number of bound tokens that no rule needs. Counted again in every pass.
        self.bound_count = 0

    # -- destinations requested by publishes -------------------------------------------------------------------

    async def bind(self, name: bytes, destinations: Iterable[Destination]) -> set[Destination]:
        """Bind destinations to the carrier of an exchange, and wait for the results until the deadline.

        If the exchange has no carrier, destinations count as bound if messages can be published to them.

        Returns:
            The destinations that are bound now.
        """
        exchange = self.state.exchanges.get(name)
        if exchange is None:
            return set()
        wanted = set(destinations)
        flights = {
            self._flight(exchange, destination, partial(self._attempt, BindToken(exchange, destination)))
            for destination in wanted - exchange.bound
            if destination not in self.state.missing
        }
        if not exchange.takes_exchanges and any(kind == EXCHANGE for kind, _ in wanted):
            flights.add(self._flight(exchange, _FORM, partial(self._change_form, exchange)))
        if flights:
            # If this caller is cancelled, the attempts continue (asyncio.wait), since others may be waiting for them.
            await asyncio.wait(flights, timeout=self._settings.deadline_seconds)
        return wanted & exchange.bound

    async def _connected(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work as soon as the control connection is up, and again if the connection is lost in the meantime.

        Raises:
            UpstreamError: the work failed, although the connection is up.
            TimeoutError: the deadline for the connection and the work has passed.
        """
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                while True:
                    await self._await_connection()
                    try:
                        return await work()
                    except UpstreamError:
                        if self._reconciler.connection.connected:
                            raise
                    await asyncio.sleep(_RETRY_SECONDS)
        except TimeoutError as error:
            raise TimeoutError("the broker did not respond in time") from error

    async def _await_connection(self) -> None:
        self._waiting += 1
        self.awaited.set()
        try:
            await self.connected.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.awaited.clear()

    async def _unpublishable(self, destination: Destination) -> str | None:
        kind, name = destination
        if (why := unnameable(name)) is not None:
            return why
        if self._management is None:
            return (await self._reconciler.connection.find_missing([destination])).get(destination)
        info = await self._management.find(self.state.name, kind, name)
        if info is None:
            return ABSENT
        return INTERNAL if isinstance(info, ExchangeInfo) and info.internal else None

    def missing(self) -> dict[Destination, str]:
        """Return destinations that could not be bound, with the reasons, except expired entries."""
        now = asyncio.get_running_loop().time()
        while self._remembered:
            destination, (_, until) = next(iter(self._remembered.items()))
            if until > now:
                break
            del self._remembered[destination]
        return {destination: why for destination, (why, _) in self._remembered.items()}

    async def close(self) -> None:
        flights = list(self._attempts.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    def _flight(
        self, exchange: OwnedExchange, destination: Destination, attempt: Callable[[], Awaitable[None]]
    ) -> asyncio.Task[None]:
        key = (exchange.name, destination)
        flight = self._attempts.get(key)
        if flight is None:
            work = self._supervisor.keep("demand", attempt, self.state.name)
            flight = asyncio.get_running_loop().create_task(work)
            self._attempts[key] = flight
            flight.add_done_callback(lambda _: self._attempts.pop(key, None))
        return flight

    async def _change_form(self, exchange: OwnedExchange) -> None:
        """Switch a topic carrier to eight-word tokens, because a message must be routed to an exchange."""
        try:
            await self._connected(partial(self._reconciler.forms.change, exchange))
        except (UpstreamError, TimeoutError) as error:
            log.warning(
                "carrier not yet switched to eight-word tokens",
                vhost=self.state.name,
                exchange=shown(exchange.name),
                error=str(error),
            )

    async def _attempt(self, token: BindToken) -> None:
        destination = token.destination
        try:
            why = await self._connected(partial(self._reach, token))
        except (UpstreamError, TimeoutError) as error:
            why = str(error)
        if why is not None:
            self._remember(destination, why)
        elif self.state.not_missing(destination):
            self.state.changed()  # a plan in which the destination is missing may be cached

    async def _reach(self, token: BindToken) -> str | None:
        """Bind a token; return the reason if it was refused.

        A failed attempt is repeated once if a client declared the destination in the meantime.
        """
        with self.collecting_declared() as declared:
            why = await self._reach_once(token)
            if why is not None and token.destination in declared:
                why = await self._reach_once(token)
        return why

    async def _reach_once(self, token: BindToken) -> str | None:
        exchange, destination = token
        if exchange.delivery is Delivery.QUEUE:  # there is no token; the destination only has to exist
            why = await self._unpublishable(destination)
            if why is None:
                exchange.tokens.bind_ok(destination)
            return why
        why = unnameable(destination[1]) or await self._lacking(destination)
        if why is not None:
            return why
        extra = not self.state.router.mentions(destination)
        if extra and self.bound_count >= self._settings.bind_limit:
            return f"the limit of {counted(self._settings.bind_limit, 'destination')} bound on demand has been reached"
        # The token is counted before the request is sent, since many attempts may be in progress at once.
        self.bound_count += extra
        why = None
        try:
            why = await self._executor.bind_one(token)
            if why is None:
                exchange.tokens.need(destination, Need.DEMAND)
        finally:
            if destination not in exchange.bound:
                self.bound_count -= extra
        return why

    async def _lacking(self, destination: Destination) -> str | None:
        why = self._observed.absence_reason(destination)
        if why is not None and self._management is not None:
            # The last pass may have been several seconds ago, and querying a single name costs the broker little.
            kind, name = destination
            try:
                info = await self._management.find(self.state.name, kind, name)
            except UpstreamError:
                return None  # the broker's reply to the bind will show whether the destination exists
            if info is None:
                return why
            if isinstance(info, QueueInfo):
                self._observed.add_queue(name, info.exclusive)
        return EXCLUSIVE if self._observed.exclusive(destination) else None

    def _remember(self, destination: Destination, why: str) -> None:
        now = asyncio.get_running_loop().time()
        self._remembered.pop(destination, None)
        self._remembered[destination] = (why, now + self._settings.refresh_seconds)
        # `changed` is not called, since plans that wait for a destination are never cached and thus never stale.
        self.state.set_missing(destination, why)
        if len(self._remembered) > self._settings.remember_limit:
            oldest, _ = self._remembered.popitem(last=False)
            if not self.state.router.mentions(oldest):
                self.state.not_missing(oldest)

    # -- queues and exchanges ----------------------------------------------------------------------------------

    @contextmanager
    def collecting_declared(self) -> Iterator[set[Destination]]:
        """Collect the destinations that are declared during an operation that may already have found them missing."""
        declared = set[Destination]()
        self._declared.append(declared)
        try:
            yield declared
        finally:
            self._declared = [other for other in self._declared if other is not declared]

    def interested(self, queue: bytes) -> bool:
        """Return True if a declare of the queue must wait for `ensure`."""
        destination = (QUEUE, queue)
        rules = self.state.router.exchanges
        return any(
            rules[name].sees_queues
            or self._rights.awaits(owned, rules[name], destination)
            or self._believed(owned, destination)
            for name, owned in self.state.exchanges.items()
        )

    def declared(self, destination: Destination, exclusive: bool = False) -> None:
        """Record that a queue was declared, or that one of the broker's own exchanges exists.

        Args:
            exclusive: whether a queue is exclusive to its connection.
        """
        self._remembered.pop(destination, None)  # the next publish that needs it requests it again
        self.state.clear_refusals(destination=destination)
        for declared in self._declared:
            declared.add(destination)
        kind, name = destination
        if kind == QUEUE:
            self._queue_declared(name, exclusive)
        else:
            self._exchange_declared(destination)

    def _queue_declared(self, queue: bytes, exclusive: bool) -> None:
        state, destination = self.state, (QUEUE, queue)
        self._observed.add_queue(queue, exclusive)
        names = state.queues.with_name(queue)
        changed = names is not state.queues and state.router.sees_queues
        state.queues = names
        if destination in state.missing and not self._rights.holders(state.exchanges, state.router, queue):
            changed = state.not_missing(destination)
        if changed:
            state.changed()

    def _exchange_declared(self, destination: Destination) -> None:
        for exchange in self.state.exchanges.values():
            exchange.tokens.declared(destination)
        if self.state.not_missing(destination):
            self.state.changed()

    def queue_deleted(self, queue: bytes) -> None:
        """Record that a queue and its bindings were deleted."""
        state, destination = self.state, (QUEUE, queue)
        self._observed.remove_queue(queue)
        names = state.queues.without_name(queue)
        changed = names is not state.queues and state.router.sees_queues
        state.queues = names
        changed |= self._gone(destination)
        if changed:
            state.changed()
        self.record_changes()

    def changed(self, exchange: bytes) -> None:
        """Record that a client has changed an exchange or its bindings through this sidecar."""
        if exchange not in self.state.exchanges and self._gone((EXCHANGE, exchange)):
            self.state.changed()
        self._record()
        if self._reconciler.migration.unkept:
            self._request_refresh()
        self._announce(exchange)

    def record_changes(self) -> None:
        """Record the client declarations if the store has changed any since the last call."""
        if self._store.changes != self._recorded_changes:
            self._recorded_changes = self._store.changes
            self._record()
        if self._store.has_unverified and not self._reconciler.observer.failures:
            self._request_refresh()

    async def look_up(self, name: bytes, destination: Destination | None = None) -> str | None:
        """Look up an exchange and its bindings, or only its bindings to a destination, on the broker.

        Returns:
            The type of the exchange if the sidecar does not evaluate it. None if the exchange does not exist, if a
            client declared it (it is then added to the state), if there is no management API (the broker then compares
            types), or if only bindings were looked up.

        Raises:
            UpstreamError: the management API did not respond.
        """
        info = None
        if destination is None:
            info = await self._reconciler.find(name)
        else:
            await self._reconciler.find_bindings(name, destination)
        self.record_changes()
        return None if info is None or name in self.state.exchanges else info.type

    async def ensure(self, destination: Destination) -> None:
        """Bind the tokens of a declared queue or exchange. Returns when all are bound or refused, or at the deadline.

        For an exchange, these are only tokens that count as bound; the others are bound when a publish requests them.
        """
        self.declared(destination)
        kind, name = destination
        if unnameable(name) is not None:
            return
        state = self.state
        waiting = self._rights.waiting(state.exchanges, state.router, name) if kind == QUEUE else []
        # Tokens that count as bound are bound again, since the destination (for example, an auto-delete exchange) may
        # have been deleted elsewhere together with its bindings.
        waiting += [
            exchange
            for exchange in state.carried()
            if exchange not in waiting and self._believed(exchange, destination)
        ]
        if not waiting:
            return
        bound = all(destination in exchange.bound for exchange in waiting)
        tokens = [BindToken(exchange, destination) for exchange in waiting]
        try:
            refused = await self._connected(lambda: gather_all(map(self._executor.bind_one, tokens)))
        except BaseException as error:
            # The destination may be new, so publishes have to request its tokens.
            for exchange in waiting:
                exchange.tokens.not_bound(destination)
            state.not_missing(destination)
            state.changed()
            if not isinstance(error, UpstreamError | TimeoutError):
                raise  # the relay no longer waits
            event = f"{kind} declared but not bound yet"
            log.warning(event, vhost=state.name, error=str(error), **{kind: shown(name)})
            return
        was_missing = state.not_missing(destination)
        reasons = [why for why in refused if why is not None]
        if reasons:
            state.set_missing(destination, reasons[0])
        if reasons or was_missing or not bound:
            state.changed()

    def _believed(self, exchange: OwnedExchange, destination: Destination) -> bool:
        """Return True if a destination counts as bound, and its tokens are needed for more than clients' bindings."""
        if destination not in exchange.bound:
            return False
        receivers = exchange.receivers.get(destination, ())
        if not receivers or exchange.tokens.needs_plain(destination):
            return True
        router = self.state.router
        if router.exchanges[exchange.name].uses(destination) > len(receivers):  # a route in a binding names it
            return True
        return router.may_choose_unnamed(exchange.name, destination[0])

    def _gone(self, destination: Destination) -> bool:
        """Forget the bindings to a deleted destination; return whether relays must be notified."""
        for declared in self._declared:
            declared.discard(destination)
        bound = [exchange for exchange in self.state.exchanges.values() if exchange.tokens.deleted(destination)]
        for exchange in self.state.bound_by_clients(destination):
            for stored in list(exchange.receivers.get(destination, {}).values()):
                self._store.remove_binding(stored)
            if exchange.declared is not None and not exchange.clients:
                self._reconciler.orphans.note(exchange)
                self._request_refresh()
        # With queue delivery, a publish to an exchange that does not exist would close the producer's channel.
        if self.state.router.mentions(destination) and destination not in self.state.missing:
            self.state.set_missing(destination, "deleted")
            return True
        return bool(bound)
