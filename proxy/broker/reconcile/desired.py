"""Computes the desired state of one virtual host: carriers, tokens, and destinations that must exist.

The desired state depends only on the shared state, not on the broker. If clients must not benefit from the control
user's permissions, destinations reached only through routes in clients' bindings are omitted. Relays bind the tokens of
these destinations with the client's permissions. Source: architecture, "The control plane".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from proxy.addressing.targets import AddressBook, Remote
from proxy.relay.vhost import Delivery, OwnedExchange
from proxy.routing.destination_translation import StaticTranslation, StaticTranslations, static_translations
from proxy.routing.exchange import Exchange
from proxy.routing.router import Router
from proxy.values import Destination, describe, shown

_NONE: frozenset[Destination] = frozenset()


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The desired state; see the module docstring.

    Args:
        tokens: destinations that need a token on the carrier of an exchange, by exchange name.
        plain: destinations in `tokens` that a rules file needs, by exchange name.
        existing: destinations that must exist but need no token, each with its role in the rules, or "" if the rules
            simply route messages to it.
        published: exchanges to which the sidecar itself publishes, each with the exchange in the rules that needs it.
        translated: destinations that the address table redirects, and that therefore need not exist. Their
            replacements on this broker are in `existing`.
        remote_destinations: replacements on other brokers, each with its broker.
        chooses_queues: exchanges that have a carrier and whose messages can reach queues that no rule names.
        adds_exchanges: exchanges that have a carrier and whose messages can reach exchanges that no rule names.
    """

    carriers: tuple[OwnedExchange, ...]
    tokens: Mapping[bytes, frozenset[Destination]]
    plain: Mapping[bytes, frozenset[Destination]]
    existing: Mapping[Destination, str]
    published: Mapping[bytes, bytes]
    translated: Mapping[Destination, StaticTranslation] = field(default_factory=dict)
    remote_destinations: tuple[tuple[Remote, Destination], ...] = ()
    chooses_queues: frozenset[bytes] = frozenset()
    adds_exchanges: frozenset[bytes] = frozenset()

    @property
    def made(self) -> list[OwnedExchange]:
        """Exchanges in rules files, whose carriers we declare."""
        return [exchange for exchange in self.carriers if exchange.declared is None]

    def tokens_of(self, exchange: OwnedExchange) -> frozenset[Destination]:
        return self.tokens.get(exchange.name, _NONE)

    def names(self, destination: Destination) -> bool:
        return destination in self.existing or any(destination in tokens for tokens in self.tokens.values())


def record_file_destinations(exchanges: Mapping[bytes, OwnedExchange], router: Router) -> None:
    """For each new exchange from a rules file, record the destinations that the file names.

    Must be called before clients' bindings are added.
    """
    for name, exchange in router.exchanges.items():
        owned = exchanges.get(name)
        if owned is not None and owned.declared is None:
            owned.file_destinations = frozenset(exchange.destinations)
            owned.file_adds_exchanges = exchange.lets_producer_add_exchanges


@dataclass(frozen=True, slots=True)
class TokenRights:
    """Determines for which destinations of an exchange the control user is permitted to bind tokens.

    Args:
        own_routes: whether the control user must not bind tokens for routes in clients' bindings.
    """

    own_routes: bool

    def named(self, owned: OwnedExchange, exchange: Exchange) -> Set[Destination]:
        if not self.own_routes:
            return exchange.destinations
        return owned.file_destinations | owned.receivers.keys()

    def names(self, owned: OwnedExchange, exchange: Exchange, destination: Destination) -> bool:
        """Return True if an exchange itself names a destination. This does not list all of its destinations."""
        if not self.own_routes:
            return destination in exchange.destinations
        return destination in owned.receivers or destination in owned.file_destinations

    def awaits(self, owned: OwnedExchange, exchange: Exchange, destination: Destination) -> bool:
        """Return True if an exchange names a destination that must be bound as soon as it is created.

        Destinations that only clients have bound are excluded. As on the broker, a client's binding is deleted with the
        queue, and does not apply to a later queue with the same name.
        """
        if destination in owned.file_destinations:
            return True
        return not self.own_routes and exchange.uses(destination) > len(owned.receivers.get(destination, ()))

    def next(self, owned: OwnedExchange, exchange: Exchange, exchanges: Mapping[bytes, OwnedExchange]) -> Set[bytes]:
        """Return the evaluated exchanges that a message can reach directly from an exchange."""
        free = owned.file_adds_exchanges if self.own_routes else exchange.lets_producer_add_exchanges
        if free:
            return exchanges.keys()
        names = {
            name for name in exchange.next_names & exchanges.keys() if self.names(owned, exchange, ("exchange", name))
        }
        if exchange.alternate in exchanges and exchange.alternate is not None:
            names.add(exchange.alternate)
        return names

    def holders(self, exchanges: Mapping[bytes, OwnedExchange], router: Router, queue: bytes) -> list[OwnedExchange]:
        """Find the exchanges that need a queue's token. This is fast even if rules name thousands of other queues."""
        return self._above(exchanges, router, self.names, ("queue", queue))

    def waiting(self, exchanges: Mapping[bytes, OwnedExchange], router: Router, queue: bytes) -> list[OwnedExchange]:
        """Find the exchanges that need the token of a newly declared queue (see `awaits`)."""
        return self._above(exchanges, router, self.awaits, ("queue", queue))

    def _above(
        self,
        exchanges: Mapping[bytes, OwnedExchange],
        router: Router,
        asks: Callable[[OwnedExchange, Exchange, Destination], bool],
        destination: Destination,
    ) -> list[OwnedExchange]:
        """Find the exchanges that have a carrier and can route to a destination, directly or via other exchanges."""
        pairs = [(owned, router.exchanges[name]) for name, owned in exchanges.items()]
        names = {owned.name for owned, exchange in pairs if asks(owned, exchange, destination)}
        size = 0
        while len(names) > size:
            size = len(names)
            names |= {
                owned.name
                for owned, exchange in pairs
                if owned.name not in names and not names.isdisjoint(self.next(owned, exchange, exchanges))
            }
        return [exchanges[name] for name in sorted(names) if exchanges[name].delivery is Delivery.CARRIER]


_EVERYTHING = TokenRights(own_routes=False)


def desired_state(
    exchanges: Mapping[bytes, OwnedExchange],
    router: Router,
    rights: TokenRights = _EVERYTHING,
    book: AddressBook | None = None,
) -> DesiredState:
    """Compute the desired state.

    Args:
        rights: determines which tokens are permitted to be bound; by default, the tokens of all named destinations.
    """
    tokens: dict[bytes, frozenset[Destination]] = {}
    plain: dict[bytes, frozenset[Destination]] = {}
    existing: dict[Destination, str] = {}
    published: dict[bytes, bytes] = {}
    chooses_queues: set[bytes] = set()
    adds_exchanges: set[bytes] = set()
    for name, exchange in exchanges.items():
        destinations, from_files, reached = _reached(name, exchanges, router, rights)
        if exchange.delivery is Delivery.CARRIER:
            tokens[name], plain[name] = destinations, from_files
            if any(router.exchanges[reached_name].chooses_queues for reached_name in reached):
                chooses_queues.add(name)
            if any(router.exchanges[reached_name].lets_producer_add_exchanges for reached_name in reached):
                adds_exchanges.add(name)
        else:
            existing.update(dict.fromkeys(destinations, ""))
            if exchange.declared is None:
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
        plain=plain,
        existing=existing,
        published=published,
        translated=moved.away,
        remote_destinations=tuple(translation.remote for translation in moved.found if translation.remote is not None),
        chooses_queues=frozenset(chooses_queues),
        adds_exchanges=frozenset(adds_exchanges),
    )


def _reached(
    start: bytes, exchanges: Mapping[bytes, OwnedExchange], router: Router, rights: TokenRights
) -> tuple[frozenset[Destination], frozenset[Destination], Set[bytes]]:
    """Find the destinations, other than evaluated exchanges, that messages to an exchange may reach with our tokens.

    Returns:
        These destinations, those that rules files need, and the evaluated exchanges on the way, including the first
        exchange.
    """
    named: set[Destination] = set()
    from_files: set[Destination] = set()
    seen = {start}
    ahead = [start]
    while ahead:
        name = ahead.pop()
        owned, exchange = exchanges[name], router.exchanges[name]
        named |= rights.named(owned, exchange)
        from_files |= owned.file_destinations
        if exchange.alternate is not None and name != start:
            # The broker itself applies the alternate exchange of the first exchange.
            named.add(("exchange", exchange.alternate))
            from_files.add(("exchange", exchange.alternate))
        fresh = rights.next(owned, exchange, exchanges) - seen
        seen |= fresh
        ahead += fresh
    return _not_evaluated(named, exchanges), _not_evaluated(from_files, exchanges), seen


def _not_evaluated(named: Set[Destination], exchanges: Mapping[bytes, OwnedExchange]) -> frozenset[Destination]:
    return frozenset((kind, name) for kind, name in named if kind == "queue" or name not in exchanges)


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
