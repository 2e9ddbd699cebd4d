"""Executes declarations on the broker: queues, carriers, tokens.

Each method takes a batch and returns what the broker refused, worded for operators. What is needed is decided in
`desired` and `reconciler`, when in `vhost_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from proxy.broker.connection import ControlConnection, Refusal
from proxy.broker.methods import (
    DeclareQueue,
    Find,
    bind_token,
    declare_carrier,
    declare_marker,
    reason,
    unbind_token,
    unnameable,
)
from proxy.broker.reconcile.checks import declare_conflict
from proxy.broker.reconcile.desired import WantedQueue
from proxy.broker.reconcile.observer import ObservedState
from proxy.relay.vhost import Destination, OwnedExchange, VhostState
from proxy.routing.router import Router

#: A token: the exchange whose carrier has it, and the destination it stands for.
Token: TypeAlias = tuple[OwnedExchange, Destination]

_LOCKED = 405
_NOT_FOUND = 404


class Executor:
    """The control user's declarations in one virtual host.

    Args:
        connection: where they are made.
        observed: learns of the queues found and made.
        username: for texts.
        state: the virtual host, whose tokens are bound; None where none are.
    """

    def __init__(
        self, connection: ControlConnection, observed: ObservedState, username: str, state: VhostState | None = None
    ) -> None:
        """Remember the arguments."""
        self._state = state if state is not None else VhostState("", Router(()))
        self._connection = connection
        self._observed = observed
        self._username = username

    async def declare_queues(self, wanted: Iterable[WantedQueue]) -> dict[Destination, str]:
        """Declare the queues that rules ask for; one that exists is taken as it is.

        Returns:
            Why, for those that could not be found or made.
        """
        refused: dict[Destination, str] = {}
        lacking: list[WantedQueue] = []
        unseen = [queue for queue in wanted if not self._observed.knows(("queue", queue.name))]
        usable = [queue for queue in unseen if unnameable(queue.name) is None]
        looks = await self._connection.call_all([Find(("queue", queue.name)) for queue in usable])
        for queue, refusal in zip(usable, looks, strict=True):
            if refusal is None or refusal.code == _LOCKED:
                self._observed.add_queue(queue.name, exclusive=refusal is not None)
            elif refusal.code == _NOT_FOUND:
                lacking.append(queue)
            else:
                refused["queue", queue.name] = f"refused: {refusal.code} {refusal.text}"
        made = await self._connection.call_all([DeclareQueue(queue.name, queue.arguments) for queue in lacking])
        for queue, refusal in zip(lacking, made, strict=True):
            if refusal is None:
                self._observed.add_queue(queue.name)
            else:
                refused["queue", queue.name] = f"can't be declared: {refusal.code} {refusal.text}"
        return refused

    async def declare_carriers(self, exchanges: Sequence[OwnedExchange]) -> list[str]:
        """Declare the carriers of exchanges; an equal one is no fault.

        Returns:
            Conflicts: what an operator must do about those that could not be declared.
        """
        refusals = await self._connection.call_all([declare_carrier(exchange) for exchange in exchanges])
        return [
            declare_conflict(exchange, refusal.code, refusal.text, self._username)
            for exchange, refusal in zip(exchanges, refusals, strict=True)
            if refusal is not None
        ]

    async def bind(self, tokens: Sequence[Token]) -> dict[Token, str]:
        """Bind tokens and note in each exchange's `bound` which stand.

        Returns:
            Why, for those that were refused.
        """
        keyed = [(token, key) for token in tokens for key in self._state.tokens.of(*token[1])]
        answers = await self._connection.call_all(
            [bind_token(exchange.carrier, destination, key) for (exchange, destination), key in keyed]
        )
        refusals: dict[Token, Refusal | None] = {}
        for (token, _), answer in zip(keyed, answers, strict=True):
            refusals[token] = refusals.get(token) or answer
        refused: dict[Token, str] = {}
        for (exchange, destination), refusal in refusals.items():
            if refusal is None:
                exchange.bound.add(destination)
            else:
                if refusal.code != _LOCKED:  # the queue is there: its owner's connection may have bound it
                    exchange.bound.discard(destination)
                refused[exchange, destination] = reason(refusal.code, refusal.text, destination[0])
        return refused

    async def bind_one(self, token: Token) -> str | None:
        """Bind one token without waiting behind bulk work; say why where it was refused."""
        exchange, destination = token
        for key in self._state.tokens.of(*destination):
            refusal = await self._connection.call(bind_token(exchange.carrier, destination, key))
            if refusal is not None:
                return reason(refusal.code, refusal.text, destination[0])
        exchange.bound.add(destination)
        return None

    async def bind_rows(self, carrier: bytes, rows: Sequence[tuple[Destination, bytes, bytes]]) -> list[Refusal | None]:
        """Bind destinations under keys with raw entries of their argument tables; give what was refused."""
        return await self._connection.call_all([bind_token(carrier, *row) for row in rows])

    async def declare_marker(self, name: bytes) -> str | None:
        """Declare an exchange that says something by being there; say why where it was refused."""
        refusal = await self._connection.call(declare_marker(name))
        return None if refusal is None else f"{refusal.code} {refusal.text}"

    async def unbind(self, tokens: Sequence[Token], still_needed: Callable[[Token], bool]) -> None:
        """Take tokens away, except those that have become needed again."""
        unneeded = [token for token in tokens if not still_needed(token)]
        await self._connection.call_all(
            [
                unbind_token(exchange.carrier, destination, key)
                for exchange, destination in unneeded
                for key in self._state.tokens.of(*destination) + self._state.tokens.former(*destination)
            ]
        )

    async def find_missing(self, destinations: Sequence[Destination]) -> dict[Destination, str]:
        """Ask the broker itself which destinations it does not have (where there is no inventory)."""
        refusals = await self._connection.call_all([Find(destination) for destination in destinations])
        return {
            destination: reason(refusal.code, refusal.text, destination[0])
            for destination, refusal in zip(destinations, refusals, strict=True)
            if refusal is not None and refusal.code != _LOCKED
        }
