"""Which tokens have outlived the last binding that needed them, and must go: a token counts as use.

The relay that unbinds takes the token away itself; this is for what it could not, and for bindings that went beside
us. A token is unbound when two looks in a row found no use for it: at one alone a client may be in the middle of
binding. Source: delivery notes, "Tokens and bindings".
"""

from __future__ import annotations

from proxy.broker.declarer import Declarer, Token
from proxy.broker.needs import Naming, Needs
from proxy.relay.vhost import Destination, OwnedExchange, VhostState


class OrphanTokens:
    """The tokens of one virtual host that nothing needs any more.

    Args:
        state: what the relays see; `bound` is written here.
        declarer: unbinds.
        naming: what gives a right to a token.
    """

    def __init__(self, state: VhostState, declarer: Declarer, naming: Naming) -> None:
        """Know no stray yet."""
        self._state = state
        self._declarer = declarer
        self._naming = naming
        self._seen: set[Token] = set()
        self._received: dict[OwnedExchange, set[Destination]] = {}
        self._left: dict[OwnedExchange, set[Destination]] = {}

    def note(self, exchange: OwnedExchange) -> None:
        """Take note that an exchange has just lost its last binding: the next look need not be sure first."""
        self._seen |= {(exchange, destination) for destination in exchange.bound}

    async def unbind(self, needs: Needs) -> bool:
        """Unbind what is due, at the end of a look.

        Returns:
            Whether there was something: an auto-delete exchange may have gone with it.

        Raises:
            UpstreamError: the connection was lost.
        """
        found = {(exchange, one) for exchange in needs.carriers for one in self._of(exchange, needs)}
        self._received = {exchange: set(exchange.receivers) for exchange in needs.carriers}
        self._left = {exchange: left for exchange, left in self._left.items() if exchange in self._received}
        due = sorted(found & self._seen, key=_order)
        self._seen = found.difference(due)
        if not due:
            return False
        for exchange, destination in due:
            exchange.mark_unconfirmed(destination)
        self._state.changed()
        await self._declarer.unbind(due, self._needed)
        # Whoever bound meanwhile was answered before our unbind or behind it: nobody knows.
        for exchange, destination in due:
            exchange.taken(destination)
        await self._declarer.bind([token for token in due if self._needed(token)])
        return True

    def _of(self, exchange: OwnedExchange, needs: Needs) -> set[Destination]:
        left = self._left.setdefault(exchange, set())
        left |= self._received.get(exchange, set()) - exchange.receivers.keys()
        if exchange.declared is not None and not exchange.clients:
            left |= exchange.bound
        left &= exchange.bound - needs.of(exchange)
        rules = self._state.router.exchanges.get(exchange.name)
        return set() if rules is None else {one for one in left if not rules.uses(one)}

    def _needed(self, token: Token) -> bool:
        exchange, destination = token
        rules = self._state.router.exchanges.get(exchange.name)
        if rules is None or self._state.exchanges.get(exchange.name) is not exchange:
            return False
        return self._naming.names(exchange, rules, destination)


def _order(token: Token) -> tuple[bytes, Destination]:
    return token[0].name, token[1]
