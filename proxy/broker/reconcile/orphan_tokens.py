"""Finds tokens that are still bound although the last binding that needed them was removed.

While such a token is bound, the broker considers the exchange in use. A relay that removes a binding also unbinds the
token that the binding needed. This module finds tokens that the relay could not unbind, and tokens of bindings that
were removed directly on the broker or with their queue, and also the grants of such bindings. A token or grant is
unbound only after two successive passes have found that nothing needs it, since a client may be creating a binding that
needs it during the first pass. Source: `relay.token_table`.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxy.broker.reconcile.desired import DesiredState, TokenRights
from proxy.broker.reconcile.diff import BindToken, UnbindRows
from proxy.relay.token_table import PLAIN
from proxy.relay.vhost import OwnedExchange, VhostState
from proxy.values import Destination


class OrphanTokens:
    """The orphan tokens of one virtual host."""

    def __init__(self, state: VhostState, rights: TokenRights) -> None:
        self._state = state
        self._rights = rights
        self._seen: set[tuple[OwnedExchange, Destination]] = set()
        #: exchanges that have grants but no client bindings
        self._unused: set[OwnedExchange] = set()
        self._received: dict[OwnedExchange, set[Destination]] = {}
        self._left: dict[OwnedExchange, set[Destination]] = {}

    def note(self, exchange: OwnedExchange) -> None:
        """Record that an exchange has just lost its last binding.

        The next pass may then unbind its tokens and grants. Until then, the broker considers the exchange in use.
        """
        self._unused.add(exchange)
        self._seen |= {(exchange, destination) for destination in exchange.bound}

    def find(self, desired: DesiredState, now: float) -> list[UnbindRows]:
        """Return the rows to unbind at the end of a pass."""
        unused = {
            (exchange, destination) for exchange in desired.carriers for destination in self._of(exchange, desired)
        }
        self._received = {exchange: set(exchange.receivers) for exchange in desired.carriers}
        self._left = {exchange: left for exchange, left in self._left.items() if exchange in self._received}
        due = unused & self._seen
        self._seen = unused - due
        actions: list[UnbindRows] = []
        for exchange in desired.carriers:
            table, needless = exchange.tokens, set[Destination]()
            due_here = {destination for owner, destination in due if owner is exchange}
            for destination in sorted(due_here.union(self._idle(exchange, desired, now))):
                rows, hands_over = table.removable(destination), False
                if destination in due_here and exchange.declared is None:
                    hands_over = table.has_plain(destination)  # the rules of another sidecar may need the row
                elif destination in due_here:
                    rows = (PLAIN, *rows)
                if rows or hands_over:
                    needless.add(destination)
                    actions.append(UnbindRows(exchange, destination, rows, needless=True, hands_over=hands_over))
            actions += [UnbindRows(exchange, *pins) for pins in table.outdated() if pins[0] not in needless]
        return actions

    def unused_grants(self, desired: DesiredState) -> list[OwnedExchange]:
        """Return the exchanges whose grants are to be unbound at the end of a pass."""
        carriers = desired.carriers
        unused = {exchange for exchange in carriers if exchange.declared and exchange.grants and not exchange.clients}
        due = unused & self._unused
        self._unused = unused - due
        return sorted(due, key=lambda exchange: exchange.name)

    def needed_again(self, unbound: Iterable[UnbindRows]) -> list[BindToken]:
        """Return unbound tokens that are needed again.

        Bindings created through other sidecars are not affected, since these sidecars bind their own marks or pins.
        """
        return [
            BindToken(action.exchange, action.destination)
            for action in unbound
            if action.needless
            and action.destination not in action.exchange.bound
            and self._is_needed(action.exchange, action.destination)
        ]

    def _idle(self, exchange: OwnedExchange, desired: DesiredState, now: float) -> list[Destination]:
        """Return the destinations that, according to the last listings, are not needed."""
        router = self._state.router
        if exchange.name not in router.exchanges:
            return []
        granted = set(exchange.grants.values())
        wanted = desired.tokens_of(exchange)

        def needed(destination: Destination) -> bool:
            return destination in wanted or destination in granted or router.may_choose(exchange.name, destination)

        table = exchange.tokens
        return table.idle(needed, table.looked_at if table.shared else now)

    def _of(self, exchange: OwnedExchange, desired: DesiredState) -> set[Destination]:
        left = self._left.setdefault(exchange, set())
        left |= self._received.get(exchange, set()) - exchange.receivers.keys()
        if exchange.declared is not None and not exchange.clients:
            left |= exchange.bound
        left &= exchange.bound - desired.tokens_of(exchange)
        router = self._state.router
        if exchange.name not in router.exchanges:
            return set()
        return {destination for destination in left if not router.may_choose(exchange.name, destination)}

    def _is_needed(self, exchange: OwnedExchange, destination: Destination) -> bool:
        rules = self._state.router.exchanges.get(exchange.name)
        if rules is None or self._state.exchanges.get(exchange.name) is not exchange:
            return False
        return self._rights.names(exchange, rules, destination)
