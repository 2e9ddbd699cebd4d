"""What the rules of one virtual host need on the broker: carriers, tokens, and what must merely exist.

Pure: computed from the shared state whenever the rules or the routes may have changed. It must not know what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from proxy.amqp.vhost import Delivery, Destination, OwnedExchange
from proxy.routing.router import Router
from proxy.routing.values import Table


class WantedQueue(Protocol):
    """A queue that the rules ask for."""

    @property
    def name(self) -> bytes:
        """Its name."""

    @property
    def arguments(self) -> Table:
        """Its arguments, where it has to be made."""


_NONE: frozenset[Destination] = frozenset()


@dataclass(frozen=True, slots=True)
class Needs:
    """See the module.

    Args:
        carriers: exchanges that need one on the broker.
        tokens: by exchange name, the destinations that its rules name.
        holders: by destination, the carried exchanges that need its token.
        existing: destinations that must exist but need no token, with what they are to the rules
            ("" for a plain destination).
        published: exchanges that the sidecar publishes to itself, with the exchange on whose behalf.
        regex: whether any exchange chooses among all queues.
    """

    carriers: tuple[OwnedExchange, ...]
    tokens: Mapping[bytes, frozenset[Destination]]
    holders: Mapping[Destination, tuple[OwnedExchange, ...]]
    existing: Mapping[Destination, str]
    published: Mapping[bytes, bytes]
    regex: bool

    def of(self, exchange: OwnedExchange) -> frozenset[Destination]:
        """Give the destinations whose tokens an exchange needs."""
        return self.tokens.get(exchange.name, _NONE)

    def names(self, destination: Destination) -> bool:
        """Say whether some rule names the destination."""
        return destination in self.holders or destination in self.existing


def needs_of(exchanges: Mapping[bytes, OwnedExchange], router: Router) -> Needs:
    """Compute what rules need.

    Args:
        exchanges: exchanges evaluated here, by name.
        router: their rules.
    """
    tokens: dict[bytes, frozenset[Destination]] = {}
    holders: dict[Destination, tuple[OwnedExchange, ...]] = {}
    existing: dict[Destination, str] = {}
    published: dict[bytes, bytes] = {}
    for name, exchange in exchanges.items():
        destinations = router.destinations(name)
        if exchange.delivery is Delivery.CARRIER:
            tokens[name] = destinations
            for destination in destinations:
                holders[destination] = (*holders.get(destination, ()), exchange)
        else:
            existing.update(dict.fromkeys(destinations, ""))
            targets = {other for kind, other in destinations if kind == "exchange"}
            if exchange.alternate is not None and exchange.alternate not in exchanges:
                targets.add(exchange.alternate)
            published.update(dict.fromkeys(targets, name))
    existing |= _beside(exchanges)
    return Needs(
        carriers=tuple(item for item in exchanges.values() if item.delivery is Delivery.CARRIER),
        tokens=tokens,
        holders=holders,
        existing=existing,
        published=published,
        regex=any(router.interest(name).queues for name in exchanges),
    )


def _beside(exchanges: Mapping[bytes, OwnedExchange]) -> dict[Destination, str]:
    """Find the broker's own exchanges that rules rely on beside their destinations."""
    found: dict[Destination, str] = {}
    for name, exchange in exchanges.items():
        shown = name.decode(errors="replace")
        if exchange.alternate is not None and exchange.alternate not in exchanges:
            found["exchange", exchange.alternate] = f"alternate exchange of {shown}"
        if exchange.unmatched_pass:
            found["exchange", name] = f"the broker's own exchange that unmatched messages of {shown} pass to"
    return found
