"""Turns a decision into upstream publishes, if possible into a single publish.

Builds an `Outgoing` from a `Decision` and the state of the virtual host. An `Outgoing` contains the exchange and key of
the outgoing publish, the tokens or queue names for BCC, and the destinations to bind first. The publish pass caches
each `Outgoing` by the facts of the message, so everything that does not depend on the individual message is encoded
here, once.

Source: architecture, "One publish in, one publish out"; RabbitMQ guide "Sender-selected distribution".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from oxproxy.addressing.targets import FailedTranslation, Publication, Target
from oxproxy.amqp.frames import HEADER, U16, U32, frame, shortstr
from oxproxy.amqp.properties import HEADERS, header_table
from oxproxy.amqp.tables import decode_value, pick, without
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.counters import Tally, Traffic
from oxproxy.relay.original_address import ADDRESS_ENTRY, CC_ASIDE, OURS, address_parts, entry
from oxproxy.relay.records.audit_record import PublishLog
from oxproxy.relay.tokens import NOWHERE
from oxproxy.relay.vhost import Delivery, OwnedExchange, VhostState
from oxproxy.routing.decision import Decision, Outcome
from oxproxy.routing.destination_translation import TranslatedDestinations, translate_destinations
from oxproxy.values import RESERVED_PREFIXES, Destination, can_exist, reserved_prefix, text

PUBLISH = (60, 40)
#: reason in audit records for a publish whose address translation failed
TRANSLATION_FAILED: Final = "translation_failed"
#: reason in audit records if a regex budget was exhausted, so that bindings count as false or routes have no effect
REGEX_BUDGET: Final = "regex_budget"
#: reason in audit records if the message violates the contract of an exchange
CONTRACT_VIOLATION: Final = "contract_violation"
CC_ONLY: Final = frozenset((b"CC",))
_BCC: Final = frozenset((b"BCC",))
CC_BCC: Final = CC_ONLY | _BCC
_CUT: Final = OURS | _BCC
_CUT_CC: Final = _CUT | CC_ONLY
#: flags of the producer's entries that may have to be removed: BCC, CC, and the headers reserved for the sidecar
CUT_BCC: Final = 1
CUT_CC: Final = 2
CUT_OURS: Final = 4


class PublishSource(NamedTuple):
    """The original address of a publish that the address table redirected, and the index of the address rule."""

    address: Publication
    rule: int


class Copy(NamedTuple):
    """One upstream publish.

    Args:
        exchange: exchange of the publish.
        routing_key: routing key of the publish; None for the producer's own key.
        bcc: further routing keys: tokens, or queue names with queue delivery.
        moved: whether the exchange or key differs from the producer's; if so, our header contains the original address.
        hide_cc: whether the producer's CC must be hidden, since the outgoing exchange would route by it.
        by_broker: whether the broker alone routes the publish, not the rules; if so, the producer's CC and BCC have
            their usual meaning.
    """

    exchange: bytes
    routing_key: bytes | None
    bcc: tuple[bytes, ...]
    moved: bool
    hide_cc: bool = False
    by_broker: bool = False

    def key(self, own: bytes) -> bytes:
        """Return the routing key of the publish; `own` is the producer's routing key."""
        return own if self.routing_key is None else self.routing_key


class RemoteTargets(NamedTuple):
    """A publish's targets that are not on the producer's own broker.

    Args:
        targets: targets on other brokers.
        failed: failed translations. If there are any, the publish can't be acked.
        by_broker: whether the other broker alone routes the publish, so that the producer's CC and BCC have their usual
            meaning. Otherwise, the exchange that was evaluated here ignores CC and BCC, so the other broker must not
            route by them.
    """

    targets: tuple[Target, ...]
    failed: tuple[FailedTranslation, ...]
    by_broker: bool = False


class Outgoing:
    """The outgoing form of messages. Messages with the same facts share one object if their decision is cached.

    All values are attributes of this object, since the publish pass reads them for each message.

    Args:
        tally: counts the publishes and body bytes.
        copies: upstream publishes; empty if the publish is refused or forwarded untouched.
        untouched: whether the publish is forwarded byte for byte to the broker's own exchange (``unmatched: pass``).
        unbound: destinations that must be bound before the publish can be sent.
        record: the constant part of the audit records.
        remote_targets: targets on other brokers, and failed translations; None if there are none.
        exchange: exchange named by the producer.
        original: the producer's address, if it is the same for all these messages; None if the address consists of
            `exchange` and the message's own routing key.
    """

    __slots__ = (
        "_address_front", "_address_middle", "_new_key", "address", "bcc", "copies", "count", "cuts", "decision",
        "exchange", "fixed_entries", "keeps_bcc", "key_field", "leaves_at_once", "original", "record", "remote_alone",
        "remote_targets", "tally", "unbound", "untouched", "waits",
    )  # fmt: skip

    def __init__(
        self,
        decision: Decision,
        tally: Tally,
        copies: tuple[Copy, ...] = (),
        untouched: bool = False,
        unbound: tuple[Destination, ...] = (),
        record: str | None = None,
        remote_targets: RemoteTargets | None = None,
        exchange: bytes = b"",
        original: Publication | None = None,
    ) -> None:
        self.decision = decision
        self.tally = tally
        self.count = tally.count
        self.copies = copies
        self.untouched = untouched
        self.unbound = unbound
        self.record = record
        self.remote_targets = remote_targets
        self.exchange = exchange
        self.original = original
        #: whether the producer's BCC reaches the broker, and must therefore contain no tokens
        self.keeps_bcc = untouched or (bool(copies) and copies[0].by_broker)
        #: whether destinations must be bound before the publish can be sent
        self.waits = bool(unbound)
        #: whether a message can be sent immediately as a single publish to the producer's own broker
        self.leaves_at_once = remote_targets is None and not self.waits and (untouched or len(copies) == 1)
        #: the target on another broker, if it is the only target and the publish need not wait
        self.remote_alone: Target | None = None
        if remote_targets is not None and not (self.waits or copies or remote_targets.failed):
            self.remote_alone = remote_targets.targets[0] if len(remote_targets.targets) == 1 else None
        #: encoded outgoing exchange; empty: the producer's method frame is unchanged
        self.address = b""
        #: encoded outgoing routing key; empty: the producer's key is unchanged
        self.key_field = b""
        #: entries inserted into the header table of every message; None if `entries` encodes them for each routing key
        self.fixed_entries: bytes | None = b""
        #: the producer's entries to remove, as a sum of CUT_BCC, CUT_CC and CUT_OURS
        self.cuts = 0
        self.bcc = self._address_front = self._address_middle = b""
        self._new_key: bytes | None = None
        if copies:
            self._encode(copies[0])

    def _encode(self, copy: Copy) -> None:
        """Encode the parts that are inserted for the first copy, which is usually the only copy."""
        self.cuts = CUT_OURS if copy.by_broker else CUT_OURS | CUT_BCC | (CUT_CC if copy.hide_cc else 0)
        self.bcc = b"" if copy.by_broker else bcc_entry(copy.bcc)
        if not copy.moved:
            self.fixed_entries = self.bcc
            return
        self.address = shortstr(copy.exchange)
        if copy.routing_key is not None:
            self.key_field = shortstr(copy.routing_key)
        original = self.original
        if original is not None:
            key = copy.key(original.routing_key)
            self.fixed_entries = entry(original, Publication(copy.exchange, key)) + self.bcc
            return
        self.fixed_entries = None
        self._address_front, self._address_middle = address_parts(self.exchange, copy.exchange)
        if copy.routing_key is not None:
            self._new_key = U32.pack(len(copy.routing_key)) + copy.routing_key

    def entries(self, routing_key: bytes) -> bytes:
        """Encode the header entries inserted into a message: BCC, and the original address if the address changes."""
        if self.fixed_entries is not None:
            return self.fixed_entries
        key = U32.pack(len(routing_key)) + routing_key
        new_key = key if self._new_key is None else self._new_key
        front, middle = self._address_front, self._address_middle
        size = U32.pack(len(front) + len(key) + len(middle) + len(new_key))
        return b"".join((ADDRESS_ENTRY, size, front, key, middle, new_key, self.bcc))

    def address_of(self, routing_key: bytes) -> Publication:
        """Return the address that the producer gave to a message."""
        return Publication(self.exchange, routing_key) if self.original is None else self.original


def outgoing(
    decision: Decision,
    owned: OwnedExchange,
    state: VhostState,
    traffic: Traffic,
    journal: PublishLog | None = None,
    *,
    routing_key: bytes = b"",
    source: PublishSource | None = None,
) -> Outgoing:
    """Turn a decision into upstream publishes.

    Args:
        owned: the exchange that was evaluated.
        routing_key: the message's routing key, for the address table.
        source: original address if the address table has redirected the publish. In this case, the table is
            not applied to the destinations.
    """
    leaves = TranslatedDestinations(decision.queues, decision.exchanges)
    if state.addresses is not None and source is None:
        taken = state.exchanges.keys() | state.carriers
        leaves = translate_destinations(state.addresses, decision.queues, decision.exchanges, routing_key, taken)
    untouched = owned.unmatched_pass and decision.outcome is Outcome.UNROUTED
    outcome = "passed" if untouched else decision.outcome.value
    names = decision.queues + decision.exchanges
    violated = tuple(dict.fromkeys(exchange for exchange, _ in decision.violations))
    tally = traffic.tally(state.name, owned.name, outcome, decision.matched, names, violated)
    exchange, original, rule = owned.name, None, leaves.rule
    if source is not None:
        exchange, original, rule = source.address.exchange, source.address, source.rule
    record = None
    if journal is not None:
        bindings = [name for _, name in decision.matched]
        reason = "unmatched" if untouched else TRANSLATION_FAILED if leaves.failed else None
        if decision.filtered_by:
            reason = text(decision.filtered_by)
        if decision.violations:
            reason = CONTRACT_VIOLATION
        if decision.spent_budgets:
            reason = REGEX_BUDGET
        exchanges = leaves.exchanges + tuple(publication.exchange for publication in leaves.publications)
        remotes = labels(leaves.remotes)
        violates = tuple(dict.fromkeys(name for _, name in decision.violations))
        alternate = owned.alternate if decision.alternate and not untouched else None
        record = journal.decided(
            exchange, outcome, leaves.queues, exchanges, bindings, reason, remotes, rule, violates, alternate
        )
    copies: tuple[Copy, ...] = ()
    unbound: tuple[Destination, ...] = ()
    remote_targets = None
    if not untouched and decision.outcome is not Outcome.REJECTED:
        if leaves.remotes or leaves.failed:
            remote_targets = RemoteTargets(leaves.remotes, leaves.failed)
        apart = tuple(Copy(*publication, (), moved=True, hide_cc=True) for publication in leaves.publications)
        if leaves.queues or leaves.exchanges or not (remote_targets or apart):
            make = _queue_copies if owned.delivery is Delivery.QUEUE else _carrier_copies
            copies, unbound = make(decision, leaves, owned, state)
        copies += apart
    if source is not None:  # each copy is sent to an address other than the producer's
        if untouched:
            untouched, copies = False, (Copy(owned.name, routing_key, (), moved=True, by_broker=True),)
        copies = tuple(copy._replace(moved=True, routing_key=copy.key(routing_key)) for copy in copies)
    return Outgoing(decision, tally, copies, untouched, unbound, record, remote_targets, exchange, original)


def labels(targets: Iterable[Target]) -> tuple[str, ...]:
    """Return the labels of the targets' brokers, without credentials."""
    return tuple(dict.fromkeys(target.remote.label for target in targets if target.remote is not None))


def _carrier_copies(
    decision: Decision, leaves: TranslatedDestinations, owned: OwnedExchange, state: VhostState
) -> tuple[tuple[Copy, ...], tuple[Destination, ...]]:
    wanted = [("queue", name) for name in leaves.queues]
    wanted += [("exchange", name) for name in leaves.exchanges]
    found = {name: state.token_of(owned, name) for name in wanted}
    reachable = [name for name in wanted if found[name] is not None]
    unbound = tuple(name for name in wanted if found[name] is None and name not in owned.tokens.missing)
    if not reachable and owned.alternate is not None and not decision.alternate:
        # Chosen destinations that do not exist must not trigger the alternate exchange (open-exchange spec, 1.6).
        return (Copy(b"", NOWHERE, (), moved=True, hide_cc=True),), unbound
    # Exchange tokens come first, so that a split keeps them together, since the broker removes duplicates only within
    # one publish.
    reachable.sort(key=lambda name: name[0] != "exchange")
    tokens = tuple(token for name in reachable if (token := found[name]) is not None)
    return (Copy(owned.carrier, None, tokens, moved=owned.carrier != owned.name),), unbound


def _queue_copies(
    decision: Decision, leaves: TranslatedDestinations, owned: OwnedExchange, state: VhostState
) -> tuple[tuple[Copy, ...], tuple[Destination, ...]]:
    # Missing queues come last, since all consumers see the name of the first queue as the routing key.
    missing = owned.tokens.missing
    named = [name for name in leaves.queues if can_exist(name)]
    queues = sorted(named, key=lambda name: ("queue", name) in missing)
    copies = []
    if queues:
        copies.append(Copy(b"", queues[0], tuple(queues[1:]), moved=True, hide_cc=True))
    exchanges = list(leaves.exchanges)
    if not copies and not exchanges and decision.alternate and owned.alternate is not None:
        exchanges.append(owned.alternate)
    exchanges = [name for name in exchanges if can_exist(name) and ("exchange", name) not in missing]
    # A publish to a missing exchange would close the producer's channel, so exchanges that no rules file names are
    # checked first.
    existing = {name for name in exchanges if ("exchange", name) in owned.tokens.bound or _by_file(owned, state, name)}
    copies += [Copy(name, None, (), moved=True) for name in exchanges if name in existing]
    unbound = tuple(("exchange", name) for name in exchanges if name not in existing)
    return tuple(copies) or (Copy(b"", NOWHERE, (), moved=True, hide_cc=True),), unbound


def _by_file(owned: OwnedExchange, state: VhostState, exchange: bytes) -> bool:
    """Return True if the rules name the given exchange. If so, the control plane checks whether it exists."""
    return exchange == owned.alternate or state.router.names(owned.name, ("exchange", exchange))


def bcc_entry(keys: tuple[bytes, ...]) -> bytes:
    """Encode the BCC entry of a header table (array of long strings); b"" for no keys."""
    if not keys:
        return b""
    items = b"".join(b"S" + U32.pack(len(key)) + key for key in keys)
    return b"\x03BCCA" + U32.pack(len(items)) + items


def table_entries(entries: bytes, copy: Copy, original: Publication) -> bytes:
    """Rewrite the entries of a message's header table for one upstream publish.

    Returns:
        The producer's entries except BCC and headers reserved for us, followed by our entries.
    """
    if copy.by_broker:
        kept = without(entries, 0, len(entries), OURS) if b"x-original-" in entries else entries
        key = copy.key(original.routing_key)
        return kept + entry(original, Publication(copy.exchange, key)) if copy.moved else kept
    aside = b""
    cut = _CUT
    if copy.hide_cc and b"CC" in entries:
        raws = [raw for _, raw in pick(entries, 0, len(entries), CC_ONLY)]
        if raws and raws[0][:1] == b"A":  # the broker answers any other type with its own 406
            cut = _CUT_CC
            aside = b"".join(shortstr(CC_ASIDE) + raw for raw in raws)
    kept = (
        without(entries, 0, len(entries), cut) if b"BCC" in entries or b"x-original-" in entries or aside else entries
    )
    if b"BCC" in entries and _first_bcc_is_no_array(entries):
        return entries  # forwarded unchanged, so that the broker answers with its own 406
    if not copy.moved:
        return kept + aside + bcc_entry(copy.bcc)
    key = copy.key(original.routing_key)
    return kept + aside + entry(original, Publication(copy.exchange, key)) + bcc_entry(copy.bcc)


def _first_bcc_is_no_array(entries: bytes) -> bool:
    picked = pick(entries, 0, len(entries), _BCC)
    return bool(picked) and picked[0][1][:1] != b"A"


def refuse_reserved(routing_key: bytes, entries: bytes, names: frozenset[bytes] = CC_ONLY) -> None:
    """Refuse a publish whose routing key, or a key in CC or BCC, has a reserved prefix.

    Args:
        entries: entries of the publish's header table.
        names: headers with further keys; BCC is included if the producer's BCC is not replaced by ours.

    Raises:
        ProtocolError: a key has a reserved prefix; 403 on the channel.
    """
    keys = [routing_key]
    if b"CC" in entries and any(prefix in entries for prefix in RESERVED_PREFIXES):
        for _, raw in pick(entries, 0, len(entries), names):
            value = decode_value(raw).value
            if isinstance(value, tuple):
                keys += [item.value for item in value if isinstance(getattr(item, "value", None), bytes)]
    for key in keys:
        prefix = reserved_prefix(key)
        if prefix:
            text = f"routing keys that begin with '{prefix.decode()}' are reserved"
            raise ProtocolError(403, text, Scope.CHANNEL, *PUBLISH)


def copy_frames(copy: Copy, original: Publication, method: bytes, header: bytes) -> tuple[bytes, bytes]:
    """Encode the method and header frames of one copy of a publish.

    Args:
        original: the producer's address.
        method: the producer's whole method frame; empty if only the header frame is needed.
        header: the producer's whole content header frame.

    Raises:
        ProtocolError: the header is malformed (502).
    """
    at, first, last = header_table(header)
    table = table_entries(header[first:last], copy, original)
    flags: int = U16.unpack_from(header, 19)[0] | HEADERS
    payload = b"".join((header[7:19], U16.pack(flags), header[21:at], U32.pack(len(table)), table, header[last:-1]))
    if copy.moved and method:
        key = copy.key(original.routing_key)
        method = readdressed_method(method, shortstr(copy.exchange) + shortstr(key))
    return method, frame(HEADER, U16.unpack_from(header, 1)[0], payload)


def remote_header(target: Target, by_broker: bool, original: Publication, header: bytes) -> bytes:
    """Encode the content header frame of the copy for a target on another broker.

    Args:
        by_broker: see `RemoteTargets`.
        original: the producer's address.
        header: the producer's whole content header frame.

    Raises:
        ProtocolError: the header is malformed (502).
    """
    moved = target.publication != original
    if by_broker and not moved and b"x-original-" not in header:
        return header
    copy = Copy(*target.publication, (), moved=moved, hide_cc=not by_broker, by_broker=by_broker)
    return copy_frames(copy, original, b"", header)[1]


def readdressed_method(method: bytes, address: bytes) -> bytes:
    """Replace the address in a whole Basic.Publish frame with `address`, the encoded exchange and routing key."""
    payload = method[7:13] + address + method[-2:-1]
    return method[:3] + U32.pack(len(payload)) + payload + b"\xce"
