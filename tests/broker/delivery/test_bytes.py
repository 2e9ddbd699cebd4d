"""A routed message keeps every byte that the rules do not change: properties of every type, bodies of every size."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
from pamqp import commands

from oxproxy.amqp.tables import encode_table
from oxproxy.values import Table, Value
from tests import client
from tests.broker.delivery.site import Site
from tests.producer import Message, Producer, headers, value

RULES = """
queues: [a, b]
exchanges:
  - name: letters
    bindings: [{queue: a, arguments: {"x-?hk!ex": no, x-addq-ontrue: b}}]
  - name: direct
    delivery: queue
    bindings: [{queue: a, arguments: {"x-?hk!ex": no, x-addq-ontrue: b}}]
"""
FRAME_MAX = 131072

EVERY_TYPE: Table = (
    (b"bool", Value("t", True)),
    (b"int8", Value("b", -128)),
    (b"uint8", Value("B", 255)),
    (b"int16", Value("s", -32768)),
    (b"uint16", Value("u", 65535)),
    (b"int32", Value("I", -(2**31))),
    (b"uint32", Value("i", 2**32 - 1)),
    (b"int64", Value("l", -(2**63))),
    (b"float", Value("f", 0.5)),
    (b"double", Value("d", 0.1)),
    (b"text", Value("S", "Käse".encode())),
    (b"not text", Value("S", b"\xff\xfe\x00")),
    (b"bytes", Value("x", bytes(range(256)))),
    (b"time", Value("T", 2**64 - 1)),
    (b"milliseconds", Value("T", 1_763_700_000_000)),
    (b"void", Value("V", None)),
    (b"list", Value("A", (Value("I", 1), Value("S", b"x"), Value("A", ()), Value("F", ())))),
    (b"table", Value("F", ((b"b", Value("t", False)), (b"a", Value("F", ((b"c", Value("V", None)),)))))),
    (b"", Value("S", b"empty name")),
    (b"n" * 255, Value("S", b"")),
    (b"\xff\xfe", Value("S", b"a name that is not text")),
    (b"twice", Value("I", 1)),
    (b"twice", Value("S", b"2")),
)
EVERY_PROPERTY: dict[str, bytes | int] = {
    "content_type": b"text/plain",
    "content_encoding": b"",
    "delivery_mode": 2,
    "priority": 255,
    "correlation_id": b"\xff\xfe",
    "reply_to": b"x" * 255,
    "expiration": b"60000",
    "message_id": b"",
    "timestamp": 2**64 - 1,
    "type": "größe".encode(),
    "user_id": b"guest",
    "app_id": b"a",
    "cluster_id": b"c",
}


def ours(exchange: str) -> Table:
    """The one header that queue delivery adds."""
    if exchange != "direct":
        return ()
    fields = {"exchange": "direct", "routing-key": "k", "new-exchange": "", "new-routing-key": "a"}
    return headers({"x-original-address": value(fields)})


@pytest.mark.parametrize("exchange", ["letters", "direct"])
def test_every_property_and_every_field_type_arrives_unchanged(site: Site, producer: Producer, exchange: str) -> None:
    producer.publish(exchange, "k", EVERY_TYPE, b"x", **EVERY_PROPERTY)  # type: ignore[arg-type]
    assert producer.settle() == (True, [])
    sent = client.encode_properties(EVERY_PROPERTY, encode_table(site.stored(EVERY_TYPE + ours(exchange))))
    for queue in ("a", "b"):
        [message] = site.take(queue)
        assert (message.flags, message.properties) == sent


@pytest.mark.parametrize("exchange", ["letters", "direct"])
def test_a_cc_set_aside_is_restored_for_consumers_of_the_sidecar(site: Site, producer: Producer, exchange: str) -> None:
    copied = headers({"CC": ["b"]})
    producer.publish(exchange, "k", EVERY_TYPE + copied, b"x", **EVERY_PROPERTY)  # type: ignore[arg-type]
    producer.settle()
    # The original CC is restored at the end of the table, even if a broker that sorts headers has moved it.
    table = site.stored(EVERY_TYPE) + copied if exchange == "direct" else site.stored(EVERY_TYPE + copied)
    sent = client.encode_properties(EVERY_PROPERTY, encode_table(table))
    for queue in ("a", "b"):
        [message] = producer.take(queue)
        assert message.address == (exchange, "k")
        assert (message.flags, message.properties) == sent


def test_absent_and_empty_properties_stay_distinct(site: Site, producer: Producer) -> None:
    empty: list[dict[str, Any]] = [{"type": b""}, {"app_id": b""}, {}]
    for properties in empty:
        producer.publish("letters", "k", {"n": 1}, b"", **properties)
        producer.settle()
        [message], _ = site.take("a"), site.take("b")
        assert (message.flags, message.properties) == client.encode_properties(
            properties, encode_table(headers({"n": 1}))
        )


SIZES = [0, 1, 65535, 65536, 65537, FRAME_MAX - 8, FRAME_MAX - 7, 1 << 20, (16 << 20) + 1]


@pytest.mark.parametrize("exchange", ["letters", "direct", "amq.fanout"])
def test_bodies_of_every_size_arrive_whole(site: Site, producer: Producer, exchange: str) -> None:
    for queue in ("a", "b"):
        if exchange == "amq.fanout":
            producer.ask(commands.Queue.Bind(queue=queue, exchange=exchange))
    for size in SIZES:
        body = random.Random(size).randbytes(size)
        producer.publish(exchange, "k", {"n": 1}, body, delivery_mode=1)
        assert producer.settle() == (True, [])
        for queue in ("a", "b"):
            assert [digest(message) for message in site.take(queue)] == [hashlib.sha256(body).digest()]


def digest(message: Message) -> bytes:
    return hashlib.sha256(message.body).digest()


def test_ten_thousand_body_frames_of_one_byte_are_one_body(site: Site, producer: Producer) -> None:
    method = client.split(client.publish(1, b"letters", b"k", None, b""))[0]
    body = random.Random(2).randbytes(10_000)
    pieces = b"".join(client.frame(3, 1, body[at : at + 1]) for at in range(len(body)))
    producer.send(method.raw, client.content_header(1, len(body)), pieces)
    assert producer.settle() == (True, [])
    assert site.bodies("a", "b") == [[body], [body]]


@pytest.mark.parametrize("exchange", ["letters", "direct", ""])
def test_publishes_sent_in_pieces_arrive_in_order(site: Site, producer: Producer, exchange: str) -> None:
    chance = random.Random(3)
    bodies = [chance.randbytes(chance.choice((0, 1, 100, 5000, 70_000))) for _ in range(60)]
    frames = b"".join(client.publish(1, exchange.encode(), b"a", headers({"n": 1}), body) for body in bodies)
    while frames:
        size = chance.choice((1, 3, 7, 100, 4096, 200_000))
        producer.send(frames[:size])
        frames = frames[size:]
    producer.settle_all(len(bodies))
    assert site.bodies("a") == [bodies]
    site.take("b")


def test_an_unfinished_publish_is_not_delivered(site: Site, producer: Producer) -> None:
    whole = client.publish(1, b"letters", b"k", headers({"n": 1}), b"x" * 200_000)
    for size in (10, 40, 100, 100_000, len(whole) - 1):
        broken = site.producer()
        broken.send(whole[:size])
        broken.disconnect()
    assert producer.send_settled("letters", "k", {"n": 1}, b"whole") == (True, [])
    assert site.bodies("a", "b") == [[b"whole"], [b"whole"]]
