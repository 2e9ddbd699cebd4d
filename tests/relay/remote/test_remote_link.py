from __future__ import annotations

import pytest
from pamqp import base, commands

from proxy.amqp.frames import PROTOCOL_HEADER
from proxy.relay.remote.link import FRAME_MAX, RemoteLink, RemoteResult
from tests import client
from tests.client import method, split
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
    [b"HTTP/1.1 400 Bad Request\r\n", client.frame(1, 0, b"\0\0"), client.frame(1, 0, b"")[:-1] + b"\0"],
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
