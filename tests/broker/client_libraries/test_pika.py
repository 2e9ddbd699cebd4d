from __future__ import annotations

from collections.abc import Iterator

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker.client_libraries.header_types import TYPES, accepted, letters
from tests.broker.delivery.site import Site

LETTER = pika.BasicProperties(headers={"kind": "letter", "n": 5}, message_id="m", delivery_mode=2)


@pytest.fixture
def connection(site: Site) -> Iterator[pika.BlockingConnection]:
    credentials = pika.PlainCredentials("guest", "guest")
    parameters = pika.ConnectionParameters("127.0.0.1", site.sidecar.port, site.vhost, credentials)
    made = pika.BlockingConnection(parameters)
    yield made
    made.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


def test_it_publishes_with_confirms_and_consumes(channel: BlockingChannel, exchange: str, body: bytes) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, "some.key", body, LETTER, mandatory=True)
    for queue in ("inbox", "copy"):
        method, properties, received = next(iter(channel.consume(queue, inactivity_timeout=20)))
        assert (method.exchange, method.routing_key, received) == (exchange, "some.key", body)
        assert (properties.headers, properties.message_id) == (LETTER.headers, "m")
        channel.basic_ack(method.delivery_tag)
        channel.cancel()


def test_unroutable_messages_are_returned(channel: BlockingChannel, exchange: str, body: bytes) -> None:
    channel.confirm_delivery()
    properties = pika.BasicProperties(headers={"kind": "bill"})
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish(exchange, "some.key", body, properties, mandatory=True)
    [returned] = caught.value.messages
    assert (returned.method.reply_code, returned.method.exchange) == (312, exchange)
    assert (returned.method.routing_key, returned.body) == ("some.key", body)
    assert returned.properties.headers == {"kind": "bill"}


def test_it_gets_rejects_and_gets_again(channel: BlockingChannel, exchange: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, "k", b"x", LETTER)
    method, _, _ = channel.basic_get("inbox")
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, body = channel.basic_get("inbox", auto_ack=True)
    assert (method.redelivered, method.exchange, body) == (True, exchange, b"x")
    assert channel.basic_get("inbox") == (None, None, None)


def test_foreign_objects_are_declared_bound_and_used(channel: BlockingChannel) -> None:
    channel.exchange_declare("news", "topic", auto_delete=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "news", "a.*")
    channel.confirm_delivery()
    channel.basic_publish("news", "a.b", b"x")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"x"
    channel.queue_unbind(queue, "news", "a.*")
    channel.queue_delete(queue)


def test_it_commits_and_rolls_back(channel: BlockingChannel, exchange: str, site: Site) -> None:
    channel.tx_select()
    channel.basic_publish(exchange, "k", b"no", LETTER)
    channel.tx_rollback()
    channel.basic_publish(exchange, "k", b"yes", LETTER)
    channel.tx_commit()
    assert site.bodies("inbox", "copy") == [[b"yes"], [b"yes"]]


def test_a_refused_publish_closes_its_channel_and_the_connection_goes_on(
    connection: pika.BlockingConnection, exchange: str
) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish(exchange, "x.o.p.e.n.x.q", b"x", LETTER)
    assert caught.value.reply_code == 403
    other_channel = connection.channel()
    other_channel.confirm_delivery()
    other_channel.basic_publish(exchange, "k", b"x", LETTER, mandatory=True)


def test_header_types_are_those_in_the_documentation(channel: BlockingChannel, exchange: str, site: Site) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, "k", b"x", pika.BasicProperties(headers=accepted("pika")), mandatory=True)
    assert letters(site.next("inbox", through=site.producer()).headers) == TYPES["pika"]
