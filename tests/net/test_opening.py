from __future__ import annotations

import asyncio

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from oxproxy.net.context import SessionLimits
from oxproxy.net.tls import ClientTls, ServerTls, TlsContexts
from oxproxy.net.upstream import Upstream
from oxproxy.relay.connection_state import RelayLimits
from tests import client
from tests.certificates import Authority
from tests.net.stage import FakeBroker, NoControl, Peer, Stage, Tune, eventually, staged
from tests.private_broker import free_port
from tests.producer import Closed, Producer
from tests.rabbitmq import Broker

#: Deadlines that expire before any wait in the tests times out.
SOON = SessionLimits(handshake_seconds=0.1, close_seconds=0.1)


def results(stage: Stage) -> tuple[dict[str, int], dict[str, int]]:
    """Results of the attempts, downstream and upstream, without zeros."""
    sides = (stage.counters.downstream, stage.counters.upstream)
    down, up = ({name: count for name, count in side.results.items() if count} for side in sides)
    return down, up


async def refused(stage: Stage) -> tuple[int, str]:
    """Read the sidecar's own Connection.Start and its close; return code and text."""
    peer = await stage.connect()
    await peer.log_in()
    return await peer.closed()


# -- successful handshakes ---------------------------------------------------------------------------------------------


async def test_both_sides_agree_and_one_channel_is_kept_back() -> None:
    async with staged(broker=FakeBroker(Tune(channel_max=100, frame_max=65536, heartbeat=60))) as stage:
        peer = await stage.connect()
        start = await peer.log_in("me", "secret")
        assert start["server_properties"]["oxproxy"] == "1.2.3"  # type: ignore[index]
        assert start["server_properties"]["version"] == "3.10.8"  # type: ignore[index]
        tune = (await peer.expect("Connection.Tune")).arguments
        assert tune == {"channel_max": 99, "frame_max": 65536, "heartbeat": 60}
        peer.call(commands.Connection.TuneOk(99, 65536, 30), 0)
        peer.call(commands.Connection.Open("/"), 0)
        await peer.expect("Connection.OpenOk")
        sent = stage.broker.opened
        assert (sent["StartOk"]["mechanism"], sent["StartOk"]["response"]) == ("PLAIN", "\0me\0secret")
        assert sent["TuneOk"] == {"channel_max": 100, "frame_max": 65536, "heartbeat": 30}
        assert results(stage) == ({"ok": 1}, {"ok": 1})
        assert (stage.counters.downstream.open, stage.counters.upstream.open) == (1, 1)


async def test_the_first_producer_of_a_virtual_host_waits_until_it_is_followed() -> None:
    control = NoControl(answers=False, followed=False)
    async with staged(control=control) as stage:
        peer = await stage.greeted()
        link = await stage.broker.link()
        peer.call(commands.Channel.Open())
        await eventually(lambda: control.asked == [("adopt", "/")])
        assert results(stage) == ({}, {})
        control.answering.set()
        await peer.expect("Connection.OpenOk")
        await link.expect("Channel.Open")


async def test_a_virtual_host_that_cannot_be_followed_in_time_is_usable() -> None:
    control = NoControl(answers=False, followed=False)
    with capture_logs() as logged:
        async with staged(SessionLimits(bind_seconds=0.05), control=control) as stage:
            peer, link = await stage.producer()
            peer.call(commands.Channel.Open())
            await link.expect("Channel.Open")
    assert "client declarations of a virtual host not loaded" in [entry["event"] for entry in logged]


async def test_a_broker_lost_while_its_virtual_host_is_being_followed_is_noticed() -> None:
    control = NoControl(answers=False, followed=False)
    async with staged(control=control) as stage:
        peer = await stage.greeted()
        link = await stage.broker.link()
        await eventually(lambda: control.asked)
        (session,) = stage.listener._sessions
        link.writer.transport.abort()
        await eventually(lambda: not session._upstream.connected)
        control.answering.set()
        await peer.expect("Connection.OpenOk")
        assert (await peer.close_reason())[0] == 320


async def test_a_broker_lost_while_another_session_follows_the_virtual_host_opens_one_session(
    authority: Authority,
) -> None:
    """Over TLS, where the loss of a socket is noticed even if it is not read."""
    control = NoControl(answers=False, followed=False)
    broker = FakeBroker(tls=ServerTls(*authority.certificate("localhost")).context())
    await broker.start()
    upstream = Upstream(
        [("127.0.0.1", broker.port)], tls=ClientTls(authority.ca, server_name="localhost"), contexts=TlsContexts()
    )
    async with staged(broker=broker, upstream=upstream, control=control) as stage:
        peer = await stage.greeted()
        link = await broker.link()
        await eventually(lambda: control.asked)
        control.followed = True  # by the session of another producer
        link.writer.transport.abort()
        second = await stage.connect()  # when it is answered, the loss has been noticed
        await second.begin()
        control.answering.set()
        await peer.expect("Connection.OpenOk")
        assert (await peer.closed())[0] == 320
        await eventually(lambda: stage.counters.downstream.open == 0)
        assert results(stage) == ({"ok": 1}, {"ok": 1})


# -- unreachable and silent brokers ------------------------------------------------------------------------------------


async def test_an_unreachable_broker_closes_the_producer_with_320_and_the_cause() -> None:
    port = free_port()
    async with staged(upstream=Upstream([("127.0.0.1", port)])) as stage:
        code, text = await refused(stage)
        assert code == 320
        assert text.startswith(f"CONNECTION_FORCED - upstream unavailable: 127.0.0.1:{port}: ")
        await eventually(lambda: results(stage) == ({"unavailable": 1}, {"unavailable": 1}))


async def test_an_unanswered_connect_closes_the_producer_with_320_after_the_deadline(deaf: tuple[str, int]) -> None:
    async with staged(upstream=Upstream([deaf], connect_seconds=0.05)) as stage:
        code, text = await refused(stage)
        assert (code, "no response within 0.05 s" in text) == (320, True)
        await eventually(lambda: results(stage) == ({"timeout": 1}, {"timeout": 1}))


@pytest.mark.parametrize(
    ("point", "awaited"),
    [
        ("header", "Connection.Start"),
        ("StartOk", "Connection.Secure or Connection.Tune"),
        ("Open", "Connection.OpenOk"),
    ],
)
async def test_a_broker_that_stops_answering_closes_the_producer_with_320_after_the_deadline(
    point: str, awaited: str
) -> None:
    async with staged(SOON, broker=FakeBroker(silent_after=point)) as stage:
        peer = await stage.connect()
        await (stage.greeted(peer) if point == "Open" else peer.log_in())
        assert await peer.close_reason() == (
            320,
            f"CONNECTION_FORCED - upstream timeout: no {awaited} within 0.1 s",
        )
        assert await peer.is_gone()  # without a close-ok, after close_seconds
        await eventually(lambda: results(stage)[0] == {"timeout": 1})


@pytest.mark.parametrize("point", ["header", "Open"])
async def test_a_broker_lost_during_the_handshake_closes_the_producer_with_320(point: str) -> None:
    async with staged(broker=FakeBroker(silent_after=point)) as stage:
        peer = await stage.connect()
        logging_in = asyncio.ensure_future(stage.greeted(peer) if point == "Open" else peer.log_in())
        await (await stage.broker.link()).disconnect()
        await logging_in
        assert (await peer.close_reason())[0] == 320


# -- silent producers, and producers that disconnect -------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"AM", client.PROTOCOL_HEADER])
async def test_a_producer_that_stays_silent_is_dropped_after_the_deadline(sent: bytes) -> None:
    with capture_logs() as logged:
        async with staged(SOON) as stage:
            peer = await stage.connect()
            peer.send(sent)
            if sent == client.PROTOCOL_HEADER:
                await peer.expect("Connection.Start")
            assert await peer.is_gone()
            await eventually(lambda: results(stage)[0] == {"timeout": 1})
    assert "handshake not finished in time" in [entry["event"] for entry in logged]


async def test_a_probe_that_connects_and_leaves_is_no_event() -> None:
    with capture_logs() as logged:
        async with staged() as stage:
            for _ in range(3):
                await (await stage.connect()).disconnect()
            peer, _ = await stage.producer()
            await peer.disconnect()
            await eventually(lambda: stage.counters.downstream.open == 0)
            assert results(stage) == ({"ok": 1}, {"ok": 1})
    assert [entry["event"] for entry in logged if entry["log_level"] != "info"] == []
    assert [entry["event"] for entry in logged] == ["producer connected", "producer disconnected"]


async def test_a_producer_that_disconnects_ends_its_upstream_connection() -> None:
    async with staged(broker=FakeBroker(silent_after="StartOk")) as stage:
        peer = await stage.connect()
        await peer.log_in()
        link = await stage.broker.link()
        await peer.disconnect()
        assert await link.is_gone()
        await eventually(lambda: results(stage)[0] == {"refused": 1})


def under_way() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def test_a_producer_that_disconnects_during_the_connect_leaves_no_upstream_connection(
    deaf: tuple[str, int],
) -> None:
    async with staged(upstream=Upstream([deaf], connect_seconds=60)) as stage:
        peer = await stage.connect()
        peer.send(client.PROTOCOL_HEADER)
        await eventually(lambda: "connect upstream" in under_way())
        await peer.disconnect()
        await eventually(lambda: not under_way() & {"accept", "connect upstream"})


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        (b"GET /?token=secret HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS on a port without TLS"),
        (b"AMQP\x03\x01\x00\x00", "protocol header AMQP 3 1 0 0"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not AMQP"),
    ],
)
async def test_another_protocol_gets_the_amqp_header_and_is_closed_counted_and_logged(sent: bytes, seen: str) -> None:
    with capture_logs() as logged:
        async with staged() as stage:
            peer = await stage.connect()
            peer.send(sent)
            assert await peer.read(8) == client.PROTOCOL_HEADER
            assert await peer.is_gone()
            await eventually(lambda: results(stage) == ({"protocol_error": 1}, {}))
    [entry] = logged
    assert (entry["event"], entry["result"]) == ("producer not connected", "protocol_error")
    assert entry["reason"] == f"{seen}, expected the protocol header AMQP 0 0 9 1"


async def test_a_frame_out_of_order_is_a_protocol_error_that_upstream_never_sees() -> None:
    with capture_logs() as logged:
        async with staged() as stage:
            peer = await stage.connect()
            await peer.begin()
            peer.call(commands.Channel.Open())
            code, text = await peer.closed()
            assert (code, "Channel.Open" in text) == (504, True)
            await eventually(lambda: results(stage)[0] == {"protocol_error": 1})
    [entry] = [entry for entry in logged if entry["event"] == "producer not connected"]
    assert (entry["result"], entry["reply_code"]) == ("protocol_error", 504)


# -- against a real broker ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vhost", "user", "password", "code"),
    [
        ("/", "guest", "wrong", 403),
        ("/", "nobody", "nobody", 403),
        ("nowhere", "guest", "guest", 530),
        ("/", "stranger", "stranger", 530),
    ],
)
async def test_wrong_credentials_and_a_missing_virtual_host_get_the_brokers_own_errors(
    broker: Broker, vhost: str, user: str, password: str, code: int, request: pytest.FixtureRequest
) -> None:
    if user == "stranger":  # a user without permissions
        broker.create_user(user, password)
        request.addfinalizer(lambda: broker.delete_user(user))

    def log_in(port: int) -> Closed:
        with pytest.raises(Closed) as caught, Producer(port, vhost, user, password):
            pass
        return caught.value

    async with staged(upstream=Upstream([(broker.host, broker.port)])) as stage:
        ours = await asyncio.to_thread(log_in, stage.port)
        own = await asyncio.to_thread(log_in, broker.port)
        assert (ours.code, ours.text) == (own.code, own.text)
        assert ours.code == code
        await eventually(lambda: results(stage) == ({"refused": 1}, {"refused": 1}))


async def test_the_brokers_properties_are_offered_with_our_version_and_one_channel_less(broker: Broker) -> None:
    def look(port: int) -> tuple[Producer, dict[str, object]]:
        peer = Producer(port)
        return peer, dict(peer.start)

    async with staged(upstream=Upstream([(broker.host, broker.port)])) as stage:
        (ours, offered), (own, real) = (
            await asyncio.to_thread(look, stage.port),
            await asyncio.to_thread(look, broker.port),
        )
        assert (offered["mechanisms"], offered["locales"]) == (real["mechanisms"], real["locales"])
        properties, theirs = offered["server_properties"], real["server_properties"]
        assert isinstance(properties, dict)
        assert isinstance(theirs, dict)
        assert {**theirs, "oxproxy": "1.2.3"} == properties
        assert ours.tune["channel_max"] == own.tune["channel_max"] - 1  # type: ignore[operator]
        ours.disconnect()
        own.disconnect()


async def test_a_handshake_sent_byte_by_byte_succeeds(broker: Broker) -> None:
    async with staged(upstream=Upstream([(broker.host, broker.port)])) as stage:
        peer: Peer = await stage.connect()
        start_ok = client.method(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
        tail = client.method(0, commands.Connection.TuneOk(0, 0, 0)) + client.method(0, commands.Connection.Open("/"))
        for data, answer in (
            (client.PROTOCOL_HEADER, "Connection.Start"),
            (start_ok, "Connection.Tune"),
            (tail, "Connection.OpenOk"),
        ):
            for byte in data:
                peer.send(bytes([byte]))
                await asyncio.sleep(0)
            await peer.expect(answer)


async def test_a_connection_is_not_ended_by_the_handshake_timeout_after_open_ok() -> None:
    control = NoControl(answers=False, followed=False)
    limits = SessionLimits(handshake_seconds=0.3, bind_seconds=0.8, relay=RelayLimits())
    async with staged(limits, control=control) as stage:
        producer = await stage.greeted()
        await producer.expect("Connection.OpenOk")  # within handshake_seconds
        link = await stage.broker.link()
        producer.call(commands.Channel.Open())
        await link.expect("Channel.Open")  # after bind_seconds, without the declarations
