"""State of one virtual host, shared by the control plane and the relays.

A `TokenTable` tracks which tokens are bound. Everything runs in one thread, so attributes without locks suffice. Code
that changes data on which cached decisions depend has to call `changed` or, if all decisions may depend on the data,
`settings_changed`.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from oxproxy.addressing.targets import AddressBook
from oxproxy.errors import ProtocolError
from oxproxy.relay.token_table import TokenTable
from oxproxy.relay.tokens import Secrets, Tokens
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.bindings.compiled import CompiledBinding, count_regexes
from oxproxy.routing.bindings.patterns import DEFAULT_BUDGET
from oxproxy.routing.decision import QueueNames
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import EXCHANGE, QUEUE, Destination, Table, describe


class Delivery(Enum):
    """How messages published to an exchange reach their queues (architecture, "One publish in, one publish out")."""

    CARRIER = "carrier"
    QUEUE = "queue"


class CarrierType(Enum):
    """Requested type of a carrier; AUTO selects the type that costs the broker less."""

    AUTO = "auto"
    DIRECT = "direct"
    TOPIC = "topic"


class ClientRoutes(Enum):
    """Which routes clients' bindings may have (``declared.client_routes``)."""

    #: routes that name a destination which exists and which the client may bind, both when the binding is created
    OWN = "own"
    #: all routes; the control user binds the destinations that messages choose
    ANY = "any"


class DeclaredExchange(NamedTuple):
    """Arguments with which a client declared an exchange."""

    durable: bool
    auto_delete: bool
    internal: bool
    #: raw entries of the client's argument table
    entries: bytes
    #: position in the order of declarations
    sequence: int


class BindingCopy(NamedTuple):
    """One copy of a client's binding on the broker."""

    #: position in the order of declarations
    sequence: int
    #: user name stored in the copy; trusted only if the copy is signed
    client: str
    #: raw entries of the client's argument table; their order may differ between copies
    entries: bytes
    #: the signature stored on the broker; b"" if there is none
    signature: bytes = b""
    #: index of the secret with which the copy was signed (0: the current secret); None if it was not signed with any of
    #: our secrets
    secret: int | None = 0

    @property
    def signed(self) -> bool:
        return self.secret is not None


class StoredBinding(NamedTuple):
    """A binding created by a client."""

    #: the binding as used for routing; its `sequence` is that of the first copy
    binding: Binding
    #: storage key of the binding on the carrier
    key: bytes
    #: all copies on the broker, signed copies first, then by sequence. The first copy determines the user and the
    #: sequence of the binding. There are several copies if several sidecars have created the binding.
    copies: tuple[BindingCopy, ...]

    @property
    def client(self) -> str:
        """User that created the first copy; empty if the copy is not signed."""
        return self.copies[0].client if self.signed else ""

    @property
    def signed(self) -> bool:
        return self.copies[0].signed

    @property
    def destination(self) -> Destination:
        return self.binding.destination_type, self.binding.destination

    def merged_with(self, other: StoredBinding) -> StoredBinding:
        """Return this binding with the copies from both records."""
        copies = sorted_copies({*self.copies, *other.copies})
        first = self if copies[0] in self.copies else other
        return first._replace(copies=copies)


#: Number of bindings that are compiled in one step. Those with the same index key may take 0.2 ms each.
_STEP = 16
#: A binding that new rules make invalid, and the reason.
Refused: TypeAlias = tuple[StoredBinding, str]


def sorted_copies(copies: Iterable[BindingCopy]) -> tuple[BindingCopy, ...]:
    """Return the copies of one binding in the order of `StoredBinding.copies`."""
    return tuple(sorted(copies, key=lambda copy: (not copy.signed, *copy[:-1])))


class ClientLayer(dict[Hashable, StoredBinding]):
    """The bindings that clients created on one exchange, by identity. Only `keep` and `drop` change them.

    The compiled bindings are in the layer `Exchange.clients`.
    """

    def __init__(self) -> None:
        super().__init__()
        #: the same bindings, by the destination of the binding (not the destinations of its routes), then by identity
        self.receivers: dict[Destination, dict[Hashable, StoredBinding]] = {}
        #: increases with every binding that a client creates, creates again or removes
        self.changes = 0
        #: number of regular expressions in the bindings, by user
        self.regexes: Counter[str] = Counter()
        self._followers: list[weakref.ref[set[Hashable]]] = []

    def follow(self) -> set[Hashable]:
        """Return a set that receives the identity of each binding that changes, as long as it is referred to."""
        changed: set[Hashable] = set()
        self._followers = [follower for follower in self._followers if follower() is not None]
        self._followers.append(weakref.ref(changed))
        return changed

    def _change(self, identity: Hashable) -> None:
        self.changes += 1
        for follower in self._followers:
            changed = follower()
            if changed is not None:
                changed.add(identity)

    def keep(self, stored: StoredBinding, identity: Hashable = None) -> None:
        """Store a binding, replacing any binding with the same identity.

        The identity is computed if it is not given.
        """
        identity = identity or stored.binding.identity
        self._change(identity)
        self._count_regexes(self.get(identity), -1)
        self._count_regexes(stored, 1)
        self[identity] = stored
        self.receivers.setdefault(stored.destination, {})[identity] = stored

    def drop(self, binding: Binding) -> bool:
        """Remove the binding that has the same identity as the given binding; return whether it existed."""
        identity = binding.identity
        removed = self.pop(identity, None)
        if removed is None:
            return False
        self._change(identity)
        self._count_regexes(removed, -1)
        alike = self.receivers[removed.destination]
        del alike[identity]
        if not alike:
            del self.receivers[removed.destination]
        return True

    def _count_regexes(self, stored: StoredBinding | None, change: int) -> None:
        if stored is not None and (count := count_regexes(stored.binding.arguments)):
            self.regexes[stored.client] += change * count


class Recompilation:
    """The clients' bindings of an exchange, compiled for the type that new rules give it.

    For 100,000 bindings, this takes a second. It is therefore done in `steps`, before the rules are swapped.
    Afterwards, `update` applies what has changed.

    Args:
        source: the bindings in use.
        exchange: the exchange of the new rules, which then has its own layer of clients' bindings.
    """

    __slots__ = ("_changed", "_exchange", "_left", "layer", "refused", "source")

    def __init__(self, source: ClientLayer, exchange: Exchange) -> None:
        self.source = source
        self.layer = ClientLayer()
        #: the bindings that the new type makes invalid
        self.refused: dict[Hashable, Refused] = {}
        self._exchange = exchange
        #: what has not been compiled yet; the newest are compiled first, since the index has them before older ones
        self._left: list[Hashable] = list(source)
        self._changed = source.follow()
        exchange.clear_clients()

    def steps(self) -> Generator[None, None, None]:
        """Compile the bindings; other tasks may run, and change the bindings, between steps."""
        while self._left:
            self._compile_some()
            yield

    def update(self) -> None:
        """Apply the changes of the bindings in use since the last update."""
        while self._left:
            self._compile_some()
        while self._changed:
            self._follow(self._changed.pop())

    def _compile_some(self) -> None:
        for _ in range(min(_STEP, len(self._left))):
            self._follow(self._left.pop())

    def _follow(self, identity: Hashable) -> None:
        stored, known = self.source.get(identity), self.layer.get(identity)
        if known is not None:
            self.layer.drop(known.binding)
            self._exchange.clients.remove(known.binding)
        self.refused.pop(identity, None)
        if stored is None:
            return
        try:
            self._exchange.bind(stored.binding)
        except ProtocolError as error:
            self.refused[identity] = stored, str(error)
        else:
            self.layer.keep(stored, identity)


@dataclass(slots=True, eq=False)
class OwnedExchange:
    """An exchange whose bindings this sidecar evaluates.

    There is one object for an exchange as long as its type, its delivery and its carrier stay the same, and as long as
    it is a rules file or a client that defines it. A reload replaces the other values that the rules file specifies
    (`redefine`), and leaves clients' bindings and tokens alone.
    """

    #: the name that producers use
    name: bytes
    #: ``x-open`` or the emulated standard type
    type: str
    delivery: Delivery
    #: the carrier exchange on the broker (only with delivery CARRIER)
    carrier: bytes
    #: whether messages that no binding routes are passed to the broker's own exchange with the same name
    unmatched_pass: bool = False
    alternate: bytes | None = None
    #: arguments as declared, including filters
    arguments: Table = ()
    #: declaration by a client; None for an exchange from a rules file
    declared: DeclaredExchange | None = None
    #: bindings created by clients; bindings from rules files are only in the router
    clients: ClientLayer = field(default_factory=ClientLayer)
    #: its destinations; see `relay.token_table`
    tokens: TokenTable = field(default_factory=TokenTable)
    #: increases whenever a client declares the exchange again, since the broker may have deleted it in the meantime
    declares: int = 0
    #: clients' bindings in the form that new rules require, if these give the exchange another type
    recompilation: Recompilation | None = None
    #: requested type of its carrier if the carrier has to be declared
    wanted_type: CarrierType = CarrierType.AUTO
    #: the type of its carrier: TOPIC or DIRECT. It never changes once the carrier has been declared.
    carrier_type: CarrierType = CarrierType.DIRECT

    @property
    def is_topic(self) -> bool:
        """True if the exchange's carrier is a topic exchange."""
        return self.carrier_type is CarrierType.TOPIC

    def is_same(self, other: OwnedExchange) -> bool:
        """Return True if two objects with one name stand for the same exchange of a rules file.

        The second one then redefines the first one.
        """
        place = (self.type, self.delivery, self.carrier)
        by_file = self.declared is None and other.declared is None
        return by_file and place == (other.type, other.delivery, other.carrier)

    def is_defined_as(self, new: OwnedExchange) -> bool:
        """Return True if `redefine` would change nothing."""
        return (
            self.is_same(new)
            and self.unmatched_pass == new.unmatched_pass
            and self.alternate == new.alternate
            and self.arguments == new.arguments
            and self.wanted_type is new.wanted_type
            and self.carrier_type is new.carrier_type
        )

    def redefine(self, new: OwnedExchange) -> None:
        """Adopt what new rules specify; see `is_same`."""
        self.unmatched_pass = new.unmatched_pass
        self.alternate = new.alternate
        self.arguments = new.arguments
        self.wanted_type = new.wanted_type
        self.carrier_type = new.carrier_type

    def candidates(self, destination: Destination, tokens: Tokens, router: Router) -> tuple[bytes, ...]:
        """Return the tokens with which a destination may be bound to the carrier; see `Tokens.candidates`.

        Args:
            tokens: the tokens of the virtual host.
            router: the rules, which may not be in use yet.
        """
        one_word = self.is_topic and destination[0] == QUEUE and not router.leads_on(self.name)
        return tokens.candidates(destination, one_word=one_word)

    def token(self, destination: Destination, tokens: Tokens, router: Router) -> bytes | None:
        """Return the first of the candidates that is known to be bound; None if there is none."""
        bound = self.tokens.bound.get(destination)
        if not bound:
            return None
        return next((token for token in self.candidates(destination, tokens, router) if token in bound), None)

    @property
    def ends(self) -> bool:
        """True if a client declared this exchange with auto-delete and the exchange has no bindings."""
        return self.declared is not None and self.declared.auto_delete and not self.clients

    def relies_on(self, destination: Destination) -> bool:
        """Return True if the sidecar itself publishes to this exchange, since it is the alternate exchange."""
        return self.delivery is Delivery.QUEUE and destination == (EXCHANGE, self.alternate)

    @property
    def is_carrier(self) -> bool:
        """True if this exchange has a carrier with the same name."""
        return self.delivery is Delivery.CARRIER and self.carrier == self.name


@dataclass(slots=True, eq=False)
class VhostState:
    """One virtual host as seen by the relays.

    It is the one place that control plane and relays share, so unrelated values are next to each other. Those that
    belong together are objects: exchanges with client layers and token tables, router, tokens, address table.
    """

    name: str
    router: Router
    #: exchanges evaluated here, by the name that producers use
    exchanges: dict[bytes, OwnedExchange] = field(default_factory=dict)
    #: the existing queues, sorted, for regex routes
    queues: QueueNames = field(default_factory=QueueNames)
    #: number of changes on which cached decisions may depend; see `changed`
    epoch: int = 0
    #: number of those changes on which every cached decision may depend; see `settings_changed`
    settings_version: int = 0
    #: latest sequence number of a declaration made through this sidecar
    last_sequence: int = 0
    #: the broker's exchanges, including the default exchange, that are known not to be open exchanges; None while
    #: exchanges can't be listed
    broker_exchanges: set[bytes] | None = None
    #: names of the carriers of exchanges evaluated here
    carriers: frozenset[bytes] = field(init=False)
    #: the address table; None if there is none; set by `set_addresses`
    addresses: AddressBook | None = None
    #: what rules rely on, but no token table contains, and what does not exist, with the reason: alternate exchanges,
    #: queues that can't be declared, and replacements of translated destinations; replaced by each pass
    missing_others: Mapping[Destination, str] = field(default_factory=dict)
    #: translated destinations that do not exist on other brokers, with the reason; a key consists of the label of the
    #: broker and the destination on that broker
    missing_remote: Mapping[tuple[str, Destination], str] = field(default_factory=dict)
    #: whether publishes may be sent to a different address, so that the original address must be restored in deliveries
    restores: bool = field(init=False)
    #: which routes clients' bindings may have; set by the control plane
    client_routes: ClientRoutes = ClientRoutes.OWN
    #: the tokens of destinations
    tokens: Tokens = field(init=False)
    #: number of regular expressions in the unanswered binds of each user
    coming_regexes: Counter[str] = field(default_factory=Counter)
    #: used to sign bindings stored on the broker; set by the control plane
    secrets: Secrets = field(default_factory=Secrets)
    #: whether other sidecars may declare and bind, so that an unknown object has to be looked up
    shared: bool = True
    #: whether the broker compares every binding of a direct exchange with every key of a message
    scans_bindings: bool = False
    #: cost limit for each owner's regexes in one decision, in match-limit units
    regex_budget: int = DEFAULT_BUDGET

    def __post_init__(self) -> None:
        self.tokens = Tokens(self.name, self.secrets.token_keys)
        self._derive()

    def prefers_topic(self, wanted: CarrierType, *, many: bool) -> bool:
        """Return True if a carrier should be a topic exchange; `many`: whether it may get many destinations."""
        return many and self.scans_bindings if wanted is CarrierType.AUTO else wanted is CarrierType.TOPIC

    def carried(self) -> list[OwnedExchange]:
        return [owned for owned in self.exchanges.values() if owned.delivery is Delivery.CARRIER]

    def bound_by_clients(self, destination: Destination) -> list[OwnedExchange]:
        """Return the exchanges to which clients have bound a destination."""
        return [owned for owned in self.exchanges.values() if destination in owned.clients.receivers]

    def has(self, owned: OwnedExchange) -> bool:
        """Return False if an exchange was deleted, or if its name now belongs to a different exchange."""
        return self.exchanges.get(owned.name) is owned

    def may_be_open(self, name: bytes) -> bool:
        """Return True if this exchange is unknown here, but may have been declared through another sidecar."""
        known = self.broker_exchanges
        return known is not None and name not in known and name not in self.exchanges

    def has_token(self, destination: Destination) -> bool:
        """Return True if messages reach a destination through a token. Exchanges evaluated here need no token."""
        return destination[0] == QUEUE or destination[1] not in self.exchanges

    def candidates(self, owned: OwnedExchange, destination: Destination) -> tuple[bytes, ...]:
        """Return the tokens with which a destination may be bound to an exchange's carrier."""
        return owned.candidates(destination, self.tokens, self.router)

    def token_of(self, owned: OwnedExchange, destination: Destination) -> bytes | None:
        """Return the token with which publishes reach a destination; None if no candidate is known to be bound."""
        return owned.token(destination, self.tokens, self.router)

    def needing(self, destination: Destination) -> list[OwnedExchange]:
        """Return the exchanges on whose carriers a destination has to be bound when it is declared.

        These are the exchanges whose rules or clients' bindings name it, and those on whose carriers it counts as
        bound: it may have been deleted with its bindings in the meantime.
        """
        return [
            owned
            for owned in self.carried()
            if destination in owned.tokens.bound or self.router.names(owned.name, destination)
        ]

    def names(self, owned: OwnedExchange, destination: Destination) -> bool:
        """Return True if rules or clients' bindings send messages of an exchange to a destination."""
        return owned.relies_on(destination) or self.router.names(owned.name, destination)

    def named(self, owned: OwnedExchange) -> frozenset[Destination]:
        """Return the destinations for which `names` returns True."""
        destinations = self.router.destinations(owned.name)
        relied_on = (EXCHANGE, owned.alternate or b"")
        return destinations | {relied_on} if owned.relies_on(relied_on) else destinations

    def missing_here(self) -> dict[str, str]:
        """Return what rules and clients' bindings name on this broker and messages can't reach, with the reasons."""
        missing = dict(self.missing_others)
        for owned in self.exchanges.values():
            missing |= {name: entry.reason for name, entry in owned.tokens.missing.items() if self.names(owned, name)}
        return {describe(destination): reason for destination, reason in missing.items()}

    def missing(self) -> dict[str, str]:
        """Return `missing_here`, and the missing destinations on other brokers.

        This is what the log, ``/status``, the console and the metrics report. Destinations that only messages choose
        are not included; the tables contain them as well.
        """
        remote = {
            f"{describe(destination)} on broker {label}": reason
            for (label, destination), reason in self.missing_remote.items()
        }
        return self.missing_here() | remote

    def next_sequence(self, wall: float) -> int:
        """Return a new sequence number: microseconds since 1970, but at least the previous number plus 1."""
        self.last_sequence = max(self.last_sequence + 1, int(wall * 1_000_000))
        return self.last_sequence

    def changed(self) -> None:
        """Make every relay check whether its plans are still current, before it uses them again.

        This is called after a change of an exchange, its bindings or its token table, or of the queue names.
        """
        self.epoch += 1

    def settings_changed(self) -> None:
        """Make every relay discard all plans. This is called after a change that concerns the whole virtual host."""
        self.settings_version += 1
        self.changed()

    def set_queues(self, queues: QueueNames) -> None:
        """Replace the queue names; `queues` is the present object if no name has changed."""
        if queues is not self.queues:
            self.queues = queues
            if self.router.sees_queues:
                self.changed()

    def recompilations(self, exchanges: Mapping[bytes, OwnedExchange], router: Router) -> list[Recompilation]:
        """Return what has to be compiled where new rules change the type of an exchange; `overlay` would not yield."""
        found: list[Recompilation] = []
        for name, owned in self.exchanges.items():
            new = exchanges.get(name)
            if new is not None and new.type != owned.type:
                if new.recompilation is None or new.recompilation.source is not owned.clients:
                    new.recompilation = Recompilation(owned.clients, router.exchanges[name])
                found.append(new.recompilation)
        return found

    def overlay(self, exchanges: dict[bytes, OwnedExchange], router: Router) -> list[Refused]:
        """Let new rules refer to the tokens and the client declarations of this virtual host.

        The new rules then also see later changes of tokens and bindings, but not of clients' exchanges; for these, this
        method is called again. If a rules file defines an exchange with the name of a client's exchange, the definition
        in the file applies, and clients' bindings are kept.

        Args:
            exchanges: the exchanges of the new rules, to which clients' exchanges are added.

        Returns:
            The bindings that the new type of an exchange makes invalid.
        """
        refused: list[Refused] = []
        by_carrier = {owned.carrier: owned for owned in self.carried()}
        for name, new in list(exchanges.items()):
            if new.declared is not None and not self.has(new):
                del exchanges[name]
                router.remove(name)
            elif new.delivery is Delivery.CARRIER and (known := by_carrier.get(new.carrier)) is not None:
                new.tokens, new.carrier_type = known.tokens, known.carrier_type
        for recompilation in self.recompilations(exchanges, router):
            recompilation.update()
            refused += recompilation.refused.values()
        for name, owned in self.exchanges.items():
            known, exchange = exchanges.get(name), self.router.exchanges[name]
            if known is None and owned.declared is not None:
                exchanges[name] = owned
                router.add(exchange)
            elif known is not None and known is not owned:
                new_exchange = router.exchanges[name]
                if known.recompilation is not None and known.type != owned.type:
                    known.clients = known.recompilation.layer
                    router.add(new_exchange)
                elif known.clients is not owned.clients:
                    known.clients = owned.clients
                    new_exchange.share_clients(exchange)
                    router.add(new_exchange)
                if owned.is_defined_as(known):
                    exchanges[name] = owned
        return refused

    def swap(self, exchanges: dict[bytes, OwnedExchange], router: Router) -> list[Refused]:
        """Replace the rules; see `overlay`."""
        refused = self.overlay(exchanges, router)
        for name, owned in self.exchanges.items():
            new = exchanges.get(name)
            if new is not None and owned.is_same(new):
                owned.redefine(new)
                exchanges[name] = owned
                router.exchanges[name].follow_local_time(self.router.exchanges[name])
        for new in exchanges.values():
            new.recompilation = None
        self.exchanges = exchanges
        self.router = router
        self._derive()
        self.settings_changed()
        return refused

    def set_addresses(self, addresses: AddressBook | None) -> None:
        self.addresses = addresses
        self._derive()
        self.settings_changed()

    def set_secrets(self, secrets: Secrets) -> None:
        self.secrets, self.tokens = secrets, Tokens(self.name, secrets.token_keys)
        self.settings_changed()

    def add_exchange(self, owned: OwnedExchange, exchange: Exchange) -> None:
        self.exchanges[owned.name] = owned
        if self.broker_exchanges is not None:
            self.broker_exchanges.discard(owned.name)
        self.router.add(exchange)
        self._exchanges_changed()

    def remove_exchange(self, name: bytes) -> None:
        """Remove an exchange, its bindings, and all clients' bindings whose destination is this exchange."""
        self.exchanges.pop(name, None)
        self.router.remove(name)
        for other in list(self.exchanges.values()):
            for stored in list(other.clients.receivers.get(("exchange", name), {}).values()):
                self.remove_binding(stored)
        self._exchanges_changed()

    def _exchanges_changed(self) -> None:
        self._derive()
        if self.addresses is not None:  # it does not redirect to names of exchanges that are evaluated here
            self.settings_changed()
        else:
            self.changed()

    def add_binding(
        self, stored: StoredBinding, compiled: CompiledBinding | None = None, identity: Hashable = None
    ) -> bool:
        """Add a client's binding, or merge its copies; return whether the binding or its first copy is new.

        The identity and the compiled form of the binding are computed if they are not given.
        """
        owned, exchange = self.exchanges[stored.binding.exchange], self.router.exchanges[stored.binding.exchange]
        identity = identity or stored.binding.identity
        known = owned.clients.get(identity)
        is_new = True
        if known is None:
            stored = self._limited(stored)
            exchange.bind(stored.binding, compiled)
        else:
            stored = known.merged_with(stored)
            if stored.copies == known.copies:
                # The queue may have been deleted and declared again since a listing was requested, so the listing may
                # lack the binding. Replace the binding with a new object, so that this listing does not remove it.
                owned.clients.keep(known._replace(), identity)
                return False
            is_new = stored.copies[0] != known.copies[0]
            if is_new:
                stored = self._limited(stored)
                exchange.clients.remove(known.binding)
                exchange.bind(stored.binding)
        owned.clients.keep(stored, identity)
        self.changed()
        return is_new

    def _limited(self, stored: StoredBinding) -> StoredBinding:
        """Limit a binding to what its client was permitted to do.

        A binding that is not signed may have been created by any user with permission to bind on the carrier, so its
        routes have no effect, and it is visited last. The signature shows that a sidecar has checked the routes.
        """
        limited = stored.binding.limited(stored.copies[0].sequence, last=not stored.signed, owner=stored.client)
        return stored._replace(binding=limited)

    def remove_binding(self, stored: StoredBinding) -> None:
        """Remove a client's binding."""
        binding = stored.binding
        owned = self.exchanges.get(binding.exchange)
        if owned is not None and owned.clients.drop(binding):
            self.router.exchanges[binding.exchange].clients.remove(binding)
            self.changed()

    def _derive(self) -> None:
        self.carriers = frozenset(owned.carrier for owned in self.carried())
        translates = self.addresses is not None and self.addresses.stays_here
        for owned in self.exchanges.values():
            owned.tokens.notify = self.changed
        self.restores = translates or any(
            not owned.is_carrier or owned.alternate is not None for owned in self.exchanges.values()
        )
