"""Computes the desired state of one virtual host: carriers, tokens, and destinations that must exist.

The desired state depends only on the shared state, not on the broker. Source: architecture, "The control plane".
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from oxproxy.addressing.targets import AddressBook, Remote
from oxproxy.relay.vhost import Delivery, OwnedExchange
from oxproxy.routing.destination_translation import StaticTranslation, StaticTranslations, static_translations
from oxproxy.routing.router import Router
from oxproxy.values import QUEUE, Destination, describe, shown

_NONE: frozenset[Destination] = frozenset()


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The desired state; see the module docstring.

    Args:
        tokens: destinations that need a token on the carrier of an exchange, by exchange name.
        router: the rules, on which the form of tokens depends (`OwnedExchange.candidates`).
        existing: destinations that must exist but need no token, each with its role in the rules, or "" if the rules
            simply route messages to it.
        published: exchanges to which the sidecar itself publishes, each with the exchange in the rules that needs it.
        translated: destinations that the address table redirects, and that therefore need not exist. Their
            replacements on this broker are in `existing`.
        remote_destinations: replacements on other brokers, each with its broker.
        chooses_queues: exchanges that have a carrier and whose messages can reach queues that no rule names.
    """

    carriers: tuple[OwnedExchange, ...]
    tokens: Mapping[bytes, frozenset[Destination]]
    router: Router
    existing: Mapping[Destination, str]
    published: Mapping[bytes, bytes]
    translated: Mapping[Destination, StaticTranslation] = field(default_factory=dict)
    remote_destinations: tuple[tuple[Remote, Destination], ...] = ()
    chooses_queues: frozenset[bytes] = frozenset()

    @property
    def made(self) -> list[OwnedExchange]:
        """Exchanges in rules files, whose carriers we declare."""
        return [exchange for exchange in self.carriers if exchange.declared is None]

    def tokens_of(self, exchange: OwnedExchange) -> frozenset[Destination]:
        return self.tokens.get(exchange.name, _NONE)

    def names(self, destination: Destination) -> bool:
        return destination in self.existing or any(destination in tokens for tokens in self.tokens.values())


def desired_state(
    exchanges: Mapping[bytes, OwnedExchange], router: Router, book: AddressBook | None = None
) -> DesiredState:
    """Compute the desired state."""
    tokens: dict[bytes, frozenset[Destination]] = {}
    existing: dict[Destination, str] = {}
    published: dict[bytes, bytes] = {}
    for name, exchange in exchanges.items():
        destinations = router.destinations(name)
        if exchange.delivery is Delivery.CARRIER:
            tokens[name] = destinations
        else:
            existing.update(dict.fromkeys(destinations, ""))
            published.update(dict.fromkeys(_published(exchange, destinations, exchanges), name))
    named = set(existing).union(*tokens.values())
    carriers = {exchange.carrier for exchange in exchanges.values() if exchange.delivery is Delivery.CARRIER}
    moved = StaticTranslations({}, ()) if book is None else static_translations(book, named, router, carriers)
    for translation in moved.found:
        if translation.here is not None and (translation.here not in named or translation.here in moved.away):
            existing[translation.here] = f"the address table redirects {describe(translation.destination)} to it"
    existing |= _relied_on(exchanges)
    return DesiredState(
        carriers=tuple(item for item in exchanges.values() if item.delivery is Delivery.CARRIER),
        tokens=tokens,
        router=router,
        existing=existing,
        published=published,
        translated=moved.away,
        remote_destinations=tuple(translation.remote for translation in moved.found if translation.remote is not None),
        chooses_queues=frozenset(name for name in tokens if router.may_choose_unnamed(name, QUEUE)),
    )


def _published(
    exchange: OwnedExchange, destinations: Set[Destination], exchanges: Mapping[bytes, OwnedExchange]
) -> set[bytes]:
    targets = {other for kind, other in destinations if kind == "exchange"}
    if exchange.alternate is not None and exchange.alternate not in exchanges:
        targets.add(exchange.alternate)
    return targets


def _relied_on(exchanges: Mapping[bytes, OwnedExchange]) -> dict[Destination, str]:
    """Find the broker's own exchanges that rules rely on but that are not destinations."""
    relied_on: dict[Destination, str] = {}
    for name, exchange in exchanges.items():
        if exchange.alternate is not None and exchange.alternate not in exchanges:
            relied_on["exchange", exchange.alternate] = f"alternate exchange of {shown(name)}"
        if exchange.unmatched_pass:
            relied_on["exchange", name] = f"the broker's own exchange for unmatched messages of {shown(name)}"
    return relied_on
