"""Plans and the cache of decisions. A plan contains the data that the publish pass needs for one address.

A `Plan` is used for publishes to one exchange that is evaluated here, or to one address that the address table
translates. It lists the facts that the rules test, so that the pass collects nothing else, and maps these facts to the
outgoing form of the message. This map is the only cache of decisions (see `DecisionCaches` for its limits).

`Plans` holds the plans for one virtual host. When the state of the virtual host changes (`VhostState.changed`), each
plan is checked before it is used again. It is dropped with its decisions if anything has changed that they depend on
(`Basis`). When the settings of the virtual host change (`VhostState.settings_changed`), all plans are dropped.

Source: architecture, "The decision is pure" and "Bodies stream, headers are read in place".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from oxproxy.addressing.targets import FailedTranslation, Publication, Target
from oxproxy.amqp.frames import U16, U64, shortstr
from oxproxy.amqp.properties import decode_properties, header_table
from oxproxy.amqp.tables import decode_table, pick
from oxproxy.errors import ProtocolError
from oxproxy.relay.counters import Counters
from oxproxy.relay.original_address import ADDRESS_HEADER, CC_ASIDE
from oxproxy.relay.plan.outgoing import (
    CUT_BCC,
    CUT_CC,
    CUT_OURS,
    TRANSLATION_FAILED,
    Copy,
    Outgoing,
    PublishSource,
    RemoteTargets,
    labels,
    outgoing,
)
from oxproxy.relay.plan.tap import FailedPublish, FailureSink, ObservedDecision, Tap
from oxproxy.relay.records.audit_record import PublishLog
from oxproxy.relay.records.facts_record import FactsRecord, FactsScope, Properties
from oxproxy.relay.vhost import Delivery, OwnedExchange, VhostState
from oxproxy.routing.bindings.patterns import DEFAULT_BUDGET
from oxproxy.routing.decision import ROUTED, Decision, Facts, Interest, Outcome
from oxproxy.routing.destination_translation import CARRIER_TARGET
from oxproxy.values import reserved_prefix, text

#: Limits for the number and the approximate total size of the cached decisions, and of the outgoing forms, for one
#: exchange.
EXCHANGE_ENTRIES, EXCHANGE_BYTES = 8192, 8 << 20
#: The same limits for one translated address; a virtual host may have plans for at most `ADDRESSES` such addresses.
ADDRESS_ENTRIES, ADDRESS_BYTES = 64, 131_072
ADDRESSES: Final = 1024
#: Size limit for the cached decisions of all virtual hosts in the process.
PROCESS_BYTES: Final = 64 << 20
#: A decision is not cached if the size of its facts in bytes exceeds this limit.
FACTS_BYTES: Final = 2048
#: If a full cache has had fewer than one hit per `_USEFUL` entries, caching is not worthwhile, since the facts of the
#: messages rarely repeat. The cache is cleared, and the next `_UNKEPT` decisions per cleared entry are not cached.
_USEFUL: Final = 4
_UNKEPT: Final = 16
#: memory in bytes for a cached decision, without its facts and references
_ENTRY_BYTES: Final = 200
#: memory in bytes for each of the decision's references to a destination or binding
_REFERENCE_BYTES: Final = 24
#: memory in bytes for an outgoing form, without names, keys and constant parts of audit records, and for each name and
#: key in it, without its characters
_FORM_BYTES: Final = 1500
_NAME_BYTES: Final = 60
#: offset in bytes of the property flags in a content header frame, after frame head (7), class (2), weight (2) and body
#: size (8)
_FLAGS_AT: Final = 19

#: flag of a header that is tested by rules; the other flags are CUT_BCC, CUT_CC and CUT_OURS
FACT: Final = 8
#: entries that the pass must detect regardless of the rules
_ALWAYS: Final = {b"BCC": CUT_BCC, b"CC": CUT_CC, ADDRESS_HEADER: CUT_OURS, CC_ASIDE: CUT_OURS}
_NO_INTEREST: Final = Interest()


class Sources(NamedTuple):
    """Clocks and random numbers, provided by the driver.

    Args:
        wall: returns seconds since 1970.
        timer: returns monotonic seconds, used to time decisions.
        draw: returns a random index below n, used for random picks.
    """

    wall: Callable[[], float]
    timer: Callable[[], float]
    draw: Callable[[int], int]


class ClientRules(NamedTuple):
    """Settings for the exchanges and bindings that clients declare.

    Args:
        strict_unbind: whether an unbind that matches no binding is an error.
        regexes: maximum number of regular expressions in the bindings of one user in one virtual host.
        regex_budget: cost limit for regular expressions per decision, which applies separately to rules files and to
            each user.
        extensions: whether bindings may have operators that the open-exchange plugin does not have.
    """

    strict_unbind: bool = True
    regexes: int = 100
    regex_budget: int = DEFAULT_BUDGET
    extensions: bool = False


class DecisionCaches:
    """Limits the total size of the cached decisions and outgoing forms of all plans by clearing the largest cache."""

    def __init__(self, limit_bytes: int = PROCESS_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        #: size of the cached decisions and outgoing forms of each plan that has any
        self._used: dict[Plan, int] = {}

    def used_by(self, plan: Plan) -> int:
        return self._used.get(plan, 0)

    def add(self, plan: Plan, size: int) -> None:
        self._used[plan] = self.used_by(plan) + size
        self.used_bytes += size
        if self.used_bytes > self._limit_bytes:
            max(self._used, key=self._used.__getitem__).forget()

    def remove(self, plan: Plan) -> None:
        """Subtract the size of a plan's decisions after they were dropped."""
        self.used_bytes -= self._used.pop(plan, 0)


class Basis:
    """What the plan for an evaluated exchange depends on, besides the settings of the virtual host.

    This is the exchange itself, the exchanges that its messages can reach and their bindings, the tokens of its
    destinations and, if rules choose among the queues, the names of the queues.
    """

    __slots__ = (
        "_carrier_type",
        "_epoch",
        "_owned",
        "_queues_version",
        "_reach_number",
        "_state",
        "_tokens_version",
        "interest",
    )

    def __init__(self, state: VhostState, owned: OwnedExchange) -> None:
        self._state: Final = state
        self._owned: Final = owned
        # The reach itself would keep the rules of before a reload in memory.
        reach = state.router.reach(owned.name)
        self._reach_number: Final[int] = reach.number
        self.interest: Final = reach.interest
        self._tokens_version: Final = owned.tokens.version
        self._carrier_type: Final = owned.carrier_type
        self._queues_version: Final = state.queues.version
        #: value of `VhostState.epoch` at which the plan was last known to be current
        self._epoch = state.epoch

    def is_current(self) -> bool:
        """Return True if everything is as it was when the plan was made."""
        state, owned = self._state, self._owned
        if self._epoch == state.epoch:
            return True
        if (
            not state.has(owned)
            or state.router.reach(owned.name).number != self._reach_number
            or owned.tokens.version != self._tokens_version
            or owned.carrier_type is not self._carrier_type
            or (self.interest.queues and state.queues.version != self._queues_version)
        ):
            return False
        self._epoch = state.epoch
        return True


class Plans:
    """The plans of one virtual host, created on demand, and recreated when they are no longer current.

    Half of the attributes are the means that all plans of the virtual host share, such as counters and caches.
    """

    def __init__(
        self,
        state: VhostState,
        counters: Counters,
        sources: Sources,
        rules: ClientRules | None = None,
        journal: PublishLog | None = None,
        caches: DecisionCaches | None = None,
    ) -> None:
        self.state = state
        self.rules = rules or ClientRules()
        state.regex_budget = self.rules.regex_budget
        self.journal = journal
        self.counters = counters.relay(state.name)
        self.traffic = counters.traffic
        self.timing = counters.decision_seconds
        self.confirm_timing = counters.confirm_seconds
        self.sources = sources
        self.caches = caches or DecisionCaches()
        self._epoch = state.epoch
        self._settings_version = state.settings_version
        self._by_exchange: dict[bytes, Plan] = {}
        #: those that are known to be current
        self._current: dict[bytes, Plan] = {}
        #: plans for publishes to other exchanges, needed for the address table or the tap; None for publishes that are
        #: forwarded unchanged
        self._by_address: dict[tuple[bytes, bytes], Plan | None] = {}
        #: constant parts of the audit records for publishes that are forwarded unchanged, by exchange
        self._passed_records: dict[bytes, str] = {}
        #: observes publishes; set by `set_tap`
        self.tap: Tap | None = None
        self.failures: FailureSink | None = None

    def fail(
        self,
        user: str,
        channel: int,
        result: str,
        reason: str,
        address: tuple[bytes, bytes] | None = None,
        header: bytes = b"",
    ) -> int:
        """Record a failed publish (see `FailedPublish`); return its number, or 0 if there is no sink for them."""
        if self.failures is None:
            return 0
        exchange, routing_key = (None, None) if address is None else address
        at, vhost = self.sources.wall(), self.state.name
        return self.failures.add(FailedPublish(at, vhost, user, channel, result, reason, exchange, routing_key, header))

    def set_tap(self, tap: Tap | None) -> None:
        self.tap = tap
        self.state.settings_changed()

    def current(self) -> dict[bytes, Plan]:
        """Return the plans by exchange that are known to be current. `find` checks and adds the others."""
        state = self.state
        if self._epoch != state.epoch:
            self._epoch = state.epoch
            self._current.clear()
            if self._settings_version != state.settings_version:
                self._settings_version = state.settings_version
                self.forget()
        return self._current

    def forget(self) -> None:
        for plan in (*self._by_exchange.values(), *self._by_address.values()):
            if plan is not None:
                plan.forget()
        self._current.clear()
        self._by_exchange.clear()
        self._by_address.clear()
        self._passed_records.clear()

    @property
    def passes_unknown(self) -> bool:
        """True if publishes to exchanges not evaluated here need no plan: there is no address table and no tap."""
        return self.state.addresses is None and self.tap is None

    def find(self, exchange: bytes, routing_key: bytes) -> Plan | None:
        """Return the plan for a publish; None means that the publish is forwarded unchanged.

        The plan is for the publish's exchange if that exchange is evaluated here, otherwise for the publish's address.
        """
        current = self.current()
        plan = current.get(exchange)
        if plan is not None:
            return plan
        owned = self.state.exchanges.get(exchange)
        if owned is not None:
            plan = current[exchange] = self._of_exchange(owned)
            return plan
        if self.passes_unknown:
            return None
        plans_by_address = self._by_address
        address = (exchange, routing_key)
        if address in plans_by_address:
            plan = plans_by_address[address]
            if plan is None or plan.is_current():
                return plan
            plan.forget()
        elif len(plans_by_address) >= ADDRESSES:
            for plan in plans_by_address.values():
                if plan is not None:
                    plan.forget()
            plans_by_address.clear()
        plan = plans_by_address[address] = self._translate(Publication(exchange, routing_key))
        return plan

    def _of_exchange(self, owned: OwnedExchange) -> Plan:
        """Return the plan for an evaluated exchange, which is made if there is none or if it is no longer current."""
        plans, exchanges = self._by_exchange, self.state.exchanges
        plan = plans.get(owned.name)
        if plan is not None:
            if plan.is_current():
                return plan
            plan.forget()
        plan = plans[owned.name] = Plan(self, owned, Basis(self.state, owned))
        if len(plans) > len(exchanges):
            for name in plans.keys() - exchanges.keys():
                plans.pop(name).forget()
        return plan

    def passed_record(self, exchange: bytes) -> str:
        """Return the constant part of the audit records for publishes to an exchange that is not evaluated here."""
        record = self._passed_records.get(exchange)
        if record is None:
            assert self.journal is not None  # noqa: S101 -- only called for audited connections
            if len(self._passed_records) >= ADDRESSES:
                self._passed_records.clear()
            record = self._passed_records[exchange] = self.journal.decided(exchange, "passed")
        return record

    def watching(self, exchange: bytes) -> Tap | None:
        """Return the tap if it observes publishes to the given exchange."""
        return self.tap if self.tap is not None and self.tap.wants(self.state.name, exchange) else None

    def _translate(self, publication: Publication) -> Plan | None:
        """Return the plan that results from the address table for a publish to an exchange not evaluated here."""
        state = self.state
        target = None if state.addresses is None else state.addresses.look_up(*publication)
        if target is None:
            return self._passing(publication)
        source = PublishSource(publication, target.rule)
        new = target.publication if isinstance(target, Target) else Publication(b"", b"")
        # If the new routing key were a token, the message would reach a queue that the rules did not choose.
        reserved = reserved_prefix(new.routing_key)
        if isinstance(target, Target) and target.remote is None and not reserved:
            owned = state.exchanges.get(target.publication.exchange)
            if owned is not None:
                basis = Basis(state, owned)
                return Plan(self, owned, basis, source=source, routing_key=target.publication.routing_key)
            if target.publication.exchange in state.carriers:
                target = FailedTranslation(target.rule, CARRIER_TARGET)
            elif target.publication == publication:
                return self._passing(publication)
        owned = OwnedExchange(publication.exchange, "direct", Delivery.QUEUE, b"")
        return Plan(self, owned, source=source, fixed=_translated(self, source, target), reserved=reserved)

    def _passing(self, publication: Publication) -> Plan | None:
        """Return the plan for a publish that is forwarded unchanged; None unless a tap observes the publish."""
        exchange = publication.exchange
        if self.watching(exchange) is None or exchange in self.state.carriers:
            return None
        tally = self.traffic.tally(self.state.name, exchange, "passed", (), ())
        record = None
        if self.journal is not None and not self.journal.ruled_only:
            record = self.passed_record(exchange)
        out = Outgoing(Decision(exchange, Outcome.UNROUTED), tally, (), True, (), record, None, exchange)
        owned = OwnedExchange(exchange, "direct", Delivery.QUEUE, b"")
        return Plan(self, owned, source=PublishSource(publication, 0), fixed=out)


class Plan:
    """The plan for publishes to one address.

    Its constants, the cached decisions and their counts are attributes, since the publish pass reads them for each
    message.

    Args:
        owned: the exchange that is evaluated.
        basis: what the decisions depend on; None if no rules are evaluated.
        source: the producer's address, if the plan is for a single address; None if it is for an evaluated exchange.
        routing_key: the routing key that the rules test, if the address table redirects the publish.
        fixed: the outgoing form, if no rules are evaluated.
        reserved: the reserved prefix of the routing key to which the address table translates the address; b"" if none.
    """

    __slots__ = (
        "_basis",
        "_forms",
        "_interest",
        "_limit_bytes",
        "_limit_entries",
        "_plans",
        "_source",
        "_unkept",
        "decisions",
        "facts",
        "fixed",
        "headers_only",
        "hits",
        "keyed",
        "mentioned",
        "name_sizes",
        "owned",
        "reserved",
        "routing_key",
        "tap",
        "whole_table",
    )

    def __init__(
        self,
        plans: Plans,
        owned: OwnedExchange,
        basis: Basis | None = None,
        *,
        source: PublishSource | None = None,
        routing_key: bytes | None = None,
        fixed: Outgoing | None = None,
        reserved: bytes = b"",
    ) -> None:
        interest = _NO_INTEREST if basis is None else basis.interest
        self._plans: Final = plans
        self._source: Final = source
        self._basis: Final = basis
        self._interest: Final = interest
        self.owned: Final = owned
        self.fixed: Final = fixed
        self.routing_key: Final = routing_key
        self.reserved: Final = reserved
        #: the observer of these publishes, if any
        self.tap: Final = plans.watching(owned.name if source is None else source.address.exchange)
        #: Whether the whole header table is a fact.
        self.whole_table: Final = interest.headers is None
        #: Whether the message's routing key is a fact. The address table needs the key if a destination is an exchange.
        self.keyed: Final = routing_key is None and (interest.routing_key or plans.state.addresses is not None)
        #: Whether the headers and the routing key are the only facts.
        self.headers_only: Final = not (interest.properties or interest.body_sizes or interest.clock)
        #: by encoded name, why the pass collects or removes a header: a sum of FACT, CUT_BCC, CUT_CC and CUT_OURS
        self.mentioned: Final = {shortstr(name): cut for name, cut in _ALWAYS.items()}
        for name in interest.headers or ():
            self.mentioned[shortstr(name)] = self.mentioned.get(shortstr(name), 0) | FACT
        #: for each possible size of a name, whether a mentioned name has that size, so that most names need no lookup
        sizes = {name[0] for name in self.mentioned}
        self.name_sizes: Final = [size in sizes for size in range(256)]
        #: finds the audit records for the facts of messages; None if facts are not recorded
        self.facts: Final[FactsScope | None] = _facts_scope(plans, owned, interest) if fixed is None else None
        self.decisions: Final[dict[object, Outgoing]] = {}
        #: the outgoing forms in `decisions`, by decision; thousands of combinations of facts share a few forms
        self._forms: Final[dict[object, Outgoing]] = {}
        #: number of publishes with a cached decision since the cache was last empty
        self.hits = 0
        #: number of further decisions that will not be cached (see `_UNKEPT`)
        self._unkept = 0
        self._limit_entries: Final = EXCHANGE_ENTRIES if source is None else ADDRESS_ENTRIES
        self._limit_bytes: Final = EXCHANGE_BYTES if source is None else ADDRESS_BYTES

    def is_current(self) -> bool:
        """Return True if nothing has changed that the decisions depend on, besides the settings."""
        return self._basis is None or self._basis.is_current()

    def other_facts(self, header: bytes) -> tuple[Properties, object]:
        """Return the facts, other than headers and routing key, from a whole content header frame.

        Returns:
            The properties that rules test, and the other facts.
        """
        interest = self._interest
        properties: Properties = ()
        if interest.properties:
            properties = tuple(sorted(self._read_properties(header).items()))
        parts: list[object] = []
        if interest.body_sizes:
            parts.append(bisect_right(interest.body_sizes, U64.unpack_from(header, 11)[0]))
        if interest.clock:
            parts.append(int(self._plans.sources.wall()))
        return properties, tuple(parts)

    def facts_record(self, header: bytes) -> FactsRecord | None:
        """Return the audit record for the facts of a message on the slow path, if facts are recorded."""
        if self.facts is None:
            return None
        try:
            _, first, last = header_table(header)
            names = self._interest.headers
            if names is None:
                entries = header[first:last]
            else:
                entries = b"".join([shortstr(name) + raw for name, raw in pick(header, first, last, names)])
            properties = tuple(sorted(self._read_properties(header).items())) if self._interest.properties else ()
        except ProtocolError:  # malformed: the broker will reject it
            return None
        return self.facts.find(entries, properties)

    def _read_properties(self, header: bytes) -> dict[str, bytes | int]:
        """Return the properties that rules test.

        Raises:
            ProtocolError: the properties are malformed; 502 on the connection.
        """
        flags: int = U16.unpack_from(header, _FLAGS_AT)[0]
        return decode_properties(header, _FLAGS_AT + 2, len(header) - 1, flags, self._interest.properties)

    def decide(self, facts: object, routing_key: bytes, entries: bytes, header: bytes) -> tuple[Outgoing, float]:
        """Make the decision for a message whose facts are not cached, and cache it if possible.

        `entries` are the header entries that rules test.

        Returns:
            The outgoing form, and the microseconds that the decision took.
        """
        if self.routing_key is not None:
            routing_key = self.routing_key
        plans = self._plans
        state = plans.state
        sources = plans.sources
        properties = self._read_properties(header) if self._interest.properties else {}
        size: int = U64.unpack_from(header, 11)[0]
        headers = decode_table(entries, 0, len(entries)) if entries else ()
        message = Facts(routing_key, headers, properties, size)
        now = sources.wall() if self._interest.clock else 0.0
        begin = sources.timer()
        decision = state.router.decide(
            self.owned.name, message, now, state.queues, sources.draw, regex_budget=state.regex_budget
        )
        seconds = sources.timer() - begin
        plans.timing.observe(seconds)
        counters = plans.counters
        counters.cache_misses += 1
        counters.regex_limit_hits += decision.match_limit_hits
        if decision.spent_budgets:
            counters.spend(decision.spent_budgets)
        out, form_bytes = self._outgoing(decision, routing_key)
        size = len(entries) + len(routing_key)
        if self._unkept:
            self._unkept -= 1
            counters.cache_bypassed += 1
        elif decision.keep and not out.unbound and size <= FACTS_BYTES:
            shared = len(decision.queues) + len(decision.exchanges) + len(decision.matched)
            self._keep(facts, out, size + form_bytes + _ENTRY_BYTES + _REFERENCE_BYTES * shared)
        else:
            counters.cache_bypassed += 1
        return out, seconds * 1e6

    def _outgoing(self, decision: Decision, routing_key: bytes) -> tuple[Outgoing, int]:
        """Return the outgoing form for a decision. Equivalent decisions share one object, except in the cases below.

        Returns:
            The form, and its size in bytes unless it is shared; the size of a shared form is already included in
            `DecisionCaches`.
        """
        plans = self._plans
        state = plans.state
        # A form is not shared if the decision is not cached, refuses the message or has exhausted a regex budget, or if
        # the form also depends on the routing key, because of the address table.
        alone = not decision.keep or decision.error or decision.spent_budgets
        if alone or (self._source is None and state.addresses is not None):
            out = self._new_outgoing(decision, routing_key)
            return out, _form_bytes(out)
        result = (
            decision.matched,
            decision.queues,
            decision.exchanges,
            decision.alternate,
            decision.outcome is ROUTED,
            decision.filtered_by,
            decision.violations,
        )
        form = self._forms.get(result)
        if form is None:
            form = self._new_outgoing(decision, routing_key)
            if not form.unbound:
                self._share(result, form)
        return form, 0

    def _share(self, result: object, form: Outgoing) -> None:
        """Keep a form for equivalent decisions, whether or not these will be cached."""
        size = _form_bytes(form)
        caches = self._plans.caches
        if len(self._forms) >= self._limit_entries or caches.used_by(self) + size > self._limit_bytes:
            unkept = self._unkept
            self.forget()
            self._unkept = unkept
        if size <= self._limit_bytes:
            self._forms[result] = form
            caches.add(self, size)

    def _new_outgoing(self, decision: Decision, routing_key: bytes) -> Outgoing:
        plans = self._plans
        out = outgoing(
            decision,
            self.owned,
            plans.state,
            plans.traffic,
            plans.journal,
            routing_key=routing_key,
            source=self._source,
        )
        if plans.failures is not None and plans.failures.watched and (decision.violations or self.unroutable(out)):
            out.leaves_at_once = False  # failures are recorded only on the slow path, to keep the publish pass fast
        return out

    def _keep(self, facts: object, out: Outgoing, size: int) -> None:
        kept = len(self.decisions)
        if kept >= self._limit_entries or self._plans.caches.used_by(self) + size > self._limit_bytes:
            useful = self.hits * _USEFUL >= kept
            self.forget()
            if not useful:
                self._unkept = kept * _UNKEPT
                return
        self.decisions[facts] = out
        self._plans.caches.add(self, size)

    def forget(self) -> None:
        self.decisions.clear()
        self._forms.clear()
        self.hits = self._unkept = 0
        self._plans.caches.remove(self)

    def unroutable(self, out: Outgoing) -> str:
        """Return the reason why a publish reaches no queue; empty if it may reach a queue."""
        decision, remote_targets = out.decision, out.remote_targets
        if remote_targets is not None:
            failed = bool(remote_targets.failed) and not (remote_targets.targets or out.copies)
            return "the address translation failed" if failed else ""
        if out.untouched or any(copy.by_broker for copy in out.copies):
            return ""
        state, missing = self._plans.state, self.owned.tokens.missing
        filtered = decision.filtered_by and not (decision.queues or decision.exchanges)
        if decision.outcome is Outcome.UNROUTED or filtered:
            if decision.alternate and self.owned.alternate is not None:
                return ""
            return f"dropped by the filter {text(decision.filtered_by)}" if filtered else "no binding matches"
        if decision.outcome is not Outcome.ROUTED or state.addresses is not None:
            return ""
        names = [("queue", name) for name in decision.queues] + [("exchange", name) for name in decision.exchanges]
        return "none of the selected destinations exists" if all(name in missing for name in names) else ""

    def observe(self, tap: Tap, exchange: bytes, routing_key: bytes, header: bytes, out: Outgoing) -> None:
        plans = self._plans
        at = plans.sources.wall()
        tap.observe(ObservedDecision(plans.state.name, exchange, routing_key, header, out.decision, at))


def _facts_scope(plans: Plans, owned: OwnedExchange, interest: Interest) -> FactsScope | None:
    if plans.journal is None or plans.journal.facts is None:
        return None
    declared = owned.declared is not None or plans.state.router.has_client_bindings(owned.name)
    return plans.journal.facts.scope(interest, declared)


def _form_bytes(out: Outgoing) -> int:
    """Return the approximate size of an outgoing form in memory, with its decision and its tally."""
    decision = out.decision
    names = decision.queues + decision.exchanges
    keys = 0
    for copy in out.copies:
        keys += len(copy.bcc)
    size = _FORM_BYTES + len(out.bcc) + _NAME_BYTES * (len(names) + keys) + _REFERENCE_BYTES * len(decision.matched)
    for name in names:
        size += len(name)
    return size if out.record is None else size + len(out.record)


def _translated(plans: Plans, source: PublishSource, target: Target | FailedTranslation) -> Outgoing:
    """Return the only outgoing form of a publish that the address table redirects or fails to translate."""
    exchange = source.address.exchange
    failed = isinstance(target, FailedTranslation)
    outcome = Outcome.UNROUTED if failed else Outcome.ROUTED
    name = outcome.value if failed else "translated"
    tally = plans.traffic.tally(plans.state.name, exchange, name, (), ())
    copies: tuple[Copy, ...] = ()
    remote_targets = None
    queues: tuple[bytes, ...] = ()
    exchanges: tuple[bytes, ...] = ()
    remotes: tuple[str, ...] = ()
    if isinstance(target, FailedTranslation):
        remote_targets = RemoteTargets((), (target,), by_broker=True)
    elif target.remote is not None:
        remote_targets = RemoteTargets((target,), (), by_broker=True)
        remotes = labels((target,))
    else:
        copies = (Copy(*target.publication, (), moved=True, by_broker=True),)
        if target.publication.exchange:
            exchanges = (target.publication.exchange,)
        else:
            queues = (target.publication.routing_key,)
    record = None
    if plans.journal is not None:
        reason = TRANSLATION_FAILED if failed else None
        record = plans.journal.decided(exchange, name, queues, exchanges, (), reason, remotes, source.rule)
    decision = Decision(exchange, outcome)
    return Outgoing(decision, tally, copies, False, (), record, remote_targets, exchange, source.address)
