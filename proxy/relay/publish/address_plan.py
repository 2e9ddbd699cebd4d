"""Plans of publishes that the address table translates or that a tap observes, in addition to those of exchanges.

A publish to an exchange that is not evaluated here is looked up once. The result is a plan like an exchange's:
another exchange here, an exchange of the rules (evaluated, and not looked up again), another broker, or nowhere.
Not in the path of a publish whose virtual host has no address table. While a tap is set, `TappedPlan` wraps the plan
of each tapped publish: the bytes that leave are those of the wrapped plan.

Source: architecture, "The path of one publish"; the messenger-addressing specification, Part 3.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import replace

from proxy.addressing.targets import FailedTranslation, Publication, Target
from proxy.amqp.method_frames import basic_publish
from proxy.relay.original_address import OriginalAddress
from proxy.relay.publish.outgoing import (
    CC_BCC,
    TRANSLATION_FAILED,
    Copy,
    Outgoing,
    PublishSource,
    RemoteTargets,
    labels,
    outgoing,
    refuse_reserved,
)
from proxy.relay.publish.plan import ExchangePlan, Plans
from proxy.relay.publish.tap import ObservedDecision, Tap
from proxy.relay.vhost import Delivery, OwnedExchange
from proxy.routing.decision import Decision, Facts, Interest, Outcome

#: Publishes of one virtual host whose plan is kept; each holds what its messages' headers look like.
KEPT = 1024
#: Shapes of messages that each of them keeps, and the bytes that these may stand for.
KEPT_SHAPES, KEPT_BYTES = 64, 16384
_NO_INTEREST = Interest()
_NO_METHOD = basic_publish(0, b"", b"")


def find_plan(plans: Plans, exchange: bytes, routing_key: bytes) -> ExchangePlan | None:
    """Give the plan of a publish: of its exchange, else what the address table makes of it; None: it passes.

    Args:
        plans: of the virtual host.
        exchange: of the publish.
        routing_key: of the publish.
    """
    plan = _find_plan(plans, exchange, routing_key)
    return plan if plans.tap is None else tapped(plans, plans.tap, plan, exchange)


def _find_plan(plans: Plans, exchange: bytes, routing_key: bytes) -> ExchangePlan | None:
    plan = plans.get(exchange)
    book = plans.state.addresses
    if plan is not None or book is None:
        return plan
    kept = plans.by_address
    key = (exchange, routing_key)
    if key not in kept:
        if len(kept) >= KEPT:
            kept.clear()
        target = book.look_up(exchange, routing_key)
        kept[key] = None if target is None else _plan(plans, Publication(*key), target)
    return kept[key]


def _plan(plans: Plans, publication: Publication, target: Target | FailedTranslation) -> ExchangePlan | None:
    source = PublishSource(OriginalAddress(*publication), target.rule)
    state = plans.state
    if isinstance(target, FailedTranslation):
        return TranslatedPlan(source, target, plans)
    if target.remote is None:
        owned = state.exchanges.get(target.publication.exchange)
        if owned is not None:
            return EvaluatedPlan(source, owned, target.publication.routing_key, plans)
        if target.publication.exchange in state.carriers:
            return TranslatedPlan(
                source, FailedTranslation(target.rule, "a carrier, not the exchange it stands for"), plans
            )
        if target.publication == publication:
            return None
    return TranslatedPlan(source, target, plans)


class AddressPlan(ExchangePlan):
    """The plan of one publish: there may be many, so that each keeps little."""

    __slots__ = ()

    def _is_full(self, cache: Sized, size: int) -> bool:
        return len(cache) >= KEPT_SHAPES or size > KEPT_BYTES


class TranslatedPlan(AddressPlan):
    """A publish that goes to an exchange which is not evaluated here, to another broker, or nowhere.

    Args:
        source: where it came from.
        target: where it goes.
        plans: its virtual host's plans.
    """

    __slots__ = ("_carried", "_source", "leaving", "remote", "there")

    def __init__(self, source: PublishSource, target: Target | FailedTranslation, plans: Plans) -> None:
        """Work out the one way in which it leaves."""
        #: the other broker, None where it does not go to one
        self.remote = target.remote if isinstance(target, Target) else None
        #: exchange and key there
        self.there = target.publication if isinstance(target, Target) else Publication(b"", b"")
        #: the same, as if it stayed here: it has the header that goes there; None where that needs no header of ours
        self._carried: TranslatedPlan | None = None
        if isinstance(target, Target) and self.remote is not None and tuple(self.there) != tuple(source.address):
            self._carried = TranslatedPlan(source, replace(target, remote=None), plans)
        name = source.address.exchange
        super().__init__(OwnedExchange(name, "direct", Delivery.QUEUE, b""), plans, _NO_INTEREST)
        self._source = source
        self.leaving = self._leave(target, plans)

    def original(self, routing_key: bytes) -> OriginalAddress:
        """Where the producer addressed it."""
        return self._source.address

    @property
    def untouched(self) -> bool:
        """Whether the header goes to the other broker as it came."""
        return self._carried is None

    def distant_header(self, header: bytes) -> bytes:
        """Give the payload of the content header frame that goes to the other broker.

        Args:
            header: the producer's content header frame.

        Raises:
            ProtocolError: 502, it is malformed.
        """
        if self._carried is None:
            return header[7:-1]
        frames, _ = self._carried.forward(_NO_METHOD, self.original(b"").routing_key, header, 0, len(header))
        return frames[self._carried.method_bytes + 7 : -1]

    @property
    def method_bytes(self) -> int:
        """Bytes of the method frame in front of what `forward` gives."""
        return len(_NO_METHOD) + len(self.there.exchange) + len(self.there.routing_key)

    def _refuse(self, routing_key: bytes, entries: bytes) -> None:
        """Refuse reserved keys: the producer's, what the table has made of it, and those of BCC, which stays."""
        refuse_reserved(routing_key, entries, CC_BCC)
        refuse_reserved(self.there.routing_key, b"")

    def _outgoing(self, facts: Facts) -> Outgoing:
        return self.leaving

    def _leave(self, target: Target | FailedTranslation, plans: Plans) -> Outgoing:
        exchange = self._source.address.exchange
        failed = isinstance(target, FailedTranslation)
        outcome = Outcome.UNROUTED if failed else Outcome.ROUTED
        name = outcome.value if failed else "translated"
        decision = Decision(exchange, outcome)
        tally = plans.traffic.tally(plans.state.name, exchange, name, (), ())
        copies: tuple[Copy, ...] = ()
        remote_targets = None
        queues: tuple[bytes, ...] = ()
        exchanges: tuple[bytes, ...] = ()
        remotes: tuple[str, ...] = ()
        if isinstance(target, FailedTranslation):
            remote_targets = RemoteTargets((), (target,))
        elif target.remote is not None:
            remote_targets = RemoteTargets((target,), ())
            remotes = labels((target,))
        else:
            copies = (Copy(*target.publication, (), moved=True, plain=True),)
            if target.publication.exchange:
                exchanges = (target.publication.exchange,)
            else:
                queues = (target.publication.routing_key,)
        record = None
        if plans.journal is not None:
            reason = TRANSLATION_FAILED if failed else None
            record = plans.journal.template(exchange, name, queues, exchanges, (), reason, remotes, self._source.rule)
        return Outgoing(decision, tally, copies, record=record, remote_targets=remote_targets)


class EvaluatedPlan(AddressPlan):
    """A publish that the address table has sent to an exchange which is evaluated here.

    Args:
        source: where it came from.
        owned: the exchange.
        routing_key: the key it has there.
        plans: its virtual host's plans.
    """

    __slots__ = ("_key", "_source")

    def __init__(self, source: PublishSource, owned: OwnedExchange, routing_key: bytes, plans: Plans) -> None:
        """Remember both addresses."""
        super().__init__(owned, plans)
        self._source = source
        self._key = routing_key

    def original(self, routing_key: bytes) -> OriginalAddress:
        """Where the producer addressed it."""
        return self._source.address

    def forward(self, method: bytes, routing_key: bytes, data: bytes, start: int, stop: int) -> tuple[bytes, Outgoing]:
        """See ExchangePlan; the rules see the translated key."""
        return super().forward(method, self._key, data, start, stop)

    def _outgoing(self, facts: Facts) -> Outgoing:
        plans = self._plans
        decision, took_us = self._decide(facts)
        from_here = (self.owned, plans.state, plans.traffic, plans.journal)
        out = outgoing(decision, *from_here, source=self._source, decide_us=took_us)
        return readdressed(out, OriginalAddress(self.owned.name, self._key))


def readdressed(out: Outgoing, address: OriginalAddress) -> Outgoing:
    """Give what leaves of a publish that the address table has sent to an exchange which is evaluated here.

    Args:
        out: what leaves of it by that exchange's decision.
        address: that exchange, and the key that the publish has there.
    """
    key = address.routing_key
    if out.untouched:
        return replace(out, untouched=False, copies=(Copy(*address, (), moved=True, plain=True),))
    copies = [
        copy._replace(moved=True, routing_key=key if copy.routing_key is None else copy.routing_key)
        for copy in out.copies
    ]
    return replace(out, copies=tuple(copies))


def tapped(plans: Plans, tap: Tap, plan: ExchangePlan | None, exchange: bytes) -> ExchangePlan | None:
    """Wrap the plan of a publish, if it is to be watched.

    Args:
        plans: of the virtual host.
        tap: who watches.
        plan: of the publish, None: it passes.
        exchange: of the publish.
    """
    if not tap.wants(plans.state.name, exchange) or (plan is None and exchange in plans.state.carriers):
        return plan
    return TappedPlan(PassingPlan(exchange, plans) if plan is None else plan, plans, tap, exchange)


class PassingPlan(ExchangePlan):
    """A publish to an exchange that is not evaluated here: it passes, counted and recorded as without a plan.

    Args:
        exchange: its name.
        plans: its virtual host's plans.
    """

    __slots__ = ("_passes",)

    def __init__(self, exchange: bytes, plans: Plans) -> None:
        """Work out the one way in which it leaves."""
        super().__init__(OwnedExchange(exchange, "direct", Delivery.QUEUE, b""), plans, _NO_INTEREST)
        tally = plans.traffic.tally(plans.state.name, exchange, "passed", (), ())
        journal, record = plans.journal, None
        if journal is not None and not journal.ruled_only:
            record = journal.template(exchange, "passed", (), (), (), None)
        self._passes = Outgoing(Decision(exchange, Outcome.UNROUTED), tally, untouched=True, record=record)

    def forward(self, method: bytes, routing_key: bytes, data: bytes, start: int, stop: int) -> tuple[bytes, Outgoing]:
        """See ExchangePlan; nothing leaves in place of it."""
        return b"", self._passes


class TappedPlan(ExchangePlan):
    """A plan that tells of its publishes.

    Args:
        inner: what decides.
        plans: its virtual host's plans.
        tap: who is told.
        exchange: as producers name it.
    """

    __slots__ = ("_exchange", "_inner", "_tap")

    def __init__(self, inner: ExchangePlan, plans: Plans, tap: Tap, exchange: bytes) -> None:
        """Stand before the other plan."""
        super().__init__(inner.owned, plans, inner.interest)
        self._inner = inner
        self._tap = tap
        self._exchange = exchange
        #: each publish is to be asked about
        self.repeatable = False

    def forward(self, method: bytes, routing_key: bytes, data: bytes, start: int, stop: int) -> tuple[bytes, Outgoing]:
        """See ExchangePlan."""
        head, out = self._inner.forward(method, routing_key, data, start, stop)
        # The fast path (a header somewhere in a read buffer) leaves what is not one publish at once to the path of
        # single frames, which asks again; and that asks again once what was waited for is bound.
        if not out.waits and (not start or out.untouched or (len(out.copies) == 1 and out.remote_targets is None)):
            at = self._sources.wall()
            observed = ObservedDecision(
                self._state.name, self._exchange, routing_key, data[start:stop], out.decision, at
            )
            self._tap.observe(observed)
        return head, out

    def original(self, routing_key: bytes) -> OriginalAddress:
        """See ExchangePlan."""
        return self._inner.original(routing_key)

    def further_copy(self, routing_key: bytes, header: bytes, copy: Copy) -> tuple[bytes, bytes]:
        """See ExchangePlan."""
        return self._inner.further_copy(routing_key, header, copy)
