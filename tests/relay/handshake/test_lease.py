from __future__ import annotations

import pytest
from pamqp import commands

from oxproxy.relay.handshake.lease import Lease, LeaseNegotiation
from tests.client import HEARTBEAT, PROTOCOL_HEADER, method, split
from tests.relay.handshakes import (
    CLIENT_PROPERTIES,
    OPEN,
    OPEN_OK,
    SECURE,
    SECURE_OK,
    close,
    start,
    start_ok,
    tune,
    tune_ok,
)

KEY = b"k" * 32
START = start()
TUNE, TUNE_OK = tune(), tune_ok()
START_OK = start_ok()


def new(*kept: Lease) -> LeaseNegotiation:
    return LeaseNegotiation(lambda: kept, KEY)


def leased(start_ok: bytes = START_OK, tune_ok: bytes = TUNE_OK, opened: bytes = OPEN) -> Lease:
    """The recorded handshake of a connection that the broker opened."""
    stand_in = new()
    for sent, answer in ((PROTOCOL_HEADER, START), (start_ok, TUNE), (tune_ok, b""), (opened, OPEN_OK)):
        assert stand_in.take([sent]) == b""
        assert stand_in.to_upstream == [sent]
        stand_in.to_upstream.clear()
        assert stand_in.receive_from_upstream(answer) == answer
    assert stand_in.wants_upstream
    assert stand_in.taken is None
    return stand_in.lease


def say(stand_in: LeaseNegotiation, *frames: bytes) -> bytes:
    return b"".join(stand_in.take([frame]) for frame in frames)


def test_no_password_is_kept_in_a_lease() -> None:
    lease = leased()
    assert not [name for name in Lease.__slots__ if b"s3cret" in getattr(lease, name)]


def test_a_producer_with_the_same_login_is_answered_without_the_broker() -> None:
    kept = leased()
    stand_in = new(kept)
    assert say(stand_in, PROTOCOL_HEADER, START_OK) == START + TUNE
    assert stand_in.take([TUNE_OK, OPEN]) == OPEN_OK
    assert (stand_in.taken, stand_in.lease) == (kept, kept)
    assert (stand_in.wants_upstream, stand_in.to_upstream) == (False, [])
    assert stand_in.receive_from_upstream(HEARTBEAT[:3]) == HEARTBEAT[:3]


@pytest.mark.parametrize(
    "other",
    [
        start_ok(response=b"\0guest\0other"),
        start_ok(mechanism=b"AMQPLAIN"),
        start_ok(entries=b""),
    ],
    ids=["password", "mechanism", "capabilities"],
)
def test_another_login_is_forwarded_to_the_broker(other: bytes) -> None:
    stand_in = new(leased())
    assert say(stand_in, PROTOCOL_HEADER) == START
    assert say(stand_in, other) == b""
    assert stand_in.wants_upstream
    assert stand_in.to_upstream == [PROTOCOL_HEADER]
    stand_in.to_upstream.clear()
    assert stand_in.receive_from_upstream(START) == b""
    assert stand_in.to_upstream == [other]
    assert stand_in.receive_from_upstream(close()) == close()
    assert stand_in.lease.open_ok == b""


@pytest.mark.parametrize(
    ("tune_ok", "opened"),
    [
        (tune_ok(frame_max=8192), OPEN),
        (TUNE_OK, method(0, commands.Connection.Open("other"))),
    ],
    ids=["limits", "virtual host"],
)
@pytest.mark.parametrize("together", [True, False])
def test_a_later_difference_replays_the_handshake_with_the_broker(
    tune_ok: bytes, opened: bytes, together: bool
) -> None:
    stand_in = new(leased())
    assert say(stand_in, PROTOCOL_HEADER, START_OK) == START + TUNE
    output = stand_in.take([tune_ok, opened]) if together else say(stand_in, tune_ok, opened)
    assert (output, stand_in.taken) == (b"", None)
    for expected, answer in (([PROTOCOL_HEADER], START), ([START_OK], TUNE), ([tune_ok, opened], HEARTBEAT)):
        assert stand_in.to_upstream == expected
        stand_in.to_upstream.clear()
        assert stand_in.receive_from_upstream(answer) == (HEARTBEAT if answer is HEARTBEAT else b"")
    assert stand_in.receive_from_upstream(OPEN_OK + HEARTBEAT[:2]) == OPEN_OK + HEARTBEAT[:2]
    assert (stand_in.lease.open_ok, stand_in.lease.open) == (OPEN_OK, opened)


def test_a_changed_reply_of_the_broker_is_reported() -> None:
    stand_in = new(leased())
    say(stand_in, PROTOCOL_HEADER, START_OK, TUNE_OK, method(0, commands.Connection.Open("other")))
    stand_in.receive_from_upstream(START)
    (close,) = split(stand_in.receive_from_upstream(tune(10, 4096, 5)))
    assert (close.name, close.arguments["reply_code"]) == ("Connection.Close", 320)
    assert stand_in.lease.open_ok == b""


def test_a_lease_does_not_depend_on_chunking() -> None:
    stand_in = new()
    say(stand_in, PROTOCOL_HEADER)
    assert b"".join(stand_in.receive_from_upstream(bytes((octet,))) for octet in START) == START
    say(stand_in, START_OK, TUNE_OK, OPEN)
    assert b"".join(stand_in.receive_from_upstream(bytes((octet,))) for octet in TUNE + OPEN_OK) == TUNE + OPEN_OK
    assert stand_in.lease.open_ok == OPEN_OK


@pytest.mark.parametrize("wrong", [b"AMQP\x00\x00\x09\x00", b"HTTP/1.1 400", b"\x01\0\0\0\0\0\x04\0\x0a\0\x0a\0"])
def test_input_that_is_not_amqp_is_left_to_the_handshake(wrong: bytes) -> None:
    stand_in = new()
    say(stand_in, PROTOCOL_HEADER)
    assert stand_in.receive_from_upstream(wrong) == wrong
    assert stand_in.lease.open_ok == b""


def test_a_mechanism_of_several_steps_is_never_kept() -> None:
    stand_in = new()
    say(stand_in, PROTOCOL_HEADER)
    stand_in.receive_from_upstream(START)
    say(stand_in, START_OK)
    assert stand_in.receive_from_upstream(SECURE) == SECURE
    say(stand_in, SECURE_OK)
    assert stand_in.receive_from_upstream(TUNE + OPEN_OK) == TUNE + OPEN_OK
    assert stand_in.lease.open_ok == b""


def test_the_first_matching_connection_is_used() -> None:
    other, first, second = leased(start_ok(CLIENT_PROPERTIES, response=b"\0a\0b")), leased(), leased()
    stand_in = new(other, first, second)
    say(stand_in, PROTOCOL_HEADER, START_OK, TUNE_OK, OPEN)
    assert stand_in.taken is first
