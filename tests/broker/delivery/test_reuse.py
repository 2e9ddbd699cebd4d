"""Broker connections that are kept for another producer: which producers get one, and that they see no difference."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import pika
import pytest
from pamqp import commands

from tests import client
from tests.broker.delivery.site import Site, standing
from tests.client import split
from tests.producer import Closed, Producer, until
from tests.rabbitmq import Broker

RULES = """
queues: [letters]
exchanges:
  - name: post
    bindings: [{queue: letters}]
"""


@pytest.fixture(scope="module")
def shared(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    settings = {"upstream": {"reuse": "60s"}}
    with standing(broker, tmp_path_factory.mktemp("reuse"), RULES, settings) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    user = f"user-{secrets.token_hex(4)}"  # no kept connection has this user
    shared.broker.create_user(user, "guest")
    shared.broker.grant(user, shared.vhost)
    shared.user = user  # type: ignore[attr-defined]
    yield shared
    shared.tidy()
    shared.bodies("letters")
    shared.broker.delete_user(user)


def user_of(site: Site) -> str:
    return str(site.user)  # type: ignore[attr-defined]


def come(site: Site, **more: object) -> Producer:
    arguments = {"port": site.sidecar.port, "vhost": site.vhost, "username": user_of(site), **more}
    return Producer(**arguments).open()  # type: ignore[arg-type]


def leave(producer: Producer, *channels: int) -> None:
    """Close every channel, then the connection, as client libraries do."""
    for number in channels or (1,):
        producer.ask(commands.Channel.Close(200, "", 0, 0), channel=number)
    producer.close()


def reused(site: Site) -> float:
    return site.metric("connections_reused_total")


def kept(site: Site) -> float:
    return site.metric("connections_kept")


def test_the_next_producer_of_the_same_login_gets_the_connection(site: Site) -> None:
    before, made = reused(site), len(site.tap.connections)
    for number in range(3):
        producer = come(site)
        producer.ask(commands.Confirm.Select())
        assert producer.send_settled("post", body=b"%d" % number).acked
        leave(producer)
    assert reused(site) == before + 2
    assert len(site.tap.connections) == made + 1
    assert sorted(message.body for message in site.take("letters")) == [b"0", b"1", b"2"]


def conversation(site: Site) -> bytes:
    """All bytes that a producer of many methods reads."""
    producer = Producer(site.sidecar.port, site.vhost, user_of(site), heartbeat=0)
    read: list[bytes] = []
    receive = producer.socket.recv

    class Recorded:
        """A socket that records what is read from it."""

        def __getattr__(self, name: str) -> object:
            return getattr(socket, name)

        def recv(self, size: int) -> bytes:
            read.append(receive(size))
            return read[-1]

    socket, producer.socket = producer.socket, Recorded()  # type: ignore[assignment]
    for channel in (1, 2, 7):
        producer.open(channel)
    for channel in (1, 2):
        producer.ask(commands.Confirm.Select(), channel=channel)
    for _ in range(3):
        producer.publish("post")
        assert producer.settle().acked
    producer.publish("post", "x", mandatory=True, channel=2)
    assert producer.settle(channel=2).acked  # a passive declare may count the messages before a publish has arrived
    producer.ask(commands.Tx.Select(), channel=7)
    producer.publish("post", channel=7)
    producer.ask(commands.Tx.Commit(), channel=7)
    assert len(producer.take("letters", channel=2)) == 5
    with pytest.raises(Closed):
        producer.ask(commands.Queue.Declare(queue="nowhere", passive=True), channel=2)
    producer.call(commands.Channel.CloseOk(), 2)
    producer.open(2)
    leave(producer, 1, 2, 7)
    starts = [str(sorted(producer.start.items(), key=str)), str(producer.tune)]
    return b"".join(read) + "".join(starts).encode()


def test_a_producer_reads_the_same_bytes_on_a_new_and_on_a_kept_connection(site: Site) -> None:
    first = conversation(site)
    before = reused(site)
    assert conversation(site) == first
    assert conversation(site) == first
    assert reused(site) == before + 2


def test_pika_gets_kept_connections(site: Site) -> None:
    before = reused(site)
    credentials = pika.PlainCredentials(user_of(site), "guest")
    where = pika.ConnectionParameters("127.0.0.1", site.sidecar.port, site.vhost, credentials)
    for _ in range(3):
        with pika.BlockingConnection(where) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("post", "any", b"by pika", mandatory=True)
    assert reused(site) == before + 2
    assert len(site.take("letters")) == 3


async def test_aio_pika_gets_kept_connections(site: Site) -> None:
    before = reused(site)
    for _ in range(3):
        connection = await aio_pika.connect(
            host="127.0.0.1", port=site.sidecar.port, login=user_of(site), password="guest", virtualhost=site.vhost
        )
        async with connection, connection.channel() as channel:
            exchange = await channel.get_exchange("post", ensure=False)
            assert await exchange.publish(aio_pika.Message(b"by aio-pika"), "any", mandatory=True)
    assert reused(site) == before + 2
    assert len(site.take("letters")) == 3


# -- producers that get a new connection ---------------------------------------------------------------------------


def test_a_wrong_password_is_refused_by_the_broker(site: Site) -> None:
    leave(come(site))
    before, standing_by = reused(site), kept(site)
    with pytest.raises(Closed) as caught:
        come(site, password="wrong")
    assert caught.value.code == 403
    assert (reused(site), kept(site)) == (before, standing_by)


def test_another_virtual_host_needs_another_connection(site: Site, vhost: str) -> None:
    site.broker.grant(user_of(site), vhost)
    leave(come(site))
    before = reused(site)
    leave(come(site, vhost=vhost))
    assert reused(site) == before


# -- connections that are not kept ---------------------------------------------------------------------------------


def declare_exclusive(producer: Producer) -> None:
    producer.declare("", exclusive=True)


def leave_a_channel(producer: Producer) -> None:
    producer.open(2)


@pytest.mark.parametrize("spoil", [declare_exclusive, leave_a_channel])
def test_a_connection_with_remaining_state_is_closed(site: Site, spoil: object) -> None:
    before = kept(site)
    producer = come(site)
    spoil(producer)  # type: ignore[operator]
    leave(producer)
    until(lambda: site.metric("connections", side="upstream") == 0)
    assert kept(site) == before


def test_the_connection_of_a_lost_producer_is_not_kept(site: Site) -> None:
    before = kept(site)
    come(site).disconnect()
    until(lambda: site.metric("connections", side="upstream") == 0)
    assert kept(site) == before


def test_the_next_producer_gets_no_deliveries_of_an_earlier_consumer(site: Site) -> None:
    consumer = come(site)
    consumer.ask(commands.Basic.Consume(queue="letters", no_ack=True))
    leave(consumer)
    producer = come(site)
    producer.ask(commands.Confirm.Select())
    assert producer.send_settled("post").acked
    assert producer.silent()
    leave(producer)
    assert [message.body for message in site.take("letters")] == [b"body"]


def test_unsettled_publishes_of_a_producer_are_not_settled_for_the_next(site: Site) -> None:
    before = reused(site)
    first = come(site)
    first.ask(commands.Confirm.Select())
    first.send(client.publish(1, b"post", b"", (), b"first") * 50)
    first.call(commands.Channel.Close(200, "", 0, 0))
    while first.frame().name != "Channel.CloseOk":
        pass  # whether confirmed or not
    first.close()
    second = come(site)
    second.ask(commands.Confirm.Select())
    second.publish("post", body=b"second")
    assert second.expect("Basic.Ack").arguments["delivery_tag"] == 1
    assert second.silent()
    leave(second)
    assert reused(site) == before + 1
    assert [message.body for message in site.take("letters")] == [b"first"] * 50 + [b"second"]


# -- kept connections ----------------------------------------------------------------------------------------------


def connections(site: Site) -> list[str]:
    return [one["name"] for one in site.broker.api("GET", "connections") if one["user"] == user_of(site)]


def test_a_kept_connection_that_the_broker_closes_is_dropped_without_an_error(site: Site) -> None:
    leave(come(site))
    until(lambda: len(connections(site)) == 1)
    standing_by = kept(site)
    (name,) = connections(site)
    site.broker.api("DELETE", f"connections/{name.replace(' ', '%20').replace('>', '%3E')}")
    until(lambda: kept(site) == standing_by - 1)
    before = reused(site)
    leave(come(site))
    assert reused(site) == before


def test_a_deleted_user_is_refused(site: Site) -> None:
    leave(come(site))
    standing_by = kept(site)
    site.broker.delete_user(user_of(site))
    try:
        until(lambda: kept(site) == standing_by - 1)  # the broker closes the connections of such a user
        with pytest.raises(Closed) as caught:
            come(site)
        assert caught.value.code == 403
    finally:
        site.broker.create_user(user_of(site), "guest")


def test_nothing_is_sent_to_the_broker_between_two_producers(site: Site) -> None:
    leave(come(site))
    wire = site.upstream()
    leave(come(site))
    assert wire is site.upstream()
    methods = [frame.name for frame in split(bytes(wire.sent[8:])) if frame.kind == 1]
    assert methods == [
        "Connection.StartOk",
        "Connection.TuneOk",
        "Connection.Open",
        *["Channel.Open", "Channel.Close"] * 2,
    ]


def test_kept_connections_are_closed_after_their_time(broker: Broker, tmp_path: Path) -> None:
    settings = {"upstream": {"reuse": "1s"}}
    with standing(broker, tmp_path, RULES, settings) as site:
        producer = Producer(site.sidecar.port, site.vhost).open()
        leave(producer)
        wire = site.upstream()
        assert kept(site) == 1
        until(lambda: kept(site) == 0)
        until(lambda: any(frame.name == "Connection.Close" for frame in wire.frames))


def test_no_connection_is_kept_by_default(broker: Broker, tmp_path: Path) -> None:
    with standing(broker, tmp_path, RULES) as site:
        leave(Producer(site.sidecar.port, site.vhost).open())
        until(lambda: site.metric("connections", side="upstream") == 0)
        assert kept(site) == 0


def test_a_stopping_sidecar_closes_kept_connections(broker: Broker, tmp_path: Path) -> None:
    settings = {"upstream": {"reuse": "60s"}}
    with standing(broker, tmp_path, RULES, settings) as site:
        leave(Producer(site.sidecar.port, site.vhost).open())
        wire = site.upstream()
        os.kill(site.sidecar.process_id, signal.SIGTERM)
        until(lambda: site.logged("event=stopped"))
        assert wire.frames[-1].name == "Connection.Close"


def test_a_producer_beyond_the_limit_gets_no_kept_connection(broker: Broker, tmp_path: Path) -> None:
    settings = {"upstream": {"reuse": "60s"}, "limits": {"connections": 2}}
    with standing(broker, tmp_path, RULES, settings) as site:
        first, second = (Producer(site.sidecar.port, site.vhost).open() for _ in range(2))
        leave(second)
        until(lambda: site.metric("connections", side="downstream") == 1)
        assert kept(site) == 1
        second = Producer(site.sidecar.port, site.vhost, heartbeat=5)
        with pytest.raises(Closed) as caught:
            Producer(site.sidecar.port, site.vhost)
        assert (caught.value.code, kept(site), reused(site)) == (530, 1, 0)
        for producer in (first, second):
            producer.disconnect()


# -- rates of a user over successive producers -------------------------------------------------------------------------

#: A burst of 100, then 10 per second, so that a double or missing charge is detected even in a slow test.
RATES = {"publish_rate": 10, "burst": "10s", "patience": "60s"}


@pytest.fixture(params=[{}])
def slow(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    with standing(broker, tmp_path, RULES, {"upstream": {"reuse": "60s"}, "limits": RATES | request.param}) as site:
        site.user = "guest"  # type: ignore[attr-defined]
        yield site


def publish(producer: Producer, count: int) -> None:
    """Publish in one write, so that the sidecar reads everything before it throttles, and wait until it has."""
    producer.send(client.publish(1, b"post", b"", (), b"x") * count + client.method(1, commands.Basic.Qos()))
    producer.expect("Basic.QosOk")


def hits(site: Site, limit: str) -> float:
    return site.metric("limit_hits_total", limit=limit)


def test_the_next_producer_has_the_remaining_burst_of_the_last(slow: Site) -> None:
    for count in (90, 10):
        producer = come(slow)
        publish(producer, count)
        leave(producer)
    assert (reused(slow), hits(slow, "publish_rate")) == (1, 0)
    third = come(slow)
    publish(third, 100)
    until(lambda: slow.metric("throttled_producers") == 1)
    assert (reused(slow), hits(slow, "publish_rate"), hits(slow, "patience")) == (2, 1, 0)
    third.disconnect()


def test_a_producer_on_a_kept_connection_is_throttled_for_its_user(slow: Site) -> None:
    leave(come(slow))
    first = Producer(slow.sidecar.port, slow.vhost, heartbeat=7).open()  # needs a separate connection
    publish(first, 200)
    second = come(slow)  # opens a channel; the sidecar reads nothing after that
    assert reused(slow) == 1
    until(lambda: slow.metric("throttled_producers") == 2)
    assert hits(slow, "patience") == 0
    for producer in (first, second):
        producer.disconnect()


@pytest.mark.parametrize("slow", [{"patience": "1s"}], indirect=True)
def test_an_error_of_one_producer_does_not_affect_the_next(slow: Site) -> None:
    first = come(slow)
    publish(first, 120)
    assert first.closed().code == 406
    first.open()  # once the debt is paid
    leave(first)
    second = come(slow)
    second.ask(commands.Confirm.Select())
    assert second.send_settled("post").acked
    assert (reused(slow), hits(slow, "patience")) == (1, 1)
    second.disconnect()
