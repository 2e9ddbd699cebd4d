"""Computes the desired state of one virtual host: carriers, tokens, and what must merely exist.

Pure: computed from the shared state, without knowledge of the broker. Destinations that a client's binding chooses by
routes are left out where the control user must not lend the client its rights: relays bind such tokens with the
client's own permissions. Source: delivery notes, "Tokens and bindings".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from proxy.addressing.targets import AddressBook
from proxy.relay.vhost import Delivery, OwnedExchange
from proxy.routing.destination_translation import StaticTranslation, StaticTranslations, static_translations
from proxy.routing.exchange import Exchange
from proxy.routing.router import Router
from proxy.values import Destination, Table


class WantedQueue(Protocol):
    """A queue that the rules ask for."""

    @property
    def name(self) -> bytes: ...

    @property
    def arguments(self) -> Table:
        """Its arguments, where it has to be made."""


_NONE: frozenset[Destination] = frozenset()


@dataclass(frozen=True, slots=True)
class DesiredState:
    """See the module.

    Args:
        made: those of them that are ours to declare, since a rules file owns them.
        tokens: by exchange name, the destinations that need a token on its carrier.
        plain: by exchange name, those of them that rules files need: no client's binding on the broker stands for them.
        holders: by destination, the carried exchanges that need its token.
        existing: destinations that must exist but need no token, with what they are to the rules
            ("" for a plain destination).
        published: exchanges that the sidecar publishes to itself, with the exchange on whose behalf; only those
            that rules files own.
        translated: destinations that the address table sends elsewhere: they need not exist. What must exist in
            their place on this broker is among `existing`.
        remote_destinations: those for which something must exist at another broker.
        chooses_queues: exchanges with a carrier whose messages can reach queues that no rule names.
        adds_exchanges: the same for exchanges.
    """

    carriers: tuple[OwnedExchange, ...]
    made: tuple[OwnedExchange, ...]
    tokens: Mapping[bytes, frozenset[Destination]]
    plain: Mapping[bytes, frozenset[Destination]]
    holders: Mapping[Destination, tuple[OwnedExchange, ...]]
    existing: Mapping[Destination, str]
    published: Mapping[bytes, bytes]
    regex: bool
    translated: Mapping[Destination, StaticTranslation] = field(default_factory=dict)
    remote_destinations: tuple[StaticTranslation, ...] = ()
    chooses_queues: frozenset[bytes] = frozenset()
    adds_exchanges: frozenset[bytes] = frozenset()

    def tokens_of(self, exchange: OwnedExchange) -> frozenset[Destination]:
        return self.tokens.get(exchange.name, _NONE)

    def names(self, destination: Destination) -> bool:
        return destination in self.holders or destination in self.existing


class _File(NamedTuple):
    """What the rules file itself says in an exchange: its destinations, and whether messages may add exchanges."""

    destinations: frozenset[Destination]
    free: bool


_NOTHING = _File(_NONE, False)


class TokenRights:
    """Which destinations an exchange names with the right to a token by the control user.

    Args:
        own_routes: whether routes of clients' bindings give no such right.
    """

    def __init__(self, own_routes: bool) -> None:
        self.own_routes = own_routes
        self._files: dict[Exchange, _File] = {}

    def learn(self, exchanges: Mapping[bytes, OwnedExchange], router: Router) -> None:
        """Record what files say, before clients bind: call it first for every exchange of theirs."""
        known, self._files = self._files, {}
        for name, exchange in router.exchanges.items():
            file = known.get(exchange)
            if file is None:
                owned = exchanges.get(name)
                client = owned is not None and owned.declared is not None
                file = _NOTHING if client else _File(frozenset(exchange.destinations), _free(exchange))
            self._files[exchange] = file

    def take(self, other: TokenRights) -> None:
        self._files |= other._files

    def named(self, owned: OwnedExchange, exchange: Exchange) -> Set[Destination]:
        if not self.own_routes:
            return exchange.destinations
        return self._files.get(exchange, _NOTHING).destinations | owned.receivers.keys()

    def in_file(self, owned: OwnedExchange, exchange: Exchange) -> Set[Destination]:
        """Return what the rules file itself names in an exchange."""
        return self._files.get(exchange, _NOTHING).destinations

    def names(self, owned: OwnedExchange, exchange: Exchange, destination: Destination) -> bool:
        """Return whether an exchange names a destination itself, without looking at the others."""
        if not self.own_routes:
            return destination in exchange.destinations
        return destination in owned.receivers or destination in self._files.get(exchange, _NOTHING).destinations

    def awaits(self, owned: OwnedExchange, exchange: Exchange, destination: Destination) -> bool:
        """Return whether an exchange names a destination that may come later: all but what clients bound themselves.

        Those go with the queue, as on the broker: one of the same name that comes later is not bound.
        """
        if destination in self._files.get(exchange, _NOTHING).destinations:
            return True
        return not self.own_routes and exchange.uses(destination) > len(owned.receivers.get(destination, ()))

    def next(self, owned: OwnedExchange, exchange: Exchange, exchanges: Mapping[bytes, OwnedExchange]) -> Set[bytes]:
        """Return the exchanges evaluated here that a message goes on to from an exchange."""
        free = self._files.get(exchange, _NOTHING).free if self.own_routes else _free(exchange)
        if free:
            return exchanges.keys()
        found = {
            name for name in exchange.next_names & exchanges.keys() if self.names(owned, exchange, ("exchange", name))
        }
        if exchange.alternate in exchanges and exchange.alternate is not None:
            found.add(exchange.alternate)
        return found

    def holders(self, exchanges: Mapping[bytes, OwnedExchange], router: Router, queue: bytes) -> list[OwnedExchange]:
        """Find the exchanges that need the token of a queue; quick where thousands of others are named."""
        return self._above(exchanges, router, self.names, ("queue", queue))

    def waiting(self, exchanges: Mapping[bytes, OwnedExchange], router: Router, queue: bytes) -> list[OwnedExchange]:
        """Find the exchanges that need the token of a queue that has just been declared (see `awaits`)."""
        return self._above(exchanges, router, self.awaits, ("queue", queue))

    def _above(
        self,
        exchanges: Mapping[bytes, OwnedExchange],
        router: Router,
        asks: Callable[[OwnedExchange, Exchange, Destination], bool],
        destination: Destination,
    ) -> list[OwnedExchange]:
        """Find the carried exchanges that ask for a destination themselves, or go on to one that does."""
        pairs = [(owned, router.exchanges[name]) for name, owned in exchanges.items()]
        found = {owned.name for owned, exchange in pairs if asks(owned, exchange, destination)}
        size = 0
        while len(found) > size:
            size = len(found)
            found |= {
                owned.name
                for owned, exchange in pairs
                if owned.name not in found and not found.isdisjoint(self.next(owned, exchange, exchanges))
            }
        return [exchanges[name] for name in sorted(found) if exchanges[name].delivery is Delivery.CARRIER]


_EVERYTHING = TokenRights(own_routes=False)


def desired_state(
    exchanges: Mapping[bytes, OwnedExchange],
    router: Router,
    rights: TokenRights = _EVERYTHING,
    book: AddressBook | None = None,
) -> DesiredState:
    """Compute what rules need.

    Args:
        rights: what gives a right to a token; everything that is named, unless told otherwise.
    """
    tokens: dict[bytes, frozenset[Destination]] = {}
    plain: dict[bytes, frozenset[Destination]] = {}
    holders: dict[Destination, list[OwnedExchange]] = {}
    existing: dict[Destination, str] = {}
    published: dict[bytes, bytes] = {}
    chooses_queues: set[bytes] = set()
    adds_exchanges: set[bytes] = set()
    for name, exchange in exchanges.items():
        destinations, reached = _reached(name, exchanges, router, rights, rights.named)
        if exchange.delivery is Delivery.CARRIER:
            tokens[name] = destinations
            plain[name], _ = _reached(name, exchanges, router, rights, rights.in_file)
            if any(router.exchanges[one].chooses_queues for one in reached):
                chooses_queues.add(name)
            if any(router.exchanges[one].lets_producer_add_exchanges for one in reached):
                adds_exchanges.add(name)
            for destination in destinations:
                holders.setdefault(destination, []).append(exchange)
        else:
            existing.update(dict.fromkeys(destinations, ""))
            if exchange.declared is None:
                published.update(dict.fromkeys(_published(exchange, destinations, exchanges), name))
    named = {*holders, *existing}
    moved = StaticTranslations({}, ()) if book is None else static_translations(book, named, router)
    for one in moved.found:
        if one.here is not None and (one.here not in named or one.here in moved.away):
            kind, name = one.destination
            role = f"where the address table sends {kind} {name.decode(errors='replace')}"
            existing[one.here] = role
    existing |= _beside(exchanges)
    carriers = tuple(item for item in exchanges.values() if item.delivery is Delivery.CARRIER)
    return DesiredState(
        carriers=carriers,
        made=tuple(item for item in carriers if item.declared is None),
        tokens=tokens,
        plain=plain,
        holders={destination: tuple(holding) for destination, holding in holders.items()},
        existing=existing,
        published=published,
        regex=any(exchange.sees_queues for exchange in router.exchanges.values()),
        translated=moved.away,
        remote_destinations=tuple(one for one in moved.found if one.remote is not None),
        chooses_queues=frozenset(chooses_queues),
        adds_exchanges=frozenset(adds_exchanges),
    )


def _reached(
    start: bytes,
    exchanges: Mapping[bytes, OwnedExchange],
    router: Router,
    rights: TokenRights,
    named_in: Callable[[OwnedExchange, Exchange], Set[Destination]],
) -> tuple[frozenset[Destination], Set[bytes]]:
    """Return everything outside the evaluated exchanges that messages to an exchange may be sent to by right.

    Returns:
        These destinations, and the evaluated exchanges on the way.
    """
    named: set[Destination] = set()
    seen = {start}
    ahead = [start]
    while ahead:
        name = ahead.pop()
        owned, exchange = exchanges[name], router.exchanges[name]
        named |= named_in(owned, exchange)
        if exchange.alternate is not None and name != start:
            # The alternate exchange of the first one is the broker's to use.
            named.add(("exchange", exchange.alternate))
        fresh = rights.next(owned, exchange, exchanges) - seen
        seen |= fresh
        ahead += fresh
    return frozenset((kind, name) for kind, name in named if kind == "queue" or name not in exchanges), seen


def _published(
    exchange: OwnedExchange, destinations: Set[Destination], exchanges: Mapping[bytes, OwnedExchange]
) -> set[bytes]:
    targets = {other for kind, other in destinations if kind == "exchange"}
    if exchange.alternate is not None and exchange.alternate not in exchanges:
        targets.add(exchange.alternate)
    return targets


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


def _free(exchange: Exchange) -> bool:
    return exchange.lets_producer_add_exchanges
