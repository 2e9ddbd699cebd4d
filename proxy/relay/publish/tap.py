"""What do live publishes look like to somebody who only watches? Plans that tell of each publish they send on its way.

While somebody watches, the plan of a watched publish is wrapped: what leaves is the inner plan's, byte for byte, and
the watcher gets what was published and what was decided. While nobody does, there is no wrapper. The watcher's
business is not known here.

Source: architecture, "Rules are data with a life cycle".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from proxy.amqp.frames import U16, U64
from proxy.amqp.properties import decode_properties, table_span
from proxy.amqp.tables import decode_table, pick
from proxy.relay.publish.outgoing import Copy, Outgoing
from proxy.relay.publish.plan import ExchangePlan
from proxy.relay.vhost import Delivery, OwnedExchange
from proxy.routing.decision import Decision, Facts, Interest, Outcome

if TYPE_CHECKING:
    from proxy.relay.original_address import OriginalAddress
    from proxy.relay.publish.plan import Plans

#: Offsets in a content header frame: body size, property flags, properties.
_SIZE_AT, _FLAGS_AT, _PROPERTIES_AT = 11, 19, 21
_NO_INTEREST = Interest()
_PROPERTIES = frozenset(
    (
        "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
        "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
    )
)  # fmt: skip


class ObservedDecision(NamedTuple):
    """One publish that was seen.

    Args:
        vhost: its virtual host.
        exchange: as the producer named it.
        routing_key: likewise.
        header: its content header frame.
        decision: what the rules in force made of it; where no exchange was evaluated here, one that says nothing.
        at: seconds since the epoch.
    """

    vhost: str
    exchange: bytes
    routing_key: bytes
    header: bytes
    decision: Decision
    at: float

    def facts(self) -> Facts:
        """Give all that rules may know of it.

        Raises:
            ProtocolError: 502, the header is malformed.
        """
        header = self.header
        flags = U16.unpack_from(header, _FLAGS_AT)[0]
        span = table_span(header, _PROPERTIES_AT, flags, len(header) - 1)
        properties = decode_properties(header, _PROPERTIES_AT, len(header) - 1, flags, _PROPERTIES)
        size = U64.unpack_from(header, _SIZE_AT)[0]
        return Facts(self.routing_key, () if span is None else decode_table(header, *span), properties, size)

    def raw_headers(self, names: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
        """Give some headers as letter and value bytes.

        Raises:
            ProtocolError: 502, the header is malformed.
        """
        header = self.header
        span = table_span(header, _PROPERTIES_AT, U16.unpack_from(header, _FLAGS_AT)[0], len(header) - 1)
        return [] if span is None else pick(header, *span, names)


class Tap(Protocol):
    """Who watches."""

    def looks_at(self, vhost: str, exchange: bytes) -> bool:
        """Whether publishes to the exchange are to be told of."""

    def saw(self, sight: ObservedDecision) -> None:
        """A publish is on its way; called on the publish path."""


def watched(plans: Plans, watcher: Tap, plan: ExchangePlan | None, exchange: bytes) -> ExchangePlan | None:
    """Wrap the plan of a publish, if it is to be watched.

    Args:
        plans: of the virtual host.
        watcher: who watches.
        plan: of the publish, None: it passes.
        exchange: of the publish.
    """
    if not watcher.looks_at(plans.state.name, exchange) or (plan is None and exchange in plans.state.carriers):
        return plan
    return WatchedPlan(PassingPlan(exchange, plans) if plan is None else plan, plans, watcher, exchange)


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


class WatchedPlan(ExchangePlan):
    """A plan that tells of its publishes.

    Args:
        inner: what decides.
        plans: its virtual host's plans.
        watcher: who is told.
        exchange: as producers name it.
    """

    __slots__ = ("_exchange", "_inner", "_watcher")

    def __init__(self, inner: ExchangePlan, plans: Plans, watcher: Tap, exchange: bytes) -> None:
        """Stand before the other plan."""
        super().__init__(inner.owned, plans, inner.interest)
        self._inner = inner
        self._watcher = watcher
        self._exchange = exchange
        #: each publish is to be asked about
        self.repeatable = False

    def forward(self, method: bytes, routing_key: bytes, data: bytes, start: int, stop: int) -> tuple[bytes, Outgoing]:
        """See ExchangePlan."""
        head, out = self._inner.forward(method, routing_key, data, start, stop)
        # The fast path (a header somewhere in a read buffer) leaves what is not one publish at once to the path of
        # single frames, which asks again; and that asks again once what was waited for is bound.
        if not out.waits and (not start or out.untouched or (len(out.copies) == 1 and out.elsewhere is None)):
            at = self._sources.wall()
            sight = ObservedDecision(self._state.name, self._exchange, routing_key, data[start:stop], out.decision, at)
            self._watcher.saw(sight)
        return head, out

    def original(self, routing_key: bytes) -> OriginalAddress:
        """See ExchangePlan."""
        return self._inner.original(routing_key)

    def further(self, routing_key: bytes, header: bytes, copy: Copy) -> tuple[bytes, bytes]:
        """See ExchangePlan."""
        return self._inner.further(routing_key, header, copy)
