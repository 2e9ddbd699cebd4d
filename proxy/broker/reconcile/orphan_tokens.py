"""Unbinds tokens that have outlived the last binding that needed them: a token counts as use of its destination.

The relay that unbinds removes the token itself; this handles tokens that it could not remove, and bindings that were
removed without the sidecar. A token is unbound when two successive passes find no use for it: during the first, a
client may be in the middle of binding. Source: delivery notes, "Tokens and bindings".
"""

from __future__ import annotations

import asyncio

from proxy.broker.reconcile.desired import DesiredState, TokenRights
from proxy.broker.reconcile.executor import Executor, Token
from proxy.relay.token_table import PLAIN
from proxy.relay.vhost import OwnedExchange, VhostState
from proxy.values import Destination


class OrphanTokens:
    """The orphan tokens of one virtual host."""

    def __init__(self, state: VhostState, executor: Executor, rights: TokenRights) -> None:
        self._state = state
        self._executor = executor
        self._rights = rights
        self._seen: set[Token] = set()
        self._received: dict[OwnedExchange, set[Destination]] = {}
        self._left: dict[OwnedExchange, set[Destination]] = {}

    def note(self, exchange: OwnedExchange) -> None:
        """Record that an exchange has just lost its last binding: the next pass may act at once."""
        self._seen |= {(exchange, destination) for destination in exchange.bound}

    async def unbind(self, desired: DesiredState) -> bool:
        """Unbind orphan tokens, at the end of a pass.

        Returns:
            Whether there were any: an auto-delete exchange may have been deleted with its last one.

        Raises:
            UpstreamError: the connection was lost.
        """
        found = {(exchange, one) for exchange in desired.carriers for one in self._of(exchange, desired)}
        self._received = {exchange: set(exchange.receivers) for exchange in desired.carriers}
        self._left = {exchange: left for exchange, left in self._left.items() if exchange in self._received}
        due = found & self._seen
        self._seen = found - due
        shared = {token for token in due if token[0].declared is None and token[0].tokens.has_plain(token[1])}
        rows = {
            (exchange, destination): (() if exchange.declared is None else (PLAIN,))
            + exchange.tokens.removable(destination)
            for exchange, destination in due
        }
        rows = {token: there for token, there in rows.items() if there or token in shared}
        for exchange in desired.carriers:
            for destination in self._idle(exchange, desired):
                token = exchange, destination
                pins = exchange.tokens.removable(destination)
                if pins and token not in rows:
                    rows[token] = pins
        outdated = [
            ((exchange, destination), pins)
            for exchange in desired.carriers
            for destination, pins in exchange.tokens.outdated()
            if (exchange, destination) not in rows
        ]
        for exchange, destination in rows:
            exchange.tokens.unbinding(destination)
        if rows:
            self._state.changed()
        if shared:
            await self._executor.hand_over(sorted(shared, key=_order))
        if rows or outdated:
            await self._executor.unbind([*sorted(rows.items(), key=lambda item: _order(item[0])), *outdated])
        # A sidecar that bound meanwhile has its own assertion.
        for exchange, destination in rows:
            exchange.tokens.unbound(destination)
        again = [token for token in rows if self._needed(token) and token[1] not in token[0].bound]
        if again:
            await self._executor.bind(sorted(again, key=_order))
        return bool(rows)

    def _idle(self, exchange: OwnedExchange, desired: DesiredState) -> list[Destination]:
        """Return the destinations that nothing is known to need, by the last listings."""
        router = self._state.router
        if exchange.name not in router.exchanges:
            return []
        granted = set(exchange.grants.values())
        wanted = desired.tokens_of(exchange)

        def needed(destination: Destination) -> bool:
            return destination in wanted or destination in granted or router.may_choose(exchange.name, destination)

        table = exchange.tokens
        return table.idle(needed, table.looked_at if table.shared else asyncio.get_running_loop().time())

    def _of(self, exchange: OwnedExchange, desired: DesiredState) -> set[Destination]:
        left = self._left.setdefault(exchange, set())
        left |= self._received.get(exchange, set()) - exchange.receivers.keys()
        if exchange.declared is not None and not exchange.clients:
            left |= exchange.bound
        left &= exchange.bound - desired.tokens_of(exchange)
        rules = self._state.router.exchanges.get(exchange.name)
        return set() if rules is None else {one for one in left if not rules.uses(one)}

    def _needed(self, token: Token) -> bool:
        exchange, destination = token
        rules = self._state.router.exchanges.get(exchange.name)
        if rules is None or self._state.exchanges.get(exchange.name) is not exchange:
            return False
        return self._rights.names(exchange, rules, destination)


def _order(token: Token) -> tuple[bytes, Destination]:
    return token[0].name, token[1]
