"""Relays bytes between one producer connection and its upstream connection.

The driver passes the bytes from both sides, and the current time, to a `Relay`. The driver then sends
`connection.to_upstream` and `connection.for_producer`, carries out `connection.pending.requests`, and passes their
results to `Relay.answer`.

Source: architecture, "One publish in, one publish out"; AMQP 0-9-1 spec, 4.2.7 (heartbeats).
"""

from __future__ import annotations

from oxproxy.amqp.method_frames import connection_close_ok
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.broker_frames import BrokerFrames
from oxproxy.relay.channel_state import OPEN, OPENING
from oxproxy.relay.connection_state import (
    BindDestinations,
    ConnectionState,
    ConnectionTerms,
    EndExchange,
    EnsureDestination,
    HoldTokens,
    LookUp,
    Phase,
    Request,
)
from oxproxy.relay.plan.plan import Plans
from oxproxy.relay.publish.publish_pass import PublishPass


class Relay:
    """Both directions of one producer connection."""

    __slots__ = ("_delivering", "_publishing", "connection")

    def __init__(self, terms: ConnectionTerms, plans: Plans) -> None:
        self.connection = ConnectionState(terms, plans)
        self._publishing = PublishPass(self.connection)
        self._delivering = BrokerFrames(self.connection)

    @property
    def kept(self) -> bool:
        """True if the producer has closed its connection and the upstream connection is still open and reusable."""
        return self.connection.upstream.kept and self._delivering.at_boundary

    @property
    def interrupted(self) -> bool:
        """True if decisions have taken long. Later frames wait for the next input, which may be empty."""
        return self._publishing.interrupted

    @property
    def over_budget(self) -> bool:
        """True if a publish has exhausted a budget since the last input from the producer."""
        return self._publishing.over_budget

    def producer_sent(self, data: bytes, now: float) -> None:
        connection = self.connection
        connection.traffic.now = now
        self._publishing.read_producer(data)
        self._go_on()

    def broker_sent(self, data: bytes, now: float) -> None:
        connection = self.connection
        connection.traffic.now = now
        try:
            self._delivering.read_broker(data)
        except ProtocolError as error:
            self.upstream_lost(f"the broker sent malformed frames: {error.text.decode(errors='replace')}")
        self._go_on()

    def answer(self, request: Request, exchange_type: str | None = None, *, ended: bool = True) -> None:
        """Resume the channel of a finished or abandoned request.

        Args:
            exchange_type: the result of `LookUp`.
            ended: the result of `EndExchange`.
        """
        if isinstance(request, EnsureDestination | HoldTokens):
            request.done()
        elif isinstance(request, LookUp):
            request.answer(exchange_type)
        elif isinstance(request, EndExchange):
            request.done(ended)
        elif isinstance(request, BindDestinations):
            self.connection.pending.resume(request.channel)
        self._go_on()

    def _go_on(self) -> None:
        connection, pending = self.connection, self.connection.pending
        while pending.at_end or pending.resumable:
            if pending.at_end:
                pending.at_end.pop(0)()
                continue
            channel = pending.resumable.pop(0)
            if connection.lifecycle.phase is Phase.OPEN:
                self._publishing.resume(channel)
        if connection.lifecycle.last_frame is not None and not (connection.holds or self.interrupted):
            connection.producer_leaves(connection.lifecycle.last_frame)
        if connection.audit is not None:
            connection.audit.flush()

    def over_limit(self, text: str) -> None:
        """Close the channel (406) or the connection (320) of a producer that exceeds its rate limit.

        If no other channel has published and no message has been sent partially, only the channel is closed.
        """
        connection = self.connection
        publishing = [
            channel for channel in connection.channels.values() if channel.confirms.total or channel.content is not None
        ]
        content = publishing[0].content if len(publishing) == 1 else None
        partial = content is not None and content.begun
        if len(publishing) != 1 or partial or publishing[0].state not in (OPENING, OPEN):
            connection.fail(ProtocolError(320, text))
        elif connection.lifecycle.phase is Phase.OPEN:
            connection.refuse(publishing[0], ProtocolError(406, text, Scope.CHANNEL))

    def upstream_lost(self, reason: str) -> None:
        """Close the producer's connection with 320 and the given reason, unless it is already being closed."""
        connection = self.connection
        connection.upstream.end()
        connection.to_upstream.clear()
        connection.end_refusal()
        if connection.lifecycle.phase is Phase.PRODUCER_CLOSES or connection.lifecycle.last_frame is not None:
            connection.producer_answered()
            connection.to_producer.append(connection_close_ok())
        connection.close(320, reason.encode())

    def ended(self) -> None:
        """Remove the connection from the gauges once both sides are closed."""
        connection = self.connection
        connection.finish()
        connection.plans.counters.upstream_blocked += connection.upstream.block(False)
