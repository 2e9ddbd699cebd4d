"""State of one virtual host that the control plane and the relays share.

The control plane writes `queues` and `missing`; the relays read them. Which tokens are bound is kept by a `TokenTable`.
Everything runs in one thread, so plain attributes are the whole interface. Code that changes something on which a
cached answer depends calls `changed`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from proxy.addressing.targets import AddressBook
from proxy.relay.token_table import LEASE_SECONDS, Need, TokenTable, pin_row
from proxy.relay.tokens import UNKEYED, Secrets, TokenForm, Tokens, grant_key
from proxy.routing.bindings.binding import NO_REACH, Binding, Reach
from proxy.routing.bindings.compiled import CompiledBinding, count_regexes
from proxy.routing.bindings.patterns import DEFAULT_BUDGET
from proxy.routing.decision import QueueNames
from proxy.routing.exchange import Exchange
from proxy.routing.router import Router
from proxy.values import QUEUE, Destination, Table


class Delivery(Enum):
    """How a decision reaches the broker (architecture: one in, one out)."""

    CARRIER = "carrier"
    QUEUE = "queue"


class CarrierType(Enum):
    """Which type a carrier is to have; AUTO: the one that costs the broker less."""

    AUTO = "auto"
    DIRECT = "direct"
    TOPIC = "topic"


class DeclaredExchange(NamedTuple):
    """How a client declared an exchange."""

    durable: bool
    auto_delete: bool
    internal: bool
    #: raw entries of the client's argument table
    entries: bytes
    #: place in the order of declarations
    sequence: int


class BindingCopy(NamedTuple):
    """One copy of a client's binding on the broker."""

    #: place in the order of declarations
    sequence: int
    #: the user that made it, as it says itself
    client: str
    #: the key under which it lies on the carrier
    key: bytes
    #: as it stands on the broker; b"" where there is none
    signature: bytes = b""
    #: which of our secrets signed it: 0 is the current one; None: none of them, so that it speaks for no user
    secret: int | None = 0

    @property
    def signed(self) -> bool:
        return self.secret is not None


class StoredBinding(NamedTuple):
    """A binding that a client made."""

    #: what routing knows; its `sequence` is ours
    binding: Binding
    #: raw entries of the client's argument table
    entries: bytes
    #: its storage key on the carrier. Copies under another key lie under the destination's token: messages find the
    #: destination by them.
    key: bytes
    #: every copy on the broker (two sidecars can make one each): signed ones first, then the lowest sequence. The first
    #: counts.
    copies: tuple[BindingCopy, ...]

    @property
    def client(self) -> str:
        """The user that made it first; empty if it is unknown."""
        return self.copies[0].client if self.signed else ""

    @property
    def signed(self) -> bool:
        return self.copies[0].signed

    @property
    def sequences(self) -> tuple[int, ...]:
        return tuple(copy.sequence for copy in self.copies)

    @property
    def destination(self) -> Destination:
        return self.binding.destination_type, self.binding.destination

    @property
    def is_mark(self) -> bool:
        """Whether the copy that counts lies under the destination's token."""
        return self.copies[0].key != self.key

    @property
    def marks(self) -> frozenset[int]:
        """The sequences of the copies that lie under the destination's token."""
        return frozenset(copy.sequence for copy in self.copies if copy.key != self.key)

    def merged_with(self, other: StoredBinding) -> StoredBinding:
        """Return what two records of one binding say together."""
        copies = sorted_copies({*self.copies, *other.copies})
        first = self if copies[0] in self.copies else other
        return first._replace(copies=copies, binding=replace(first.binding, sequence=copies[0].sequence))


def sorted_copies(copies: Iterable[BindingCopy]) -> tuple[BindingCopy, ...]:
    """Sort copies of one binding: that in front counts."""
    return tuple(sorted(copies, key=lambda copy: (not copy.signed, *copy[:-1])))


@dataclass(slots=True, eq=False)
class OwnedExchange:
    """An exchange that is evaluated here."""

    #: what producers publish to
    name: bytes
    #: ``x-open`` or the standard type that is evaluated here
    type: str
    #: how its messages leave
    delivery: Delivery
    #: the exchange on the broker that carries them (CARRIER only)
    carrier: bytes
    #: what no binding routes goes to the broker's own exchange of that name
    unmatched_pass: bool = False
    #: alternate exchange of the exchange
    alternate: bytes | None = None
    #: its arguments as declared (filters included)
    arguments: Table = ()
    #: how a client declared it; None if a rules file did
    declared: DeclaredExchange | None = None
    #: bindings that clients made, by identity; those of rules files are known to the router alone
    clients: dict[Hashable, StoredBinding] = field(default_factory=dict)
    #: the same bindings by their own destination (not those of their routes), then by identity
    receivers: dict[Destination, dict[Hashable, StoredBinding]] = field(default_factory=dict)
    #: the tokens of its destinations; with delivery `queue`, which destinations can be published to
    tokens: TokenTable = field(default_factory=TokenTable)
    #: how far routes of clients' bindings reach, by client; where that is limited
    reaches: dict[str, Reach] = field(default_factory=dict)
    #: what clients were found to be allowed to bind, by grant key; on the carrier each is a binding
    grants: dict[bytes, Destination] = field(default_factory=dict)
    #: regular expressions in clients' bindings, by the user whose binding it is
    regexes: Counter[str] = field(default_factory=Counter)
    #: the type that its carrier is to have where it has to be declared
    wanted_type: CarrierType = CarrierType.AUTO
    #: the type that its carrier has, and how its tokens are written
    form: TokenForm = TokenForm.DIRECT
    #: exclusive queues that could not be bound under tokens of the form that the carrier has changed to
    leftover: frozenset[Destination] = frozenset()

    @property
    def is_topic(self) -> bool:
        """Whether its carrier is a topic exchange."""
        return self.form is not TokenForm.DIRECT

    @property
    def takes_exchanges(self) -> bool:
        """Whether messages may go on to an exchange, which gets their tokens as routing keys."""
        return self.form in (TokenForm.DIRECT, TokenForm.EIGHT_WORDS)

    def reach(self, client: str) -> Reach:
        found = self.reaches.get(client)
        if found is None:
            found = self.reaches[client] = Reach(client)
            found.allowed.update(one for key, one in self.grants.items() if key == grant_key(client, *one))
        return found

    def grant(self, key: bytes, destination: Destination) -> None:
        """Record a binding that witnesses what some client may bind."""
        if key in self.grants:
            return
        self.grants[key] = destination
        for client, reach in self.reaches.items():
            if key == grant_key(client, *destination):
                reach.allowed.add(destination)
                reach.refused.pop(destination, None)

    @property
    def bound(self) -> Set[Destination]:
        """Destinations whose token binding on the carrier stands, as far as is known."""
        return self.tokens.bound

    def keep(self, stored: StoredBinding, identity: Hashable = None) -> None:
        """Note a client's binding, in place of the one of its identity, which the caller may know already."""
        identity = identity or stored.binding.identity
        self._count_regexes(self.clients.get(identity), -1)
        self._count_regexes(stored, 1)
        self.clients[identity] = stored
        self.tokens.need(stored.destination, Need.CLIENT)
        self.receivers.setdefault(stored.destination, {})[identity] = stored

    def drop(self, binding: Binding) -> bool:
        """Forget the client's binding of that identity; return whether there was one."""
        identity = binding.identity
        gone = self.clients.pop(identity, None)
        if gone is None:
            return False
        self._count_regexes(gone, -1)
        destination = (binding.destination_type, binding.destination)
        alike = self.receivers[destination]
        del alike[identity]
        if not alike:
            del self.receivers[destination]
            self.tokens.no_need(destination, Need.CLIENT)
        return True

    def _count_regexes(self, stored: StoredBinding | None, change: int) -> None:
        if stored is not None and (count := count_regexes(stored.binding.arguments)):
            self.regexes[stored.client] += change * count

    @property
    def ends(self) -> bool:
        """Whether it goes now, since it is auto-delete and its last binding has gone."""
        return self.declared is not None and self.declared.auto_delete and not self.clients

    @property
    def is_carrier(self) -> bool:
        """Whether the exchange of that name on the broker carries it."""
        return self.delivery is Delivery.CARRIER and self.carrier == self.name

    @property
    def moves(self) -> bool:
        """Whether publishes may leave under another exchange or key."""
        return self.delivery is Delivery.QUEUE or self.carrier != self.name or self.alternate is not None


@dataclass(slots=True, eq=False)
class VhostState:
    """One virtual host as the relays see it."""

    name: str
    #: the compiled rules
    router: Router
    #: exchanges evaluated here, by the name producers use
    exchanges: dict[bytes, OwnedExchange] = field(default_factory=dict)
    #: queues that exist, sorted, for regex routes
    queues: QueueNames = field(default_factory=QueueNames)
    #: destinations that rules name and that can't be reached, with the reason. Changed by `set_missing` and
    #: `not_missing`, replaced by each look. Bounded by the control plane.
    missing: dict[Destination, str] = field(default_factory=dict)
    #: grows with every change that makes cached answers stale
    epoch: int = 0
    #: of what clients declared through us, the latest
    last_sequence: int = 0
    #: names of the broker's exchanges that carry the exchanges evaluated here
    carriers: frozenset[bytes] = field(init=False)
    #: the address table, None if there is none; `set_addresses` changes it
    addresses: AddressBook | None = None
    #: what the address table sends to other brokers that they do not have: label of the broker and destination there,
    #: with the reason
    missing_remote: dict[tuple[str, Destination], str] = field(default_factory=dict)
    #: whether publishes may leave under another address, so that originals have to be put back
    restores: bool = field(init=False)
    #: whether routes of clients' bindings reach only what the client could have bound itself
    own_routes: bool = False
    #: the keys under which carriers know destinations; `set_tokens` changes them
    tokens: Tokens = field(default_factory=Tokens)
    #: sign what is stored on the broker
    secrets: Secrets = field(default_factory=Secrets)
    #: whether other sidecars may bind on the same carriers, and the management API shows it
    shared: bool = True
    #: part of the pins that this process makes: no other has it
    sidecar: str = ""
    #: how long pins of other sidecars are left on carriers of rules files (`relay.token_table`)
    handover_seconds: float = LEASE_SECONDS
    #: whether the broker compares every binding of a direct exchange with every key of a message
    scans_bindings: bool = False
    #: what the regexes of each owner may cost in one decision, in match-limit units
    regex_budget: int = DEFAULT_BUDGET

    def __post_init__(self) -> None:
        self._derive()

    def prefers_topic(self, wanted: CarrierType, *, many: bool) -> bool:
        """Return whether a carrier is to be declared as a topic exchange.

        Args:
            wanted: the type that was asked for.
            many: whether it has, or may get, many destinations.
        """
        if wanted is CarrierType.AUTO:
            # Sidecars of version 0.1 know no topic carriers.
            return many and self.scans_bindings and UNKEYED not in self.tokens.keys
        return wanted is CarrierType.TOPIC

    def carried(self) -> list[OwnedExchange]:
        return [owned for owned in self.exchanges.values() if owned.delivery is Delivery.CARRIER]

    def now(self, owned: OwnedExchange) -> OwnedExchange | None:
        """Return what an exchange is by now: rules may have been reloaded meanwhile; None if it is gone."""
        now = self.exchanges.get(owned.name)
        if now is None or now is owned:
            return now
        place = (owned.type, owned.delivery, owned.carrier)
        same = owned.declared is None and now.declared is None and place == (now.type, now.delivery, now.carrier)
        return now if same else None

    def has_token(self, destination: Destination) -> bool:
        """Return whether messages find a destination by a token: it is not evaluated here."""
        return destination[0] == QUEUE or destination[1] not in self.exchanges

    def has_queue(self, name: bytes) -> bool:
        """Return whether a queue exists, as far as is known."""
        names = self.queues.names  # sorted
        at = bisect_left(names, name)
        return at < len(names) and names[at] == name

    def set_missing(self, destination: Destination, reason: str) -> None:
        """A destination can't be reached: publishes leave without it."""
        self.missing[destination] = reason

    def not_missing(self, destination: Destination) -> bool:
        """A destination may be reached again: publishes wait for its token; return whether it was missing."""
        return self.missing.pop(destination, None) is not None

    def redeclared(self, destination: Destination) -> None:
        """A destination may be another one of that name from now on, without tokens."""
        for owned in self.exchanges.values():
            owned.tokens.declared(destination)

    def next_sequence(self, wall: float) -> int:
        """Return a place in the order of declarations, later than all before: microseconds since 1970, or one more."""
        self.last_sequence = max(self.last_sequence + 1, int(wall * 1_000_000))
        return self.last_sequence

    def next_pin(self, wall: float) -> bytes:
        return pin_row(self.sidecar, self.next_sequence(wall))

    def changed(self) -> None:
        """Make every relay forget what it derived from this state."""
        self.epoch += 1

    def swap(self, exchanges: dict[bytes, OwnedExchange], router: Router) -> None:
        self.exchanges = exchanges
        self.router = router
        self._derive()
        self.changed()

    def set_addresses(self, addresses: AddressBook | None) -> None:
        self.addresses = addresses
        self._derive()
        self.changed()

    def set_sharing(self, shared: bool, sidecar: str, handover_seconds: float = LEASE_SECONDS) -> None:
        """Set whether other sidecars may be on the same carriers, and which one this is."""
        self.shared, self.sidecar, self.handover_seconds = shared, sidecar, handover_seconds
        self._derive()

    def tokens_of(self, owned: OwnedExchange) -> Tokens:
        return self.tokens.in_form(owned.form)

    def set_tokens(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.changed()

    def add_exchange(self, owned: OwnedExchange, exchange: Exchange) -> None:
        self.exchanges[owned.name] = owned
        self.router.add(exchange)
        self._derive()
        self.changed()

    def remove_exchange(self, name: bytes) -> None:
        """An exchange is gone, with all its bindings and those of clients to it."""
        self.exchanges.pop(name, None)
        self.router.remove(name)
        for other in list(self.exchanges.values()):
            for stored in list(other.receivers.get(("exchange", name), {}).values()):
                self.remove_binding(stored)
        self._derive()
        self.changed()

    def add_binding(self, stored: StoredBinding, compiled: CompiledBinding | None = None) -> bool:
        """Add a client's binding to an exchange that is here; a second copy of one counts as the same.

        Returns:
            Whether it is new, or the copy that counts is.
        """
        owned, exchange = self.exchanges[stored.binding.exchange], self.router.exchanges[stored.binding.exchange]
        identity = stored.binding.identity
        known = owned.clients.get(identity)
        if known is not None:
            merged_with = known.merged_with(stored)
            if merged_with.copies == known.copies:
                return False
            is_new = merged_with.copies[0] != known.copies[0]
            if is_new:
                merged_with = self._limited(owned, merged_with)
                exchange.unbind(known.binding)
                exchange.bind(merged_with.binding)
            owned.keep(merged_with, identity)
        else:
            is_new = True
            stored = self._limited(owned, stored)
            exchange.bind(stored.binding, compiled)
            owned.keep(stored, identity)
        self.changed()
        return is_new

    def _limited(self, owned: OwnedExchange, stored: StoredBinding) -> StoredBinding:
        """Let a client's binding reach no further than its client; an unsigned one, its own destination alone."""
        reach: Reach | None = NO_REACH
        if stored.signed:
            reach = owned.reach(stored.client) if self.own_routes else None
        binding = stored.binding
        if (binding.reach, binding.last, binding.owner) == (reach, not stored.signed, stored.client):
            return stored
        return stored._replace(binding=replace(binding, reach=reach, last=not stored.signed, owner=stored.client))

    def remove_binding(self, stored: StoredBinding) -> None:
        """A client's binding is gone; with the last goes an auto-delete exchange that is not on the broker."""
        binding = stored.binding
        owned = self.exchanges.get(binding.exchange)
        if owned is None or not owned.drop(binding):
            return
        self.router.exchanges[binding.exchange].unbind(binding)
        self.changed()
        if owned.delivery is Delivery.QUEUE and owned.ends:
            self.remove_exchange(owned.name)

    def regexes(self, client: str) -> int:
        return sum(owned.regexes[client] for owned in self.exchanges.values())

    def owner_of(self, reach: Reach) -> OwnedExchange | None:
        for owned in self.exchanges.values():
            if owned.reaches.get(reach.client) is reach:
                return owned
        return None

    def clear_refusals(self, client: str | None = None, destination: Destination | None = None) -> None:
        """Let refusals be asked about once more: those of a client, those of a destination, or all."""
        found = False
        for owned in self.exchanges.values():
            for reach in owned.reaches.values():
                if not reach.refused or client not in (None, reach.client):
                    continue
                if destination is None:
                    reach.refused.clear()
                elif reach.refused.pop(destination, None) is None:
                    continue
                found = True
        if found:
            self.changed()

    def _derive(self) -> None:
        self.carriers = frozenset(owned.carrier for owned in self.carried())
        translates = self.addresses is not None and self.addresses.stays_here
        for owned in self.exchanges.values():
            owned.tokens.shared = self.shared
            owned.tokens.handover_seconds = self.handover_seconds if owned.declared is None else LEASE_SECONDS
        self.restores = translates or any(owned.moves for owned in self.exchanges.values())
