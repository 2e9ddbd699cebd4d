"""Closes in unusual states, on a real broker: within contents, crossing closes, pending publishes, random errors."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest
from pamqp import commands

from tests import client
from tests.broker.delivery.site import Site
from tests.client import Frame
from tests.producer import Closed, Gone, Producer, until
from tests.relay.test_relay import check_contents

RULES = """
queues: [a, b]
exchanges:
  - name: letters
    bindings: [{queue: a}]
  - name: small
    arguments: {max-payload-size: 1000}
    bindings: [{queue: a}]
  - name: chosen
    bindings:
      - {queue: b, arguments: {x-msg-destq-rk: ""}}
  - name: direct
    delivery: queue
    bindings: [{queue: a}, {queue: b}]
"""
CLOSE = commands.Channel.Close(200, "bye", 0, 0)


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    yield running
    running.tidy()
    for queue in ("a", "b"):
        running.take(queue)


def parts(exchange: str, size: int) -> list[bytes]:
    return [frame.raw for frame in client.split(client.publish(1, exchange.encode(), b"k", (), bytes(size)))]


def close_code(producer: Producer) -> object:
    """Code of the next Channel.Close, which is not answered yet."""
    close = producer.frame()
    assert (close.name, close.channel) == ("Channel.Close", 1)
    return close.arguments["reply_code"]


# -- contents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", ["letters", "amq.direct", "direct"])
@pytest.mark.parametrize("sent", [1, 2, 3])
def test_a_channel_close_of_the_broker_within_a_publish_ends_that_channel_only(
    site: Site, exchange: str, sent: int
) -> None:
    producer = site.producer().open(2, confirm=True)
    frames = parts(exchange, 300_000)
    producer.send(client.method(1, commands.Basic.Get(queue="nobody")), *frames[:sent])
    assert close_code(producer) == 404
    producer.send(*frames[sent:])
    producer.call(commands.Channel.CloseOk())
    producer.publish("letters", "k", channel=2)
    assert producer.settle(channel=2).acked
    assert producer.open(confirm=True).send_settled("letters", "k").acked


def test_a_filter_that_closes_a_consuming_channel_does_not_split_a_delivery(site: Site) -> None:
    """The channel that is closed has deliveries at full speed; its close must come between two deliveries."""
    for _ in range(20):
        site.direct.publish("", "b", body=bytes(400_000))
    producer = site.producer()
    producer.ask(commands.Basic.Consume(queue="b", consumer_tag="me", no_ack=True))
    producer.expect("Basic.Deliver")
    producer.publish("small", "k", body=bytes(1001))
    frames: list[Frame] = [Frame(1, 1, client.method(1, commands.Basic.Deliver("me", 1, False, "", "b"))[7:-1])]
    while frames[-1].name != "Channel.Close":
        frames.append(producer.frame())
    assert frames[-1].arguments["reply_code"] == 406
    check_contents(b"".join(frame.raw for frame in frames), {})
    producer.call(commands.Channel.CloseOk())
    assert producer.open(confirm=True).send_settled("letters", "k").acked


# -- crossing closes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offence", "code"),
    [
        (client.method(1, commands.Basic.Get(queue="nobody")), 404),
        (client.publish(1, b"letters", b"x.o.p.e.n.x.q", (), b""), 403),
    ],
    ids=["close of the broker", "close of the sidecar"],
)
def test_a_crossing_channel_close_is_answered_and_the_number_is_free(site: Site, offence: bytes, code: int) -> None:
    producer = site.producer()
    for _ in range(5):
        producer.send(offence, client.method(1, CLOSE))
        assert close_code(producer) == code
        producer.call(commands.Channel.CloseOk())
        producer.expect("Channel.CloseOk")
        assert producer.open(confirm=True).send_settled("letters", "k").acked


def test_channels_refused_and_opened_again_at_once_are_never_opened_twice(site: Site) -> None:
    """The next open is on its way before the broker has answered our close."""
    producer = site.producer()
    for _ in range(30):
        producer.publish("letters", "x.o.p.e.n.x.q")
        assert producer.closed().code == 403
        producer.open(confirm=True)
    assert producer.send_settled("letters", "k").acked


# -- Connection.Close of a producer ------------------------------------------------------------------------------------


def test_a_publish_that_waits_for_its_queue_is_sent_before_the_connection_close(site: Site) -> None:
    site.make_queue("new")
    producer = site.producer(confirm=False)
    producer.publish("chosen", "new", body=b"last words")
    producer.close()
    assert [message.body for message in site.take("new")] == [b"last words"]


def test_all_publishes_before_a_connection_close_are_delivered(site: Site) -> None:
    producer = site.producer(confirm=False)
    producer.send(client.publish(1, b"letters", b"k", (), b"x" * 500) * 500)
    producer.close()
    assert len(site.take("a")) == 500


# -- random errors -----------------------------------------------------------------------------------------------------


def chaos(port: int, vhost: str, seed: int) -> None:
    """One client that sends valid and invalid methods and disconnects at a random point, in a random way."""
    pick = random.Random(seed)
    whole = client.publish(1, b"letters", b"k", (), bytes(pick.randrange(200_000)))
    words: list[Callable[[], bytes]] = [
        lambda: whole,
        lambda: whole[: pick.randrange(len(whole))],
        lambda: client.publish(1, b"direct", b"x.o.p.e.n.x.q", (), b""),
        lambda: client.publish(2, b"small", b"k", (), bytes(2000)),
        lambda: client.method(1, commands.Basic.Get(queue="nobody")),
        lambda: client.method(1, CLOSE) + client.method(1, commands.Channel.Open()),
        lambda: client.method(2, commands.Queue.Declare(queue=f"chaos-{seed}", exclusive=True)),
        lambda: client.frame(pick.randrange(256), 1, b"x" * 9),
        lambda: bytes(pick.randrange(256) for _ in range(30)),
        lambda: client.method(0, commands.Connection.Close(200, "bye", 0, 0)),
    ]
    try:
        with Producer(port, vhost) as producer:
            producer.open(1, confirm=True).open(2)
            for _ in range(pick.randrange(1, 6)):
                producer.send(pick.choice(words)())
            if pick.random() < 0.7:
                producer.socket.settimeout(0.2)
                producer.frame()
    except (Gone, Closed, OSError):
        return


def test_clients_that_violate_the_protocol_do_not_affect_others(site: Site) -> None:
    steady = site.producer()
    threads = [threading.Thread(target=chaos, args=(site.sidecar.port, site.vhost, seed)) for seed in range(40)]
    for thread in threads:
        thread.start()
    for number in range(100):
        assert steady.send_settled("letters", f"steady.{number}").acked
    for thread in threads:
        thread.join()
    until(lambda: site.metric("connections", side="downstream") <= 1)
    assert steady.send_settled("letters", "steady").acked
    assert "Traceback" not in site.sidecar.log.read_text()
    steady_keys = [message.key for message in site.take("a") if message.key.startswith("steady")]
    assert steady_keys == [*(f"steady.{number}" for number in range(100)), "steady"]
