"""Limits of a sidecar in front of a real broker: what each limit refuses, its error, and what it does not affect."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests import client
from tests.broker.delivery.site import Site, standing
from tests.producer import Closed, Producer, until
from tests.rabbitmq import Broker

RULES = """
queues: [kept, plain]
exchanges:
  - name: letters
    bindings: [{queue: kept, name: all letters}]
"""
TIGHT = {
    "connections": 3,
    "connections_per_peer": 2,
    "channels": 3,
    "message_size": 100_000,
    "handshake_timeout": "1s",
}
#: Rates that are exceeded at once, and a short maximum delay.
SLOW = {"publish_rate": 50, "publish_bytes": 1_000_000, "burst": "500ms", "patience": "1s"}


@pytest.fixture(scope="module")
def tight(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(broker, tmp_path_factory.mktemp("tight"), RULES, {"limits": TIGHT}) as site:
        yield site


@pytest.fixture(scope="module")
def slow(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(broker, tmp_path_factory.mktemp("slow"), RULES, {"limits": SLOW}) as site:
        for user in ("anna", "ben"):
            broker.create_user(user, "guest")
            broker.grant(user, site.vhost)
        yield site
        for user in ("anna", "ben"):
            broker.delete_user(user)


@pytest.fixture(autouse=True)
def tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("tight", "slow"):
        if name in request.fixturenames:
            site: Site = request.getfixturevalue(name)
            site.tidy()
            until(lambda site=site: site.metric("connections", side="downstream") == 0)  # type: ignore[misc]


# -- size of a message -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", ["letters", ""])
@pytest.mark.parametrize("size", [100_001, 1 << 30])
def test_a_body_above_the_limit_is_refused_at_its_header_and_earlier_publishes_are_kept(
    tight: Site, exchange: str, size: int
) -> None:
    producer = tight.producer()
    queue = "kept" if exchange else "plain"
    hits = tight.metric("limit_hits_total", limit="message_size")
    producer.publish(exchange, queue, body=b"before")
    method = client.method(1, commands.Basic.Publish(exchange=exchange, routing_key=queue))
    producer.send(method + client.content_header(1, size))
    closes: list[Closed] = []
    while not closes:
        try:
            producer.expect("Basic.Ack")
        except Closed as closed:
            closes.append(closed)
    assert (closes[0].channel, closes[0].code, closes[0].method) == (1, 406, (60, 40))
    assert closes[0].text == f"PRECONDITION_FAILED - message size {size} is larger than configured max size 100000"
    # The rest of it is discarded, as on a channel that the broker has closed.
    producer.send(client.frame(3, 1, bytes(50_000)))
    producer.call(commands.Channel.CloseOk())
    producer.open(2, confirm=True)
    producer.publish(exchange, queue, body=b"behind", channel=2)
    producer.expect("Basic.Ack")
    assert [tight.next(queue).body, tight.next(queue).body] == [b"before", b"behind"]
    assert tight.take(queue) == []
    assert tight.metric("limit_hits_total", limit="message_size") == hits + 1


@pytest.mark.parametrize("exchange", ["letters", ""])
def test_bodies_up_to_the_limit_are_accepted_even_in_one_write(tight: Site, exchange: str) -> None:
    producer = tight.producer()
    queue = "kept" if exchange else "plain"
    small = client.publish(1, exchange.encode(), queue.encode(), (), b"small")
    producer.send(small * 20)
    producer.publish(exchange, queue, body=bytes(100_000))
    settled = 0
    while settled < 21:
        arguments = producer.expect("Basic.Ack").arguments
        settled = int(str(arguments["delivery_tag"]))
    assert sorted({len(message.body) for message in tight.take(queue)}) == [5, 100_000]


# -- connections and channels ------------------------------------------------------------------------------------------


def refusal(port: int, source: str) -> str:
    """Open a connection that exceeds the limit; return the reply text of the Connection.Close."""
    with socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0)) as surplus:
        surplus.sendall(client.PROTOCOL_HEADER)
        start = surplus.recv(65536)
        assert start[7:11] == b"\x00\x0a\x00\x0a"
        surplus.sendall(client.method(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")))
        close = surplus.recv(65536)
        surplus.sendall(client.method(0, commands.Connection.CloseOk()))
        assert surplus.recv(1) == b""
    assert close[7:11] == b"\x00\x0a\x00\x32"
    return close[14 : 14 + close[13]].decode()


def test_connections_in_total_and_per_address_are_limited_with_an_error_that_names_the_limit(tight: Site) -> None:
    for _ in range(2):
        tight.producer()
    from_here = "NOT_ALLOWED - connection refused: limit of 2 connections from 127.0.0.1 is reached"
    assert refusal(tight.sidecar.port, "127.0.0.1") == from_here
    with socket.create_connection(("127.0.0.1", tight.sidecar.port), source_address=("127.0.0.2", 0)):
        in_all = "NOT_ALLOWED - connection refused: limit of 3 connections is reached"
        until(lambda: tight.metric("connections_rejected_total", reason="connections_per_peer") == 1)
        assert refusal(tight.sidecar.port, "127.0.0.3") == in_all
    assert tight.metric("connections_rejected_total", reason="connections") == 1
    assert len(tight.logged("too many connections")) == 2


def test_no_more_channels_are_offered_than_the_limit_and_one_above_it_ends_the_connection(tight: Site) -> None:
    producer = tight.producer()
    assert producer.tune["channel_max"] == 3
    producer.open(3)
    producer.call(commands.Channel.Open(), channel=4)
    closed = producer.closed(0)
    text = "NOT_ALLOWED - channel 4 is above the negotiated channel_max 3 and used by the proxy itself"
    assert (closed.code, closed.text) == (530, text)


def test_channels_are_limited_by_their_count_and_not_by_their_numbers(tight: Site) -> None:
    producer = tight.producer().open(1000).open(65535)
    producer.call(commands.Channel.Open(), channel=7)
    closed = producer.closed(0)
    text = "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)"
    assert (closed.code, closed.text) == (530, text)


def test_an_unfinished_handshake_is_closed(tight: Site) -> None:
    silent = Producer(tight.sidecar.port, log_in=False)
    assert silent.gone()
    silent.vanish()
    until(lambda: tight.metric("connections_total", side="downstream", result="timeout") == 1)
    assert len(tight.logged("handshake not finished in time")) == 1


def alive(site: Site) -> bool:
    try:
        return site.sidecar.get("/livez") == "alive\n"
    except OSError:
        return False


def test_silent_admin_connections_do_not_use_up_the_descriptors_of_producers(tight: Site) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{tight.sidecar.process_id}/fd"))

    before = descriptors()
    address = ("127.0.0.1", int(tight.sidecar.admin.rpartition(":")[2]))
    with contextlib.ExitStack() as stack:
        for number in range(300):
            half = stack.enter_context(socket.create_connection(address))
            half.sendall(b"GET /livez HTTP/1.1\r\n" if number % 2 else b"")
        until(lambda: alive(tight))  # not at once: while all connections are new, another is refused
        until(lambda: descriptors() <= before + 66)
        producer = tight.producer()
        producer.publish("letters")
        producer.settle()
    assert len(tight.logged("too many admin connections")) == 1


# -- rates -------------------------------------------------------------------------------------------------------------


def test_a_user_above_its_rate_is_slowed_down_without_losses_and_others_are_not(slow: Site) -> None:
    greedy, modest = slow.producer("anna"), slow.producer("ben")
    for _ in range(40):
        greedy.publish("letters", body=b"greedy")
    until(lambda: slow.metric("throttled_producers") == 1)
    modest.publish("letters", body=b"modest")
    modest.expect("Basic.Ack")
    greedy.publish("letters", body=b"last")
    settled = 0
    while settled < 41:
        settled = int(str(greedy.expect("Basic.Ack").arguments["delivery_tag"]))
    bodies: list[bytes] = []
    while len(bodies) < 42:
        bodies.append(slow.next("kept").body)
    assert sorted(bodies) == sorted([b"greedy"] * 40 + [b"last", b"modest"])
    assert slow.metric("limit_hits_total", limit="publish_rate") >= 1
    assert slow.metric("limit_hits_total", limit="patience") == 0


def test_a_channel_throttled_too_long_is_closed_with_406_and_another_may_be_opened(slow: Site) -> None:
    producer = slow.producer("anna", confirm=False)
    producer.send(client.publish(1, b"letters", b"", (), b"x") * 200)
    closed = producer.closed()
    assert closed.code == 406
    assert closed.text == (
        "PRECONDITION_FAILED - user has exceeded 50 publishes per second (publish_rate) for more than 1 s"
    )
    assert [slow.next("kept").body for _ in range(200)] == [b"x"] * 200
    producer.open(2, confirm=True)  # once the rate is below the limit again
    producer.publish("letters", body=b"y", channel=2)
    producer.expect("Basic.Ack")
    assert slow.next("kept").body == b"y"
    assert slow.metric("limit_hits_total", limit="patience") == 1


def test_publishes_in_one_write_with_the_login_count_towards_the_rate(slow: Site) -> None:
    with Producer(slow.sidecar.port, log_in=False) as producer:
        producer.send(client.PROTOCOL_HEADER)
        producer.expect("Connection.Start")
        producer.call(commands.Connection.StartOk({}, "PLAIN", "\0anna\0guest", "en_US"), channel=0)
        producer.expect("Connection.Tune")
        login = (commands.Connection.TuneOk(3, 131072, 0), commands.Connection.Open(slow.vhost))
        first = (client.method(0, command) for command in login)
        publishes = client.publish(1, b"letters", b"", (), b"x") * 200
        producer.send(*first, client.method(1, commands.Channel.Open()), publishes)
        producer.expect("Connection.OpenOk")
        producer.expect("Channel.OpenOk")
        assert producer.closed().code == 406
    assert [slow.next("kept").body for _ in range(200)] == [b"x"] * 200


def send_until_blocked(producer: Producer, data: bytes) -> int:
    """Send as much as the socket accepts without waiting; return the number of bytes."""
    producer.socket.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while sent < len(data):
            sent += producer.socket.send(data[sent : sent + 65536])
    producer.socket.settimeout(30)
    return sent


def test_a_connection_throttled_too_long_within_a_body_is_closed_with_320_without_the_message(
    slow: Site,
) -> None:
    producer = slow.producer("ben")
    frames = client.publish(1, b"letters", b"", (), bytes(20_000_000))
    assert send_until_blocked(producer, frames) < len(frames)  # back-pressure
    closed = producer.closed(0)
    assert closed.code == 320
    assert closed.text == (
        "CONNECTION_FORCED - user has exceeded 1000000 bytes per second (publish_bytes) for more than 1 s"
    )
    assert producer.gone()
    assert slow.take("kept") == []


# -- idle peers --------------------------------------------------------------------------------------------------------


def test_an_idle_peer_is_closed_with_320_even_if_it_sends_heartbeats(broker: Broker, tmp_path: Path) -> None:
    with standing(broker, tmp_path, RULES, {"limits": {"idle_timeout": "1s"}}) as site:
        idle = Producer(site.sidecar.port, site.vhost, heartbeat=2).open(confirm=True)
        idle.publish("letters")
        idle.expect("Basic.Ack")
        idle.send(client.HEARTBEAT)
        closed = idle.closed(0)
        assert (closed.code, closed.text) == (
            320,
            "CONNECTION_FORCED - only heartbeats were received for 1 s (idle_timeout)",
        )
        assert idle.gone()
        idle.vanish()
        assert site.metric("limit_hits_total", limit="idle") == 1
        assert len(site.logged("producer is idle")) == 1
