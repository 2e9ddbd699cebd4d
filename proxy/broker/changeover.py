"""Which tokens stand and which go when rules are replaced.

New tokens are bound before the swap, those that only the old rules need go some time after it: publishes that the old
rules decided are still on their way. Pure; it must not bind or wait itself. Source: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.amqp.vhost import Delivery, Destination, OwnedExchange
from proxy.broker.declarer import Token
from proxy.broker.needs import Needs


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
                now.bound.discard(destination)
                leaving.add((exchange.carrier, destination))
        return leaving


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
