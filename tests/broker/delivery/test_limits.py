"""Limits of a sidecar in front of a real broker: what each limit refuses, its error, and what it does not affect."""

from __future__ import annotations

import contextlib
import os
import socket
import time
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
SETTINGS = {"limits": {"channels": 3, "message_size": 100_000}}


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    yield running
    running.tidy()
    until(lambda: running.metric("connections", side="downstream") == 0)


# -- size of a message -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", ["letters", ""])
@pytest.mark.parametrize("size", [100_001, 1 << 30])
def test_a_body_above_the_limit_is_refused_at_its_header_and_earlier_publishes_are_kept(
    site: Site, exchange: str, size: int
) -> None:
    producer = site.producer()
    queue = "kept" if exchange else "plain"
    hits = site.metric("limit_hits_total", limit="message_size")
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
    assert [site.next(queue).body, site.next(queue).body] == [b"before", b"behind"]
    assert site.take(queue) == []
    assert site.metric("limit_hits_total", limit="message_size") == hits + 1


@pytest.mark.parametrize("exchange", ["letters", ""])
def test_bodies_up_to_the_limit_are_accepted_even_in_one_write(site: Site, exchange: str) -> None:
    producer = site.producer()
    queue = "kept" if exchange else "plain"
    small = client.publish(1, exchange.encode(), queue.encode(), (), b"small")
    producer.send(small * 20)
    producer.publish(exchange, queue, body=bytes(100_000))
    settled = 0
    while settled < 21:
        arguments = producer.expect("Basic.Ack").arguments
        settled = int(str(arguments["delivery_tag"]))
    assert sorted({len(message.body) for message in site.take(queue)}) == [5, 100_000]


# -- connections and channels ------------------------------------------------------------------------------------------


def test_no_more_channels_are_offered_than_the_limit_and_one_above_it_ends_the_connection(site: Site) -> None:
    producer = site.producer()
    assert producer.tune["channel_max"] == 3
    producer.open(3)
    producer.call(commands.Channel.Open(), channel=4)
    closed = producer.closed(0)
    text = "NOT_ALLOWED - channel 4 is above the negotiated channel_max 3 and used by the proxy itself"
    assert (closed.code, closed.text) == (530, text)


def alive(site: Site) -> bool:
    try:
        return site.sidecar.get("/livez") == "alive\n"
    except OSError:
        return False


def test_silent_admin_connections_do_not_use_up_the_descriptors_of_producers(site: Site) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{site.sidecar.process_id}/fd"))

    before = descriptors()
    address = ("127.0.0.1", int(site.sidecar.admin.rpartition(":")[2]))
    with contextlib.ExitStack() as stack:
        for number in range(300):
            half = stack.enter_context(socket.create_connection(address))
            half.sendall(b"GET /livez HTTP/1.1\r\n" if number % 2 else b"")
        until(lambda: alive(site))  # with delay, since a further connection is refused while all others are new
        until(lambda: descriptors() <= before + 66)
        producer = site.producer()
        producer.publish("letters")
        producer.settle()
    assert len(site.logged("too many admin connections")) == 1


# -- rates -------------------------------------------------------------------------------------------------------------


def test_publishes_in_one_write_with_the_login_count_towards_the_rate(broker: Broker, tmp_path: Path) -> None:
    limits = {"publish_rate": 50, "burst": "500ms", "patience": "1s"}
    with standing(broker, tmp_path, RULES, {"limits": limits}) as site:
        with Producer(site.sidecar.port, log_in=False) as producer:
            producer.send(client.PROTOCOL_HEADER)
            producer.expect("Connection.Start")
            producer.call(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), channel=0)
            producer.expect("Connection.Tune")
            login = (commands.Connection.TuneOk(3, 131072, 0), commands.Connection.Open(site.vhost))
            first = (client.method(0, command) for command in login)
            publishes = client.publish(1, b"letters", b"", (), b"x") * 200
            producer.send(*first, client.method(1, commands.Channel.Open()), publishes)
            producer.expect("Connection.OpenOk")
            producer.expect("Channel.OpenOk")
            assert producer.closed().code == 406
        assert [site.next("kept").body for _ in range(200)] == [b"x"] * 200
        hits = [site.metric("limit_hits_total", limit=limit) for limit in ("publish_rate", "patience")]
        assert min(hits) >= 1


# -- idle peers --------------------------------------------------------------------------------------------------------


def test_an_idle_peer_is_closed_with_320_even_if_it_sends_heartbeats(broker: Broker, tmp_path: Path) -> None:
    with standing(broker, tmp_path, RULES, {"limits": {"idle_timeout": "1s"}}) as site:
        idle = Producer(site.sidecar.port, site.vhost, heartbeat=1000).open(confirm=True)
        idle.publish("letters")
        idle.expect("Basic.Ack")
        while idle.silent():
            idle.send(client.HEARTBEAT * 2)
            time.sleep(0.05)  # only limits the rate
        closed = idle.closed(0)
        assert (closed.code, closed.text) == (
            320,
            "CONNECTION_FORCED - only heartbeats were received for 1 s (idle_timeout)",
        )
        assert idle.gone()
        idle.disconnect()
        assert site.metric("limit_hits_total", limit="idle") == 1
        assert len(site.logged("producer is idle")) == 1
