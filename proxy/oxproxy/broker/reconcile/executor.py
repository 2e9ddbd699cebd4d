"""Carries out the actions returned by `diff` on the broker, and tracks failures.

A failed action is retried in the next pass, and then at increasing intervals while `diff` still returns the action. If
a destination does not exist or is another connection's exclusive queue, a refusal is expected: it is not reported as a
failure, and the action is retried in every pass. The number of retries in one pass is limited.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from oxproxy.broker.connection import ControlConnection, ControlSettings
from oxproxy.broker.management_api import ManagementApi, NotListed
from oxproxy.broker.methods import LOCKED, NOT_FOUND, Bind, DeclareQueue, Find, Refusal, declare_carrier
from oxproxy.broker.reconcile.checks import declare_conflict
from oxproxy.broker.reconcile.diff import Action, BindToken, DeclareCarrier, RemoveBinding
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.relay.vhost import OwnedExchange, VhostState
from oxproxy.values import EXCHANGE, QUEUE, Destination, describe, shown

_DIFFERS = 406
#: Maximum number of objects that are logged one by one in a pass; the summary counts all.
_MOST_LOGGED = 100
#: Maximum number of passes between retries of a failing action: about a minute at the default interval.
_LONGEST_PAUSE_PASSES = 12
#: The result for a token of an exchange that has ended meanwhile.
_ENDED = Refusal(NOT_FOUND, "NOT_FOUND - no exchange: it was deleted")

log = structlog.get_logger(__name__)


class Failure(NamedTuple):
    """A failed action.

    Args:
        pause_passes: passes to skip before the next retry.
        expected: whether the reason is only that the destination does not exist or is another connection's exclusive
            queue.
    """

    why: str
    attempts: int
    pause_passes: int
    expected: bool


class Executor:
    """Carries out actions in one virtual host. If the connection is lost, methods raise `UpstreamError`."""

    def __init__(
        self,
        settings: ControlSettings,
        state: VhostState,
        connection: ControlConnection,
        observed: ObservedState,
        management: ManagementApi | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._state = state
        self._connection = connection
        self._observed = observed
        self._management = management
        #: Failed actions that are still needed, in the order of retries.
        self.failures: dict[Action, Failure] = {}
        #: the carriers that have been declared, some of them before this process was started
        self._carriers: set[bytes] = set()
        #: the exchanges that are about to end, with the event that they have ended, or that they have not (`hold`)
        self._held: dict[bytes, asyncio.Event] = {}
        #: the binds that have not been answered yet, and the names of their exchanges
        self._binding: dict[asyncio.Future[None], set[bytes]] = {}

    async def carry_out(
        self, actions: Sequence[Action], *, stop_at: Callable[[Collection[str]], None] | None = None
    ) -> None:
        """Carry out actions, except failed actions that are not due for a retry. Successes are recorded in the state.

        Args:
            stop_at: called before tokens are bound, with the reasons why carriers could not be declared; may raise an
                exception.
        """
        made: list[tuple[str, dict[str, str]]] = []
        try:
            await self._carry_out(self._due(actions), stop_at, made)
        finally:
            self._log_made(made)

    async def _carry_out(
        self,
        due: Sequence[Action],
        stop_at: Callable[[Collection[str]], None] | None,
        made: list[tuple[str, dict[str, str]]],
    ) -> None:
        """Carry out actions that are due, and add what did not exist before to `made`."""
        created = await self._make_queues([action for action in due if isinstance(action, DeclareQueue)])
        made += [("queue declared", {"queue": shown(queue.name)}) for queue in created]
        carriers = [action for action in due if isinstance(action, DeclareCarrier)]
        refusals = await self._connection.call_all([declare_carrier(action.exchange) for action in carriers])
        for carrier, refusal in zip(carriers, refusals, strict=True):
            text = None if refusal is None else declare_conflict(carrier.exchange, *refusal, self._settings.username)
            self._note(carrier, refusal, text)
            name = carrier.exchange.carrier
            if refusal is None and name not in self._carriers and not self._observed.knows((EXCHANGE, name)):
                made.append(("exchange declared", {"exchange": shown(name)}))
            self._carriers.add(name)
        if stop_at is not None:
            stop_at([self.failures[action].why for action in carriers if action in self.failures])
        tokens = [action for action in due if isinstance(action, BindToken)]
        unbound = {token[:2] for token in tokens if token.destination not in token.exchange.tokens.bound}
        for token, refusal in zip(tokens, await self.bind(tokens), strict=True):
            self._note(token, refusal, None if refusal is None else refusal.reason(token.destination[0]))
            if refusal is None and token[:2] in unbound:
                unbound.remove(token[:2])
                names = {"exchange": shown(token.exchange.carrier), "destination": describe(token.destination)}
                made.append(("destination bound", names))
        for action in due:
            if isinstance(action, RemoveBinding) and not await self._remove(action):
                break  # the management API does not respond

    def _log_made(self, made: Sequence[tuple[str, dict[str, str]]]) -> None:
        for event, names in made[:_MOST_LOGGED]:
            log.info(event, vhost=self._state.name, **names)
        if made:
            counts = Counter(event for event, _ in made)
            queues, exchanges = counts["queue declared"], counts["exchange declared"]
            bindings = counts["destination bound"]
            event = "declared on the broker"
            log.info(event, vhost=self._state.name, queues=queues, exchanges=exchanges, bindings=bindings)

    def failing(self) -> list[str]:
        """Describe the failures that are retried, except expected failures such as missing destinations."""
        return [
            f"{action}: {failure.why} ({failure.attempts} attempts)"
            for action, failure in self.failures.items()
            if not failure.expected
        ]

    def _due(self, actions: Sequence[Action]) -> list[Action]:
        still = set(actions)
        self.failures = {action: failure for action, failure in self.failures.items() if action in still}
        fresh = [action for action in actions if action not in self.failures]
        again = [action for action, failure in self.failures.items() if not failure.pause_passes][
            : self._settings.retries_per_pass
        ]
        for action, failure in self.failures.items():
            self.failures[action] = failure._replace(pause_passes=max(0, failure.pause_passes - 1))
        return fresh + again

    def _note(self, action: Action, refusal: Refusal | None, why: str | None) -> None:
        last = self.failures.pop(action, None)
        if why is None:
            return
        attempts = 1 if last is None else last.attempts + 1
        # At any time, a missing destination may be created, or another connection's exclusive queue may be deleted.
        expected = refusal is not None and refusal.code in (NOT_FOUND, LOCKED)
        pause_passes = 0 if expected else min(2 ** min(attempts - 1, 6) - 1, _LONGEST_PAUSE_PASSES)
        self.failures[action] = Failure(why, attempts, pause_passes, expected)

    async def _make_queues(self, actions: Sequence[DeclareQueue]) -> list[DeclareQueue]:
        """Declare the queues that do not exist, and return them."""
        lacking = await self._absent(actions)
        refusals = dict(zip(lacking, await self._connection.call_all(lacking), strict=True))
        # The broker sends the same reply code if arguments are invalid and if another client has just declared the
        # queue with different arguments.
        differing = [action for action, refusal in refusals.items() if refusal is not None and refusal.code == _DIFFERS]
        absent = await self._absent(differing)
        for action, refusal in refusals.items():
            if refusal is None:
                self._has_queue(action)
            elif action in absent or action not in differing:
                self._note(action, refusal, f"can't be declared: {refusal}")
        return [action for action, refusal in refusals.items() if refusal is None]

    async def _absent(self, actions: Sequence[DeclareQueue]) -> list[DeclareQueue]:
        """Look for the queues, and return those that do not exist."""
        absent: list[DeclareQueue] = []
        refusals = await self._connection.call_all([Find((QUEUE, action.name)) for action in actions])
        for action, refusal in zip(actions, refusals, strict=True):
            if refusal is None or refusal.code == LOCKED:
                self._has_queue(action, exclusive=refusal is not None)
            elif refusal.code == NOT_FOUND:
                absent.append(action)
            else:
                self._note(action, refusal, f"refused: {refusal}")
        return absent

    def _has_queue(self, action: DeclareQueue, *, exclusive: bool = False) -> None:
        self._observed.add_queue(action.name, exclusive)
        self._note(action, None, None)

    async def bind(self, tokens: Sequence[BindToken]) -> list[Refusal | None]:
        """Bind tokens, and record the results in the token tables. Tokens of exchanges that are held wait."""
        ended = {name for name in {token.exchange.name for token in tokens} if await self._has_ended(name)}
        results = await self._bind([token for token in tokens if token.exchange.name not in ended])
        return [results[token] if token in results else _ENDED for token in tokens]

    async def _bind(self, tokens: Sequence[BindToken]) -> dict[BindToken, Refusal | None]:
        requested = [token.exchange.tokens.events for token in tokens]
        binds = [Bind(token.exchange.carrier, token.destination, token.token) for token in tokens]
        answered = asyncio.get_running_loop().create_future()
        self._binding[answered] = {token.exchange.name for token in tokens}
        try:
            refusals = (
                [await self._connection.call(binds[0])] if len(binds) == 1 else await self._connection.call_all(binds)
            )
        finally:
            del self._binding[answered]
            answered.set_result(None)
        now = self._clock()
        for (exchange, destination, token), events, refusal in zip(tokens, requested, refusals, strict=True):
            if refusal is None:
                exchange.tokens.bind_ok(destination, (token,))
            elif refusal.code == NOT_FOUND:  # whatever was bound has gone
                exchange.tokens.refused(destination, refusal.reason(destination[0]), now, events)
            elif self._state.token_of(exchange, destination) is None:
                exchange.tokens.refused(destination, refusal.reason(destination[0]), now)
            # else: another token is bound, for example by the connection that owns an exclusive queue
        return dict(zip(tokens, refusals, strict=True))

    async def hold(self, exchange: bytes) -> None:
        """Bind no tokens of an exchange that is about to end, until `release`; return when binds have been answered.

        RabbitMQ 4.3 keeps a binding that is created while its exchange is deleted. If the exchange is declared again,
        the binding is listed, but routes nothing.
        """
        self._held.setdefault(exchange, asyncio.Event())
        if sent := [answered for answered, exchanges in self._binding.items() if exchange in exchanges]:
            await asyncio.wait(sent)

    def release(self, exchange: bytes) -> None:
        """Bind tokens of an exchange again, because it has ended or will not end."""
        if held := self._held.pop(exchange, None):
            held.set()

    async def _has_ended(self, exchange: bytes) -> bool:
        """Wait while an exchange is held, but not longer than the deadline; return True if it has ended."""
        held = self._held.get(exchange)
        if held is None:
            return False
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                await held.wait()
        except TimeoutError:
            self.release(exchange)
        return exchange not in self._state.exchanges

    async def unbind(self, exchange: OwnedExchange, rows: Iterable[tuple[Destination, bytes]]) -> None:
        """Unbind tokens of an exchange that ends. Publishes stop using a token before it is unbound."""
        rows = list(rows)
        for destination, _ in rows:
            exchange.tokens.deleted(destination)
        await self._connection.call_all(
            [Bind(exchange.carrier, destination, token, unbinds=True) for destination, token in rows]
        )

    async def _remove(self, action: RemoveBinding) -> bool:
        """Remove a binding; return whether to continue with further bindings."""
        if self._management is None:
            return False
        try:
            with suppress(NotListed):  # removed concurrently
                await self._management.remove_binding(self._state.name, action.carrier, action.binding)
        except UpstreamError as error:
            self._note(action, None, str(error))
            return error.failure is UpstreamFailure.REFUSED
        self._note(action, None, None)
        names = {"vhost": self._state.name, "carrier": shown(action.carrier)}
        log.warning("foreign binding removed", **names, binding=str(action.binding))
        return True
