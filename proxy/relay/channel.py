"""Record of one channel: state and mode, content under way, held frames, pending confirms, expected replies.

A channel of the producer and the channel of the same number upstream are one record here, from Channel.Open until both
sides have closed it; a number that is used again gets a new record. The state changes by `ConnectionState.change`
alone, see `channel_state`; each group of further attributes is an object of its own that keeps its numbers right.

A publish may take the straight pass where ``channel.state is OPEN and channel.content is None``.

Source: AMQP 0-9-1 spec, 1.5 "channel" and 4.2.6 "content framing"; RabbitMQ drops what arrives on a closing channel,
but only whole contents: one that has begun upstream is brought to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from proxy.addressing.targets import Remote
from proxy.relay.channel_state import CLOSED, DISCARDING, OPEN, OPENING, PLAIN, ChannelMode, ChannelState
from proxy.relay.confirm_ledger import Ledger, Returns, Settled
from proxy.relay.original_address import OriginalAddress
from proxy.relay.publish.outgoing import Copy, RemoteTargets
from proxy.relay.remote.lane import RemotePublisher

#: `ContentUnderWay.remaining`, and in `Deliveries.unfinished`, until the content header has come.
HEADER_TO_COME: Final = -1


@dataclass(slots=True, eq=False)
class PendingPublish:
    """A Basic.Publish method unchanged."""

    #: the whole method frame
    frame: bytes
    exchange: bytes
    routing_key: bytes
    #: where it came from
    channel: Channel
    #: whether an unroutable message is to be returned
    mandatory: bool


class CollectedPublish(NamedTuple):
    """A publish that leaves in several copies: its body is kept until it is whole."""

    publish: PendingPublish
    #: where the producer addressed it
    original: OriginalAddress
    #: the producer's whole content header frame
    header: bytes
    #: what leaves
    copies: Sequence[Copy]
    #: announced size of the body in bytes
    body_size: int
    #: what has come of it
    body: bytearray
    #: what goes to other brokers, or nowhere
    remote_targets: RemoteTargets | None = None


@dataclass(slots=True, eq=False)
class Backlog:
    """What the channels of one connection keep, in bytes, and wait for: `RelayLimits` bounds each.

    A request costs memory until it is answered, and a broker that is stopped answers none.
    """

    #: announced bodies of publishes that leave in several copies
    collected: int = 0
    #: frames of the producer
    held: int = 0
    #: frames of the broker
    held_back: int = 0
    #: requests that the broker has not answered yet
    unanswered: int = 0
    #: those among them that have no answer of their own, and are not covered by that of another one yet
    unanswerable: int = 0

    def count_unanswerable(self, most: int) -> int:
        """Count a request without an answer; give how many there are now, if as many as may be, and 0 otherwise.

        Those are covered by the answer to a further request, which is to be sent then.
        """
        self.unanswered += 1
        self.unanswerable += 1
        if self.unanswerable < most:
            return 0
        weight, self.unanswerable = self.unanswerable, 0
        self.unanswered -= weight
        return weight


class ContentUnderWay:
    """A publish whose frames have not all come: a channel without one expects a method.

    Args:
        publish: its method, until the content header comes; None if that has come.
        remaining: body bytes to come, or `HEADER_TO_COME`.
    """

    __slots__ = ("collected", "publish", "remaining")

    def __init__(self, publish: PendingPublish | None, remaining: int = HEADER_TO_COME) -> None:
        self.publish = publish
        self.remaining = remaining
        #: the publish, where nothing of it is upstream before its body is whole
        self.collected: CollectedPublish | None = None

    @property
    def expects(self) -> str:
        return "a content header frame" if self.remaining == HEADER_TO_COME else "a content body frame"

    @property
    def begun(self) -> bool:
        """Whether a part of it is upstream, so that it has to be brought to its end."""
        return self.remaining != HEADER_TO_COME and self.collected is None


class HeldFrames:
    """Frames of the producer that wait, in the states of `HOLDING` alone."""

    __slots__ = ("_backlog", "_size_bytes", "binds", "frames", "marking")

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._size_bytes = 0
        self.frames: list[bytes] = []
        #: identities of the bindings they wait for, where they wait for nothing else: further ones need not wait
        self.binds: set[Hashable] = set()
        #: exchanges and destinations that messages find by one of these bindings
        self.marking: set[Hashable] = set()

    def __bool__(self) -> bool:
        return bool(self.frames)

    def keep(self, frames: list[bytes]) -> None:
        size = sum(map(len, frames))
        self.frames += frames
        self._size_bytes += size
        self._backlog.held += size

    def take(self) -> list[bytes]:
        frames, self.frames = self.frames, []
        self._backlog.held -= self._size_bytes
        self._size_bytes = 0
        return frames


class ProducerOutput:
    """What of the frames for the producer is not simply copied."""

    __slots__ = ("_backlog", "close_oks", "deferred", "held_back", "returned", "swallowed")

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        #: frames of the broker, from a declare-ok on, while the queue gets its tokens; None while none are kept
        self.held_back: list[bytes] | None = None
        #: methods of ours that wait for the end of a content on its way
        self.deferred: list[bytes] = []
        #: close-oks of ours that follow the broker's: to further closes of the producer
        self.close_oks = 0
        #: method frame of a return, delivery or get that waits for its content header
        self.returned: bytes | None = None
        #: body bytes to come of a return that the producer must not see
        self.swallowed = 0

    def __bool__(self) -> bool:
        """Whether the broker's frames have to be looked at."""
        return bool(self.held_back is not None or self.deferred or self.returned is not None or self.swallowed)

    @property
    def holds_back(self) -> bool:
        """Whether `held_back` is in use; compiled, a narrowed attribute would not be read again after a call."""
        return self.held_back is not None

    def hold_back(self, frame: bytes) -> None:
        """Keep a frame of the broker, and all after it."""
        if self.held_back is None:
            self.held_back = []
        self.held_back.append(frame)
        self._backlog.held_back += len(frame)

    def release(self) -> list[bytes]:
        frames, self.held_back = self.held_back or [], None
        self._backlog.held_back -= sum(map(len, frames))
        return frames


@dataclass(slots=True, eq=False)
class PendingConfirms:
    """The publishes of a channel, counted, and which of them are confirmed."""

    #: publishes before confirm.select, which delivery tags do not count
    before: int = 0
    #: publishes after that: the delivery tag of the last
    published: int = 0
    settled: Settled = field(default_factory=Settled)
    #: joins confirms from the first publish on that leaves in several copies
    ledger: Ledger | None = None
    #: publishes in several copies that the broker may return one by one
    returns: Returns | None = None
    #: (delivery tag, time of the publish) whose confirm is being timed
    sample: tuple[int, float] | None = None

    @property
    def total(self) -> int:
        return self.before + self.published

    @property
    def outstanding(self) -> int:
        """Delivery tags that are neither acked nor nacked, in confirm mode."""
        return self.published - self.settled.count

    def select(self) -> None:
        """Begin to count: tags count from the publish after confirm.select (RabbitMQ guide "Publisher confirms")."""
        self.before += self.published
        self.published = 0


@dataclass(slots=True, eq=False)
class ChannelAudit:
    """What the audit log knows of a channel."""

    #: what its lines share, made with the first
    origin: str = ""
    #: number of its last line, where confirms wait for theirs
    line: int = 0
    #: (number, exchange, routing key) of mandatory publishes, where the audit must know which one returns
    mandatory: deque[tuple[int, bytes, bytes]] | None = None

    def forget_mandatory(self, settled: int) -> None:
        """Forget mandatory publishes up to a number: they are settled, and don't come back any more."""
        waiting = self.mandatory
        while waiting and waiting[0][0] <= settled:
            waiting.popleft()


class ExpectedReply(NamedTuple):
    """An answer of the broker that is on its way; a channel's answers come in the order of its requests."""

    #: (class << 16 | method) of the answer
    reply: int
    #: takes the answer's frame, says whether the producer gets it; None: it does
    taken: Callable[[bytes], bool] | None = None
    #: for a declare of ours that only looks: (class << 16 | method) of the request that a refusal is to name
    request_method: int = 0
    #: how many requests it answers: more than one where it comes after requests without an answer
    weight: int = 1


class Replies:
    """The answers that a channel waits for, in order."""

    __slots__ = ("_backlog", "_expected")

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._expected: deque[ExpectedReply] = deque()

    def __len__(self) -> int:
        return len(self._expected)

    @property
    def next(self) -> ExpectedReply:
        """The one that comes next; only where there is one."""
        return self._expected[0]

    def append(self, expected: ExpectedReply) -> None:
        self._backlog.unanswered += expected.weight
        self._expected.append(expected)

    def popleft(self) -> ExpectedReply:
        expected = self._expected.popleft()
        self._backlog.unanswered -= expected.weight
        return expected

    def clear(self) -> None:
        self._backlog.unanswered -= sum([expected.weight for expected in self._expected])
        self._expected.clear()


class Channel:
    """State of one channel of a connection."""

    __slots__ = (
        "audit",
        "confirms",
        "content",
        "held",
        "last_queue",
        "mode",
        "number",
        "output",
        "remote_publishers",
        "replies",
        "state",
    )

    def __init__(self, number: int, backlog: Backlog | None = None) -> None:
        backlog = backlog or Backlog()
        self.number = number
        self.state: ChannelState = CLOSED
        self.mode: ChannelMode = PLAIN
        self.content: ContentUnderWay | None = None
        self.confirms = PendingConfirms()
        self.audit = ChannelAudit()
        self.held = HeldFrames(backlog)
        self.output = ProducerOutput(backlog)
        self.replies = Replies(backlog)
        #: the queue declared last, which an empty name in a bind means
        self.last_queue = b""
        #: to other brokers, as far as its publishes have gone there
        self.remote_publishers: dict[Remote, RemotePublisher] = {}

    def end(self) -> None:
        """Forget what was published and asked: nothing of it will be answered. What is held stays held.

        What is under way to other brokers is still sent.
        """
        for publisher in self.remote_publishers.values():
            publisher.close()
        self.output.release()
        self.mode = PLAIN
        self.confirms = PendingConfirms()
        self.audit = ChannelAudit()
        self.remote_publishers = {}
        self.replies.clear()

    @property
    def interruptible(self) -> bool:
        """Whether it can be closed now, with nothing half said to the broker."""
        between = self.content is None or not self.content.begun
        return between and (self.state is OPEN or self.state is OPENING)

    @property
    def needs_inspection(self) -> bool:
        """Whether the broker's frames on it are not simply copied."""
        return self.state in DISCARDING or bool(self.output)
