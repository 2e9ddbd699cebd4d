from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kombu as untyped
import pytest

from tests.broker.client_libraries.header_types import TYPES, accepted, letters
from tests.broker.delivery.site import Site

kombu: Any = untyped  # it has no types


@pytest.fixture
def connection(site: Site) -> Iterator[Any]:
    made = kombu.Connection(
        hostname="127.0.0.1",
        port=site.sidecar.port,
        virtual_host=site.vhost,
        transport="pyamqp",
        transport_options={"confirm_publish": True},
    )
    with made:
        yield made


def test_it_publishes_with_confirms_and_consumes(connection: Any, exchange: str, body: bytes) -> None:
    producer = kombu.Producer(connection.channel(), auto_declare=False)
    producer.publish(
        body,
        exchange=exchange,
        routing_key="some.key",
        headers={"kind": "letter", "n": 5},
        content_type="application/data",
        content_encoding="binary",
        mandatory=True,
    )
    for name in ("inbox", "copy"):
        received: list[Any] = []
        channel = connection.channel()
        queue = kombu.Queue(name, channel=channel, no_declare=True)
        consumer = kombu.Consumer(channel, [queue], on_message=received.append, auto_declare=False, accept=None)
        with consumer:
            while not received:
                connection.drain_events(timeout=20)
        [message] = received
        message.ack()
        assert message.delivery_info["exchange"] == exchange
        assert message.delivery_info["routing_key"] == "some.key"
        assert message.body == body
        assert message.headers == {"kind": "letter", "n": 5}


def test_unroutable_messages_are_returned(connection: Any, exchange: str, body: bytes) -> None:
    returned: list[Any] = []
    producer = kombu.Producer(
        connection.channel(), auto_declare=False, on_return=lambda *arguments: returned.append(arguments)
    )
    producer.publish(
        body,
        exchange=exchange,
        routing_key="some.key",
        headers={"kind": "bill"},
        content_type="application/data",
        content_encoding="binary",
        mandatory=True,
    )
    [(error, came_from, key, message)] = returned
    assert error.reply_code == 312
    assert (came_from, key) == (exchange, "some.key")
    assert message.body == body


def test_its_simple_queue_works(connection: Any, site: Site) -> None:
    queue = connection.SimpleQueue("simple")
    queue.put({"n": 5})
    message = queue.get(timeout=20)
    assert message.payload == {"n": 5}
    message.ack()
    queue.close()


def test_header_types_are_those_in_the_documentation(connection: Any, exchange: str, site: Site) -> None:
    producer = kombu.Producer(connection.channel(), auto_declare=False)
    producer.publish(b"x", exchange=exchange, routing_key="k", headers=accepted("kombu"), mandatory=True)
    assert letters(site.next("inbox", through=site.producer()).headers) == TYPES["kombu"]
