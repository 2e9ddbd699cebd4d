"""How rules are replaced: which tokens stand, which go, and what clients declared goes on.

New tokens are bound before the swap, those that only the old rules need go some time after it: publishes that the old
rules decided are still on their way. It must not wait itself. Source: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from proxy.broker.declared.store import inherit, inheriting
from proxy.broker.reconcile.desired import Naming, Needs, WantedQueue, needs_of
from proxy.broker.reconcile.executor import Declarer, Token
from proxy.broker.reconcile.observer import Survey
from proxy.broker.reconcile.reconciler import Repair
from proxy.relay.vhost import Delivery, Destination, OwnedExchange, VhostState
from proxy.routing.router import Router

#: Clients' bindings put beside new rules between two pauses in which others may run.
_STEP = 64

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Retirement:
    """Tokens that the rules before a swap needed and those after it don't."""

    tokens: tuple[Token, ...]

    def released(self, needs: Needs) -> set[tuple[bytes, Destination]]:
        """Take the tokens out of `bound` of the exchanges that are evaluated now.

        Args:
            needs: what the rules need now.

        Returns:
            Carrier and destination of each: they stand on the broker but must not be relied on.
        """
        current = _by_carrier(needs)
        leaving: set[tuple[bytes, Destination]] = set()
        for exchange, destination in self.tokens:
            now = current.get(exchange.carrier)
            if now is not None and destination not in needs.of(now):
                now.mark_unconfirmed(destination)
                leaving.add((exchange.carrier, destination))
        return leaving


class Changeover:
    """Replaces the rules of one virtual host.

    Args:
        state: what the relays see; written here.
        survey: looks.
        repair: declares and binds.
        declarer: unbinds.
        naming: what gives a right to a token.
    """

    def __init__(self, state: VhostState, survey: Survey, repair: Repair, declarer: Declarer, naming: Naming) -> None:
        """Remember the arguments."""
        self._state = state
        self._survey = survey
        self._repair = repair
        self._declarer = declarer
        self._naming = naming
        self._prepared = naming
        #: Exchanges of rules that are prepared and not yet in force: what stands for them must not be taken away.
        self._coming: Mapping[bytes, OwnedExchange] = {}
        #: By carrier, the exchange of the old rules and the tokens it had when new ones were begun to be prepared.
        self._before: Mapping[bytes, tuple[OwnedExchange, frozenset[Destination]]] = {}

    async def prepare(
        self, old: Needs, exchanges: dict[bytes, OwnedExchange], router: Router, queues: Sequence[WantedQueue]
    ) -> Retirement:
        """Declare and bind what new rules need; see `VhostTopology.prepare`."""
        self._prepared = naming = Naming(self._naming.own_routes)
        naming.learn(exchanges, router)
        for number, _ in enumerate(inheriting(self._state, exchanges, router)):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
        self._before = {
            carrier: (exchange, frozenset(exchange.bound)) for carrier, exchange in _by_carrier(old).items()
        }
        carry_over(old, exchanges)
        self._coming = {}
        await self._repair.thorough(lambda: needs_of(exchanges, router, naming), queues)
        self._survey.finish()
        self._coming = exchanges
        return retirement_of(old, needs_of(exchanges, router, naming))

    def swap(self, exchanges: dict[bytes, OwnedExchange], router: Router) -> None:
        """Put prepared rules in the place of the old ones, with what clients declared until now."""
        self._naming.take(self._prepared)
        self._naming.learn(exchanges, router)
        for stored, why in inherit(self._state, exchanges, router):
            binding = stored.binding
            log.warning(
                "new rules don't take a client's binding",
                vhost=self._state.name,
                exchange=binding.exchange.decode(errors="replace"),
                destination=f"{binding.destination_type} {binding.destination.decode(errors='replace')}",
                error=why,
            )
        for exchange in exchanges.values():
            last, tokens = self._before.get(exchange.carrier, (exchange, exchange.bound))
            exchange.bound -= tokens - last.bound  # clients have taken them away meanwhile
        self._before = {}
        self._state.swap(exchanges, router)
        self._coming = {}

    def release(self, retirement: Retirement, needs: Needs) -> None:
        """Begin to take tokens away: relays ask again before they use them."""
        self._survey.leaving |= retirement.released(needs)
        self._state.changed()

    async def unbind(self, retirement: Retirement, needs: Needs) -> None:
        """End what `release` began; a token that was asked for meanwhile stays."""
        self._survey.leaving -= {(exchange.carrier, destination) for exchange, destination in retirement.tokens}
        await self._declarer.unbind(retirement.tokens, lambda token: is_bound(needs, token) or self._is_coming(token))

    def _is_coming(self, token: Token) -> bool:
        carrier, destination = token[0].carrier, token[1]
        return any(one.carrier == carrier and destination in one.bound for one in self._coming.values())


def carry_over(old: Needs, exchanges: Mapping[bytes, OwnedExchange]) -> None:
    """Let new exchanges know the tokens that stand on the carriers they share with old ones."""
    current = _by_carrier(old)
    for exchange in exchanges.values():
        if exchange.delivery is Delivery.CARRIER and exchange.carrier in current:
            exchange.bound |= current[exchange.carrier].bound


def retirement_of(old: Needs, new: Needs) -> Retirement:
    """Find the tokens that go: needed before, and not any more."""
    coming = _by_carrier(new)
    tokens = [
        (exchange, destination)
        for exchange in old.carriers
        for destination in sorted(old.of(exchange))
        if exchange.carrier not in coming or destination not in new.of(coming[exchange.carrier])
    ]
    return Retirement(tuple(tokens))


def is_bound(needs: Needs, token: Token) -> bool:
    """Say whether some exchange that is evaluated now relies on a token."""
    exchange, destination = token
    now = _by_carrier(needs).get(exchange.carrier)
    return now is not None and destination in now.bound


def _by_carrier(needs: Needs) -> dict[bytes, OwnedExchange]:
    return {exchange.carrier: exchange for exchange in needs.carriers}
