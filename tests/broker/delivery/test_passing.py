"""RabbitMQ's features other than routing work unchanged through the sidecar."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.broker.delivery.distance import Far
from tests.broker.delivery.site import Site, only
from tests.producer import Producer, until
from tests.sidecar import Sidecar

RULES = """
queues: [a]
exchanges:
  - name: letters
    bindings:
      - {queue: a, arguments: {"x-?hkv= to": a}}
"""


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    yield running
    running.take("a")
    running.tidy()


def test_a_consumer_is_cancelled_when_its_queue_is_deleted(site: Site) -> None:
    producer = site.producer()
    queue = producer.declare("short-lived")
    producer.ask(commands.Basic.Consume(queue=queue, consumer_tag="me"))
    site.direct.ask(commands.Queue.Delete(queue=queue))
    assert producer.expect("Basic.Cancel").arguments["consumer_tag"] == "me"


def test_a_secret_is_updated(site: Site) -> None:
    producer = site.producer()
    producer.call(commands.Connection.UpdateSecret(new_secret="guest", reason="rotated"), 0)
    producer.expect("Connection.UpdateSecretOk")
    assert producer.send_settled("letters", "k").acked


def test_repeated_gets_from_an_empty_queue_do_not_hang(site: Site) -> None:
    producer = site.producer()
    queue = producer.declare("empty")
    for _ in range(500):
        assert producer.get(queue) is None


def test_a_passive_declare_of_a_missing_queue_leaks_no_channel(site: Site) -> None:
    producer = site.producer()
    for number in range(200):
        producer.call(commands.Queue.Declare(queue=f"missing-{number}", passive=True))
        assert producer.closed().code == 404
        producer.open(confirm=True)
    assert site.metric("channels") <= 2


def test_messages_are_acked_requeued_and_recovered(site: Site) -> None:
    producer = site.producer()
    producer.ask(commands.Basic.Qos(prefetch_count=1))
    for number in range(3):
        assert producer.send_settled("letters", f"k{number}", {"to": "a"}).acked
    producer.ask(commands.Basic.Consume(queue="a", consumer_tag="me"))
    first = producer.delivery()
    producer.call(commands.Basic.Nack(first.method["delivery_tag"], False, True))  # type: ignore[arg-type]
    again = producer.delivery()
    assert (again.key, again.method["redelivered"]) == (first.key, True)
    producer.call(commands.Basic.Reject(again.method["delivery_tag"], False))  # type: ignore[arg-type]
    assert producer.delivery().key == "k1"


def test_a_server_named_queue_is_usable_under_the_returned_name(site: Site) -> None:
    producer = site.producer()
    name = producer.declare("")
    assert name.startswith("amq.gen-")
    assert producer.send_settled("", name, body=b"for you").acked
    message = only(producer.take(name))
    assert message.body == b"for you"


def test_an_exclusive_queue_belongs_to_its_connection_and_is_deleted_with_it(site: Site) -> None:
    producer = site.producer()
    producer.declare("mine", exclusive=True)
    second = site.producer()
    second.call(commands.Queue.Declare(queue="mine", passive=True))
    assert second.closed().code == 405
    producer.close()
    third = site.producer()

    def gone() -> bool:
        third.call(commands.Queue.Declare(queue="mine", passive=True))
        code = third.closed().code
        third.open()
        return code == 404

    until(gone)


def test_channel_numbers_can_be_reused_in_any_order(site: Site) -> None:
    """Fifty connections open and close channels; no connection gets a frame of another."""
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with Producer(site.sidecar.port, site.vhost) as producer:
                for turn in range(6):
                    channel = 1 + (number * 7 + turn * 13) % 200
                    producer.open(channel, confirm=True)
                    producer.publish("letters", f"{number}.{turn}", {"to": "nobody"}, channel=channel)
                    assert producer.settle(channel, 1).acked
                    producer.call(commands.Channel.Close(200, "bye", 0, 0), channel)
                    producer.expect("Channel.CloseOk")
        except BaseException as error:  # noqa: BLE001 -- reported below, in the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_the_immediate_flag_gets_the_brokers_own_540(site: Site) -> None:
    producer = site.producer()
    producer.call(commands.Basic.Publish(exchange="letters", routing_key="k", immediate=True))
    producer.publish("letters", "k")
    assert producer.closed(0).code in (505, 540)


def test_blocking_and_unblocking_of_the_broker_are_forwarded(far: Far) -> None:
    with Sidecar(far.broker) as sidecar, Producer(sidecar.port, "/") as producer:
        producer.open(confirm=True)
        with far.blocked():
            producer.publish("amq.direct", "k")
            producer.expect("Connection.Blocked")
        producer.expect("Connection.Unblocked", "Basic.Ack")
        producer.expect("Connection.Unblocked", "Basic.Ack")
