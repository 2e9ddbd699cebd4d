"""Carries out the actions returned by `diff` on the broker, and tracks failures.

A failed action is retried in the next pass, and then at increasing intervals while `diff` still returns the action. If
a destination does not exist or is another connection's exclusive queue, a refusal is expected: it is not reported as a
failure, and the action is retried in every pass. The number of retries in one pass is limited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from proxy.broker.connection import ControlConnection, ControlSettings
from proxy.broker.management_api import ManagementApi, NotListed
from proxy.broker.methods import LOCKED, Bind, DeclareQueue, Find, Refusal, declare_carrier
from proxy.broker.reconcile.checks import declare_conflict
from proxy.broker.reconcile.diff import Action, BindToken, DeclareCarrier, RemoveBinding, UnbindRows
from proxy.broker.reconcile.observed import ObservedState
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.declare.storage import pin_entries
from proxy.relay.token_table import PLAIN, TokenTable
from proxy.relay.tokens import Tokens, is_eight_words
from proxy.relay.vhost import OwnedExchange, VhostState
from proxy.values import QUEUE, Destination, shown

_NOT_FOUND = 404
_DIFFERS = 406
#: Maximum number of passes between retries of a failing action: about a minute at the default interval.
_LONGEST_PAUSE_LOOKS = 12

log = structlog.get_logger(__name__)


class Failure(NamedTuple):
    """A failed action.

    Args:
        pause_looks: passes to skip before the next retry.
        expected: whether the reason is only that the destination does not exist or is another connection's exclusive
            queue.
    """

    why: str
    attempts: int
    pause_looks: int
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
    ) -> None:
        self._settings = settings
        self._state = state
        self._connection = connection
        self._observed = observed
        self._management = management
        #: Failed actions that are still needed, in the order of retries.
        self.failures: dict[Action, Failure] = {}

    async def carry_out(
        self, actions: Sequence[Action], *, stop_at: Callable[[Collection[str]], None] | None = None
    ) -> None:
        """Carry out actions, except failed actions that are not due for a retry. Successes are recorded in the state.

        Args:
            stop_at: called before tokens are bound, with the reasons why carriers could not be declared; may raise an
                exception.
        """
        due = self._due(actions)
        await self._make_queues([action for action in due if isinstance(action, DeclareQueue)])
        carriers = [action for action in due if isinstance(action, DeclareCarrier)]
        refusals = await self._connection.call_all([declare_carrier(action.exchange) for action in carriers])
        for carrier, refusal in zip(carriers, refusals, strict=True):
            text = None if refusal is None else declare_conflict(carrier.exchange, *refusal, self._settings.username)
            self._note(carrier, refusal, text)
        if stop_at is not None:
            stop_at([self.failures[action].why for action in carriers if action in self.failures])
        for token, refusal in (await self.bind([action for action in due if isinstance(action, BindToken)])).items():
            self._note(token, refusal, None if refusal is None else refusal.reason(token.destination[0]))
        for action in due:
            if isinstance(action, RemoveBinding) and not await self._remove(action):
                break  # the management API does not respond

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
        again = [action for action, failure in self.failures.items() if not failure.pause_looks][
            : self._settings.retries_per_look
        ]
        for action, failure in self.failures.items():
            self.failures[action] = failure._replace(pause_looks=max(0, failure.pause_looks - 1))
        return fresh + again

    def _note(self, action: Action, refusal: Refusal | None, why: str | None) -> None:
        last = self.failures.pop(action, None)
        if why is None:
            return
        attempts = 1 if last is None else last.attempts + 1
        # At any time, a missing destination may be created, or another connection's exclusive queue may be deleted.
        expected = refusal is not None and refusal.code in (_NOT_FOUND, LOCKED)
        pause_looks = 0 if expected else min(2 ** min(attempts - 1, 6) - 1, _LONGEST_PAUSE_LOOKS)
        self.failures[action] = Failure(why, attempts, pause_looks, expected)

    async def _make_queues(self, actions: Sequence[DeclareQueue]) -> None:
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

    async def _absent(self, actions: Sequence[DeclareQueue]) -> list[DeclareQueue]:
        """Look for the queues, and return those that do not exist."""
        absent: list[DeclareQueue] = []
        refusals = await self._connection.call_all([Find((QUEUE, action.name)) for action in actions])
        for action, refusal in zip(actions, refusals, strict=True):
            if refusal is None or refusal.code == LOCKED:
                self._has_queue(action, exclusive=refusal is not None)
            elif refusal.code == _NOT_FOUND:
                absent.append(action)
            else:
                self._note(action, refusal, f"refused: {refusal}")
        return absent

    def _has_queue(self, action: DeclareQueue, *, exclusive: bool = False) -> None:
        self._observed.add_queue(action.name, exclusive)
        self._note(action, None, None)

    async def bind(self, tokens: Sequence[BindToken]) -> dict[BindToken, Refusal | None]:
        """Bind tokens and update each exchange's token table."""
        written: dict[OwnedExchange, Tokens] = {}
        sent: dict[BindToken, int] = {}
        for token in tokens:
            exchange, destination = token
            sent[token] = exchange.tokens.binding(destination)
            written[exchange] = self._state.tokens_of(exchange)
        keyed = [(token, key) for token in tokens for key in written[token[0]].of(*token[1])]
        answers = await self._connection.call_all(
            [Bind(exchange.carrier, destination, key) for (exchange, destination), key in keyed]
        )
        refusals: dict[BindToken, Refusal | None] = {}
        for (token, _), answer in zip(keyed, answers, strict=True):
            refusals[token] = refusals.get(token) or answer
        for token, refusal in refusals.items():
            exchange, destination = token
            if refusal is None:
                self._bound(exchange, destination, written[exchange])
            elif refusal.code == _NOT_FOUND:
                exchange.tokens.not_found(destination, sent[token])
            else:
                # A row may still exist: the control user may have lost a permission, or the owner's connection may
                # have bound an exclusive queue.
                exchange.tokens.refused(destination)
        return refusals

    async def bind_one(self, token: BindToken) -> str | None:
        """Bind one token without waiting for bulk work; return the reason if it was refused."""
        exchange, destination = token
        while True:
            exchange.tokens.binding(destination)
            tokens = self._state.tokens_of(exchange)
            for key in tokens.of(*destination):
                refusal = await self._connection.call(Bind(exchange.carrier, destination, key))
                if refusal is not None:
                    exchange.tokens.refused(destination)
                    return refusal.reason(destination[0])
            self._bound(exchange, destination, tokens)
            # The bind is repeated if the carrier has switched to other tokens, since a publish is waiting for the
            # destination.
            if tokens.lead_to(self._state.tokens_of(exchange)):
                return None

    def _bound(self, exchange: OwnedExchange, destination: Destination, tokens: Tokens) -> None:
        exchange.tokens.bind_ok(destination)
        if not tokens.lead_to(self._state.tokens_of(exchange)):
            exchange.tokens.not_bound(destination)  # the carrier has switched to other tokens in the meantime

    async def bind_again(self, exchange: OwnedExchange) -> list[Destination]:
        """Bind the destinations of a topic carrier with eight-word tokens, in addition to one-word tokens.

        Returns:
            Existing destinations that the broker refused to bind.
        """
        table, done, refused = exchange.tokens, set[Destination](), list[Destination]()
        # This is repeated, since relays may bind destinations in the meantime.
        while left := sorted(exchange.bound - done):
            done.update(left)
            pins = [self._row_for(table, destination) for destination in left]
            sent_at = asyncio.get_running_loop().time()
            rows = [
                Bind(exchange.carrier, destination, key, pin_entries(pin))
                for destination, pin in zip(left, pins, strict=True)
                for key in self._state.tokens_of(exchange).of(*destination)
                if is_eight_words(key)
            ]
            refusals: dict[Destination, Refusal] = {}
            for bind, refusal in zip(rows, await self._connection.call_all(rows), strict=True):
                if refusal is not None:
                    refusals[bind.destination] = refusal
            for destination, pin in zip(left, pins, strict=True):
                if destination not in refusals:
                    if pin:
                        table.asserted(destination, pin, sent_at, None)
                elif refusals[destination].code == _NOT_FOUND:
                    table.not_bound(destination)
                else:
                    refused.append(destination)
        return refused

    def _row_for(self, table: TokenTable, destination: Destination) -> bytes:
        """Return the row to bind for a destination: the plain row or, if only clients need the destination, a pin."""
        if not table.shared or table.needs_plain(destination):
            return PLAIN
        return self._state.next_pin(time.time())

    async def hand_over(self, tokens: Sequence[BindToken]) -> list[UnbindRows]:
        """Unbind the plain rows of tokens that this sidecar's rules no longer need.

        Other sidecars' rules may still need the tokens. If there may be other sidecars, pins replace the rows until
        these sidecars have run a pass (`relay.token_table`).

        Returns:
            The actions that unbind the pins.
        """
        state, now = self._state, time.time()
        pins = [UnbindRows(*token, (state.next_pin(now),)) for token in tokens if state.shared]
        await self._connection.call_all(
            [
                Bind(exchange.carrier, destination, key, pin_entries(row))
                for exchange, destination, (row,), *_ in pins
                for key in self._state.tokens_of(exchange).of(*destination)
            ]
        )
        await self.unbind([UnbindRows(*token, (PLAIN,)) for token in tokens])
        return pins

    async def unbind(self, actions: Iterable[UnbindRows]) -> None:
        """Unbind rows. Relays stop publishing with unneeded tokens before the tokens are unbound."""
        actions = list(actions)
        needless = [action for action in actions if action.needless]
        for action in needless:
            action.exchange.tokens.unbinding(action.destination)
        if needless:
            self._state.changed()
            shared = [action for action in needless if action.hands_over]
            await self.hand_over([BindToken(action.exchange, action.destination) for action in shared])
        await self._connection.call_all(
            [
                Bind(action.exchange.carrier, action.destination, key, pin_entries(row), unbinds=True)
                for action in actions
                for row in action.rows
                for key in self._every_token(action.exchange, action.destination)
            ]
        )
        for action in needless:
            action.exchange.tokens.unbound(action.destination)

    async def unbind_grants(self, exchanges: Iterable[OwnedExchange]) -> None:
        """Unbind all grants of exchanges."""
        unbinds = []
        for exchange in exchanges:
            unbinds += [Bind(exchange.carrier, name, key, unbinds=True) for key, name in exchange.grants.items()]
            exchange.grants.clear()
            exchange.reaches.clear()
        await self._connection.call_all(unbinds)

    def _every_token(self, exchange: OwnedExchange, destination: Destination) -> tuple[bytes, ...]:
        tokens = self._state.tokens_of(exchange)
        return tokens.of(*destination) + tokens.former(*destination)

    async def _remove(self, action: RemoveBinding) -> bool:
        """Remove a binding; return whether to continue with further bindings."""
        if self._management is None:
            return False
        moved = await self._connection.call_all([Bind(action.carrier, *row) for row in action.moves])
        refusal = next((refusal for refusal in moved if refusal is not None), None)
        if refusal is not None:
            self._note(action, refusal, f"the stored binding can't be moved: {refusal}")
            return True
        try:
            with suppress(NotListed):  # removed concurrently
                await self._management.remove_binding(self._state.name, action.carrier, action.binding)
        except UpstreamError as error:
            self._note(action, None, str(error))
            return error.failure is UpstreamFailure.REFUSED
        self._note(action, None, None)
        if action.why:
            names = {"vhost": self._state.name, "carrier": shown(action.carrier)}
            log.warning(action.why, **names, binding=str(action.binding))
        return True
