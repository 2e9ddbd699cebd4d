from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands

from oxproxy.amqp.frames import PROTOCOL_HEADER
from oxproxy.amqp.tables import encode_table
from oxproxy.relay.remote_link import FRAME_MAX, RemoteLink, RemoteResult
from tests import client
from tests.client import method, split
from tests.producer import headers
from tests.relay.remote_broker import CREDENTIALS, RemoteBroker, Told

START = commands.Connection.Start(0, 9, {}, "PLAIN AMQPLAIN", "en_US")


def login(*commanded: base.Frame) -> RemoteLink:
    made = RemoteLink(CREDENTIALS, "1.0")
    made.receive(b"".join(method(0, command) for command in commanded))
    return made


def test_a_link_logs_in_with_plain_accepts_the_limits_and_opens_the_virtual_host() -> None:
    made = login(START, commands.Connection.Tune(100, 50_000, 30), commands.Connection.OpenOk())
    header, *frames = made.to_send
    assert header == PROTOCOL_HEADER
    start_ok, tune_ok, opened = split(b"".join(frames))
    assert (start_ok.arguments["mechanism"], start_ok.arguments["response"]) == ("PLAIN", "\0mover\0s3cret")
    assert tune_ok.arguments == {"channel_max": 100, "frame_max": 50_000, "heartbeat": 30}
    assert opened.arguments["virtual_host"] == "far side"
    assert (made.open, made.failure, made.channel_max, made.frame_max, made.heartbeat) == (True, None, 100, 50_000, 30)


def test_unlimited_values_of_the_broker_are_replaced_by_limits() -> None:
    made = login(START, commands.Connection.Tune(0, 0, 0))
    assert (made.channel_max, made.frame_max, made.heartbeat) == (65535, FRAME_MAX, 60)


@pytest.mark.parametrize(
    ("commanded", "failure"),
    [
        ([commands.Connection.Start(0, 9, {}, "EXTERNAL", "en_US")], "does not offer SASL PLAIN"),
        ([commands.Connection.OpenOk()], "sent Connection.OpenOk, expected Connection.Start"),
        ([START, commands.Connection.Close(403, "ACCESS_REFUSED - no", 0, 0)], "refused: 403 ACCESS_REFUSED - no"),
    ],
)
def test_errors_do_not_contain_the_password(commanded: list[base.Frame], failure: str) -> None:
    made = login(*commanded)
    assert (made.open, made.failure) == (False, failure)
    assert "s3cret" not in repr(CREDENTIALS) + (made.failure or "")


def test_frames_in_pieces_are_joined() -> None:
    far = RemoteBroker().open()
    lane = far.ready(far.lane())
    messages = [Told(), Told()]
    for message in messages:
        lane.send(message)
    data = method(1, commands.Basic.Ack(1, False)) + method(1, commands.Basic.Ack(2, False))
    for byte in data:
        far.link.receive(bytes((byte,)))
    assert [message.results for message in messages] == [[RemoteResult.ACKED]] * 2


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        client.frame(1, 0, b"\0\0"),
        client.frame(1, 0, b"")[:-1] + b"\0",
        client.frame(9, 0, b""),
    ],
)
def test_bytes_that_are_not_amqp_end_the_link(data: bytes) -> None:
    link = RemoteLink(CREDENTIALS, "1.0")
    link.receive(data)
    assert link.failure is not None
    assert link.failure.startswith("violated AMQP 0-9-1")


def test_a_frame_that_is_too_large_ends_the_link_at_its_header() -> None:
    far = RemoteBroker().open()
    far.link.receive(b"\x01\0\x01\x7f\xff\xff\xff")
    assert far.link.failure is not None


def test_a_close_of_the_broker_loses_unconfirmed_messages() -> None:
    far = RemoteBroker().open()
    lane = far.ready(far.lane())
    message = Told()
    lane.send(message)
    far.say(commands.Connection.Close(320, "CONNECTION_FORCED", 0, 0), channel=0)
    assert message.results == [RemoteResult.LOST]
    assert far.names()[-1] == "Connection.CloseOk"
    assert far.link.failure == "closed: 320 CONNECTION_FORCED"


def test_a_blocked_link_sends_nothing_until_it_is_unblocked() -> None:
    far = RemoteBroker().open()
    lane = far.ready(far.lane())
    far.say(commands.Connection.Blocked("low on memory"), channel=0)
    lane.send(Told())
    assert far.sent() == b""
    far.say(commands.Connection.Unblocked(), channel=0)
    assert far.names() == ["Basic.Publish", "Header", "Body"]


def test_each_lane_has_a_channel_and_numbers_are_used_again_when_their_close_is_answered() -> None:
    far = RemoteBroker().open(channels=2)
    first, second = far.ready(far.lane(), 1), far.ready(far.lane(), 2)
    assert (first.number, second.number) == (1, 2)
    assert not far.link.attach(far.lane())
    first.close()
    assert far.names() == ["Channel.Close"]
    assert not far.link.attach(far.lane())
    far.say(commands.Channel.CloseOk(), channel=1)
    assert far.link.attach(far.lane())


def test_a_channel_close_of_the_broker_is_answered_and_the_channel_opened_again() -> None:
    far = RemoteBroker().open()
    lane = far.ready(far.lane())
    message, later = Told(), Told()
    lane.send(message)
    far.sent()
    far.say(commands.Channel.Close(404, "NOT_FOUND - no exchange", 60, 40))
    assert message.results == [RemoteResult.NACKED]
    assert far.names() == ["Channel.CloseOk", "Channel.Open", "Confirm.Select"]
    lane.send(later)
    far.say(commands.Channel.OpenOk(), commands.Confirm.SelectOk())
    assert far.names() == ["Basic.Publish", "Header", "Body"]
    far.ack(1)
    assert later.results == [RemoteResult.ACKED]


def test_connection_close_is_sent_on_open_links_only() -> None:
    far = RemoteBroker().open()
    far.link.close()
    assert far.names() == ["Connection.Close"]
    fresh = RemoteBroker()
    fresh.sent()
    fresh.link.close()
    assert fresh.sent() == b""


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
