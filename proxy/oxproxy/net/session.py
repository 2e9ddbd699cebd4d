"""One producer connection and its upstream connection: sockets, heartbeats, back-pressure and closing.

During the handshake, `opening` handles the received bytes. Then, `relay.relay` handles the bytes, and decides what to
send and when to close. Sources: architecture, "One publish in, one publish out"; AMQP 0-9-1 spec, 4.2.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from secrets import token_hex
from time import monotonic

import structlog

from oxproxy.errors import UpstreamError
from oxproxy.net.context import SessionContext
from oxproxy.net.heartbeats import Heartbeats
from oxproxy.net.link import Link, ReadPauses
from oxproxy.net.opening import Opening
from oxproxy.net.remote.pool import ProducerRemotes
from oxproxy.net.tasks import Tasks
from oxproxy.net.throttle import Throttle
from oxproxy.relay.broker_close import BrokerClose
from oxproxy.relay.connection_state import (
    NO_REMOTES,
    NOT_LOOKED_UP,
    BindDestinations,
    ConnectionTerms,
    EndExchange,
    EnsureDestination,
    HoldTokens,
    Phase,
    RemoteBrokers,
    Request,
    RestoreTokens,
)
from oxproxy.relay.handshake.machine import Handshake
from oxproxy.relay.relay import Relay

_log = structlog.get_logger(__name__)


class Session:
    """One producer connection.

    It connects its parts (links, opening, relay, heartbeats, throttle), each of which owns its state; the other
    attributes are needed when the connection ends.

    Args:
        ended: called once when both sockets are closed.
        refusal: reply text with which the producer is refused during the handshake; None if it is admitted.
    """

    def __init__(
        self,
        context: SessionContext,
        ended: Callable[[Session], None],
        refusal: str | None = None,
    ) -> None:
        self._shared = context
        self._refusal = refusal
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self.producer = Link(self._from_producer, self._producer_lost, self._producer_writable, self._accepted)
        self._upstream = Link(self._from_upstream, self._upstream_lost, self._upstream_writable, self._connected)
        self._read_pauses = ReadPauses()
        self._opening: Opening | None = None
        self.relay: Relay | None = None
        self._deadline: asyncio.TimerHandle | None = None
        idle = context.limits.idle_seconds
        self._heartbeats = Heartbeats(self.producer, self._upstream, idle, self._flush, self._idle)
        self._throttle: Throttle | None = None
        #: ends the pause of a producer after expensive decisions; and whether the producer counts as throttled
        self._decision_pause: tuple[asyncio.TimerHandle, bool] | None = None
        #: identifies the connection in audit records
        self.id, self._user = token_hex(6), ""
        self._over = self._woken = False
        self._remotes: ProducerRemotes | None = None
        self._keep: Callable[[], None] | None = None
        self._log = _log

    # -- lifecycle ---------------------------------------------------------------------------------------------

    def _accepted(self) -> None:
        self._log = _log.bind(peer=self.producer.peer_name)
        self._opening = Opening(
            self._shared, self.producer, self._upstream, self._tasks, self._opened, self._log, self._refusal
        )

    def _connected(self) -> None:
        if self._opening is not None:
            self._opening.connected()

    def _opened(self, handshake: Handshake) -> None:
        """Start passing bytes to the relay, since both sides are open."""
        tuning, vhosts = handshake.tuning, self._shared.vhosts
        plans = vhosts.plans(handshake.vhost)
        limits, inventory = self._shared.limits.relay, vhosts.inventory(handshake.vhost)
        self._log = self._log.bind(vhost=handshake.vhost, user=handshake.user, name=handshake.client_name)
        # A method of this object would be a reference cycle.
        broker_closed = partial(_log_broker_close, self._log, handshake.user)
        terms = ConnectionTerms(tuning, limits, inventory, handshake.user, broker_closed)
        self.relay = relay = Relay(terms, plans)
        connection = relay.connection
        if self._opening is not None:
            if (lease := self._opening.lease) is not None and self._shared.reuse is not None:
                self._keep = partial(self._shared.reuse.keep, self._upstream, lease, tuning.heartbeat_upstream)
                connection.upstream.may_be_kept = True
            self._opening.end()
            self._opening = None
        audit = self._shared.audit
        connection.start_audit(self.id, audit if audit is not None and audit.strict else None)
        self._remotes = self._shared.remotes.port(handshake.vhost, partial(self._pause_producer, "remote is slow"))
        connection.remotes = RemoteBrokers(self._remotes.publisher, self._wake)
        self._user = handshake.user
        vhosts.open_connections[handshake.vhost] += 1
        counters = self._shared.counters
        for side in (counters.downstream, counters.upstream):
            side.results["ok"] += 1
            side.open += 1
        self._log.info("producer connected")
        now = monotonic()
        self._heartbeats.start(relay, tuning, now, self._log)
        if self._shared.allowances:
            pause, flush = partial(self._pause_producer, "throttled"), lambda: self._flush(relay, monotonic())
            allowance = self._shared.allowances.acquire(handshake.user, now)
            self._throttle = Throttle(allowance, relay, counters.limits, pause, flush)
        if handshake.leftover_upstream:
            relay.broker_sent(handshake.leftover_upstream, now)
        if handshake.leftover_producer:
            self._from_producer(handshake.leftover_producer)
        self._flush(relay, now)
        if not self._upstream.connected:  # it was lost while the declarations of the virtual host were being loaded
            self._upstream_lost(None)

    def settling(self) -> bool:
        """If publishes are unconfirmed, stop reading from the producer until `close`, and return True."""
        if self.relay is None or not self.relay.connection.unsettled:
            return False
        self._pause_producer("draining", True)
        return True

    def close(self, reply_code: int, text: str) -> None:
        """Close both connections on our own initiative."""
        if self.relay is None:
            self.abort()
        else:
            self.relay.connection.close(reply_code, text.encode())
            self._flush(self.relay, monotonic())
            self._pause_producer("draining", False)

    def abort(self) -> None:
        self.producer.abort()
        self._upstream.abort()
        if not self.producer.connected and not self._upstream.connected:
            self._finish()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- bytes -------------------------------------------------------------------------------------------------

    def _from_producer(self, data: bytes) -> None:
        relay = self.relay
        now = monotonic()
        beats = self._heartbeats
        beats.producer.read_at = now
        if relay is not None:
            if beats.watches_idle:
                beats.saw(data, now)
            relay.producer_sent(data, now)
            self._flush(relay, now)
            if self._shared.audit is not None and self._shared.audit.full:
                self.audit_full(True)
            if self._throttle is not None:
                self._throttle.read(len(data), now)
            if relay.connection.streams:
                self._read_pauses.begin(self.producer, len(data))
        elif self._opening is not None:
            self._opening.from_producer(data)

    def _pause_after_decisions(self, relay: Relay, begin: float) -> None:
        """Serve other producers after decisions that have taken long since the time `begin`.

        If a publish has exhausted a budget, the producer is also throttled.
        """
        if self._decision_pause is None and not self._over:
            limits, seconds = self._shared.counters.limits, 0.0
            if relay.over_budget:
                limits.hits["regex_budget"] += 1
                limits.throttled += 1
                seconds = self._shared.pacing.pause_seconds(begin, monotonic())
            self._pause_producer("decisions", True)
            self._decision_pause = self._loop.call_later(seconds, self._resume_after_decisions), relay.over_budget

    def _resume_after_decisions(self) -> None:
        """End the pause, and process bytes that have already been read."""
        self._end_decision_pause()
        self._from_producer(b"")

    def _end_decision_pause(self) -> None:
        if self._decision_pause is not None:
            timer, throttled = self._decision_pause
            timer.cancel()
            self._decision_pause = None
            self._shared.counters.limits.throttled -= throttled
            self._pause_producer("decisions", False)

    def _from_upstream(self, data: bytes) -> None:
        relay = self.relay
        now = monotonic()
        beats = self._heartbeats
        beats.upstream.read_at = now
        if relay is not None:
            if beats.watches_idle:
                beats.saw(data, now)
            relay.broker_sent(data, now)
            self._flush(relay, now)
            if relay.connection.streams:
                self._read_pauses.begin(self._upstream, len(data))
        elif self._opening is not None:
            self._opening.from_upstream(data)

    def _flush(self, relay: Relay, now: float) -> None:
        """Send the relay's output to both sides, start its requests, and close sockets that are no longer needed."""
        connection = relay.connection
        if connection.to_upstream:
            self._heartbeats.upstream.wrote_at = now
            self._upstream.send(connection.to_upstream)
        if for_producer := connection.for_producer:
            self._heartbeats.producer.wrote_at = now
            self.producer.send(for_producer)
        if requests := connection.pending.requests:
            asked = tuple(requests)
            requests.clear()
            for request in asked:
                self._tasks.start(self._carry_out(relay, request), "bind")
        if (producer_full := connection.producer_full) != self.producer.paused_for("held"):
            self._pause_producer("held", producer_full)
        if (upstream_full := connection.upstream_full) != self._upstream.paused_for("held"):
            self._upstream.pause("held", upstream_full)
        if relay.interrupted:
            self._pause_after_decisions(relay, now)
        if connection.lifecycle.phase is not Phase.OPEN:
            self._ending(relay)

    def _wake(self) -> None:
        """Flush once for all events from other brokers in this iteration of the event loop."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._woke)

    def _woke(self) -> None:
        self._woken = False
        if self.relay is not None and not self._over:
            self._flush(self.relay, monotonic())

    def audit_durable(self, sequence: int) -> None:
        """Release the confirms that waited for audit records, since the records up to `sequence` are on disk."""
        if self.relay is not None and (delayed_confirms := self.relay.connection.delayed_confirms):
            delayed_confirms.durable(sequence)
            self._flush(self.relay, monotonic())

    def audit_failing(self) -> None:
        """Handle a disk that rejects audit records or does not respond."""
        if self.relay is not None and (delayed_confirms := self.relay.connection.delayed_confirms):
            delayed_confirms.failing()
            self._flush(self.relay, monotonic())

    def audit_full(self, full: bool) -> None:
        """Pause the producer while the audit buffer is full, or end the pause.

        A connection that has not published is not paused.
        """
        if self.relay is not None and (not full or self.relay.connection.published):
            self._pause_producer("audit", full)

    async def _carry_out(self, relay: Relay, request: Request) -> None:
        """Carry out a request from the relay. If there is no reply by the deadline, the relay continues without it."""
        control = self._shared.vhosts.control_of(relay.connection.plans.state.name)
        exchange_type: str | None = None
        ended = True
        try:
            async with asyncio.timeout(self._shared.limits.bind_seconds):
                if control is None:
                    pass
                elif isinstance(request, EnsureDestination):
                    await control.ensure(request.destination)
                elif isinstance(request, BindDestinations):
                    await control.bind(request.exchange, request.destinations)
                elif isinstance(request, EndExchange):
                    ended = await control.end(request.owned)
                elif isinstance(request, HoldTokens):
                    await control.hold(request.owned)
                elif isinstance(request, RestoreTokens):
                    await control.restore(request.owned)
                else:
                    exchange_type = await control.look_up(request.exchange, request.destination)
        except (TimeoutError, UpstreamError) as error:
            self._log.warning("control plane did not respond", request=type(request).__name__, error=str(error))
            exchange_type, ended = NOT_LOOKED_UP, False
        finally:
            if not self._over:
                relay.answer(request, exchange_type, ended=ended)
                self._flush(relay, monotonic())

    # -- closing -----------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        self._shared.counters.limits.hits["idle"] += 1
        seconds = self._shared.limits.idle_seconds
        self._log.info("producer is idle", seconds=seconds)
        self.close(320, f"only heartbeats were received for {seconds:g} s (idle_timeout)")

    def _ending(self, relay: Relay) -> None:
        if self._throttle is not None:
            self._throttle.end()  # the producer's final frames must be read
        phase = relay.connection.lifecycle.phase
        if phase is Phase.PRODUCER_CLOSES:
            return  # the broker is still processing earlier frames; the producer decides how long to wait
        if phase is Phase.CLOSED:
            if not relay.connection.close_is_delayed and not relay.connection.lifecycle.producer_ends:
                self.producer.close()
            if relay.kept and self._keep is not None:
                self._keep()
            self._upstream.close()
        elif relay.connection.upstream.done:
            self._upstream.close()
        if self._deadline is None:
            self._deadline = self._loop.call_later(self._shared.limits.close_seconds, self._overdue)

    def _overdue(self) -> None:
        """Abort the connection or, if the producer is being refused, send Connection.Close without further waiting."""
        relay = self.relay
        if relay is None or relay.connection.lifecycle.phase is not Phase.REFUSING:
            self.abort()
            return
        self._deadline = None
        relay.connection.end_refusal()
        self._flush(relay, monotonic())

    def _producer_writable(self, writable: bool) -> None:
        self._upstream.pause("producer is slow", not writable)

    def _upstream_writable(self, writable: bool) -> None:
        self._pause_producer("upstream is slow", not writable)

    def _pause_producer(self, reason: str, paused: bool) -> None:
        before = self.producer.paused
        self.producer.pause(reason, paused)
        if self.relay is not None:
            self.relay.connection.plans.counters.paused_producers += self.producer.paused - before

    def _producer_lost(self, error: Exception | None) -> None:
        # Only whole frames were sent upstream, and the broker drops an incomplete publish.
        self._upstream.close()
        if self._opening is not None:
            self._opening.producer_lost()
        if not self._upstream.connected:
            self._finish()
        else:
            self._leave(self._upstream.waiting_bytes)

    def _leave(self, waiting_bytes: int) -> None:
        """Send the remaining publishes to the broker. Abort if nothing is sent for `close_seconds`."""
        self._cancel_deadline()
        self._deadline = self._loop.call_later(self._shared.limits.close_seconds, self._left, waiting_bytes)

    def _left(self, before_bytes: int) -> None:
        waiting_bytes = self._upstream.waiting_bytes
        if waiting_bytes < before_bytes:
            self._leave(waiting_bytes)
        else:
            self._upstream.abort()

    def _upstream_lost(self, error: Exception | None) -> None:
        self._pause_producer("upstream is slow", False)  # the upstream write buffer will no longer drain
        if self.relay is not None and self.producer.connected:
            self.relay.upstream_lost("upstream connection lost")
            self._flush(self.relay, monotonic())
        elif self._opening is not None and self.producer.connected:
            self._opening.upstream_lost(error)
        if not self.producer.connected:
            self._finish()

    def _finish(self) -> None:
        """Clean up after both sockets are closed."""
        if self._over:
            return
        self._over = True
        self._cancel_deadline()
        self._heartbeats.stop()
        self._read_pauses.end()
        self._end_decision_pause()
        if self._throttle is not None:
            self._throttle.end()
            self._shared.allowances.release(self._throttle.allowance)
        self._tasks.cancel()
        counters = self._shared.counters
        relay = self.relay
        if relay is not None:
            relay.connection.plans.counters.paused_producers -= self.producer.paused
            relay.ended()
            if self._remotes is not None:
                self._remotes.close()
                relay.connection.remotes = NO_REMOTES
            self._shared.vhosts.open_connections[relay.connection.plans.state.name] -= 1
            counters.downstream.open -= 1
            counters.upstream.open -= 1
            fault = relay.connection.lifecycle.fault
            if fault is not None:
                self._log.warning("producer closed because of an error", fault=str(fault))
            else:
                self._log.info("producer disconnected")
        elif self._opening is not None:
            self._opening.failed()
        self._ended(self)
        self._end_cycles()

    def _end_cycles(self) -> None:
        """Remove reference cycles, so that the session is freed immediately.

        The garbage collector does not free objects that exist during a reload (`app.reload`).
        """
        self.producer.end()
        self._upstream.end()
        self.relay = self._remotes = self._throttle = self._opening = self._keep = None


def _log_broker_close(
    log: structlog.typing.FilteringBoundLogger, user: str, close: BrokerClose, unconfirmed: int
) -> None:
    """Log an error of the broker. The log limits repetitions, since a producer may repeat its error forever."""
    write = log.info if close.is_answer and not unconfirmed else log.warning
    event = "the broker closed a channel" if close.channel else "the broker closed the connection"
    fields = {"channel": close.channel} if close.channel else {}
    repeat = (user, close.reason)
    write(event, **fields, reason=close.reason, method=close.method, unconfirmed=unconfirmed, repeat=repeat)
