from __future__ import annotations

import pytest
from pamqp import base, commands

from proxy.amqp.frames import PROTOCOL_HEADER
from proxy.relay.remote.link import FRAME_MAX, Credentials, RemoteLink
from tests.client import method, split

CREDENTIALS = Credentials(b"mover", b"s3cret", b"far side")
START = commands.Connection.Start(0, 9, {}, "PLAIN AMQPLAIN", "en_US")


def login(*commanded: base.Frame) -> RemoteLink:
    made = RemoteLink(CREDENTIALS, "1.0")
    made.receive(b"".join(method(0, one) for one in commanded))
    return made


def test_it_begins_with_the_protocol_header() -> None:
    assert login().to_send == [PROTOCOL_HEADER]


def test_it_logs_in_with_plain_takes_the_limits_and_opens_the_virtual_host() -> None:
    made = login(START, commands.Connection.Tune(100, 50_000, 30), commands.Connection.OpenOk())
    start_ok, tune_ok, opened = split(b"".join(made.to_send[1:]))
    assert (start_ok.arguments["mechanism"], start_ok.arguments["response"]) == ("PLAIN", "\0mover\0s3cret")
    assert tune_ok.arguments == {"channel_max": 100, "frame_max": 50_000, "heartbeat": 30}
    assert opened.arguments["virtual_host"] == "far side"
    assert (made.open, made.failure, made.channel_max, made.frame_max, made.heartbeat) == (True, None, 100, 50_000, 30)


def test_no_limit_of_the_broker_becomes_one_of_ours() -> None:
    made = login(START, commands.Connection.Tune(0, 0, 0))
    assert (made.channel_max, made.frame_max, made.heartbeat) == (65535, FRAME_MAX, 60)


@pytest.mark.parametrize(
    ("commanded", "failure"),
    [
        ([commands.Connection.Start(0, 9, {}, "EXTERNAL", "en_US")], "does not offer SASL PLAIN"),
        ([commands.Connection.OpenOk()], "sent Connection.OpenOk, expected Connection.Start"),
        ([START, commands.Connection.Close(403, "ACCESS_REFUSED", 0, 0)], "refused: 403 ACCESS_REFUSED"),
    ],
)
def test_what_goes_wrong_is_said_without_the_password(commanded: list[base.Frame], failure: str) -> None:
    made = login(*commanded)
    assert (made.open, made.failure) == (False, failure)
    assert "s3cret" not in repr(CREDENTIALS) + (made.failure or "")
