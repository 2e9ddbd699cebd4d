"""Finds the outgoing form of a publish: the caches of one exchange that is evaluated here.

Three steps, each cheaper than the next: the raw header table (same table, same answer, where the rules look at nothing
else), the raw bytes of just the entries that rules mention, and at last the engine itself. Message ids, timestamps and
other properties that no rule mentions never spoil a look-up. Caches are bounded: a full one is cleared. Part of the
publish path: no object per frame.

Source: architecture, "The decision is pure" and "Bodies stream, headers are read in place".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sized
from datetime import UTC, tzinfo
from typing import NamedTuple, TypeAlias

from proxy.amqp.frames import FRAME_HEAD, HEADER, OVERHEAD, U16, U32, U64, shortstr
from proxy.amqp.properties import decode_properties
from proxy.amqp.tables import decode_table, decode_value, pick
from proxy.errors import ProtocolError
from proxy.relay.audit_sink import AuditSink
from proxy.relay.counters import Counters
from proxy.relay.original_address import OriginalAddress, refuse_forged
from proxy.relay.publish.outgoing import CC_BCC, Copy, Outgoing, outgoing, refuse_reserved, table_entries
from proxy.relay.publish.tap import Tap
from proxy.relay.tokens import Secrets
from proxy.relay.vhost import Delivery, OwnedExchange, VhostState
from proxy.routing.bindings.patterns import DEFAULT_BUDGET
from proxy.routing.decision import Decision, Facts, Interest


class Sources(NamedTuple):
    """What is not a function of the message, given by the driver, which has a clock and random numbers.

    Args:
        wall: seconds since 1970, read for exchanges with datetime rules only.
        timer: seconds from any start, to time the engine.
        draw: index below n at random, read where a rule picks at random only.
    """

    wall: Callable[[], float]
    timer: Callable[[], float]
    draw: Callable[[int], int]


#: Entries of one cache: far more shapes of message than one exchange usually sees.
CACHE_ENTRIES = 8192
#: Bytes that the entries of one cache stand for, about: what the caches of one exchange may cost.
CACHE_BYTES = 8 << 20
#: Larger header tables are not kept as keys.
CACHED_TABLE_BYTES = 2048
#: bytes of a destination or binding in a cached decision, about: they share their names
_REFERENCE_BYTES = 24
_TABLE_FLAG, _TYPE_FLAG, _ENCODING_FLAG = 0x2000, 0x8000, 0x4000
#: offset of the property flags in a content header frame: head 7, class 2, weight 2, body size 8
_FLAGS_AT = 19
#: a table as it leaves: length and entries
_NO_ENTRIES = b"\0\0\0\0"


#: the header table that leaves (length and entries), how, and the new address where it changes
_Found: TypeAlias = tuple[bytes, Outgoing, OriginalAddress | None]


class ClientRules(NamedTuple):
    """What holds for exchanges and bindings that clients declare.

    Args:
        delivery: of exchanges declared without ``x-delivery``.
        strict_unbind: whether unbinding with other arguments than any binding's is an error.
        own_routes: whether routes reach only queues that the client could have bound itself.
        local_time: time zone of `dtl` operators.
        secrets: sign what is stored on the broker.
        regexes: most regular expressions in the bindings of one user in one virtual host.
        regex_budget: what the regular expressions of rules files, and those of each user, may cost in one decision.
    """

    delivery: Delivery = Delivery.CARRIER
    strict_unbind: bool = True
    own_routes: bool = True
    local_time: tzinfo = UTC
    secrets: Secrets = Secrets()
    regexes: int = 100
    regex_budget: int = DEFAULT_BUDGET


class Plans:
    """The plans of one virtual host, made when first asked for, and again when its state has changed.

    Args:
        state: the virtual host.
        counters: what the process counts.
        sources: clocks and dice.
        rules: what holds for clients' declarations.
        journal: the audit log, if there is one.
    """

    __slots__ = (
        "_plans",
        "by_address",
        "confirm_timing",
        "counters",
        "epoch",
        "journal",
        "rules",
        "sources",
        "state",
        "tap",
        "timing",
        "traffic",
    )

    def __init__(
        self,
        state: VhostState,
        counters: Counters,
        sources: Sources,
        rules: ClientRules | None = None,
        journal: AuditSink | None = None,
    ) -> None:
        """Start with no plan."""
        self.state = state
        self.rules = rules or ClientRules()
        state.own_routes, state.secrets = self.rules.own_routes, self.rules.secrets
        state.regex_budget = self.rules.regex_budget
        self.journal = journal
        self.counters = counters.relay(state.name)
        self.traffic = counters.traffic
        self.timing = counters.decision_seconds
        self.confirm_timing = counters.confirm_seconds
        self.sources = sources
        self.epoch = state.epoch
        self._plans: dict[bytes, ExchangePlan] = {}
        #: what the address table makes of publishes to exchanges that are not evaluated here, None: nothing
        self.by_address: dict[tuple[bytes, bytes], ExchangePlan | None] = {}
        #: who is told of publishes; `set_tap` changes it
        self.tap: Tap | None = None

    def set_tap(self, tap: Tap | None) -> None:
        """Let a tap observe the publishes from now on, or none."""
        self.tap = tap
        self.state.changed()

    def get(self, exchange: bytes) -> ExchangePlan | None:
        """Give the plan of an exchange, None where the exchange is not evaluated here."""
        if self.epoch != self.state.epoch:
            self.epoch = self.state.epoch
            self._plans.clear()
            self.by_address.clear()
        plan = self._plans.get(exchange)
        if plan is None:
            owned = self.state.exchanges.get(exchange)
            if owned is None:
                return None
            plan = self._plans[exchange] = ExchangePlan(owned, self)
        return plan


class ExchangePlan:
    """What the relays of a virtual host remember about one owned exchange.

    Args:
        owned: the exchange.
        plans: its virtual host's plans.
        interest: of its rules, None: ask the router.
    """

    __slots__ = (
        "_by_key", "_counters", "_facts", "_facts_bytes", "_keyed", "_plain", "_plans", "_sources", "_state", "_tables",
        "_tables_bytes", "_timing", "_traffic", "interest", "owned", "repeatable",
    )  # fmt: skip

    def __init__(self, owned: OwnedExchange, plans: Plans, interest: Interest | None = None) -> None:
        """Look up what the rules of the exchange are interested in."""
        self.owned = owned
        self._plans = plans
        self._state = plans.state
        self._sources = plans.sources
        self._counters = plans.counters
        self._traffic = plans.traffic
        self._timing = plans.timing
        if interest is None:
            interest = plans.state.router.interest(owned.name)
        self.interest = interest
        #: The header table, and perhaps the key, are all there is to know.
        self._plain = not (interest.properties or interest.body_sizes or interest.clock or interest.queues)
        #: An exchange among the destinations is looked up in the address table under the message's key.
        self._keyed = interest.routing_key or plans.state.addresses is not None
        self._by_key = self._keyed or owned.moves
        #: Whether equal bytes get an equal answer as long as the state stays (no clock).
        self.repeatable = not interest.clock
        self._tables: dict[object, _Found] = {}
        self._facts: dict[object, Outgoing] = {}
        self._tables_bytes = self._facts_bytes = 0

    def forward(self, method: bytes, routing_key: bytes, data: bytes, start: int, stop: int) -> tuple[bytes, Outgoing]:
        """Give what leaves in place of a publish's method and header frames, and how it leaves.

        Args:
            method: the producer's whole method frame.
            routing_key: the publish's routing key.
            data: bytes with the content header frame in them, the frame being whole.
            start: offset of the header frame.
            stop: offset after it.

        Returns:
            Method and header frame of the first (usually only) copy, b"" where nothing of ours leaves, and how it
            leaves.

        Raises:
            ProtocolError: 502 malformed header, 403 reserved CC.
        """
        flags = (data[start + 19] << 8) | data[start + 20]
        at = start + 21
        if flags & 0xC000:
            at = _after_strings(data, start, stop, flags)
        if flags & _TABLE_FLAG:
            table_end = at + 4 + (U32.unpack_from(data, at)[0] if at + 4 < stop else stop)
            if table_end >= stop:
                raise ProtocolError(502, "the header table ends behind its frame", class_id=60, method_id=40)
            entries = data[at + 4 : table_end]
        else:
            entries = b""
            table_end = at
        key: object = (routing_key, entries) if self._by_key else entries
        if not self._plain:
            key = (key, self._other_facts(data, start, stop, flags))
        found = self._tables.get(key)
        if found is None:
            found = self._look_up(key, routing_key, entries, data[start:stop])
        else:
            self._counters.cache_hits += 1
        table, out, address = found
        if not out.copies:
            return b"", out
        if address is not None:
            method = publish_frame(method, *address)
        size = at - start + len(table) + stop - table_end - OVERHEAD
        if flags & _TABLE_FLAG:
            head = data[start + 7 : at]
        elif table == _NO_ENTRIES:  # nothing of ours to put in: no table either
            return method + data[start:stop], out
        else:
            head = data[start + 7 : start + 19] + U16.pack(flags | _TABLE_FLAG) + data[start + 21 : at]
        frame_head = FRAME_HEAD.pack(HEADER, (data[start + 1] << 8) | data[start + 2], size)
        return b"".join((method, frame_head, head, table, data[table_end:stop])), out

    def original(self, routing_key: bytes) -> OriginalAddress:
        """Where the producer addressed a publish."""
        return OriginalAddress(self.owned.name, routing_key)

    def further_copy(self, routing_key: bytes, header: bytes, copy: Copy) -> tuple[bytes, bytes]:
        """Give exchange-and-header of one more copy of a publish whose first copy `forward` made.

        Args:
            routing_key: the producer's routing key.
            header: the producer's content header frame.
            copy: the copy.

        Returns:
            The routing key it leaves under, and its header frame.
        """
        flags = U16.unpack_from(header, _FLAGS_AT)[0]
        at = _after_strings(header, 0, len(header), flags)
        table_end = at + 4 + U32.unpack_from(header, at)[0] if flags & _TABLE_FLAG else at
        entries = header[at + 4 : table_end] if flags & _TABLE_FLAG else b""
        table = table_entries(entries, copy, self.original(routing_key))
        payload = b"".join(
            (
                header[7:19],
                U16.pack(flags | _TABLE_FLAG),
                header[21:at],
                U32.pack(len(table)),
                table,
                header[table_end:],
            )
        )
        key = routing_key if copy.routing_key is None else copy.routing_key
        return key, FRAME_HEAD.pack(HEADER, U16.unpack_from(header, 1)[0], len(payload) - 1) + payload

    def _look_up(self, key: object, routing_key: bytes, entries: bytes, header: bytes) -> _Found:
        self._refuse(routing_key, entries)
        facts_key, facts, size = self._facts_of(routing_key, entries, header)
        out = self._facts.get(facts_key)
        if out is None:
            self._counters.cache_misses += 1
            out = self._outgoing(facts)
            if out.decision.keep and not out.unbound:
                decision = out.decision
                shared = len(decision.queues) + len(decision.exchanges) + len(decision.matched)
                self._facts_bytes += size + _REFERENCE_BYTES * shared
                if self._is_full(self._facts, self._facts_bytes):
                    self._facts.clear()
                    self._facts_bytes = 0
                else:
                    self._facts[facts_key] = out
            else:
                self._counters.cache_bypassed += 1
        else:
            self._counters.cache_hits += 1
        if out.untouched:  # to the broker's own exchange, where BCC routes and nothing of the producer's is cut out
            refuse_reserved(routing_key, entries, CC_BCC)
            refuse_forged(self._state, entries)
        table, address = b"", None
        if out.copies:
            copy = out.copies[0]
            table = table_entries(entries, copy, self.original(routing_key))
            table = U32.pack(len(table)) + table
            if copy.moved:
                address = OriginalAddress(copy.exchange, routing_key if copy.routing_key is None else copy.routing_key)
        found = (table, out, address)
        if out.decision.keep and not out.unbound and len(entries) <= CACHED_TABLE_BYTES:
            self._tables_bytes += len(entries) + len(table)
            if self._is_full(self._tables, self._tables_bytes):
                self._tables.clear()
                self._tables_bytes = 0
            else:
                self._tables[key] = found
        return found

    def _facts_of(self, routing_key: bytes, entries: bytes, header: bytes) -> tuple[object, Facts, int]:
        """Give what is asked for, as a key and as facts, and about how many bytes the key has."""
        interest = self.interest
        other_facts: object = None
        properties: dict[str, bytes | int] = {}
        size = U64.unpack_from(header, 11)[0]
        if not self._plain:
            flags = U16.unpack_from(header, _FLAGS_AT)[0]
            other_facts = self._other_facts(header, 0, len(header), flags)
            if interest.properties:
                properties = decode_properties(header, 21, len(header) - 1, flags, interest.properties)
        if interest.headers is None:
            table = decode_table(entries, 0, len(entries))
            picked: object = entries
            key_bytes = len(entries)
        else:
            raws = pick(entries, 0, len(entries), interest.headers)
            key_bytes = sum(len(raw) for _, raw in raws)
            table = tuple((name, decode_value(raw)) for name, raw in raws)
            picked = tuple(raws)
        facts = Facts(routing_key, table, properties, size)
        # A moved publish carries its own key in our header, but the decision does not depend on it.
        return (routing_key if self._keyed else b"", picked, other_facts), facts, key_bytes

    def _other_facts(self, data: bytes, start: int, stop: int, flags: int) -> object:
        interest = self.interest
        parts: list[object] = []
        if interest.properties:
            found = decode_properties(data, start + 21, stop - 1, flags, interest.properties)
            parts += sorted(found.items())
        if interest.body_sizes:
            parts.append(bisect_right(interest.body_sizes, U64.unpack_from(data, start + 11)[0]))
        if interest.clock:
            parts.append(int(self._sources.wall()))
        if interest.queues:
            parts.append(self._state.queues.version)
        return tuple(parts)

    def _is_full(self, cache: Sized, size: int) -> bool:
        """Whether a cache with entries that stand for so many bytes is cleared."""
        return len(cache) >= CACHE_ENTRIES or size > CACHE_BYTES

    def _refuse(self, routing_key: bytes, entries: bytes) -> None:
        """Refuse what would meet our tokens."""
        refuse_reserved(routing_key, entries)

    def _outgoing(self, facts: Facts) -> Outgoing:
        """Decide, and say how that leaves."""
        decision, took_us = self._decide(facts)
        from_here = (self.owned, self._state, self._traffic, self._plans.journal)
        return outgoing(decision, *from_here, routing_key=facts.routing_key, decide_us=took_us)

    def _decide(self, facts: Facts) -> tuple[Decision, float]:
        """Decide; the decision, and the microseconds it took."""
        sources = self._sources
        now = sources.wall() if self.interest.clock else 0.0
        begin = sources.timer()
        state = self._state
        decision = state.router.decide(
            self.owned.name, facts, now, state.queues, sources.draw, regex_budget=state.regex_budget
        )
        seconds = sources.timer() - begin
        self._timing.observe(seconds)
        self._counters.regex_limit_hits += decision.match_limit_hits
        if decision.spent_budgets:
            self._counters.spend(decision.spent_budgets)
        return decision, seconds * 1e6


def _after_strings(data: bytes, start: int, stop: int, flags: int) -> int:
    """Offset after content-type and content-encoding, which precede the header table."""
    at = start + 21
    for flag in (_TYPE_FLAG, _ENCODING_FLAG):
        if flags & flag and at < stop:
            at += 1 + data[at]
    if at >= stop:
        raise ProtocolError(502, "a property ends behind its frame", class_id=60, method_id=40)
    return at


def publish_frame(method: bytes, exchange: bytes, routing_key: bytes) -> bytes:
    """Rewrite exchange and routing key of a Basic.Publish frame; reserved field and flag bits stay.

    Args:
        method: the producer's whole method frame.
        exchange: new exchange.
        routing_key: new routing key.
    """
    payload = method[7:13] + shortstr(exchange) + shortstr(routing_key) + method[-2:-1]
    return method[:3] + U32.pack(len(payload)) + payload + b"\xce"
