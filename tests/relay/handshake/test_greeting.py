from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands

from oxproxy.amqp.tables import encode_table
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.handshake.greeting import (
    FRAME_MIN_BYTES,
    FRAME_MIN_BYTES_4_1,
    NAME_CHARACTERS,
    Tuning,
    TuningLimits,
    agree,
    offer,
    own_start,
    read_start,
    read_start_ok,
)
from oxproxy.values import Table, Value
from tests.amqp.test_tables import refusal
from tests.client import method, split
from tests.relay.contents import tables
from tests.relay.handshakes import CLIENT_PROPERTIES, OURS, PEER, VERSION, start, start_ok


def payload(frame: bytes) -> bytes:
    return frame[7:-1]


def text(name: bytes, content: bytes) -> Table:
    return ((name, Value("S", content)),)


def others(properties: Table) -> Table:
    """The entries that the sidecar did not add."""
    return tuple(entry for entry in properties if entry[0] not in dict(OURS))


@given(tables())
@example(text(b"oxproxy_peer", b"forged"))
def test_broker_properties_are_kept_and_the_sidecars_are_appended(properties: Table) -> None:
    server, _ = read_start(payload(start(encode_table(properties))), VERSION)
    assert server == start(encode_table(others(properties) + OURS[:1]))


@given(tables(), st.binary(max_size=255).filter(lambda mechanism: mechanism != b"EXTERNAL"), st.binary(max_size=99))
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


OWN_FRAME_MAX = 131072


@pytest.mark.parametrize(
    ("broker", "offered"),
    [
        (TuningLimits(2047, 131072, 60), TuningLimits(2046, 131072, 60)),
        (TuningLimits(0, 0, 0), TuningLimits(65534, 131072, 0)),
        (TuningLimits(2, 4096, 1), TuningLimits(1, 4096, 1)),
        (TuningLimits(1, 4096, 1), TuningLimits(1, 4096, 1)),
        (TuningLimits(65535, 2**32 - 1, 65535), TuningLimits(65534, 131072, 65535)),
    ],
)
def test_the_offer_reserves_the_top_channel_and_limits_the_frame_size(
    broker: TuningLimits, offered: TuningLimits
) -> None:
    assert offer(broker, OWN_FRAME_MAX) == offered


@pytest.mark.parametrize(
    ("broker", "answer", "agreed"),
    [
        (TuningLimits(2047, 131072, 60), TuningLimits(2046, 131072, 60), Tuning(2046, 2047, 131072, 131072, 60, 60)),
        (TuningLimits(2047, 131072, 60), TuningLimits(0, 0, 0), Tuning(2046, 2047, 131072, 131072, 0, 60)),
        (TuningLimits(2047, 131072, 0), TuningLimits(1, 4096, 580), Tuning(1, 2, 4096, 4096, 580, 580)),
        (TuningLimits(0, 0, 60), TuningLimits(0, 0, 5), Tuning(65534, 65535, 131072, 131072, 5, 5)),
        (TuningLimits(1, 0, 0), TuningLimits(0, 0, 0), Tuning(1, 1, 131072, 131072, 0, 0)),
    ],
)
def test_the_upstream_has_one_more_channel_and_each_side_its_heartbeat(
    broker: TuningLimits, answer: TuningLimits, agreed: Tuning
) -> None:
    assert agree(broker, offer(broker, OWN_FRAME_MAX), answer) == agreed


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (TuningLimits(2047, 0, 0), "negotiated channel_max = 2047 is higher than the maximum allowed value (2046)"),
        (TuningLimits(0, 131073, 0), "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
        (TuningLimits(0, 4095, 0), "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ],
)
def test_a_tune_ok_outside_the_offer_is_a_530_with_the_text_of_rabbitmq(answer: TuningLimits, text: str) -> None:
    broker = TuningLimits(2047, 131072, 60)
    with pytest.raises(ProtocolError) as refused:
        agree(broker, offer(broker, OWN_FRAME_MAX), answer)
    error = refused.value
    assert (error.reply_code, error.text.decode(), error.scope) == (530, text, Scope.CONNECTION)
    assert (error.class_id, error.method_id) == (10, 30)


_shorts = st.integers(0, 2**16 - 1) | st.sampled_from([0, 1, 2, 2047])
_sizes = st.just(0) | st.integers(FRAME_MIN_BYTES, 2**32 - 1)


@given(
    st.builds(TuningLimits, _shorts, _sizes, _shorts),
    st.builds(TuningLimits, _shorts, st.integers(0, 2**32 - 1), _shorts),
)
def test_what_is_agreed_is_within_both_offers(broker: TuningLimits, answer: TuningLimits) -> None:
    offered = offer(broker, OWN_FRAME_MAX)
    assert 0 < offered.channel_max <= (broker.channel_max or 65535)
    try:
        tuning = agree(broker, offered, answer)
    except ProtocolError:
        assert answer.channel_max > offered.channel_max or not (
            FRAME_MIN_BYTES <= answer.frame_max_bytes <= offered.frame_max_bytes
        )
        return
    assert 0 < tuning.channel_max_producer <= tuning.channel_max_upstream <= (broker.channel_max or 65535)
    assert FRAME_MIN_BYTES <= tuning.frame_max_producer <= tuning.frame_max_upstream
    assert tuning.frame_max_upstream <= (broker.frame_max_bytes or OWN_FRAME_MAX)
    assert tuning.heartbeat_upstream or not (answer.heartbeat_seconds or broker.heartbeat_seconds)
