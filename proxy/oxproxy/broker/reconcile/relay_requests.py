"""Handles requests from relays to bind destinations, and their reports of created or deleted objects, between passes.

Producers and regex routes can choose any number of destinations that no rule names. The destinations of one message are
therefore bound as one batch of limited size, attempts to bind the same destination never run concurrently, and the
number of destinations that are bound on demand or remembered as missing is limited. When objects are declared or
deleted through a relay, this is recorded immediately. This must remain cheap even with thousands of bindings, so the
desired state is computed only in passes.

Source: architecture, "The control plane".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import structlog

from oxproxy.broker.management_api import ExchangeInfo, QueueInfo
from oxproxy.broker.methods import ABSENT, INTERNAL, unnameable
from oxproxy.broker.reconcile.diff import BindToken
from oxproxy.broker.reconcile.reconciler import Reconciler
from oxproxy.broker.task_supervisor import Supervisor, gather_all
from oxproxy.errors import UpstreamError
from oxproxy.relay.vhost import Delivery, OwnedExchange
from oxproxy.values import EXCHANGE, QUEUE, Destination, counted, shown

#: Maximum number of destinations that are bound for one message.
_AT_ONCE = 1000
#: Pause before work is repeated after a loss of the connection, which `vhost_loop` may not have noticed yet.
_RETRY_SECONDS = 0.05

T = TypeVar("T")

log = structlog.get_logger(__name__)


class RelayRequests:
    """Requests and reports from relays in one virtual host.

    Destinations that could not be bound stay missing in the exchange's token table until the end of the first pass that
    finishes at least `refresh_seconds` later, so that publishes don't request them repeatedly.

    Args:
        reconciler: provides the inventory and the client declarations, and binds tokens.
        announce: called with an exchange that a client of this sidecar has changed.
        request_refresh: called when a pass must be run soon.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        supervisor: Supervisor,
        announce: Callable[[bytes], None],
        request_refresh: Callable[[], None],
    ) -> None:
        self.state = reconciler.state
        self._reconciler = reconciler
        self._supervisor = supervisor
        self._announce = announce
        self._request_refresh = request_refresh
        #: Set while the control connection is up and the first pass has succeeded.
        self.connected = asyncio.Event()
        #: Set while requests wait for the control connection; a reconnect is then attempted soon.
        self.awaited = asyncio.Event()
        self._waiting = 0
        self._attempts: dict[tuple[bytes, Destination], asyncio.Task[None]] = {}
        #: For each attempt in progress, the destinations that have been declared since it started.
        self._declared: list[set[Destination]] = []
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
        wanted = list(dict.fromkeys(destinations))
        missing = exchange.tokens.missing
        unbound = [place for place in wanted if not self._is_bound(exchange, place) and place not in missing]
        fresh = [place for place in unbound if (name, place) not in self._attempts]
        for destination in fresh[_AT_ONCE:]:
            self._refuse(exchange, destination, f"more than {counted(_AT_ONCE, 'destination')} at once")
        flights = {self._attempts[name, place] for place in unbound if (name, place) in self._attempts}
        if fresh:
            flights.add(self._start(exchange, fresh[:_AT_ONCE]))
        if flights:
            # If this caller is cancelled, the attempts continue (asyncio.wait), since others may be waiting for them.
            await asyncio.wait(flights, timeout=self._reconciler.settings.deadline_seconds)
        return {place for place in wanted if self._is_bound(exchange, place)}

    def _is_bound(self, exchange: OwnedExchange, destination: Destination) -> bool:
        if exchange.delivery is Delivery.QUEUE:
            return destination in exchange.tokens.bound
        return self.state.token_of(exchange, destination) is not None

    async def _connected(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work as soon as the control connection is up, and again if the connection is lost in the meantime.

        Raises:
            UpstreamError: the work failed, although the connection is up.
            TimeoutError: the deadline for the connection and the work has passed.
        """
        try:
            async with asyncio.timeout(self._reconciler.settings.deadline_seconds):
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
        management = self._reconciler.management
        if management is None:
            return (await self._reconciler.connection.find_missing([destination])).get(destination)
        info = await management.find(self.state.name, kind, name)
        if info is None:
            return ABSENT
        return INTERNAL if isinstance(info, ExchangeInfo) and info.internal else None

    async def close(self) -> None:
        flights = set(self._attempts.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    def _start(self, exchange: OwnedExchange, destinations: list[Destination]) -> asyncio.Task[None]:
        """Start to bind destinations as one batch."""
        work = self._supervisor.keep("demand", partial(self._attempt, exchange, destinations), self.state.name)
        flight = asyncio.get_running_loop().create_task(work)
        keys = [(exchange.name, destination) for destination in destinations]
        self._attempts.update(dict.fromkeys(keys, flight))
        for destination in destinations:
            exchange.tokens.requested(destination)

        def ended(_: asyncio.Task[None]) -> None:
            for key in keys:
                self._attempts.pop(key, None)

        flight.add_done_callback(ended)
        return flight

    async def _attempt(self, exchange: OwnedExchange, destinations: list[Destination]) -> None:
        with self._collecting_declared() as declared:
            left = destinations
            for _ in range(2):  # a failed attempt is repeated once if a client declared the destination in the meantime
                try:
                    reasons = await self._connected(partial(self._bind_batch, exchange, left))
                except (UpstreamError, TimeoutError) as error:
                    reasons = dict.fromkeys(left, str(error))
                    break
                left = [destination for destination in reasons if destination in declared]
                if not left:
                    break
        for destination, why in reasons.items():
            self._refuse(exchange, destination, why)

    async def _bind_batch(self, exchange: OwnedExchange, destinations: list[Destination]) -> dict[Destination, str]:
        """Bind tokens; return the destinations for which this failed, with the reasons."""
        reasons: dict[Destination, str] = {}
        lacking = self._unpublishable if exchange.delivery is Delivery.QUEUE else self._lacking
        whys = await gather_all(lacking(destination) for destination in destinations)
        bindable = []
        for destination, why in zip(destinations, whys, strict=True):
            if why is not None:
                reasons[destination] = why
            else:
                bindable.append(destination)
        if exchange.delivery is Delivery.QUEUE:  # there is no token; the destination only has to exist
            for destination in bindable:
                exchange.tokens.bind_ok(destination)
            return reasons
        extra = [destination for destination in bindable if not self.state.router.mentions(destination)]
        limit = self._reconciler.settings.bind_limit
        room = max(limit - self.bound_count, 0)
        for destination in extra[room:]:
            reasons[destination] = f"the limit of {counted(limit, 'destination')} bound on demand has been reached"
        wanted = [destination for destination in bindable if destination not in reasons]
        # The tokens are counted before the requests are sent, since many attempts may be in progress at once.
        counted_now = extra[:room]
        self.bound_count += len(counted_now)
        try:
            tokens = [self._token(exchange, destination) for destination in wanted]
            refusals = await self._reconciler.executor.bind(tokens)
            for token, refusal in zip(tokens, refusals, strict=True):
                if refusal is not None and not self._is_bound(exchange, token.destination):
                    reasons[token.destination] = refusal.reason(token.destination[0])
        finally:
            self.bound_count -= sum(not self._is_bound(exchange, destination) for destination in counted_now)
        return reasons

    def _token(self, exchange: OwnedExchange, destination: Destination) -> BindToken:
        return BindToken(exchange, destination, self.state.candidates(exchange, destination)[0])

    async def _lacking(self, destination: Destination) -> str | None:
        kind, name = destination
        if (unusable := unnameable(name)) is not None:
            return unusable
        names, management = self._reconciler.names, self._reconciler.management
        why = names.absence_reason(destination)
        if why is not None and management is not None:
            # The last pass may have been several seconds ago, and querying a single name costs the broker little.
            try:
                info = await management.find(self.state.name, kind, name)
            except UpstreamError:
                return None  # the broker's reply to the bind will show whether the destination exists
            if info is None:
                return why
            if isinstance(info, QueueInfo):
                names.add_queue(name, info.exclusive)
        return None

    def _refuse(self, exchange: OwnedExchange, destination: Destination, why: str) -> None:
        exchange.tokens.refused(destination, why, asyncio.get_running_loop().time())
        exchange.tokens.limit_missing(self._reconciler.settings.remember_limit, partial(self.state.names, exchange))

    # -- queues and exchanges ----------------------------------------------------------------------------------

    @contextmanager
    def _collecting_declared(self) -> Iterator[set[Destination]]:
        """Collect the destinations that are declared during an operation that may already have found them missing."""
        declared = set[Destination]()
        self._declared.append(declared)
        try:
            yield declared
        finally:
            self._declared = [other for other in self._declared if other is not declared]

    def interested(self, queue: bytes) -> bool:
        """Return True if a declare of the queue must wait for `ensure`."""
        return self.state.router.sees_queues or bool(self.state.needing((QUEUE, queue)))

    def declared(self, destination: Destination, exclusive: bool = False) -> None:
        """Record that a queue was declared, or that one of the broker's own exchanges exists.

        Args:
            exclusive: whether a queue is exclusive to its connection.
        """
        for declared in self._declared:
            declared.add(destination)
        state, (kind, name) = self.state, destination
        for exchange in state.exchanges.values():
            # The next publish that needs it requests it again.
            exchange.tokens.declared(destination)
        if kind == QUEUE:
            self._reconciler.names.add_queue(name, exclusive)
            state.set_queues(state.queues.with_name(name))

    def queue_deleted(self, queue: bytes) -> None:
        """Record that a queue and its bindings were deleted."""
        self._reconciler.names.remove_queue(queue)
        self.state.set_queues(self.state.queues.without_name(queue))
        self._gone((QUEUE, queue))
        self.confirm()

    def changed(self, exchange: bytes) -> None:
        """Record that a client has changed an exchange or its bindings through this sidecar, or was refused to."""
        self._reconciler.executor.release(exchange)
        if exchange not in self.state.exchanges:
            self._gone((EXCHANGE, exchange))
        self._announce(exchange)

    def confirm(self) -> None:
        """Request a pass if a listing contains declarations that the next listing has to confirm."""
        if self._reconciler.store.has_unverified and not self._reconciler.observer.failures:
            self._request_refresh()

    async def end(self, owned: OwnedExchange) -> bool:
        """Unbind the tokens of an exchange without client's bindings; see `Reconciler.end`."""
        return await self._connected(partial(self._reconciler.end, owned))

    async def hold(self, owned: OwnedExchange) -> None:
        """Bind no more tokens of an exchange that a client deletes; see `Executor.hold`."""
        await self._reconciler.executor.hold(owned.name)

    async def restore(self, owned: OwnedExchange) -> None:
        """Bind the tokens of an exchange again whose end the broker has refused; see `Reconciler.restore`."""
        await self._connected(partial(self._reconciler.restore, owned))

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
        self.confirm()
        return None if info is None or name in self.state.exchanges else info.type

    async def ensure(self, destination: Destination) -> None:
        """Bind the tokens of a declared queue or exchange. Returns when all are bound or refused, or at the deadline.

        Other tokens than those of `VhostState.needing` are bound when publishes need them.
        """
        self.declared(destination)
        kind, name = destination
        if unnameable(name) is not None:
            return
        state, waiting = self.state, self.state.needing(destination)
        if not waiting:
            return
        tokens = [self._token(exchange, destination) for exchange in waiting]
        try:
            await self._connected(lambda: self._reconciler.executor.bind(tokens))
        except BaseException as error:
            # The destination may be new, so publishes have to request its tokens.
            for exchange in waiting:
                exchange.tokens.deleted(destination)
            if not isinstance(error, UpstreamError | TimeoutError):
                raise  # the relay no longer waits
            event = f"{kind} declared but not bound yet"
            log.warning(event, vhost=state.name, error=str(error), **{kind: shown(name)})

    def _gone(self, destination: Destination) -> None:
        """Forget the bindings to a deleted destination."""
        for declared in self._declared:
            declared.discard(destination)
        now = asyncio.get_running_loop().time()
        for exchange in list(self.state.exchanges.values()):
            exchange.tokens.deleted(destination)
            for stored in list(exchange.clients.receivers.get(destination, {}).values()):
                self._reconciler.store.remove_binding(stored)
            if exchange.ends:
                self._request_refresh()
            # With queue delivery, a publish to an exchange that does not exist would close the producer's channel.
            if self.state.names(exchange, destination):
                exchange.tokens.refused(destination, ABSENT, now)
