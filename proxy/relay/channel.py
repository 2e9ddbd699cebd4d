"""State of one channel: its life, the content under way, what waits, which replies are expected.

A channel of the producer and the channel of the same number upstream are one record here. Who closes it first decides
whose frames are discarded until the close-ok, see `Life`.

Source: AMQP 0-9-1 spec, 1.5 "channel" and 2.2.10 "closing"; RabbitMQ drops what arrives on a closing channel, but
only whole contents: one that has begun upstream is brought to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from proxy.addressing.targets import Remote
from proxy.relay.confirm_ledger import Ledger, Returns, Settled
from proxy.relay.publish.outgoing import Copy, RemoteTargets
from proxy.relay.publish.plan import ExchangePlan
from proxy.relay.remote.lane import RemotePublisher


class Life(Enum):
    """Who is waiting for whose close-ok on the producer's side of a channel."""

    OPEN = "open"
    #: The broker closed it: the producer's frames are discarded until its close-ok, which goes upstream.
    CLOSED_UPSTREAM = "closed upstream"
    #: We closed it: the producer's frames are discarded until its close-ok, which ends here.
    CLOSED_HERE = "closed here"


class Content(Enum):
    """What a channel expects from the producer next."""

    METHOD = "a method frame"
    HEADER = "a content header frame"
    BODY = "a content body frame"


@dataclass(slots=True, eq=False)
class PendingPublish:
    """A Basic.Publish method as it came.

    Args:
        frame: the whole method frame.
        plan: of the exchange, None where it is not evaluated here.
        exchange: its exchange.
        routing_key: its routing key.
        channel: where it came from.
        mandatory: whether an unroutable message is to be returned.
    """

    frame: bytes
    plan: ExchangePlan | None
    exchange: bytes
    routing_key: bytes
    channel: Channel
    mandatory: bool
    #: what followed last time, most likely to follow again: a producer sends the same few in turn
    successor: PendingPublish | None = None
    #: body size and ending of its last audit line, where nothing else differs
    ending: tuple[int, str] | None = None


class CollectedPublish(NamedTuple):
    """A publish that leaves in several copies: its body is kept until it is whole.

    Args:
        publish: the method.
        plan: of its exchange.
        header: the producer's whole content header frame.
        copies: what leaves.
        body_size: announced size of the body in bytes.
        body: what has come of it.
        remote_targets: what goes to other brokers, or nowhere.
    """

    publish: PendingPublish
    plan: ExchangePlan
    header: bytes
    copies: Sequence[Copy]
    body_size: int
    body: bytearray
    remote_targets: RemoteTargets | None = None


class ExpectedReply(NamedTuple):
    """An answer of the broker that is on its way; a channel's answers come in the order of its requests.

    Args:
        reply: (class << 16 | method) of the answer.
        queue: name in a request about a queue (empty: the broker makes one).
        exclusive: whether a declared queue is to be exclusive.
        passive: whether the declare only looks.
        taken: for a request of ours: takes the answer's frame, says whether the producer gets it.
        request_method: for a declare of ours that only looks: (class << 16 | method) of the request that a
            refusal is to name.
        weight: how many requests it answers: more than one where it comes after requests without an answer.
    """

    reply: int
    queue: bytes = b""
    exclusive: bool = False
    passive: bool = False
    taken: Callable[[bytes], bool] | None = None
    request_method: int = 0
    weight: int = 1


class UnansweredRequests:
    """How many requests of one connection, on all its channels, the broker has not answered yet.

    Each costs memory until it is answered, and a broker that is stopped answers none: `count` is what limits them.
    """

    __slots__ = ("count", "unanswerable")

    def __init__(self) -> None:
        """Nothing is owed."""
        self.count = 0
        #: those among them that have no answer of their own, and are not covered by that of another one yet
        self.unanswerable = 0


class Replies(deque[ExpectedReply]):
    """The answers that a channel waits for, in order.

    Args:
        unanswered: counts those of the connection.
    """

    __slots__ = ("_owed",)

    def __init__(self, unanswered: UnansweredRequests) -> None:
        """Wait for none."""
        super().__init__()
        self._owed = unanswered

    def append(self, expected: ExpectedReply) -> None:
        """Wait for one more."""
        self._owed.count += expected.weight
        super().append(expected)

    def popleft(self) -> ExpectedReply:
        """The next one has come."""
        expected = super().popleft()
        self._owed.count -= expected.weight
        return expected

    def clear(self) -> None:
        """None will come: the channel has ended."""
        self._owed.count -= sum(expected.weight for expected in self)
        super().clear()


class Channel:
    """State of one channel number, from Channel.Open to the last close-ok; a number used again gets a new record.

    `held` keeps the producer's frames while a destination is being bound; `held_back` keeps the broker's frames
    while a queue that has just been declared gets its tokens.
    """

    __slots__ = (
        "before",
        "binds",
        "closes",
        "collected",
        "confirming",
        "content",
        "deferred",
        "discard_upstream",
        "head",
        "held",
        "held_back",
        "held_bytes",
        "last_queue",
        "ledger",
        "life",
        "line",
        "mandatory",
        "marking",
        "number",
        "opened",
        "origin",
        "owed_close_ok",
        "publish",
        "published",
        "remaining",
        "remote_publishers",
        "replies",
        "returned",
        "returns",
        "sample",
        "settled",
        "swallowed",
        "transactional",
        "waited",
        "waits",
    )

    def __init__(self, number: int, unanswered: UnansweredRequests | None = None) -> None:
        """Start as a channel that is open and idle."""
        self.number = number
        #: what each content header frame of the channel begins with
        self.head = b"\x02" + number.to_bytes(2, "big")
        #: whether it counts in the gauge of open channels
        self.opened = False
        self.life = Life.OPEN
        #: the producer's own close went upstream and is not answered yet
        self.closes = False
        #: our own close was sent upstream: what comes from there is discarded until its close-ok
        self.discard_upstream = False
        #: the broker has yet to answer a close of the producer for the channel that had the number before
        self.owed_close_ok = False
        self.content = Content.METHOD
        self.publish: PendingPublish | None = None
        self.collected: CollectedPublish | None = None
        #: body bytes still to come
        self.remaining = 0
        self.confirming = False
        self.transactional = False
        #: publishes of the producer since the channel was opened; in confirm mode its delivery tag
        self.published = 0
        #: publishes before confirm.select, which its delivery tags do not count
        self.before = 0
        #: what the audit lines of the channel share, made with the first
        self.origin = ""
        #: (number, exchange, routing key) of mandatory publishes, where the audit must know which one returns
        self.mandatory: deque[tuple[int, bytes, bytes]] | None = None
        #: number of its last audit line, where confirms wait for theirs
        self.line = 0
        self.settled = Settled()
        self.ledger: Ledger | None = None
        #: publishes in several copies that the broker may return one by one
        self.returns: Returns | None = None
        self.replies = Replies(unanswered or UnansweredRequests())
        #: the queue declared last, which an empty name in a bind means
        self.last_queue = b""
        self.held: list[bytes] | None = None
        self.held_bytes = 0
        #: identities of the bindings it is held for, where it is held for nothing else: further ones need not wait
        self.binds: set[Hashable] = set()
        #: exchanges and destinations that messages find by one of these bindings
        self.marking: set[Hashable] = set()
        #: the first two held frames are a publish that waits for its destinations
        self.waits = False
        #: they were waited for already: what is unbound now counts as missing
        self.waited = False
        self.held_back: list[bytes] | None = None
        #: methods of ours for the producer that wait for the end of a content on its way there
        self.deferred: list[bytes] = []
        #: (producer tag, time of the publish) whose confirm is being timed
        self.sample: tuple[int, float] | None = None
        #: method frame of a return, delivery or get that waits for its content header
        self.returned: bytes | None = None
        #: to other brokers, as far as its publishes have gone there
        self.remote_publishers: dict[Remote, RemotePublisher] = {}
        #: body bytes to come of a return that the producer must not see
        self.swallowed = 0

    def forget_mandatory(self) -> None:
        """Forget mandatory publishes that are settled: they don't come back any more."""
        waiting, low = self.mandatory, self.before + self.settled.low
        while waiting and waiting[0][0] <= low:
            waiting.popleft()

    @property
    def interruptible(self) -> bool:
        """Whether it can be closed now, with nothing half said to the broker."""
        begun = self.content is Content.BODY  # a method frame alone is not upstream: it goes with its header
        return self.life is Life.OPEN and not begun and self.held is None and not self.closes

    @property
    def needs_inspection(self) -> bool:
        """Whether the broker's frames on it are not simply copied."""
        return bool(
            self.life is not Life.OPEN
            or self.discard_upstream
            or self.held_back is not None
            or self.deferred
            or self.returned is not None
            or self.swallowed
        )
