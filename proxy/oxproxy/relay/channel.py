"""One channel: its state and mode, content in progress, held frames, pending confirms and expected replies.

A producer's channel and the upstream channel with the same number share one `Channel`, from Channel.Open until both
sides have closed it. When the number is reused, a new `Channel` is created. Only `ConnectionState.change` changes
the state (see `channel_state`). The other attributes are grouped into objects that keep their counts consistent.

`PublishPass` may process a publish itself if the channel is OPEN or OPENING and ``channel.content`` is None.

Source: AMQP 0-9-1 spec, 1.5 "channel" and 4.2.6 "content framing". RabbitMQ drops the frames on a closing channel, but
drops a content only as a whole, so a content that was started upstream must be completed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oxproxy.addressing.targets import Publication, Remote
from oxproxy.amqp.frames import BODY, FRAME_HEAD, HEADER
from oxproxy.relay.channel_state import CLOSED, NORMAL, ChannelMode, ChannelState
from oxproxy.relay.confirm_ledger import Ledger, Returns, Settled
from oxproxy.relay.plan.outgoing import Copy, RemoteTargets
from oxproxy.relay.remote_link import RemotePublisher
from oxproxy.values import Destination

#: Used in `ContentUnderWay.remaining` and `Deliveries.unfinished` while the content header is outstanding.
HEADER_TO_COME: Final = -1
#: Maximum number of unroutable publishes whose returns are expected, per channel; the oldest are forgotten.
_UNROUTABLE: Final = 256


@dataclass(slots=True, eq=False)
class PendingPublish:
    """A Basic.Publish method as sent by the producer."""

    #: the whole method frame
    frame: bytes
    exchange: bytes
    routing_key: bytes
    channel: Channel
    #: whether an unroutable message is to be returned
    mandatory: bool


class CollectedPublish(NamedTuple):
    """A publish that is sent as several copies. Its body is buffered until it is complete."""

    publish: PendingPublish
    #: the producer's address
    original: Publication
    #: the producer's whole content header frame
    header: bytes
    copies: Sequence[Copy]
    #: announced size of the body in bytes
    body_size: int
    body: bytearray
    #: targets on other brokers, and failed translations
    remote_targets: RemoteTargets | None = None


@dataclass(slots=True, eq=False)
class Backlog:
    """Buffered bytes and outstanding requests on all channels of one connection. The limits are in `RelayLimits`.

    Requests are limited because each uses memory until it is answered, and a broker that hangs never answers.
    """

    #: total size, as announced by their headers, of the bodies that are being buffered to be sent as several copies
    collected: int = 0
    #: bytes of held frames from the producer
    held: int = 0
    #: number of requests that the broker has not answered yet
    unanswered: int = 0


@dataclass(slots=True, eq=False)
class ContentUnderWay:
    """A publish whose content is incomplete. A channel without such a publish expects a method."""

    #: the publish's method; may be None once the content header has arrived
    publish: PendingPublish | None
    #: outstanding body bytes, or `HEADER_TO_COME`
    remaining: int = HEADER_TO_COME
    #: the publish, if it is buffered until its body is complete
    collected: CollectedPublish | None = None

    @property
    def begun(self) -> bool:
        """True if part of the content has been sent upstream, so that the content must be completed."""
        return self.remaining != HEADER_TO_COME and self.collected is None


class HeldFrames:
    """Frames from the producer that are held while the channel is in one of the states in `HOLDING`."""

    __slots__ = ("_backlog", "asked", "batches", "frames", "looked_up")

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self.frames: list[bytes] = []
        #: the exchange that is being looked up for the publish with which the held frames begin; b"" if there is none
        self.looked_up = b""
        #: destinations that were requested from the control plane for the publish with which the held frames begin
        self.asked: frozenset[Destination] = frozenset()
        #: Number of batches of binds that the broker has not answered yet. While a channel waits only for binds,
        #: further binds need not wait.
        self.batches = 0

    def __bool__(self) -> bool:
        return bool(self.frames)

    def keep(self, frames: list[bytes]) -> None:
        self.frames += frames
        self._backlog.held += sum(map(len, frames))

    def take(self) -> list[bytes]:
        frames, self.frames, self.looked_up = self.frames, [], b""
        self._backlog.held -= sum(map(len, frames))
        return frames


class ProducerOutput:
    """State of the output to the producer on one channel, apart from frames that are just copied."""

    __slots__ = ("close_oks", "deferred", "returned", "swallowed")

    def __init__(self) -> None:
        #: our own methods, which are sent after the content in progress
        self.deferred: list[bytes] = []
        #: number of close-oks to send after the broker's close-ok, for further closes from the producer
        self.close_oks = 0
        #: method frame of a return, delivery or get-ok whose content header has not arrived yet
        self.returned: bytes | None = None
        #: outstanding body bytes of a return that the producer must not see
        self.swallowed = 0

    def __bool__(self) -> bool:
        """Return True if the broker's frames must be inspected."""
        return bool(self.deferred or self.returned is not None or self.swallowed)


@dataclass(slots=True, eq=False)
class PendingConfirms:
    """Counts the publishes of a channel and their confirms."""

    #: number of publishes before Confirm.Select; these have no delivery tags
    before: int = 0
    #: number of publishes since Confirm.Select; equal to the latest delivery tag
    published: int = 0
    settled: Settled = field(default_factory=Settled)
    #: combines confirms; None until the first publish that is sent as several copies
    ledger: Ledger | None = None
    #: tracks the publishes that are sent as several copies, since the broker may return each copy separately
    returns: Returns | None = None
    #: the value of `total` at each commit or rollback that has not been answered yet
    transactions: deque[int] = field(default_factory=deque)
    #: (delivery tag, time of the publish) of the confirm whose latency is being measured
    sample: tuple[int, float] | None = None

    @property
    def total(self) -> int:
        return self.before + self.published

    @property
    def outstanding(self) -> int:
        """Number of delivery tags that are neither acked nor nacked, in confirm mode."""
        return self.published - self.settled.count

    def select(self) -> None:
        """Restart the count: the first publish after Confirm.Select has tag 1 (RabbitMQ guide "Publisher confirms")."""
        self.before += self.published
        self.published = 0


@dataclass(slots=True, eq=False)
class ChannelAudit:
    """Audit data of a channel."""

    #: part that all lines of the channel have in common, created with the first line
    origin: str = ""
    #: number of the channel's last line in the audit log, if confirms wait for lines
    line: int = 0
    #: (number, exchange, routing key, message id, fields of the decision) of mandatory publishes, used to identify and
    #: record returns
    mandatory: deque[tuple[int, bytes, bytes, bytes | None, str]] | None = None
    #: (exchange, routing key, number) of the mandatory publishes that are recorded as unroutable, oldest first
    unroutable: deque[tuple[bytes, bytes, int]] | None = None
    #: why the broker closes the channel, so that its unsettled publishes are lost
    close_reason: str | None = None

    def expect_return(self, exchange: bytes, routing_key: bytes, number: int) -> None:
        """Keep the number with which a mandatory publish was recorded as unroutable."""
        if self.unroutable is None:
            self.unroutable = deque(maxlen=_UNROUTABLE)
        self.unroutable.append((exchange, routing_key, number))

    def take_recorded(self, exchange: bytes, routing_key: bytes) -> int:
        """Return the number with which a returned publish is already recorded as unroutable; 0 if it is not.

        Returns arrive in the order of the publishes.
        """
        for recorded in self.unroutable or ():
            if self.unroutable is not None and recorded[:2] == (exchange, routing_key):
                self.unroutable.remove(recorded)
                return recorded[2]
        return 0


class ExpectedReply(NamedTuple):
    """An outstanding reply from the broker. The replies on a channel arrive in the order of the requests."""

    #: (class << 16 | method) of the reply
    reply: int
    #: handles the reply's frame and returns whether to forward it; if None, the frame is always forwarded
    taken: Callable[[bytes], bool] | None = None
    #: called if the channel is closed before the reply arrives
    dropped: Callable[[], None] | None = None


class Replies:
    """Outstanding replies on a channel, in order."""

    __slots__ = ("_backlog", "_expected")

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._expected: deque[ExpectedReply] = deque()

    def __len__(self) -> int:
        return len(self._expected)

    @property
    def next(self) -> ExpectedReply:
        """The next outstanding reply, which must exist."""
        return self._expected[0]

    def append(self, expected: ExpectedReply) -> None:
        self._backlog.unanswered += 1
        self._expected.append(expected)

    def popleft(self) -> ExpectedReply:
        expected = self._expected.popleft()
        self._backlog.unanswered -= 1
        return expected

    def drop(self) -> None:
        """Expect no further replies, since the channel is closed."""
        while self._expected:
            dropped = self.popleft().dropped
            if dropped is not None:
                dropped()


class Channel:
    """State of one channel of a connection."""

    __slots__ = (
        "audit", "body_start", "broker_closed", "confirms", "content", "held", "last_queue", "mode", "number", "output",
        "remote_publishers", "replies", "short_header", "state",
    )  # fmt: skip

    def __init__(self, number: int, backlog: Backlog) -> None:
        self.number = number
        #: the first five octets of a content header frame of less than 64 KiB: type, channel and the upper half of the
        #: size
        self.short_header: Final = FRAME_HEAD.pack(HEADER, number, 0)[:5]
        #: the first three octets of a body frame: type and channel
        self.body_start: Final = FRAME_HEAD.pack(BODY, number, 0)[:3]
        self.state: ChannelState = CLOSED
        self.mode: ChannelMode = NORMAL
        #: whether the broker has closed the channel
        self.broker_closed = False
        self.content: ContentUnderWay | None = None
        self.confirms = PendingConfirms()
        self.audit = ChannelAudit()
        self.held = HeldFrames(backlog)
        self.output = ProducerOutput()
        self.replies = Replies(backlog)
        #: the last declared queue; an empty queue name in a bind refers to it
        self.last_queue = b""
        #: publishers to other brokers that were used for publishes on this channel
        self.remote_publishers: dict[Remote, RemotePublisher] = {}

    def end(self) -> None:
        """Forget the channel's publishes and requests, since they won't be answered.

        Held frames are kept, and messages to other brokers are still sent.
        """
        for publisher in self.remote_publishers.values():
            publisher.close()
        self.mode = NORMAL
        self.confirms = PendingConfirms()
        self.audit = ChannelAudit()
        self.remote_publishers = {}
        self.replies.drop()
