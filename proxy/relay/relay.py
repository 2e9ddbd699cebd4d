"""One producer connection joined to one upstream connection: bytes in, bytes out, for both sides.

The driver gives bytes, time and answers, and sends what gathers in `to_upstream` and `to_producer`. It carries out
`requests` and answers them with `release` and `resume`. No sockets.

Source: architecture, "One publish in, one publish out"; AMQP 0-9-1 spec, 4.2.7 (heartbeats).
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.amqp.frames import HEARTBEAT_FRAME
from proxy.amqp.method_frames import connection_close_ok
from proxy.errors import ProtocolError, Scope
from proxy.relay.broker_frames import BrokerFrames
from proxy.relay.channel import Channel
from proxy.relay.channel_state import CONFIRM, DECLARING, HOLDING
from proxy.relay.connection_audit import AuditCommits, ConnectionAudit
from proxy.relay.connection_state import (
    ConnectionState,
    LookUpExchange,
    PermissionCheck,
    Phase,
    QueueInventory,
    RelayLimits,
    Request,
)
from proxy.relay.counters import RelayCounters
from proxy.relay.declare.token_bindings import check_permission
from proxy.relay.handshake.greeting import Tuning
from proxy.relay.publish.plan import Plans
from proxy.relay.publish.publish_pass import PublishPass
from proxy.relay.remote.lane import Remotes


class Relay:
    """Both directions of one producer connection.

    Args:
        tuning: what the handshake agreed on, both sides.
        plans: the virtual host's plans.
        inventory: the control plane.
        limits: see Limits.
        user: the name that the producer logged in with.
    """

    __slots__ = ("_connection", "_delivering", "_publishing")

    def __init__(
        self, tuning: Tuning, plans: Plans, inventory: QueueInventory, limits: RelayLimits, user: str = ""
    ) -> None:
        """Start open, with no channel."""
        self._connection = ConnectionState(tuning, plans, inventory, limits, user)
        self._publishing = PublishPass(self._connection)
        self._delivering = BrokerFrames(self._connection)

    @property
    def to_upstream(self) -> list[bytes]:
        """Pieces for the broker, in order; the driver sends and clears them."""
        return self._connection.to_upstream

    @property
    def to_producer(self) -> list[bytes]:
        """Pieces for the producer, in order; the driver sends and clears them."""
        delayed_confirms = self._connection.delayed_confirms
        return self._connection.to_producer if delayed_confirms is None else delayed_confirms.out

    def start_audit(self, conn: str, user: str, lines: AuditCommits | None = None) -> None:
        """Write this connection's publishes to the audit log, if there is one.

        Args:
            conn: id of the connection.
            user: name the producer logged in with.
            lines: the log, where confirms have to wait for it.
        """
        connection = self._connection
        journal = connection.plans.journal
        if journal is not None:
            if lines is not None:
                connection.delay_confirms(lines)
            connection.audit = ConnectionAudit(journal, conn, user, self.vhost, connection.delayed_confirms)

    @property
    def has_delayed_confirms(self) -> bool:
        """Whether confirms wait for audit lines, or the producer's last frames do."""
        return bool(self._connection.delayed_confirms)

    @property
    def close_is_delayed(self) -> bool:
        """Whether the end of a channel or of the connection waits for confirms."""
        delayed_confirms = self._connection.delayed_confirms
        return delayed_confirms is not None and delayed_confirms.until is not None

    def audit_lines_durable(self, line: int) -> None:
        """Audit lines up to a number are on disk."""
        if self._connection.delayed_confirms is not None:
            self._connection.delayed_confirms.durable(line)

    def audit_lines_failing(self) -> None:
        """The disk refuses audit lines."""
        if self._connection.delayed_confirms is not None:
            self._connection.delayed_confirms.failing()

    def connect_remotes(self, remotes: Remotes, notify: Callable[[], None]) -> None:
        """Let publishes go to other brokers, where the address table sends them.

        Args:
            remotes: the links.
            notify: called when they have brought something that is to be sent.
        """
        self._connection.remotes = remotes
        self._connection.notify_driver = notify

    @property
    def requests(self) -> list[Request]:
        """What needs the control plane; the driver takes and clears them."""
        return self._connection.requests

    @property
    def vhost(self) -> str:
        """The virtual host the producer logged in to."""
        return self._connection.state.name

    @property
    def counters(self) -> RelayCounters:
        """What the relays of the virtual host count."""
        return self._connection.counters

    @property
    def phase(self) -> Phase:
        """How far the connection is."""
        return self._connection.phase

    @property
    def fault(self) -> ProtocolError | None:
        """The producer's fault that ended the connection, if one did."""
        return self._connection.fault

    def allow_keeping(self) -> None:
        """Let the upstream connection stand when its producer leaves it as it was at the beginning."""
        self._connection.may_be_kept = True

    @property
    def kept(self) -> bool:
        """Whether the producer has left and the upstream connection is still open, with nothing on it."""
        return self._connection.kept and self._delivering.at_boundary

    @property
    def producer_ends(self) -> bool:
        """Whether closing the socket is the producer's part: its own Connection.Close is answered."""
        return self._connection.producer_ends

    @property
    def upstream_done(self) -> bool:
        """Whether nothing more is expected from upstream."""
        return self._connection.upstream_done

    @property
    def producer_full(self) -> bool:
        """Whether so much is held, or unanswered, for the producer's channels that its socket must not be read."""
        connection = self._connection
        limits = connection.limits
        return connection.buffered.held >= limits.held_bytes or connection.unanswered.count >= limits.unanswered

    @property
    def upstream_full(self) -> bool:
        """Whether so much is kept back from the producer that the broker's socket must not be read."""
        connection = self._connection
        kept_bytes = connection.buffered.held_back
        if connection.delayed_confirms is not None:
            if connection.delayed_confirms.until is not None:
                return True
            kept_bytes += connection.delayed_confirms.size_bytes
        return kept_bytes >= connection.limits.held_bytes

    @property
    def interrupted(self) -> bool:
        """Whether a publish has spent a regex budget: what came after it waits until more is received, perhaps b""."""
        return self._publishing.interrupted

    @property
    def outstanding(self) -> int:
        """Publishes without a confirm yet, on the channel that had one last: how much a producer sends ahead."""
        channel = self._connection.confirmed
        return channel.confirms.outstanding if channel is not None else 0

    @property
    def published(self) -> int:
        """Publishes since the connection was opened."""
        connection = self._connection
        open_now = sum([channel.confirms.total for channel in connection.channels.values()])
        return connection.published_before + open_now

    @property
    def unsettled(self) -> int:
        """Publishes in confirm mode that are neither acked nor nacked yet; channels that wait count as well."""
        return sum(
            (channel.state in HOLDING) + (channel.confirms.outstanding if channel.mode is CONFIRM else 0)
            for channel in self._connection.channels.values()
        )

    def receive_from_producer(self, data: bytes, now: float) -> None:
        """Take bytes from the producer.

        Args:
            data: any piece of the stream.
            now: monotonic seconds.
        """
        connection = self._connection
        connection.now = now
        self._publishing.receive(data)
        self._go_on()

    def receive_from_upstream(self, data: bytes, now: float) -> None:
        """Take bytes from the broker.

        Args:
            data: any piece of the stream.
            now: monotonic seconds.
        """
        connection = self._connection
        connection.now = now
        try:
            self._delivering.receive(data)
        except ProtocolError as error:
            self.upstream_lost(f"the broker sent malformed frames: {error.text.decode(errors='replace')}")
        self._go_on()

    def release(self, channel: Channel) -> None:
        """The queue declared on a channel has its tokens: the producer gets its answer."""
        self._connection.released.append(channel)
        self._go_on()

    def resume(self, channel: Channel) -> None:
        """The destinations a channel waited for are bound, or known to be missing: its publishes go on."""
        self._connection.resumable.append(channel)
        self._go_on()

    def check_permission(self, check: PermissionCheck, done: Callable[[], None]) -> None:
        """Ask on this connection whether its client may bind a destination; `done` is called when it is known."""
        if self._connection.phase is Phase.OPEN:
            check_permission(self._connection, check.owned, check.reach, check.destination, done)
        else:
            done()

    def answer(self, request: LookUpExchange, found: str | None) -> None:
        """Say what `LookUpExchange` asked: the type of another's exchange of that name, None where there is none."""
        channel = request.channel
        if self._connection.phase is Phase.OPEN and channel.state is DECLARING:
            request.answer(found)
            self._go_on()

    def _go_on(self) -> None:
        connection = self._connection
        while connection.resumable or connection.released:
            if connection.resumable:
                channel = connection.resumable.pop(0)
                if connection.phase is Phase.OPEN:
                    self._publishing.resume(channel)
                continue
            channel = connection.released.pop()
            if channel.output.held_back is not None:
                self._delivering.release(channel)
        if connection.last_frame is not None and not connection.holds:
            connection.producer_leaves(connection.last_frame)
        if connection.delayed_confirms is not None:
            connection.delayed_confirms.note()

    def heartbeat_upstream(self) -> None:
        """Send a heartbeat to the broker."""
        self._connection.to_upstream.append(HEARTBEAT_FRAME)

    def close(self, reply_code: int, text: str) -> None:
        """Close both connections on our own account (drain, limits)."""
        self._connection.close(reply_code, text.encode())

    def over_limit(self, text: str) -> None:
        """Close what publishes too much: 406 on its channel, or 320 where it can't be said which one or when.

        A channel can be closed between two publishes only, and is to blame only where no other publishes.

        Args:
            text: which limit, for the producer.
        """
        connection = self._connection
        publishing = [
            channel for channel in connection.channels.values() if channel.confirms.total or channel.content is not None
        ]
        if len(publishing) != 1 or not publishing[0].interruptible:
            connection.fail(ProtocolError(320, text))
        elif connection.phase is Phase.OPEN:
            connection.refuse(publishing[0], ProtocolError(406, text, Scope.CHANNEL))

    def upstream_lost(self, reason: str) -> None:
        """The upstream link is gone: the producer is told 320, unless a close is under way already.

        Args:
            reason: what the producer reads, e.g. ``upstream connection lost``.
        """
        connection = self._connection
        connection.upstream_closing = connection.upstream_done = True
        connection.to_upstream.clear()
        if connection.phase is Phase.PRODUCER_CLOSES or connection.last_frame is not None:
            connection.producer_answered()
            connection.to_producer.append(connection_close_ok())
        connection.close(320, reason.encode())

    def ended(self) -> None:
        """Both sides are gone: take what is still counted out of the gauges."""
        connection = self._connection
        connection.phase = Phase.CLOSED
        connection.forget_all()
        connection.counters.upstream_blocked -= connection.blocked
        connection.blocked = False
