"""Performs the AMQP handshakes of a producer connection and its upstream connection, with sockets and deadlines.

`relay.handshake` gets the received bytes and decides what to send. The opening ends when the session takes over, or
when the producer has been refused. Sources: architecture, "One publish in, one publish out"; AMQP 0-9-1 spec, 2.2.4.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from time import monotonic, time

import structlog

from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.net.context import SessionContext
from oxproxy.net.link import Link
from oxproxy.net.tasks import Tasks
from oxproxy.net.tls import words
from oxproxy.net.vhosts import ControlPlane
from oxproxy.relay.handshake.lease import Lease, LeaseNegotiation
from oxproxy.relay.handshake.machine import Handshake, HandshakeSide, HandshakeState

#: Lowest reply code that indicates a protocol error by the peer (AMQP 0-9-1 spec, 1.2 "Constants").
_FAULTS = 500


class Opening:
    """The part of a session before both sides are open.

    Args:
        producer: the producer's side, connected.
        upstream: the broker's side, not connected yet.
        tasks: runs tasks, which are cancelled at the end of the session.
        opened: called once, when both sides are open.
        refusal: reason for refusing the producer; None if it is admitted.
    """

    def __init__(
        self,
        context: SessionContext,
        producer: Link,
        upstream: Link,
        tasks: Tasks,
        opened: Callable[[Handshake], None],
        log: structlog.typing.FilteringBoundLogger,
        refusal: str | None = None,
    ) -> None:
        self._shared = context
        self._producer = producer
        self._upstream = upstream
        self._tasks = tasks
        self._opened = opened
        self._log = log
        self._refusal = refusal
        limits = context.limits
        self._handshake = Handshake(
            producer.peer_name, context.version, frame_max=limits.frame_max, channel_max=limits.channels
        )
        self._loop = asyncio.get_running_loop()
        left = producer.begun + limits.handshake_seconds - monotonic()  # the TLS handshake has used part of the time
        self._deadline = self._loop.call_later(max(left, 0.0), self._timeout)
        reuse = context.reuse if refusal is None else None
        self._negotiation = reuse.negotiation() if reuse is not None else None
        self._connecting = False
        self._adopting = False
        #: `result` label of a failed opening, if it can't be derived from `Handshake.ending`; otherwise empty
        self._failure = ""

    def from_producer(self, data: bytes) -> None:
        self._handshake.receive_from_producer(data)
        self._go_on()

    def from_upstream(self, data: bytes) -> None:
        news = data if self._negotiation is None else self._negotiation.receive_from_upstream(data)
        self._handshake.receive_from_upstream(news)
        self._go_on()

    @property
    def lease(self) -> Lease | None:
        """The lease of the upstream connection, if the connection may be kept for reuse."""
        negotiation = self._negotiation
        return negotiation.lease if negotiation is not None and negotiation.lease.open_ok else None

    def connected(self) -> None:
        self._go_on()

    def producer_lost(self) -> None:
        self._handshake.producer_lost()

    def upstream_lost(self, error: Exception | None) -> None:
        """Handle the loss of the broker's socket.

        The error may be a TLS error, since with TLS 1.3, a broker rejects our certificate only after our side has
        finished the TLS handshake.
        """
        failure = None
        if isinstance(error, ssl.SSLError) and self._handshake.ending is None:
            failure = UpstreamError(UpstreamFailure.TLS, words(error))
            self._upstream_failed(failure)
        self._handshake.upstream_lost(failure)
        self._go_on()

    def end(self) -> None:
        """Cancel the deadline after the opening has succeeded or failed."""
        self._deadline.cancel()

    def failed(self) -> None:
        """Count and log the failure after both sockets have been lost."""
        self.end()
        wrong_header = self._handshake.wrong_header
        # a probe that only connects and disconnects is neither counted nor logged
        if not (self._connecting or self._failure or wrong_header):
            return
        ending = self._handshake.ending
        result = self._failure or "refused"
        if ending is not None and not self._failure:
            if ending.side is HandshakeSide.UPSTREAM:
                self._shared.counters.upstream.results["refused"] += 1
                self._shared.counters.upstream.last_error = (time(), f"{ending.reply_code} {ending.text}")
            elif wrong_header or ending.reply_code >= _FAULTS:
                result = "protocol_error"
        self._shared.counters.downstream.results[result] += 1
        self._log.info(
            "producer not connected",
            vhost=self._handshake.vhost,
            user=self._handshake.user,
            result=result,
            reply_code=ending.reply_code if ending is not None else 0,
            reason=ending.text if ending is not None else "",
        )

    def _timeout(self) -> None:
        handshake, limits = self._handshake, self._shared.limits
        if handshake.ending is None:
            self._failure = "timeout"
        side = handshake.waiting_for
        self._log.info("handshake not finished in time", seconds=limits.handshake_seconds, waiting_for=side)
        if side is not HandshakeSide.UPSTREAM:
            self._abort()
            return
        text = f"no {handshake.state.value} within {limits.handshake_seconds:g} s"
        handshake.upstream_lost(UpstreamError(UpstreamFailure.TIMEOUT, text))
        self._go_on()
        self._deadline = self._loop.call_later(limits.close_seconds, self._abort)

    def _abort(self) -> None:
        self._producer.abort()
        self._upstream.abort()

    async def _connect(self) -> None:
        try:
            await self._shared.upstream.connect(lambda: self._upstream)
        except UpstreamError as error:
            self._upstream_failed(error)
            self._handshake.upstream_lost(error)
            self._go_on()

    def _upstream_failed(self, error: UpstreamError) -> None:
        self._failure = error.failure.value
        self._shared.counters.upstream.results[self._failure] += 1
        self._shared.counters.upstream.last_error = (time(), str(error))
        self._log.warning("upstream not reachable", error=str(error))

    async def _adopt(self, control: ControlPlane) -> None:
        """Load the client declarations of a virtual host before the session of its first producer starts."""
        vhost = self._handshake.vhost
        self._pause_both(True)
        try:
            async with asyncio.timeout(self._shared.limits.bind_seconds):
                await control.adopt(vhost, self._shared.vhosts.plans(vhost).state)
        except (TimeoutError, UpstreamError) as error:
            self._log.warning("client declarations of a virtual host not loaded", vhost=vhost, error=str(error))
        self._pause_both(False)
        if self._producer.connected:
            self._opened(self._handshake)

    def _pause_both(self, paused: bool) -> None:
        for link in (self._producer, self._upstream):
            link.pause("adopting", paused)

    def _consult(self, negotiation: LeaseNegotiation) -> None:
        """Pass the output for the broker to a lease negotiation, which may reply on the broker's behalf."""
        handshake, reuse = self._handshake, self._shared.reuse
        while handshake.to_upstream:
            answer = negotiation.take(handshake.to_upstream)
            if negotiation.taken is not None and reuse is not None and not self._connecting:
                self._connecting = True
                reuse.lease_to(negotiation.taken, self._upstream)
            handshake.receive_from_upstream(answer)

    def _send(self) -> bool:
        """Send the handshake's output to both sides; return True if a connection to the broker is needed."""
        handshake, negotiation = self._handshake, self._negotiation
        source: Handshake | LeaseNegotiation = handshake
        if negotiation is not None:
            self._consult(negotiation)
            source = negotiation
        if source.to_upstream and self._upstream.connected:
            self._upstream.send(source.to_upstream)
        if handshake.to_producer:
            self._producer.send(handshake.to_producer)
        return source.wants_upstream

    def _go_on(self) -> None:
        """Send the handshake's output to both sides, and act on the new state of the handshake."""
        handshake = self._handshake
        if self._send() and not self._connecting:
            self._connecting = True
            if self._refusal is None:
                self._tasks.start(self._connect(), "connect upstream")
            else:
                self._failure = "refused"
                handshake.reject(self._refusal)
                self._go_on()
                return
        if handshake.state is HandshakeState.OPEN:
            control = self._shared.vhosts.control
            if self._adopting:
                return  # `_adopt` opens the session, even if the vhost is ready by now or the upstream was lost
            if control is None or control.follows(handshake.vhost):
                self._opened(handshake)
            else:
                self._deadline.cancel()  # OpenOk has been sent; `bind_seconds` limits the wait for the declarations
                self._adopting = True
                self._tasks.start(self._adopt(control), "adopt vhost")
        elif handshake.close_after_flush_producer:
            self._producer.close()
            self._upstream.close()
        elif handshake.close_upstream:
            self._upstream.close()
