"""How far may the routes of a client's binding reach, and what goes when they reach no more?

Routes that a client declared lead only to what this client could have bound itself. What they choose and exists is
asked about when the binding is made; what comes later, when a message chooses it. What was bound for it goes with the
client's last binding.

Source: delivery notes, "Tokens and bindings"; the open-exchange specification, 7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from proxy.errors import ProtocolError, Scope
from proxy.relay.conversation import Conversation, Phase
from proxy.relay.declare.own_bindings import ask_reach, withdraw
from proxy.relay.tokens import grant_key
from proxy.relay.vhost import Destination, OwnedExchange, StoredBinding
from proxy.routing.bindings.binding import EXCHANGE, QUEUE
from proxy.routing.bindings.compiled import CompiledBinding
from proxy.routing.bindings.patterns import Budget

#: Destinations that are asked about when a binding is made; further ones when a message chooses them.
ASKED_AT_ONCE = 500
_REFUSED = "403 ACCESS_REFUSED - "


class ClientReach:
    """Asks for one connection what its client may bind.

    Args:
        conversation: what both directions share.
    """

    def __init__(self, conversation: Conversation) -> None:
        """Have asked nothing."""
        self._conversation = conversation
        self._state = conversation.state

    def chosen(self, owned: OwnedExchange, compiled: CompiledBinding) -> list[Destination]:
        """Give what the routes of a binding choose now, as far as it exists and the client was not asked about it."""
        state = self._state
        chosen: dict[Destination, None] = {}
        budget = Budget(state.regex_budget)
        for effects in (compiled.on_true, compiled.on_false):
            if effects is None:
                continue
            chosen |= dict.fromkeys(one for one in sorted(effects.add) if one[0] == EXCHANGE or state.has_queue(one[1]))
            for route in effects.add_queues:
                for name in state.queues.names:
                    found = route.pattern.search(name, budget)
                    if budget.spent:
                        break  # what is left is asked about when a message chooses it
                    if (found is True) is not route.negated:
                        chosen[QUEUE, name] = None
        allowed = owned.reach(self._conversation.user).allowed if chosen else ()
        return [one for one in chosen if one not in allowed][:ASKED_AT_ONCE]

    def ask(self, owned: OwnedExchange, wanted: Iterable[Destination], then: Callable[[], None]) -> None:
        """Ask the broker on the channel of ours whether the client may bind what is wanted, then call `then`."""
        reach = owned.reach(self._conversation.user)
        left = [one for one in wanted if one not in reach.allowed]

        def further() -> None:
            if left and self._conversation.phase is Phase.OPEN:
                ask_reach(self._conversation, owned, reach, left.pop(0), further)
            else:
                then()

        further()

    def refusal(self, owned: OwnedExchange, named: Iterable[Destination], ids: tuple[int, int]) -> ProtocolError | None:
        """Give the broker's refusal of something that a client named itself, if there is one.

        Args:
            owned: the exchange.
            named: what was asked about.
            ids: class and method of the client's request.
        """
        refused = owned.reach(self._conversation.user).refused
        for one in named:
            text = refused.get(one, "")
            if text.startswith(_REFUSED):
                return ProtocolError(403, text.removeprefix(_REFUSED), Scope.CHANNEL, *ids)
        return None

    def leave(
        self, owned: OwnedExchange, client: str, tokens: Collection[Destination], then: Callable[[], None]
    ) -> None:
        """Take away what was bound for a client's routes, once it has no binding there any more.

        Args:
            owned: the exchange.
            client: the user whose binding has gone, or was not made.
            tokens: destinations whose tokens were bound for it.
            then: called when it is done.
        """
        if self._state.exchanges.get(owned.name) is not owned or self._conversation.phase is not Phase.OPEN:
            then()
            return
        grants: list[bytes] = []
        freed = set(tokens)
        if client in owned.reaches and not any(one.client == client for one in owned.clients.values()):
            reach = owned.reaches.pop(client)
            freed |= reach.allowed
            grants = [key for key, one in owned.grants.items() if key == grant_key(client, *one)]
        needless = sorted(one for one in freed if one in owned.bound and not self.needed(owned, one))
        withdraw(self._conversation, owned, needless, grants, then)

    def needless(self, owned: OwnedExchange, stored: StoredBinding) -> list[Destination]:
        """Give the destination of a binding that goes, where its token stands and nothing else leads there."""
        receiver = stored.destination
        own_use = stored.binding.identity in owned.clients
        return [receiver] if receiver in owned.bound and not self.needed(owned, receiver, own_use) else []

    def needed(self, owned: OwnedExchange, destination: Destination, uses: int = 0) -> bool:
        """Say whether more than so many bindings, a route or an exchange behind this one leads to a destination."""
        router = self._state.router
        exchange = router.exchanges[owned.name]
        if exchange.uses(destination) > uses or any(destination in one.allowed for one in owned.reaches.values()):
            return True
        return any(router.names(one, destination) for one in exchange.next_names if one in router.exchanges)
