"""Unbinding a missing binding: an error if the setting is strict, no error if the broker's behaviour is chosen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import commands
from pamqp.common import FieldTable

from proxy.amqp.tables import encode_table
from proxy.values import Value
from tests.broker.delivery.site import Site, standing
from tests.broker.world import Outside
from tests.client import queue_unbind
from tests.producer import Producer, headers
from tests.rabbitmq import Broker

#: Class and method ids of the two unbinds.
QUEUE, EXCHANGE = (50, 50), (40, 40)
REFUSED = "PRECONDITION_FAILED - binding arguments do not match"
BOUND: FieldTable = {"x-?hkv= kind": "a", "x-order": 100}


def prepare(outside: Outside) -> None:
    outside.make_queues("a", "b")
    outside.make_exchange("copies", "fanout")
    outside.bind("copies", "b", "")


def running(broker: Broker, tmp_path_factory: pytest.TempPathFactory, unbind: str) -> Iterator[Site]:
    settings = {"declared": {"unbind": unbind}}
    with standing(broker, tmp_path_factory.mktemp("site"), "queues: []\n", settings, prepare) as site:
        yield site


@pytest.fixture(scope="module")
def strict(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from running(broker, tmp_path_factory, "strict")


@pytest.fixture(scope="module")
def lenient(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from running(broker, tmp_path_factory, "broker")


def bound(site: Site) -> Producer:
    """A client that has bound a queue and an exchange to an open exchange."""
    producer = site.producer()
    producer.ask(commands.Exchange.Declare(exchange="xo", exchange_type="x-open"))
    producer.ask(commands.Queue.Bind(queue="a", exchange="xo", arguments=BOUND))
    producer.ask(commands.Exchange.Bind(destination="copies", source="xo", arguments=BOUND))
    return producer


def reached(site: Site, producer: Producer) -> list[list[bytes]]:
    producer.send_settled("xo", "", {"kind": "a"}, b"x")
    return site.bodies("a", "b")


@pytest.mark.parametrize("arguments", [{}, {"x-?hkv= kind": "b", "x-order": 100}, {"x-?hkv= kind": "a"}])
def test_an_unbind_with_other_arguments_closes_the_channel(strict: Site, arguments: FieldTable) -> None:
    producer = bound(strict)
    producer.call(commands.Queue.Unbind(queue="a", exchange="xo", arguments=arguments))
    closed = producer.closed()
    assert (closed.code, closed.text, closed.method) == (406, REFUSED, QUEUE)
    producer.open(confirm=True).call(commands.Exchange.Unbind(destination="copies", source="xo", arguments=arguments))
    closed = producer.closed()
    assert (closed.code, closed.text, closed.method) == (406, REFUSED, EXCHANGE)
    assert reached(strict, producer.open(confirm=True)) == [[b"x"], [b"x"]]


def test_an_unbind_with_other_types_of_arguments_closes_the_channel(strict: Site) -> None:
    producer = bound(strict)
    wider = headers({"x-?hkv= kind": "a", "x-order": Value("l", 100)})
    producer.send(queue_unbind(1, b"a", b"xo", b"", encode_table(wider)))
    assert producer.closed().text == REFUSED


def test_an_unbind_with_the_same_arguments_in_another_order_removes_the_binding(strict: Site) -> None:
    producer = bound(strict)
    reordered: FieldTable = dict(reversed(BOUND.items()))
    producer.ask(commands.Queue.Unbind(queue="a", exchange="xo", arguments=reordered))
    producer.ask(commands.Exchange.Unbind(destination="copies", source="xo", arguments=reordered))
    assert reached(strict, producer) == [[], []]


def test_an_unbind_of_a_destination_without_bindings_is_no_error(strict: Site) -> None:
    producer = bound(strict)
    producer.ask(commands.Queue.Unbind(queue="b", exchange="xo", arguments=BOUND))
    producer.ask(commands.Exchange.Unbind(destination="amq.direct", source="xo", arguments=BOUND))
    assert reached(strict, producer) == [[b"x"], [b"x"]]


def test_unbinds_from_the_brokers_own_exchanges_are_forwarded(strict: Site) -> None:
    producer = strict.producer()
    producer.ask(commands.Queue.Bind(queue="a", exchange="amq.headers", arguments={"x": 1}))
    producer.ask(commands.Queue.Unbind(queue="a", exchange="amq.headers", arguments={"x": 2}))
    producer.send_settled("amq.headers", "", {"x": 1}, b"x")
    assert strict.bodies("a") == [[b"x"]]


def test_with_unbind_broker_an_unbind_with_other_arguments_has_no_effect(lenient: Site) -> None:
    producer = bound(lenient)
    producer.ask(commands.Queue.Unbind(queue="a", exchange="xo", arguments={}))
    producer.ask(commands.Exchange.Unbind(destination="copies", source="xo", arguments={"x-order": 101}))
    assert reached(lenient, producer) == [[b"x"], [b"x"]]
