"""State shared by the two directions of one producer connection: channels, output and phases of closing.

`publish_pass` (producer to broker) and `broker_frames` (broker to producer) both modify this state; `relay` creates it,
and the driver reads it. Output is collected in `to_upstream` and `to_producer`; requests that need sockets, time or the
control plane are collected in `pending`. Related state is grouped into separate objects: `Lifecycle` (phase of the
connection), `UpstreamLink` (the upstream connection), `Deliveries`, `ConnectionTraffic`, `PendingWork`, and a `Channel`
for each channel. For publishes that are split or go to other brokers, this module also sends our own acks, nacks and
returns.

Source: AMQP 0-9-1 spec, 2.2.4 "connection" and 1.4/1.5 on closing; RabbitMQ guide "Publisher confirms".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from oxproxy.addressing.targets import Remote
from oxproxy.amqp import method_frames, methods
from oxproxy.amqp.frames import ACK_BYTES, ACK_FRAME, FRAME_END, METHOD, body_frames
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.broker_close import BrokerClose, read_close
from oxproxy.relay.channel import Backlog, Channel, PendingPublish
from oxproxy.relay.channel_state import (
    CLOSED,
    CONFIRM,
    COUNTED,
    DISCARDING,
    HOLDING,
    TX,
    ChannelEvent,
    next_state,
)
from oxproxy.relay.connection_audit import AuditCommits, ConnectionAudit, DelayedConfirms
from oxproxy.relay.handshake.greeting import Tuning
from oxproxy.relay.plan.plan import Plans
from oxproxy.relay.remote_link import RemotePublisher
from oxproxy.relay.sidecar_channel import SidecarChannel
from oxproxy.relay.vhost import OwnedExchange
from oxproxy.values import Destination

#: Minimum interval in seconds between confirms whose latency is measured on a connection.
SAMPLE_SECONDS: Final = 0.1
#: The latency of a single message does not matter if a channel has at least this many unconfirmed publishes, or a
#: prefetch count of at least this value.
AHEAD_MESSAGES: Final = 1024
#: Largest body size in bytes that compiled code supports: it uses signed 64-bit integers. The broker's limit is lower.
MOST_MESSAGE_BYTES: Final = (1 << 63) - 1
#: Minimum number of deliveries in one read for a consumer to count as streaming.
STREAMED_DELIVERIES: Final = 8
#: A connection with more channels than this never counts as streaming.
_STREAMING_CHANNELS: Final = 16


class Phase(Enum):
    """Phase of the connection."""

    OPEN = "open"
    #: the producer's Connection.Close was sent upstream; once the broker's close-ok has been relayed, both connections
    #: are closed
    PRODUCER_CLOSES = "producer closes"
    #: our Connection.Close was sent upstream because of the producer's error; once the broker's replies to earlier
    #: methods have been relayed, Connection.Close is sent to the producer
    REFUSING = "refusing"
    #: Connection.Close, from the broker or our own, was sent to the producer, whose close-ok has not arrived yet
    CLOSING = "closing"
    CLOSED = "closed"


class EnsureDestination(NamedTuple):
    """Bind the tokens of a queue, or of one of the broker's own exchanges, that was declared through this sidecar.

    `done` is called when the tokens are bound or refused.
    """

    destination: Destination
    done: Callable[[], None]


class BindDestinations(NamedTuple):
    """Bind destinations that a publish is waiting for."""

    channel: Channel
    exchange: bytes
    destinations: tuple[Destination, ...]


#: Answer to `LookUp` if the broker's exchanges could not be read, so that the exchange may or may not exist.
NOT_LOOKED_UP: Final = "not looked up"


class LookUp(NamedTuple):
    """Look up an exchange that a client uses and that is unknown here, or unknown bindings of an exchange.

    `answer` is called with the type of the broker's exchange, with None if that exchange is an open exchange or does
    not exist, or with `NOT_LOOKED_UP`. An open exchange or its bindings are added to the state before the call.
    """

    exchange: bytes
    answer: Callable[[str | None], None]
    #: if given, the exchange is known, and its bindings to this destination are looked up
    destination: Destination | None = None


class EndExchange(NamedTuple):
    """Unbind the tokens of an exchange that a client declared, if no client's binding is left on it.

    Tokens keep an exchange in use, so RabbitMQ would refuse to delete it, and would keep an auto-delete exchange.
    `done` is called with False if there are bindings, which are added to the state before the call.
    """

    owned: OwnedExchange
    done: Callable[[bool], None]


class HoldTokens(NamedTuple):
    """Bind no more tokens of an exchange that a client deletes. `done` is called when earlier binds have been answered.

    RabbitMQ 4.3 keeps a binding that is created while its exchange is deleted. If the exchange is declared again, the
    binding is listed, but routes nothing.
    """

    owned: OwnedExchange
    done: Callable[[], None]


class RestoreTokens(NamedTuple):
    """Bind the tokens of an exchange again that was to end, and that the broker has refused to delete."""

    owned: OwnedExchange


Request: TypeAlias = EnsureDestination | BindDestinations | LookUp | EndExchange | HoldTokens | RestoreTokens


class RelayLimits(NamedTuple):
    """Limits of one connection."""

    #: maximum total size of the producer's frames that are held while tokens are being bound; at the limit,
    #: reading from the producer is paused until the frames have been forwarded
    held_bytes: int = 1 << 20
    #: maximum size of a body that is sent as several copies; larger bodies are refused with 311
    replay_bytes: int = 4 << 20
    #: maximum total size of the incomplete bodies to be sent as several copies, on all channels; a publish that exceeds
    #: the limit is refused with 311
    collected_bytes: int = 16 << 20
    #: maximum size of a body
    message_bytes: int = MOST_MESSAGE_BYTES
    #: maximum number of unanswered requests about exchanges, queues and bindings; at the limit, reading from the
    #: producer is paused until replies arrive
    unanswered: int = 4096


class QueueInventory(NamedTuple):
    """Non-blocking callbacks to the control plane."""

    #: whether rules or clients' bindings name this queue, or depend on queue names
    interested: Callable[[bytes], bool]
    #: records a declared queue or one of the broker's own exchanges; the flag is True for an exclusive queue
    declared: Callable[[Destination, bool], None]
    queue_deleted: Callable[[bytes], None]
    #: records that a client has declared, deleted, bound or unbound an exchange
    changed: Callable[[bytes], None]


#: for virtual hosts without a control plane
NO_INVENTORY: Final = QueueInventory(
    lambda queue: False,
    lambda destination, exclusive: None,
    lambda queue: None,
    lambda exchange: None,
)


@dataclass(slots=True, eq=False)
class Lifecycle:
    """Phase of a connection, and the Connection.Close methods from its producer."""

    phase: Phase = Phase.OPEN
    #: the error that ended the connection, for the log; None if there was none
    fault: ProtocolError | None = None
    #: the producer's Connection.Close, held while publishes wait for their destinations
    last_frame: bytes | None = None
    #: number of further Connection.Close methods that the producer sent before the first one was answered
    further_closes: int = 0
    #: whether the producer's Connection.Close was answered, so that the producer will close the socket
    producer_ends: bool = False

    def end(self, phase: Phase) -> None:
        """Enter a phase in which nothing from the producer is relayed."""
        self.phase = phase
        self.last_frame = None


@dataclass(slots=True, eq=False)
class UpstreamLink:
    """State of the upstream connection, and the sidecar's own channel on that connection."""

    sidecar_channel: SidecarChannel
    #: whether a Connection.Close, ours or the producer's, was sent upstream
    closing: bool = False
    #: whether nothing more is expected from the broker
    done: bool = False
    blocked: bool = False
    #: whether the connection may be kept for another producer
    may_be_kept: bool = False
    #: whether the connection is kept although its producer has disconnected
    kept: bool = False
    #: the exclusive queues declared on the connection; only this connection can bind them
    exclusive_queues: set[bytes] = field(default_factory=set)

    def end(self) -> None:
        """Stop using the connection: nothing more is sent or expected."""
        self.closing = self.done = True

    def block(self, blocked: bool) -> int:
        """Record whether the broker blocks publishes; return the change in the number of blocked connections."""
        change = blocked - self.blocked
        self.blocked = blocked
        return change


@dataclass(slots=True, eq=False)
class PendingWork:
    """Work to do after a read: the driver carries out `requests`, and the relay resumes channels."""

    #: requests to the control plane; the driver takes and clears them
    requests: list[Request] = field(default_factory=list)
    #: called at the end of the current input, to send what is sent once for several methods of the producer
    at_end: list[Callable[[], None]] = field(default_factory=list)
    #: channels whose held frames can resume
    resumable: list[Channel] = field(default_factory=list)

    def resume(self, channel: Channel) -> None:
        """Add a channel to `resumable`, unless it has already been added since the last read."""
        if channel not in self.resumable:
            self.resumable.append(channel)


@dataclass(slots=True, eq=False)
class Deliveries:
    """Contents being sent to the producer, and channels on which frames from the broker are inspected."""

    #: whether the client has set a prefetch count below AHEAD_MESSAGES, so that its consumers soon wait for more
    #: deliveries
    few_at_a_time: bool = False
    #: deliveries in the last read of the broker's socket
    in_last_read: int = 0
    #: numbers of the channels on which the broker's frames are inspected instead of just being copied
    inspected: set[int] = field(default_factory=set)
    #: outstanding body bytes of the content being sent to the producer, by channel number; -1 if its header is also
    #: outstanding
    unfinished: dict[int, int] = field(default_factory=dict)

    def inspect(self, channel: Channel) -> None:
        """Record whether the broker's frames on a channel must be inspected instead of just being copied."""
        if channel.state in DISCARDING or channel.output:
            self.inspected.add(channel.number)
        else:
            self.inspected.discard(channel.number)


@dataclass(slots=True, eq=False)
class ConnectionTraffic:
    """Clock values of one connection, and the number of publishes on channels that have ended."""

    #: current time in seconds on the driver's monotonic clock, set with every input
    now: float = 0.0
    #: earliest time of the next publish whose confirm latency is measured
    sample_after: float = 0.0
    #: number of publishes on channels that have ended
    before: int = 0


class RemoteBrokers(NamedTuple):
    """Connections to other brokers, for publishes that the address table redirects to them."""

    #: returns the publisher with which a producer's channel publishes to a broker, or the reason why there is none
    publisher: Callable[[Remote, int], RemotePublisher | str]
    #: called when a result from another broker has produced output
    notify: Callable[[], None]


NO_REMOTES: Final = RemoteBrokers(lambda remote, channel: "no links", lambda: None)


def _not_logged(close: BrokerClose, unconfirmed: int) -> None:
    """Ignore a close by the broker, for connections without a log."""


class ConnectionTerms(NamedTuple):
    """Properties of a connection that are fixed by its handshake."""

    tuning: Tuning
    limits: RelayLimits = RelayLimits()
    inventory: QueueInventory = NO_INVENTORY
    #: the producer's user name
    user: str = ""
    #: called when the broker has closed a channel or the connection, with the number of unconfirmed publishes
    broker_closed: Callable[[BrokerClose, int], None] = _not_logged


class ConnectionState:
    """State of one producer connection and its upstream connection."""

    __slots__ = (
        "audit", "backlog", "channels", "deliveries", "lifecycle", "pending", "plans", "remotes", "terms",
        "to_producer", "to_upstream", "traffic", "upstream",
    )  # fmt: skip

    def __init__(self, terms: ConnectionTerms, plans: Plans) -> None:
        self.terms: Final = terms
        self.plans: Final = plans
        self.lifecycle = Lifecycle()
        self.channels: dict[int, Channel] = {}
        self.backlog = Backlog()
        #: output for the broker and for the producer, in order; the driver sends and clears it
        self.to_upstream: list[bytes] = []
        self.to_producer: list[bytes] = []
        tuning = terms.tuning
        spare = tuning.channel_max_upstream > tuning.channel_max_producer
        self.upstream = UpstreamLink(SidecarChannel(tuning.channel_max_upstream if spare else None, self.to_upstream))
        self.pending = PendingWork()
        self.deliveries = Deliveries()
        self.traffic = ConnectionTraffic()
        self.audit: ConnectionAudit | None = None
        self.remotes = NO_REMOTES

    def next_sequence(self) -> int:
        return self.plans.state.next_sequence(self.plans.sources.wall())

    def change(self, channel: Channel, event: ChannelEvent, method: int = 0) -> None:
        """Apply an event to a channel. This is the only way to change the state of a channel."""
        before = channel.state
        after = channel.state = next_state(before, event, method)
        if after is before:
            return
        self.plans.counters.channels += (after in COUNTED) - (before in COUNTED)
        if before in COUNTED and after not in COUNTED:  # earlier publishes and requests no longer matter
            self._end(channel)
        if after is CLOSED:
            del self.channels[channel.number]
            self.deliveries.inspected.discard(channel.number)
        else:
            self.deliveries.inspect(channel)

    def open_channel(self, number: int, event: ChannelEvent, method: int) -> Channel:
        """Create a channel and apply its first event, which must be Channel.Open."""
        channel = Channel(number, self.backlog)
        self.change(channel, event, method)
        self.channels[number] = channel
        return channel

    def _end(self, channel: Channel) -> None:
        if self.audit is not None:
            self.audit.lost(channel)
        self.end_confirms(channel)
        self.traffic.before += channel.confirms.total
        self.drop_content(channel)
        channel.end()

    @property
    def for_producer(self) -> list[bytes]:
        """Output that may be sent to the producer now, in order; the driver sends and clears it."""
        delayed_confirms = self.delayed_confirms
        return self.to_producer if delayed_confirms is None else delayed_confirms.out

    @property
    def close_is_delayed(self) -> bool:
        """True if the close of a channel or of the connection is waiting until confirms can be sent."""
        delayed_confirms = self.delayed_confirms
        return delayed_confirms is not None and delayed_confirms.until is not None

    @property
    def producer_full(self) -> bool:
        """True if reading from the producer is paused, since its buffered frames or requests are at a limit."""
        backlog, limits = self.backlog, self.terms.limits
        return backlog.held >= limits.held_bytes or backlog.unanswered >= limits.unanswered

    @property
    def upstream_full(self) -> bool:
        """True if reading from the broker is paused: a close is waiting, or the delayed confirms are at a limit."""
        delayed_confirms = self.delayed_confirms
        delayed_bytes = 0 if delayed_confirms is None else delayed_confirms.size_bytes
        return self.close_is_delayed or delayed_bytes >= self.terms.limits.held_bytes

    @property
    def streams(self) -> bool:
        """True if many messages are in flight, so that the latency of single messages and confirms does not matter.

        Every channel that publishes with confirms must have at least AHEAD_MESSAGES unconfirmed publishes. If there is
        no such channel, the last read must have contained at least STREAMED_DELIVERIES deliveries. In both cases, no
        prefetch count may be below AHEAD_MESSAGES. A client that waits for each confirm, for a reply or for the next of
        a few deliveries does not stream.
        """
        if self.lifecycle.phase is not Phase.OPEN or self.upstream.blocked or self.backlog.unanswered:
            return False
        if self.deliveries.few_at_a_time or len(self.channels) > _STREAMING_CHANNELS:
            return False
        publishes = False
        for channel in self.channels.values():
            if channel.mode is TX:
                return False
            if channel.mode is CONFIRM and channel.confirms.published:
                if channel.confirms.outstanding < AHEAD_MESSAGES:
                    return False
                publishes = True
        return publishes or self.deliveries.in_last_read >= STREAMED_DELIVERIES

    @property
    def published(self) -> int:
        return self.traffic.before + sum([channel.confirms.total for channel in self.channels.values()])

    @property
    def unsettled(self) -> int:
        """Number of unsettled publishes in confirm mode, plus one for each channel that holds frames."""
        return sum(
            (channel.state in HOLDING) + (channel.confirms.outstanding if channel.mode is CONFIRM else 0)
            for channel in self.channels.values()
        )

    @property
    def holds(self) -> bool:
        return any(channel.state in HOLDING for channel in self.channels.values())

    def forget_all(self) -> None:
        """End all channels, and discard the frames that they hold."""
        for channel in tuple(self.channels.values()):
            self.change(channel, ChannelEvent.END)
            channel.held.take()

    def producer_leaves(self, frame: bytes) -> None:
        """Send the producer's Connection.Close upstream; outstanding frames from the broker are still relayed.

        If the upstream connection can be reused, it is kept, and the sidecar answers the close itself.
        """
        upstream = self.upstream
        as_new = not (upstream.blocked or upstream.sidecar_channel.used or self.channels or self.deliveries.unfinished)
        if upstream.may_be_kept and as_new:
            upstream.end()
            upstream.kept = True
            self.producer_answered()
            self.to_producer.append(method_frames.connection_close_ok())
            return
        self.lifecycle.end(Phase.PRODUCER_CLOSES)
        upstream.closing = True
        for channel in self.channels.values():
            self.drop_content(channel)
        self.to_upstream.append(frame)

    def producer_answered(self) -> None:
        """End the connection, and answer each further Connection.Close from the producer, as RabbitMQ does."""
        self.finish()
        self.lifecycle.producer_ends = True
        self.to_producer += [method_frames.connection_close_ok()] * self.lifecycle.further_closes

    def finish(self) -> None:
        self.lifecycle.end(Phase.CLOSED)
        self.forget_all()

    def send_to_producer(self, channel: Channel, frames: bytes) -> None:
        """Send our own methods to the producer, but not between the frames of a content (spec, 4.2.6)."""
        if channel.number in self.deliveries.unfinished:
            channel.output.deferred.append(frames)
            self.deliveries.inspect(channel)
        else:
            self.to_producer.append(frames)

    def start_audit(self, conn: str, lines: AuditCommits | None = None) -> None:
        """Start writing this connection's publishes to the audit log, if there is one."""
        journal, delayed_confirms = self.plans.journal, None
        if journal is None:
            return
        if lines is not None:
            delayed_confirms = DelayedConfirms(
                lines, self.to_producer, lambda number, frames: self.send_to_producer(self.channels[number], frames)
            )
        self.audit = ConnectionAudit(journal, conn, self.terms.user, self.plans.state.name, delayed_confirms)

    @property
    def delayed_confirms(self) -> DelayedConfirms | None:
        """Confirms that are waiting for their audit records; None if confirms need not wait."""
        return self.audit.delayed_confirms if self.audit is not None else None

    def delay_confirm(self, channel: Channel, confirm: bytes) -> bool:
        """Delay a confirm for the producer if it has to wait for an audit record; return whether it was delayed."""
        delayed_confirms = self.delayed_confirms
        if self.audit is None or delayed_confirms is None:
            return False
        self.audit.flush()
        if not delayed_confirms.waits(channel):
            return False
        delayed_confirms.keep(channel, confirm)
        return True

    def end_confirms(self, channel: Channel) -> None:
        """Prepare to close a channel. If possible, the close is sent after the delayed confirms."""
        if self.delayed_confirms is not None:
            self.delayed_confirms.end(channel.number, channel.number in self.deliveries.unfinished)

    def note_settled(self, channel: Channel) -> None:
        """Record the latency of the sampled confirm, and forget mandatory publishes that can no longer be returned."""
        confirms = channel.confirms
        mandatory = channel.audit.mandatory
        while mandatory and mandatory[0][0] <= confirms.before + confirms.settled.low:
            mandatory.popleft()
        if confirms.sample is not None and confirms.settled.low >= confirms.sample[0]:
            tag, since = confirms.sample
            seconds = self.traffic.now - since
            self.plans.confirm_timing.observe(seconds)
            if self.audit is not None:
                self.audit.settled(channel, tag, "acked", seconds * 1e6)
            confirms.sample = None
            self.traffic.sample_after = self.traffic.now + SAMPLE_SECONDS

    def send_confirm(self, channel: Channel, producer_tag: int, acked: bool) -> None:
        """Send our own ack or nack for a publish that involved several brokers or several upstream publishes."""
        confirms = channel.confirms
        if confirms.returns:
            confirms.returns.settled(confirms.before + producer_tag)
        confirms.settled.settle(producer_tag, False, confirms.published)
        if not acked:
            self.note_nack(channel, producer_tag)
        self.note_settled(channel)
        if acked:
            self.plans.counters.confirms_acked += 1
            frame = ACK_FRAME.pack(METHOD, channel.number, ACK_BYTES, methods.BASIC_ACK, producer_tag, 0, FRAME_END)
        else:
            self.plans.counters.confirms_nacked += 1
            frame = methods.method_frame(channel.number, methods.BASIC_NACK, producer_tag, False, False)
        if not self.delay_confirm(channel, frame):
            self.send_to_producer(channel, frame)

    def send_return(self, publish: PendingPublish, header: bytes, body: bytes) -> None:
        """Send our own return for a mandatory publish that no broker could route to a queue."""
        channel = publish.channel
        method = method_frames.basic_return(channel.number, 312, b"NO_ROUTE", publish.exchange, publish.routing_key)
        self.note_return(channel, method, header)
        body_parts = body_frames(channel.number, body, self.terms.tuning.frame_max_producer)
        self.send_to_producer(channel, b"".join((method, header, *body_parts)))

    def note_return(self, channel: Channel, method: bytes, header: bytes = b"") -> None:
        """Record that a publish is returned to the producer."""
        self.plans.counters.returns += 1
        if self.audit is None and self.plans.failures is None:
            return
        code, text, exchange, routing_key = method_frames.read_method(method_frames.Return, method[7:-1])
        reason = f"{code} {text.decode(errors='backslashreplace')}"
        failures, number = self.plans.failures, channel.audit.take_recorded(exchange, routing_key)
        if failures is not None and number:
            failures.returned(number, reason)
        else:
            self.plans.fail(self.terms.user, channel.number, "returned", reason, (exchange, routing_key), header)
        if self.audit is not None:
            self.audit.returned(channel, exchange, routing_key, code)

    def note_nack(self, channel: Channel, producer_tag: int) -> None:
        confirms = channel.confirms
        if confirms.sample is not None and confirms.sample[0] == producer_tag:
            confirms.sample = None  # the latency is measured only for acks
        number = confirms.before + producer_tag
        reason = f"the broker refused publish {number} of the channel"
        self.plans.fail(self.terms.user, channel.number, "nacked", reason)
        if self.audit is not None:
            self.audit.settled(channel, producer_tag, "nacked")

    def note_broker_close(self, number: int, frame: bytes, channels: Iterable[Channel]) -> None:
        """Record that the broker closes a channel or, if `number` is 0, the connection with all channels."""
        close = read_close(number, frame)
        self.plans.counters.broker_closes[close.reply_code] += 1
        unconfirmed = 0
        for channel in channels:
            channel.audit.close_reason = close.reason
            unconfirmed += channel.confirms.outstanding if channel.mode is CONFIRM else 0
        if unconfirmed or not close.is_answer:
            self.plans.fail(self.terms.user, number, "closed", close.described)
        self.terms.broker_closed(close, unconfirmed)

    def drop_content(self, channel: Channel) -> None:
        """Forget the publish in progress, for which no more frames are expected."""
        content, channel.content = channel.content, None
        if content is not None and content.collected is not None:
            self.backlog.collected -= content.collected.body_size

    def refuse(self, channel: Channel, error: ProtocolError) -> None:
        """Answer a producer's protocol error on one channel by immediately sending Channel.Close to both sides.

        Earlier publishes are not affected, since the broker receives them before our close.
        """
        self.plans.counters.protocol_errors[error.reply_code] += 1
        self.change(channel, ChannelEvent.REFUSE)
        text = method_frames.reply_text(error.reply_code, error.text)
        number = channel.number
        self.send_to_producer(
            channel, method_frames.channel_close(number, error.reply_code, text, error.class_id, error.method_id)
        )
        self.to_upstream.append(method_frames.channel_close(number, 200, b"closed by the proxy", 0, 0))
        self.take_held_again(channel)

    def take_held_again(self, channel: Channel) -> None:
        """Schedule a channel's held frames for processing in the channel's current state."""
        if channel.held:
            self.pending.resume(channel)

    def fail(self, error: ProtocolError) -> None:
        """Answer a producer's protocol error on the connection by closing both sides.

        As on RabbitMQ, the replies to earlier methods precede the close, in particular the confirms of publishes, which
        the producer would otherwise send again.
        """
        if self.lifecycle.phase is not Phase.OPEN:
            return
        if error.scope is Scope.CHANNEL:
            error = ProtocolError(error.reply_code, error.text, Scope.CONNECTION, error.class_id, error.method_id)
        self.lifecycle.fault = error
        self.plans.counters.protocol_errors[error.reply_code] += 1
        self._close_upstream()
        self.lifecycle.end(Phase.REFUSING)
        for channel in self.channels.values():
            self.drop_content(channel)
        if self.upstream.blocked:  # the broker does not read our close
            self.end_refusal()

    def end_refusal(self) -> None:
        """Send Connection.Close to a producer that is being refused, since no more replies are expected."""
        error = self.lifecycle.fault
        if self.lifecycle.phase is Phase.REFUSING and error is not None:
            self._close_producer(error.reply_code, error.text, error.class_id, error.method_id)

    def close(self, reply_code: int, text: bytes) -> None:
        """Close both connections on our own initiative, unless they are already being closed."""
        if self.lifecycle.phase is Phase.OPEN:
            self._close_upstream()
            self._close_producer(reply_code, text)

    def _close_upstream(self) -> None:
        """Send Connection.Close to the broker; the connection ends when CloseOk arrives or the socket is lost."""
        if not self.upstream.closing:
            self.upstream.closing = True
            self.to_upstream.append(method_frames.connection_close(200, b"Goodbye"))

    def _close_producer(self, reply_code: int, text: bytes, class_id: int = 0, method_id: int = 0) -> None:
        self.lifecycle.end(Phase.CLOSING)
        self.forget_all()
        self.to_producer.append(
            method_frames.connection_close(reply_code, method_frames.reply_text(reply_code, text), class_id, method_id)
        )
        self.to_producer += [method_frames.connection_close_ok()] * self.lifecycle.further_closes
