"""A relay without sockets or sleeps: the test acts as the producer and the broker.

If a method of ``Wire`` returns output, it returns all output to that side since the last call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pamqp import base, commands

from oxproxy.amqp.tables import decode_table, encode_table
from oxproxy.relay.connection_state import (
    BindDestinations,
    ConnectionTerms,
    EnsureDestination,
    HoldTokens,
    LookUp,
    Phase,
    QueueInventory,
    RelayLimits,
)
from oxproxy.relay.counters import Counters
from oxproxy.relay.handshake.greeting import Tuning
from oxproxy.relay.plan.plan import ClientRules, Plans, Sources
from oxproxy.relay.relay import Relay
from oxproxy.relay.token_table import TokenTable
from oxproxy.relay.tokens import Tokens
from oxproxy.relay.vhost import DeclaredExchange, Delivery, OwnedExchange, VhostState
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import Destination, Table, Value
from tests import client
from tests.client import Frame, method, split
from tests.routing.building import NOW, Plain, arguments, exchange, no_draw, to_exchange, to_queue

TUNING = Tuning(
    channel_max_producer=2046,
    channel_max_upstream=2047,
    frame_max_producer=131072,
    frame_max_upstream=131072,
    heartbeat_producer=60,
    heartbeat_upstream=60,
)
#: the sidecar's own channel, which is never offered to producers
OWN = TUNING.channel_max_upstream

#: the condition of the bindings that the tests use
TYPE = {"x-?hkv= type": "report"}
REPORT: Table = ((b"type", Value("S", b"report")),)


def token(kind: str, name: bytes, vhost: str = "/") -> bytes:
    """The token of a destination on a direct carrier, without a configured secret."""
    return Tokens(vhost).candidates((kind, name), one_word=False)[0]


def bound_table(bound: Iterable[Destination] = (), vhost: str = "/") -> TokenTable:
    """A table in which these destinations are bound."""
    return TokenTable({place: frozenset((token(*place, vhost),)) for place in bound})


class QueueEvents(list[tuple[object, ...]]):
    """A control plane that records events of queues and exchanges.

    Args:
        queues: queues that are named in rules; None for all queues.
    """

    def __init__(self, queues: Iterable[bytes] | None = ()) -> None:
        super().__init__()
        self._queues = None if queues is None else frozenset(queues)

    def inventory(self) -> QueueInventory:
        return QueueInventory(
            lambda queue: self._queues is None or queue in self._queues,
            lambda destination, exclusive: self.append(("declared", destination, exclusive)),
            lambda queue: self.append(("deleted", queue)),
            lambda exchange: self.append(("changed", exchange)),
        )


def owned(
    made: Exchange,
    delivery: Delivery = Delivery.CARRIER,
    *,
    carrier: str = "",
    unmatched_pass: bool = False,
    bound: Iterable[Destination] | None = None,
    declared: DeclaredExchange | None = None,
) -> OwnedExchange:
    """The relay's state of an exchange. If ``bound`` is None, the tokens of all its destinations are bound."""
    return OwnedExchange(
        made.name,
        made.type,
        delivery,
        carrier.encode() or made.name,
        unmatched_pass,
        made.alternate,
        declared=declared,
        tokens=bound_table(made.destinations if bound is None else bound),
    )


def state(*pairs: tuple[Exchange, OwnedExchange]) -> VhostState:
    return VhostState("/", Router([exchange for exchange, _ in pairs]), {own.name: own for _, own in pairs})


def ruled(*bindings: Binding, alternate: str | None = None, **more: Any) -> VhostState:  # Any: what `owned` accepts
    """A virtual host with the exchange ``xo`` and these bindings."""
    made = exchange(*bindings, alternate=alternate)
    return state((made, owned(made, **more)))


def routed(*queues: str, **more: Any) -> VhostState:  # Any: what `owned` accepts
    """A virtual host with the exchange ``xo``, which routes messages of type report to all the queues."""
    return ruled(*(to_queue(name, TYPE) for name in queues), **more)


def chosen(*queues: str, bound: Iterable[str] = (), delivery: Delivery = Delivery.CARRIER) -> VhostState:
    """A virtual host with the exchange ``xo``, in which the routing key names the queue.

    Args:
        queues: existing queues.
        bound: queues whose tokens are bound.
        delivery: delivery of the exchange.
    """
    ready = [("queue", name.encode()) for name in bound]
    vhost = ruled(to_queue("unused", {"x-msg-destq-rk": ""}), delivery=delivery, bound=ready)
    vhost.queues = replace(vhost.queues, names=tuple(sorted(name.encode() for name in queues)), version=1)
    return vhost


def several(*exchanges: str, queues: Iterable[str] = ("q",)) -> VhostState:
    """A virtual host with the exchange ``xo`` and queue delivery; it routes messages to all queues and exchanges."""
    return ruled(*map(to_queue, queues), *map(to_exchange, exchanges), delivery=Delivery.QUEUE)


class Wire:
    """A connection of a producer, and its upstream connection.

    Args:
        of: the virtual host; None for one without exchanges.
        events: records declares and deletes of queues.
        tuning: negotiated parameters.
        limits: limits of the relay.
        rules: rules for declarations of clients.
    """

    def __init__(
        self,
        of: VhostState | None = None,
        *,
        events: QueueEvents | None = None,
        tuning: Tuning = TUNING,
        limits: RelayLimits | None = None,
        rules: ClientRules | None = None,
    ) -> None:
        self.state = of or VhostState("/", Router(()))
        self.events = events if events is not None else QueueEvents()
        self.counters = Counters()
        self.wall = NOW
        sources = Sources(lambda: self.wall, lambda: 0.0, no_draw)
        self.plans = Plans(self.state, self.counters, sources, rules)
        self.tuning = tuning
        self._limits = limits or RelayLimits()
        self.connect()
        self.now = 0.0

    def connect(self) -> None:
        """Begin a connection with the current plans."""
        self.relay = Relay(ConnectionTerms(self.tuning, self._limits, self.events.inventory()), self.plans)

    # -- bytes ---------------------------------------------------------------------------------------------------

    def produce(self, *pieces: bytes) -> bytes:
        """Pass input from the producer; return the output to the broker."""
        self.relay.producer_sent(b"".join(pieces), self.now)
        return self.upstream()

    def answer(self, *pieces: bytes) -> bytes:
        """Pass input from the broker; return the output to the producer."""
        self.relay.broker_sent(b"".join(pieces), self.now)
        return self.producer()

    def upstream(self) -> bytes:
        """Return and clear the output to the broker."""
        return _taken(self.relay.connection.to_upstream)

    def producer(self) -> bytes:
        """Return and clear the output to the producer; if it is being refused, the broker first answers our close."""
        if self.relay.connection.lifecycle.phase is Phase.REFUSING:
            self.relay.broker_sent(say(0, commands.Connection.CloseOk()), self.now)
        return self.sent()

    def sent(self) -> bytes:
        """Return and clear the output to the producer so far."""
        return _taken(self.relay.connection.for_producer)

    def fault(self, *pieces: bytes) -> tuple[int, tuple[int, int]]:
        """Pass input that ends the connection; return reply code and method of the close."""
        left = self.produce(*pieces)
        assert not left or split(left)[-1].name == "Connection.Close"
        channel, code, _, ids = closed(self.producer())
        assert channel == 0
        return code, ids

    # -- exchanges of frames -------------------------------------------------------------------------------------

    def open(self, *numbers: int, confirm: bool = False) -> Wire:
        """Open channels, including the broker's replies."""
        for number in numbers or (1,):
            self.produce(method(number, commands.Channel.Open()))
            self.answer(method(number, commands.Channel.OpenOk()))
            if confirm:
                self.produce(method(number, commands.Confirm.Select()))
                self.answer(method(number, commands.Confirm.SelectOk()))
        return self

    def refused(self, channel: int = 1) -> bytes:
        """Reply to the method that precedes a refusal; return the output to the producer."""
        left = self.answer(method(channel, commands.Channel.FlowOk(active=True)))
        assert self.upstream() == method(channel, commands.Channel.Close(200, "closed by the proxy", 0, 0))
        return left

    def request(self) -> EnsureDestination | BindDestinations:
        """Return and clear the only request to the control plane."""
        (request,) = self.relay.connection.pending.requests
        self.relay.connection.pending.requests.clear()
        assert isinstance(request, EnsureDestination | BindDestinations)
        return request

    def held(self) -> bytes:
        """Answer the only request to the control plane, to hold an exchange's tokens; return the output upstream."""
        (request,) = self.relay.connection.pending.requests
        self.relay.connection.pending.requests.clear()
        assert isinstance(request, HoldTokens)
        self.relay.answer(request)
        return self.upstream()

    def control(self, *bound: str) -> bytes:
        """Bind these queues' tokens and answer the only request to the control plane; return the output upstream."""
        request = self.request()
        for queue in bound:
            self.state.exchanges[b"xo"].tokens.bind_ok(("queue", queue.encode()), (token("queue", queue.encode()),))
        self.relay.answer(request)
        return self.upstream()

    def looked_up(self, exchange: bytes, exchange_type: str | None = None) -> bytes:
        """Answer the only request to the control plane, a lookup of this exchange; return the output upstream."""
        (request,) = self.relay.connection.pending.requests
        self.relay.connection.pending.requests.clear()
        assert isinstance(request, LookUp)
        assert request.exchange == exchange
        self.relay.answer(request, exchange_type)
        return self.upstream()

    def publishes(self) -> list[tuple[bytes, str, int, int]]:
        """Return the publish counters that are not zero: exchange, outcome, count, and bytes for the exchange."""
        for _ in self.counters.traffic.folding():
            pass
        return [row[1:] for row in self.counters.traffic.publishes() if row[3] or row[4]]


def _taken(pieces: list[bytes]) -> bytes:
    data = b"".join(pieces)
    pieces.clear()
    return data


# -- frames ------------------------------------------------------------------------------------------------------


def publish(
    key: str = "",
    headers: Table | None = REPORT,
    body: bytes = b"body",
    channel: int = 1,
    to: str = "xo",
    *,
    mandatory: bool = False,
    frame_max: int = 131072,
    **properties: bytes | int,
) -> bytes:
    """A publish to ``xo``; by default it matches the rules there."""
    return client.publish(
        channel, to.encode(), key.encode(), headers, body, properties, mandatory=mandatory, frame_max=frame_max
    )


def with_tokens(message: bytes, *queues: str, exchanges: Iterable[str] = ()) -> bytes:
    """The same publish as it is sent to a carrier, with the tokens of these queues and exchanges."""
    keys = [token("exchange", name.encode()) for name in exchanges]
    keys += [token("queue", name.encode()) for name in queues]
    return with_keys(message, *keys)


def with_keys(message: bytes, *keys: bytes) -> bytes:
    """The same publish with these keys in BCC, as the last entry of its header table."""
    start, header, *bodies = split(message)
    entry = (b"BCC", Value("A", tuple(Value("S", key) for key in keys)))
    flags = int.from_bytes(header.payload[12:14], "big")
    at = 14
    for flag in (0x8000, 0x4000):
        if flags & flag:
            at += 1 + header.payload[at]
    after, entries = at, b""
    if flags & 0x2000:
        size = int.from_bytes(header.payload[at : at + 4], "big")
        after, entries = at + 4 + size, header.payload[at + 4 : at + 4 + size]
    if keys:
        entries += encode_table((entry,))
    table = len(entries).to_bytes(4, "big") + entries
    flagged = (flags | 0x2000).to_bytes(2, "big")
    payload = header.payload[:12] + flagged + header.payload[14:at] + table + header.payload[after:]
    return start.raw + client.frame(2, header.channel, payload) + b"".join(frame.raw for frame in bodies)


def table_of(header: Frame) -> Table:
    """The header table of a content header frame without content type and content encoding."""
    assert int.from_bytes(header.payload[12:14], "big") & 0xE000 == 0x2000
    size = int.from_bytes(header.payload[14:18], "big")
    return decode_table(header.payload, 18, 18 + size)


def keys_of(header: Frame) -> list[bytes]:
    """The routing keys in BCC of a content header frame."""
    (copies,) = [value for name, value in table_of(header) if name == b"BCC"]
    assert isinstance(copies.value, tuple)
    return [key.value for key in copies.value]


def address_of(frame: Frame) -> tuple[object, object]:
    """Exchange and routing key of a publish, delivery, get or return."""
    return frame.arguments["exchange"], frame.arguments["routing_key"]


def table(**entries: Plain) -> Table:
    return arguments(entries)


def say(channel: int, *commanded: base.Frame) -> bytes:
    """Method frames on one channel."""
    return b"".join(method(channel, command) for command in commanded)


#: closes of the connection and of channel 1, and the replies
GOODBYE = method(0, commands.Connection.Close(200, "bye", 0, 0))
GOODBYE_OK = method(0, commands.Connection.CloseOk())
CLOSE = method(1, commands.Channel.Close(200, "bye", 0, 0))
CLOSE_OK = method(1, commands.Channel.CloseOk())
NOT_FOUND = method(1, commands.Channel.Close(404, "NOT_FOUND - no queue 'q'", 60, 70))
#: the Channel.Close that the sidecar sends to the broker for channel 1
OURS = method(1, commands.Channel.Close(200, "closed by the proxy", 0, 0))
#: sent before that close, so that the replies to earlier methods of the producer arrive first
AHEAD = method(1, commands.Channel.Flow(active=True))
FLOW_OK = method(1, commands.Channel.FlowOk(active=True))
#: a publish that the sidecar refuses by closing channel 1
RESERVED = publish("x.o.p.e.n.x.q.1")
OPEN, OPEN_OK = method(1, commands.Channel.Open()), method(1, commands.Channel.OpenOk())
DECLARE, DECLARED = method(1, commands.Queue.Declare(0, "q")), method(1, commands.Queue.DeclareOk("q", 0, 0))
#: replies of the broker on the sidecar's own channel
OWN_OPEN_OK, OWN_BIND_OK = method(OWN, commands.Channel.OpenOk()), method(OWN, commands.Queue.BindOk())


def ack(tag: int, multiple: bool = False, channel: int = 1) -> bytes:
    return method(channel, commands.Basic.Ack(tag, multiple))


def nack(tag: int, multiple: bool = False, channel: int = 1) -> bytes:
    return method(channel, commands.Basic.Nack(tag, multiple, False))


def returned(exchange: str, key: str, content: bytes, channel: int = 1) -> bytes:
    """A Basic.Return with these content frames."""
    start = method(channel, commands.Basic.Return(312, "NO_ROUTE", exchange, key))
    return start + content


def closed(data: bytes) -> tuple[int, int, str, tuple[int, int]]:
    """Return channel, reply code, text and method of the only frame in the bytes, which must be a close."""
    (frame,) = split(data)
    close = frame.method
    assert isinstance(close, commands.Channel.Close | commands.Connection.Close), frame.name
    return frame.channel, close.reply_code or 0, close.reply_text, (close.class_id or 0, close.method_id or 0)
