"""Handshake frames of both sides, and handshakes driven to any state."""

from __future__ import annotations

import struct

from pamqp import commands

from oxproxy.amqp.tables import encode_table
from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.relay.handshake.machine import WAITING_BYTES, Handshake, HandshakeState
from oxproxy.values import Table, Value
from tests.client import PROTOCOL_HEADER, frame, method

PEER = "192.0.2.7:51000"
VERSION = "1.2.3"
UNREACHABLE = UpstreamError(UpstreamFailure.UNAVAILABLE, "connection refused")

#: These contain entries that pamqp does not encode unchanged: an octet 7 for true, a short integer, a duplicate.
SERVER_PROPERTIES = (
    encode_table(
        (
            (b"capabilities", Value("F", ((b"publisher_confirms", Value("t", True)),))),
            (b"product", Value("S", b"RabbitMQ")),
            (b"version", Value("S", b"3.10.8")),
        )
    )
    + b"\x03oddt\x07\x03oddV\x05shortu\x00\x01"
)
CLIENT_PROPERTIES = b"\x03oddt\x07" + encode_table(
    (
        (b"connection_name", Value("S", b"orders")),
        (b"capabilities", Value("F", ((b"authentication_failure_close", Value("t", True)),))),
    )
)


def start(entries: bytes = SERVER_PROPERTIES, mechanisms: bytes = b"PLAIN AMQPLAIN X-CHALLENGE") -> bytes:
    table = struct.pack(">I", len(entries)) + entries
    payload = struct.pack(">HHBB", 10, 10, 0, 9) + table
    return frame(1, 0, payload + struct.pack(">I", len(mechanisms)) + mechanisms + b"\0\0\0\x05en_US")


def start_ok(
    entries: bytes = CLIENT_PROPERTIES, mechanism: bytes = b"PLAIN", response: bytes = b"\0guest\0s3cret"
) -> bytes:
    payload = struct.pack(">HH", 10, 11) + struct.pack(">I", len(entries)) + entries
    login = bytes((len(mechanism),)) + mechanism + struct.pack(">I", len(response)) + response
    return frame(1, 0, payload + login + b"\x05en_US")


def tune(channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 60) -> bytes:
    return method(0, commands.Connection.Tune(channel_max, frame_max, heartbeat))


def tune_ok(channel_max: int = 2046, frame_max: int = 131072, heartbeat: int = 60) -> bytes:
    return method(0, commands.Connection.TuneOk(channel_max, frame_max, heartbeat))


def close(reply_code: int = 403, text: str = "ACCESS_REFUSED - no", class_id: int = 0, method_id: int = 0) -> bytes:
    return method(0, commands.Connection.Close(reply_code, text, class_id, method_id))


SECURE = method(0, commands.Connection.Secure("who?"))
SECURE_OK = method(0, commands.Connection.SecureOk("me"))
OPEN = method(0, commands.Connection.Open("sales"))
OPEN_OK = method(0, commands.Connection.OpenOk())
CLOSE_OK = method(0, commands.Connection.CloseOk())

P, U = "producer", "upstream"
#: All frames of a handshake with their senders.
CONVERSATION = [
    (P, PROTOCOL_HEADER),
    (U, start()),
    (P, start_ok()),
    (U, SECURE),
    (P, SECURE_OK),
    (U, tune()),
    (P, tune_ok()),
    (P, OPEN),
    (U, OPEN_OK),
]

#: state -> frames that lead to it
WAY = {
    HandshakeState.AWAITING_HEADER: CONVERSATION[:0],
    HandshakeState.AWAITING_START: CONVERSATION[:1],
    HandshakeState.AWAITING_START_OK: CONVERSATION[:2],
    HandshakeState.AWAITING_TUNE: CONVERSATION[:3],
    HandshakeState.AWAITING_SECURE_OK: CONVERSATION[:4],
    HandshakeState.AWAITING_TUNE_OK: CONVERSATION[:6],
    HandshakeState.AWAITING_OPEN: CONVERSATION[:7],
    HandshakeState.AWAITING_OPEN_OK: CONVERSATION[:8],
    HandshakeState.OPEN: CONVERSATION,
    HandshakeState.REFUSING: [*CONVERSATION[:2], (U, close())],
    HandshakeState.CLOSING: [*CONVERSATION[:3], (U, close())],
    HandshakeState.CLOSED: [*CONVERSATION[:3], (P, b""), (U, close()), (P, CLOSE_OK)],
}


def say(handshake: Handshake, side: str, data: bytes) -> None:
    (handshake.receive_from_producer if side == P else handshake.receive_from_upstream)(data)


def new(waiting_bytes: int = WAITING_BYTES) -> Handshake:
    return Handshake(PEER, VERSION, waiting_bytes=waiting_bytes)


def at(state: HandshakeState, waiting_bytes: int = WAITING_BYTES) -> Handshake:
    """A handshake in this state, whose output has been cleared."""
    handshake = new(waiting_bytes)
    for side, data in WAY[state]:
        say(handshake, side, data)
    assert handshake.state is state
    handshake.to_producer.clear()
    handshake.to_upstream.clear()
    return handshake


def said_to_producer(handshake: Handshake) -> bytes:
    data = b"".join(handshake.to_producer)
    handshake.to_producer.clear()
    return data


def said_to_upstream(handshake: Handshake) -> bytes:
    data = b"".join(handshake.to_upstream)
    handshake.to_upstream.clear()
    return data


OURS: Table = ((b"oxproxy", Value("S", VERSION.encode())), (b"oxproxy_peer", Value("S", PEER.encode())))
