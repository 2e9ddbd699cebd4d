"""Tests invariants of channels in random runs between a producer and a broker that answers late.

The broker of these tests follows the behaviour of RabbitMQ, and fails the test on any frame for which RabbitMQ would
close the connection. The producer may still have unread input, so that closes cross in every order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, commands

from oxproxy.relay.connection_state import Phase
from oxproxy.relay.vhost import Delivery, VhostState
from tests.client import Frame, content_header, method, split
from tests.relay.wire import OWN, Wire, owned, publish, state
from tests.routing.building import exchange, to_exchange, to_queue

OPEN, OPEN_OK = commands.Channel.Open(), commands.Channel.OpenOk()
CLOSE, CLOSE_OK = commands.Channel.Close(200, "bye", 0, 0), commands.Channel.CloseOk()
NOT_FOUND = commands.Channel.Close(404, "NOT_FOUND - no queue", 60, 70)
ANSWERS: dict[str, base.Frame] = {
    "Channel.Open": OPEN_OK,
    "Confirm.Select": commands.Confirm.SelectOk(),
    "Channel.Flow": commands.Channel.FlowOk(active=True),
    "Exchange.Declare": commands.Exchange.DeclareOk(),
    "Queue.Bind": commands.Queue.BindOk(),
    "Queue.Unbind": commands.Queue.UnbindOk(),
    "Exchange.Bind": commands.Exchange.BindOk(),
    "Basic.Qos": commands.Basic.QosOk(),
}
#: (exchange, routing key) of a publish, and the number of its copies
KINDS = {
    "plain": ("amq.direct", "key", 1),
    "bound": ("xo", "old", 1),
    "unbound": ("xo", "new", 1),
    "several": ("many", "key", 2),
    "refused": ("xo", "x.o.p.e.n.x.q.1", 0),
}
#: methods that a producer may send out of order
STRAY = [
    method(0, OPEN)[7:-1],
    method(0, CLOSE)[7:-1],
    method(0, CLOSE_OK)[7:-1],
    method(0, commands.Basic.Qos(0, 1))[7:-1],
]


def vhost() -> VhostState:
    chosen = exchange(to_queue("unused", {"x-msg-destq-rk": ""}))
    many = exchange(to_queue("q"), to_exchange("e"), name="many")
    made = state((chosen, owned(chosen, bound=[("queue", b"old")])), (many, owned(many, Delivery.QUEUE)))
    made.queues = replace(made.queues, names=(b"new", b"old", b"q"), version=1)
    return made


@dataclass
class BrokerChannel:
    """A channel on the broker. It is closing after the broker has sent Channel.Close."""

    confirming: bool = False
    closing: bool = False
    tag: int = 0
    #: unconfirmed delivery tag -> message
    unconfirmed: dict[int, int] = field(default_factory=dict)
    #: the body of the current content, and the number of bytes still missing; -1: the header is still missing
    body: bytes | None = None
    remaining: int = -1


@dataclass
class Life:
    """One use of a channel number by the producer, from open to close."""

    messages: list[int] = field(default_factory=list)
    #: message of each delivery tag since confirm.select
    tags: list[int] = field(default_factory=list)
    confirming: bool = False
    settled: set[int] = field(default_factory=set)
    closes: bool = False  # the producer has sent Channel.Close
    closed: bool = False  # Channel.Close has been sent to the producer


@dataclass
class Number:
    """A channel number as seen on the wire and by the producer."""

    #: as seen on the wire; None: no frames may arrive
    life: Life | None = None
    owed: int = 0  # unanswered closes of the producer
    close_sent: bool = False  # a Channel.Close to the producer is unanswered
    #: as seen by the producer
    uses: bool = False
    must_answer: bool = False
    awaits: bool = False  # the producer has sent Channel.Close and awaits the reply
    unanswered: int = 0  # unanswered closes, possibly of earlier channels
    partial: deque[bytes] = field(default_factory=deque)


class Run:
    """A relay between a producer and a broker. Every frame that is sent is checked."""

    def __init__(self) -> None:
        self.wire = Wire(vhost())
        self.broker: dict[int, BrokerChannel] = {}
        self.answers: deque[bytes] = deque()
        self.unread: deque[Frame] = deque()
        self.numbers = {1: Number(), 2: Number()}
        self.kinds: list[str] = []
        self.lives: list[Life] = []
        #: message -> (copies that arrived, acked, nacked)
        self.copies: dict[int, list[int]] = {}
        self.last: dict[int, int] = {}
        self.confirms = 0
        self.strayed = self.ended = False

    # -- output --------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        wire = self.wire
        for frame in split(wire.upstream()):
            if frame.channel:
                self.to_broker(frame)
            else:
                self.ended = True
        for frame in split(wire.producer()):
            if frame.channel:
                self.to_producer(self.numbers[frame.channel], frame)
                self.unread.append(frame)
            else:
                self.ended = True
        assert self.strayed or not self.ended, "the connection ended although the producer sent nothing out of order"

    def to_broker(self, frame: Frame) -> None:
        channel = self.broker.get(frame.channel)
        if channel is None:
            assert frame.name == "Channel.Open", f"{frame.name} on channel {frame.channel}, which is not open"
            self.broker[frame.channel] = BrokerChannel()
            self.reply(frame.channel, OPEN_OK)
            return
        assert frame.name != "Channel.Open", "a second open"
        if channel.body is not None or frame.kind != 1:
            self.content(channel, frame)
        elif frame.name == "Basic.Publish":
            channel.body, channel.remaining = b"", -1
        elif frame.name == "Channel.Close":
            self.reply(frame.channel, CLOSE_OK)
            if not channel.closing:
                del self.broker[frame.channel]
        elif frame.name == "Channel.CloseOk":
            assert channel.closing, "a close-ok without a close"
            del self.broker[frame.channel]
        elif not channel.closing:
            channel.confirming |= frame.name == "Confirm.Select"
            self.reply(frame.channel, ANSWERS[frame.name])

    def content(self, channel: BrokerChannel, frame: Frame) -> None:
        assert channel.body is not None, "content without a publish"
        if channel.remaining < 0:
            assert frame.kind == 2, f"{frame.name} instead of a header"
            channel.remaining = int.from_bytes(frame.payload[4:12], "big")
        else:
            assert frame.kind == 3, f"{frame.name} in the middle of a content"
            channel.body += frame.payload
            channel.remaining -= len(frame.payload)
        if channel.remaining == 0:
            message, channel.body = int(channel.body), None
            copies = self.copies.setdefault(message, [0, 0, 0])
            copies[0] += 1
            assert copies[0] <= KINDS[self.kinds[message]][2], "a publish was sent twice"
            assert message >= self.last.get(frame.channel, 0), "publishes were sent in a different order"
            self.last[frame.channel] = message
            channel.tag += channel.confirming
            if channel.confirming and not channel.closing:
                channel.unconfirmed[channel.tag] = message

    def reply(self, number: int, command: base.Frame) -> None:
        self.answers.append(method(number, command))

    def to_producer(self, number: Number, frame: Frame) -> None:
        life = number.life
        if frame.name == "Channel.CloseOk":
            assert number.owed, "a close-ok without a close"
            number.owed -= 1
            if life is not None and life.closes and not number.close_sent:
                number.life = None
            return
        assert life is not None, f"{frame.name} after the close-ok"
        assert not number.close_sent, f"{frame.name} after the close"
        if frame.name == "Channel.Close":
            number.close_sent = life.closed = True
        elif frame.name in ("Basic.Ack", "Basic.Nack"):
            self.confirm(life, frame)

    def confirm(self, life: Life, frame: Frame) -> None:
        last = int(str(frame.arguments["delivery_tag"]))
        tags = range(1, last + 1) if frame.arguments["multiple"] else (last,)
        for tag in [tag for tag in tags if tag not in life.settled]:
            message = life.tags[tag - 1]
            arrived, acked, nacked = self.copies.get(message, (0, 0, 0))
            assert arrived == acked + nacked == KINDS[self.kinds[message]][2], "a confirm before that of the broker"
            assert (frame.name == "Basic.Nack") == bool(nacked), "another result than the broker's"
            life.settled.add(tag)
            self.confirms += 1

    # -- steps ---------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.wire.relay.producer_sent(data, 0.0)
        self.drain()

    def open(self, at: int) -> None:
        number = self.numbers[at]
        if number.uses or number.must_answer or number.awaits:
            return
        number.life, number.uses = Life(), True
        self.lives.append(number.life)
        self.send(method(at, OPEN))

    def close(self, at: int) -> None:
        number = self.numbers[at]
        if not number.uses or number.must_answer or number.partial:
            return
        number.uses, number.awaits = False, True
        number.owed += 1
        number.unanswered += 1
        if number.life is not None:
            number.life.closes = True
        self.send(method(at, CLOSE))

    def answer_close(self, at: int) -> None:
        number = self.numbers[at]
        if not number.must_answer or number.partial:
            return
        number.must_answer = number.close_sent = number.uses = number.awaits = False
        number.life = None  # even if a close from the producer is still unanswered
        self.send(method(at, CLOSE_OK))

    def request(self, at: int, command: base.Frame) -> None:
        number = self.numbers[at]
        if number.uses and not number.must_answer and not number.partial:
            if isinstance(command, commands.Confirm.Select) and number.life is not None:
                number.life.confirming = True
            self.send(method(at, command))

    def publish(self, at: int, kind: str, pieces: bool) -> None:
        number = self.numbers[at]
        if not number.uses or number.must_answer or number.partial:
            return
        message = len(self.kinds)
        self.kinds.append(kind)
        to, key, _ = KINDS[kind]
        data = publish(key, body=b"%08d" % message, channel=at, to=to)
        if number.life is not None:
            number.life.messages.append(message)
            if number.life.confirming:
                number.life.tags.append(message)
        if pieces and kind in ("plain", "bound"):
            number.partial = deque(frame.raw for frame in split(data))
            self.go_on(at)
        else:
            self.send(data)

    def go_on(self, at: int) -> None:
        """Send the producer's next frame of a partly sent publish. Frames are always sent whole."""
        if self.numbers[at].partial:
            self.send(self.numbers[at].partial.popleft())

    def read(self, count: int) -> None:
        for _ in range(min(count, len(self.unread))):
            frame = self.unread.popleft()
            number = self.numbers[frame.channel]
            if frame.name == "Channel.Close":
                number.must_answer = True
            elif frame.name == "Channel.CloseOk":
                number.unanswered -= 1
                number.awaits &= number.unanswered > 0

    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.answers))):
            data = self.answers.popleft()
            self.wire.relay.broker_sent(data, 0.0)
            self.drain()

    def acknowledge(self, at: int, ack: bool, multiple: bool) -> None:
        channel = self.broker.get(at)
        if channel is None or channel.closing or not channel.unconfirmed:
            return
        tags = sorted(channel.unconfirmed)
        chosen = tags[len(tags) // 2]
        for tag in [tag for tag in tags if tag == chosen or (multiple and tag < chosen)]:
            self.copies[channel.unconfirmed.pop(tag)][1 if ack else 2] += 1
        command = commands.Basic.Ack(chosen, multiple) if ack else commands.Basic.Nack(chosen, multiple, False)
        self.reply(at, command)

    def refuse(self, at: int) -> None:
        channel = self.broker.get(at)
        if channel is not None and not channel.closing:
            channel.closing = True
            self.reply(at, NOT_FOUND)

    def control(self, result: str | None = None) -> None:
        requests, self.wire.relay.connection.pending.requests[:] = list(self.wire.relay.connection.pending.requests), []
        for request in requests:
            self.wire.relay.answer(request, result)
            self.drain()

    def stray(self, at: int, which: int) -> None:
        """Send an out-of-order frame from the producer."""
        number, self.strayed = self.numbers[at], True
        if number.partial or self.ended:
            return
        if which == len(STRAY):
            self.send(content_header(at, 5))
            return
        if which == 0 and number.life is None:
            number.life, number.uses = Life(), True
        elif which == 1:
            number.owed += 1
            number.unanswered += 1
            if number.life is not None:
                number.life.closes = True
        elif which == 2 and number.close_sent:
            number.life, number.close_sent = None, False
        payload = STRAY[which]
        self.send(b"\x01" + at.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce")

    def step(self, what: int, at: int, bits: int) -> None:
        few = 1 + bits % 3
        steps: list[Callable[[], None]] = [
            lambda: self.open(at),
            lambda: self.close(at),
            lambda: self.answer_close(at),
            lambda: self.request(at, commands.Confirm.Select()),
            lambda: self.request(at, commands.Exchange.Declare(0, f"x{bits}", "x-open")),
            lambda: self.request(at, commands.Queue.Bind(0, "old", "xo", f"k{bits}", False, {"x-match": "all"})),
            lambda: self.publish(at, list(KINDS)[bits % 4], bits > 3),
            lambda: self.publish(at, "refused", pieces=False),
            lambda: self.go_on(at),
            lambda: self.read(few),
            lambda: self.deliver(few),
            lambda: self.acknowledge(at, bits % 2 > 0, bits > 3),
            lambda: self.refuse(at),
            lambda: self.control("topic" if bits == 1 else None),
        ]
        if not self.ended:
            steps[what]()

    def settle(self) -> None:
        """Answer, confirm and read everything that is outstanding."""
        for _ in range(200):
            for at, number in self.numbers.items():
                while number.partial:
                    self.go_on(at)
                self.answer_close(at)
            self.control()
            self.deliver(len(self.answers))
            self.read(len(self.unread))
            for at in self.numbers:
                self.acknowledge(at, ack=True, multiple=False)
            waits = any(number.must_answer or number.partial for number in self.numbers.values())
            if not waits and not self.answers and not self.unread and not self.wire.relay.connection.pending.requests:
                return
        raise AssertionError("the run does not settle")

    def check(self) -> None:
        """Check the invariants that hold when nothing is outstanding."""
        relay, counters = self.wire.relay, self.wire.counters.relays["/"]
        connection = relay.connection
        assert relay.connection.lifecycle.phase is Phase.OPEN
        used = {at for at, number in self.numbers.items() if number.life is not None}
        assert {at for at in self.broker if at != OWN} == used
        assert set(connection.channels) == used
        assert counters.channels == len(used)
        assert [number.owed for number in self.numbers.values()] == [0, 0], "a close is unanswered"
        for life in self.lives:
            for message in life.messages:
                arrived = self.copies.get(message, [0])[0]
                assert arrived in (0, KINDS[self.kinds[message]][2]), "a publish was sent in part"
                assert arrived or life.closed, "a publish was neither sent nor refused"
            if not life.closed and not life.closes:
                assert len(life.settled) == len(life.tags), "a publish has no confirm"
        assert relay.connection.published == len(self.copies)
        assert counters.confirms_acked + counters.confirms_nacked == self.confirms
        buffered = connection.backlog
        assert (buffered.held, buffered.collected, connection.backlog.unanswered) == (0, 0, 0)
        assert connection.deliveries.inspected == set()


#: possible next steps, repeated by weight
WHAT = st.sampled_from((0, 0, 1, 2, 2, 3, 4, 5, 6, 6, 6, 7, 8, 8, 9, 9, 10, 10, 10, 11, 11, 12, 13))
STEPS = st.lists(st.tuples(WHAT, st.integers(1, 2), st.integers(0, 7)), max_size=80)


@given(STEPS, st.booleans())
@settings(max_examples=400, deadline=None)
def test_invariants_hold_for_a_producer_that_follows_the_protocol(
    steps: list[tuple[int, int, int]], confirm: bool
) -> None:
    run = Run()
    run.open(1)
    if confirm:
        run.request(1, commands.Confirm.Select())
        run.deliver(2)
    for step in steps:
        run.step(*step)
    run.settle()
    run.check()
    run.wire.relay.ended()
    assert run.wire.counters.relays["/"].channels == 0


@given(STEPS, st.lists(st.tuples(st.integers(0, 79), st.integers(1, 2), st.integers(0, len(STRAY))), max_size=3))
@settings(max_examples=400, deadline=None)
def test_out_of_order_frames_of_a_producer_do_not_end_the_upstream(
    steps: list[tuple[int, int, int]], strays: list[tuple[int, int, int]]
) -> None:
    run = Run()
    run.open(1)
    for position, step in enumerate(steps):
        for _, at, which in [stray for stray in strays if stray[0] == position]:
            run.stray(at, which)
        run.step(*step)
    run.wire.relay.ended()
    assert run.wire.counters.relays["/"].channels == 0
    buffered = run.wire.relay.connection.backlog
    assert (buffered.held, buffered.collected) == (0, 0)


def steps(*given: tuple[str, Iterable[object]]) -> Run:
    run = Run()
    for name, arguments in given:
        getattr(run, name)(*arguments)
    return run
