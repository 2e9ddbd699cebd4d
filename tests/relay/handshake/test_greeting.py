from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands

from proxy.amqp.tables import encode_table
from proxy.errors import ProtocolError, Scope
from proxy.relay.handshake.greeting import (
    FRAME_MIN_BYTES,
    FRAME_MIN_BYTES_4_1,
    NAME_CHARACTERS,
    own_start,
    read_start,
    read_start_ok,
)
from proxy.values import Table, Value
from tests.amqp.test_tables import refusal, tables
from tests.client import method, split
from tests.relay.handshakes import CLIENT_PROPERTIES, OURS, PEER, VERSION, start, start_ok


def payload(frame: bytes) -> bytes:
    return frame[7:-1]


def text(name: bytes, content: bytes) -> Table:
    return ((name, Value("S", content)),)


def others(properties: Table) -> Table:
    """The entries that the sidecar did not add."""
    return tuple(entry for entry in properties if entry[0] not in dict(OURS))


@given(tables)
@example(text(b"oxproxy_peer", b"forged"))
def test_broker_properties_are_kept_and_the_sidecars_are_appended(properties: Table) -> None:
    server, _ = read_start(payload(start(encode_table(properties))), VERSION)
    assert server == start(encode_table(others(properties) + OURS[:1]))


@given(tables, st.binary(max_size=255).filter(lambda mechanism: mechanism != b"EXTERNAL"), st.binary(max_size=99))
@example(text(b"oxproxy", b"forged") + text(b"oxproxy_peer", b"forged"), b"PLAIN", b"")
def test_client_properties_mechanism_and_response_are_kept(
    properties: Table, mechanism: bytes, response: bytes
) -> None:
    sent = start_ok(encode_table(properties), mechanism, response)
    client = read_start_ok(payload(sent), VERSION, PEER, 10**6)
    assert client.frame == start_ok(encode_table(others(properties) + OURS), mechanism, response)


def test_entries_are_not_added_if_the_frame_would_become_too_large() -> None:
    forged = text(b"oxproxy_peer", b"forged")
    entries = text(b"pad", bytes(FRAME_MIN_BYTES - 70))
    client = read_start_ok(payload(start_ok(encode_table(entries + forged))), VERSION, PEER, FRAME_MIN_BYTES)
    assert client.frame == start_ok(encode_table(entries))
    roomy = read_start_ok(payload(start_ok(encode_table(entries))), VERSION, PEER, FRAME_MIN_BYTES_4_1)
    assert roomy.frame == start_ok(encode_table(entries + OURS))


@pytest.mark.parametrize(
    ("product", "version", "floor"),
    [
        (b"RabbitMQ", b"3.13.7", 4096),
        (b"RabbitMQ", b"4.0.5", 4096),
        (b"RabbitMQ", b"4.1.0", 8192),
        (b"RabbitMQ", b"4.1.0-rc.1", 8192),
        (b"RabbitMQ", b"4.10.0", 8192),
        (b"RabbitMQ", b"5.0", 8192),
        (b"RabbitMQ", b"4", 4096),
        (b"RabbitMQ", b"four.one", 4096),
        (b"RabbitMQ", b"", 4096),
        (b"RabbitMQ", "٤.٢".encode(), 4096),
        (b"LavinMQ", b"4.2.0", 4096),
        (b"RabbitMQ", b"9" * 5000, 8192),
    ],
)
def test_the_minimum_frame_size_follows_the_version_of_rabbitmq(product: bytes, version: bytes, floor: int) -> None:
    entries = encode_table(text(b"product", product) + text(b"version", version))
    assert read_start(payload(start(entries)), VERSION)[1] == floor


@pytest.mark.parametrize(
    ("mechanism", "response", "user"),
    [
        (b"PLAIN", b"\0guest\0s3cret", "guest"),
        (b"PLAIN", b"other\0guest\0s3cret", "guest"),
        (b"PLAIN", b"\0g\xffst\0s3cret", "g\N{REPLACEMENT CHARACTER}st"),
        (b"PLAIN", b"\0" + b"u" * 400 + b"\0s3cret", "u" * NAME_CHARACTERS),
        (b"PLAIN", b"s3cret", ""),
        (b"PLAIN", b"\0a\0b\0s3cret", ""),
        (b"AMQPLAIN", encode_table(text(b"LOGIN", b"guest") + text(b"PASSWORD", b"s3cret")), "guest"),
        (b"AMQPLAIN", encode_table(text(b"LOGIN", b"guest") + text(b"LOGIN", b"admin")), "guest"),
        (b"AMQPLAIN", encode_table(text(b"PASSWORD", b"s3cret")), ""),
        (b"AMQPLAIN", encode_table(((b"LOGIN", Value("I", 7)),)), ""),
        (b"AMQPLAIN", b"s3cret", ""),
        (b"OAUTHBEARER", b"\0guest\0s3cret", ""),
    ],
)
def test_the_user_is_read_from_known_mechanisms_and_the_password_never(
    mechanism: bytes, response: bytes, user: str
) -> None:
    client = read_start_ok(payload(start_ok(CLIENT_PROPERTIES, mechanism, response)), VERSION, PEER, 4096)
    assert client.user == user
    assert "s3cret" not in repr(client)
    assert "s3cret" not in f"{client}"


def test_sasl_external_is_not_offered() -> None:
    offered = method(0, commands.Connection.Start(0, 9, {}, "PLAIN EXTERNAL AMQPLAIN", "en_US"))
    (start,) = split(read_start(payload(offered), VERSION)[0])
    assert start.arguments["mechanisms"] == "PLAIN AMQPLAIN"


def test_sasl_external_is_refused_with_the_reason() -> None:
    with pytest.raises(ProtocolError, match="the broker would see its certificate, not yours") as caught:
        read_start_ok(payload(start_ok(CLIENT_PROPERTIES, b"EXTERNAL", b"")), VERSION, PEER, 4096)
    assert caught.value.reply_code == 403


def test_a_capability_that_is_not_true_does_not_count() -> None:
    capabilities = Value("F", ((b"a", Value("t", False)), (b"b", Value("S", b"true")), (b"c", Value("t", True))))
    entries = encode_table(((b"capabilities", capabilities), (b"capabilities", Value("V", None))))
    assert read_start_ok(payload(start_ok(entries)), VERSION, PEER, 4096).capabilities == {b"c"}


def test_the_sidecars_start_contains_what_a_client_needs() -> None:
    (own,) = split(own_start(VERSION))
    assert own.name == "Connection.Start"
    assert (own.arguments["version_major"], own.arguments["version_minor"]) == (0, 9)
    assert own.arguments["mechanisms"] == "PLAIN AMQPLAIN"
    assert own.arguments["locales"] == "en_US"


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(rest: bytes) -> None:
    answers = {
        refusal(lambda: read_start(b"\0\x0a\0\x0a" + rest, VERSION)),
        refusal(lambda: read_start_ok(b"\0\x0a\0\x0b" + rest, VERSION, PEER, 4096)),
    }
    assert answers <= {None, (502, Scope.CONNECTION)}
