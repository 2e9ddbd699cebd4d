from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from proxy.amqp.tables import encode_table
from proxy.relay.remote.link import RemoteResult
from tests import client
from tests.producer import headers
from tests.relay.remote_broker import RemoteBroker, Told


def test_a_message_is_sent_with_its_header_and_body() -> None:
    far = RemoteBroker().open()
    far.ready(far.lane()).send(Told(b"x" * 200_000, b"key", mandatory=True))
    method, header, *bodies = client.split(far.sent())
    assert method.arguments["routing_key"] == "key"
    assert method.arguments["mandatory"] is True
    assert header.raw == client.content_header(1, 200_000)
    assert b"".join(body.payload for body in bodies) == b"x" * 200_000
    assert max(len(body.raw) for body in bodies) == 131072


def test_headers_larger_than_the_frames_of_the_broker_are_refused() -> None:
    far = RemoteBroker().open(frame_max=4096)
    message = Told()
    message.header += b"x" * 4096
    far.ready(far.lane()).send(message)
    assert (message.results, far.sent()) == ([RemoteResult.NACKED], b"")


def test_a_returned_message_is_settled_as_returned_by_its_ack() -> None:
    far = RemoteBroker().open()
    lane = far.ready(far.lane())
    arrived, back = Told(b"here", b"a", mandatory=True), Told(b"back", b"b", mandatory=True)
    lane.send(arrived)
    lane.send(back)
    far.say(commands.Basic.Return(312, "NO_ROUTE", "e", "b"))
    far.link.receive(client.content(1, None, b"back"))
    assert back.results == []
    far.ack(2, multiple=True)
    assert (arrived.results, back.results) == ([RemoteResult.ACKED], [RemoteResult.RETURNED])


def test_a_lost_link_loses_sent_messages_and_keeps_waiting_ones() -> None:
    far = RemoteBroker().open()
    lane = far.ready(far.lane())
    sent, waiting = Told(), Told()
    lane.send(sent)
    far.link.set_socket_full(True)
    lane.send(waiting)
    far.link.lost("connection lost")
    assert (sent.results, waiting.results) == ([RemoteResult.LOST], [])
    again = RemoteBroker().open()
    again.ready(lane)
    again.ack(1)
    assert (sent.results, waiting.results) == ([RemoteResult.LOST], [RemoteResult.ACKED])


class Course:
    """A lane over several successive links, to a broker that acks only messages that it has received."""

    def __init__(self) -> None:
        self.far = RemoteBroker().open()
        self.lane = self.far.ready(self.far.lane())
        self.messages: list[Told] = []
        self.acked: set[int] = set()
        self.there: list[int] = []

    def look(self) -> None:
        """Record the messages sent over the current channel, in the order of their delivery tags."""
        self.there += [int(frame.payload) for frame in client.split(self.far.sent()) if frame.kind == 3]

    def send(self, number: int) -> None:
        message = Told(b"%d" % len(self.messages), since=float(len(self.messages)))
        self.messages.append(message)
        self.lane.send(message)
        self.look()

    def ack(self, number: int) -> None:
        if 0 < number <= len(self.there):
            self.acked.add(self.there[number - 1])
            self.far.ack(number)

    def ack_all(self, number: int) -> None:
        self.acked.update(self.there)
        if self.there:
            self.far.ack(len(self.there), multiple=True)

    def nack(self, number: int) -> None:
        if number:
            self.far.say(commands.Basic.Nack(number, False))

    def close(self, number: int) -> None:
        self.there.clear()
        self.far.say(commands.Channel.Close(404, "NOT_FOUND", 60, 40))
        self.far.say(commands.Channel.OpenOk(), commands.Confirm.SelectOk())
        self.look()

    def lose(self, number: int) -> None:
        self.there.clear()
        self.far.link.lost("gone")
        self.far = RemoteBroker().open()
        assert self.far.link.attach(self.lane)
        self.far.say(commands.Channel.OpenOk(), commands.Confirm.SelectOk())
        self.look()

    def expire(self, number: int) -> None:
        self.lane.expire(float(number), "late")

    def choke(self, number: int) -> None:
        self.far.link.set_socket_full(number % 2 == 1)
        self.look()


STEPS = ("send", "ack", "ack_all", "nack", "close", "lose", "expire", "choke")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 12)), max_size=40))
def test_each_message_is_settled_once_and_acked_only_by_the_broker(
    steps: list[tuple[str, int]],
) -> None:
    course = Course()
    for step, number in steps:
        getattr(course, step)(number)
    course.lane.expire(float("inf"), "over")
    assert [len(message.results) for message in course.messages] == [1] * len(course.messages)
    acked = [index for index, message in enumerate(course.messages) if message.results == [RemoteResult.ACKED]]
    assert set(acked) <= course.acked


def test_a_message_acked_early_does_not_take_the_return_of_a_later_one() -> None:
    far = RemoteBroker().open()
    lane = far.ready(far.lane())
    slow, fast, back = (Told(b"same", b"key", mandatory=True) for _ in range(3))
    lane.send(slow)
    lane.send(fast)
    far.ack(2)
    far.ack(1)
    lane.send(back)
    far.say(commands.Basic.Return(312, "NO_ROUTE", "e", "key"))
    far.link.receive(client.content(1, None, b"same"))
    far.ack(3)
    assert [message.results for message in (slow, fast, back)] == [
        [RemoteResult.ACKED], [RemoteResult.ACKED], [RemoteResult.RETURNED]
    ]  # fmt: skip


def test_a_returned_body_that_looks_like_an_ack_confirms_nothing() -> None:
    far = RemoteBroker().open()
    lane = far.ready(far.lane())
    body = b"\x00\x3c\x00\x50" + (1).to_bytes(8, "big") + b"\x00"
    waiting, back = Told(b"waiting"), Told(body, b"b", mandatory=True)
    lane.send(waiting)
    lane.send(back)
    far.say(commands.Basic.Return(312, "NO_ROUTE", "e", "b"))
    far.link.receive(client.content(1, None, body))
    assert waiting.results == []


def test_a_return_belongs_to_the_message_with_the_same_headers() -> None:
    far = RemoteBroker().open()
    lane = far.ready(far.lane())
    routed, back = Told(b"one", mandatory=True), Told(b"two", mandatory=True)
    for message, number in ((routed, 1), (back, 2)):
        message.header = client.content_header(0, 3, encode_table(headers({"to": number})))[7:-1]
        lane.send(message)
    far.say(commands.Basic.Return(312, "NO_ROUTE", "e", "k"))
    far.link.receive(client.content(1, headers({"to": 2}), b"two"))
    far.ack(2, multiple=True)
    assert (routed.results, back.results) == ([RemoteResult.ACKED], [RemoteResult.RETURNED])


def test_the_number_of_expired_messages_whose_returns_are_recognised_is_limited() -> None:
    far = RemoteBroker().open()
    lane = far.ready(far.lane())
    for number in range(5000):
        lane.send(Told(key=b"%d" % number, mandatory=True, since=float(number)))
        far.link.to_send.clear()
        lane.expire(number + 1.0, "late")
    assert lane.idle
    assert len(lane._fingerprints) == len(lane._returnable) == 4096


def test_an_ack_of_several_messages_does_not_visit_those_acked_before() -> None:
    far = RemoteBroker().open()
    lane = far.ready(far.lane())
    for _ in range(4):
        lane.send(Told())
    for tag in (2, 1, 3):
        lane.confirmed(tag, False, RemoteResult.ACKED)
    assert lane._low == 4
