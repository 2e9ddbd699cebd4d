"""Which publishes of a producer are refused: reserved keys and filters, on a real broker."""

from __future__ import annotations

import pytest
from pamqp import commands
from pamqp.common import FieldTable

from tests import client
from tests.broker.delivery.site import Site
from tests.producer import Closed, Producer
from tests.relay.wire import token

RULES = """
queues: [a]
exchanges:
  - name: letters
    bindings: [{queue: a}]
  - name: renamed
    carrier: renamed.c
    bindings: [{queue: a}]
  - name: direct
    delivery: queue
    bindings: [{queue: a}]
  - name: small
    arguments: {max-payload-size: 10, min-payload-size: 2}
    bindings: [{queue: a}]
"""
RESERVED = "ACCESS_REFUSED - routing keys that begin with 'x.o.p.e.n.x.' are reserved"
PUBLISH = (60, 40)


# -- the reserved prefix -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", ["letters", "renamed", "renamed.c", "direct", "amq.direct"])
def test_a_key_under_the_reserved_prefix_is_refused_on_its_channel_only(
    site: Site, producer: Producer, exchange: str
) -> None:
    producer.open(2, confirm=True)
    producer.publish(exchange, token("queue", b"a").decode())
    close = producer.closed()
    assert (close.code, close.text, close.method) == (403, RESERVED, PUBLISH)
    producer.publish("letters", "k", channel=2)
    assert producer.settle(channel=2) == (True, [])
    assert site.bodies("a") == [[b"body"]]


def test_a_bind_under_the_prefix_in_one_word_is_refused(producer: Producer) -> None:
    bind = commands.Queue.Bind(0, "a", "amq.topic", "x-o-p-e-n-x-b-1")
    producer.send(client.method(1, bind))
    close = producer.closed()
    assert (close.code, close.method) == (403, (50, 20))
    assert "begins with 'x-o-p-e-n-x-', which is reserved for the proxy" in close.text


def test_a_queue_whose_dead_letter_key_is_a_token_is_refused(site: Site, producer: Producer) -> None:
    arguments: FieldTable = {
        "x-dead-letter-exchange": "letters",
        "x-dead-letter-routing-key": token("queue", b"a").decode(),
        "x-message-ttl": 0,
    }
    for nowait in (False, True):
        declare = commands.Queue.Declare(0, "dead", nowait=nowait, arguments=arguments)
        producer.send(client.method(1, declare))
        close = producer.closed()
        text = "values of x-dead-letter-routing-key that begin with 'x.o.p.e.n.x.' are reserved"
        assert (close.code, close.text, close.method) == (403, f"ACCESS_REFUSED - {text}", (50, 10))
        producer.open(confirm=True)
    arguments["x-dead-letter-routing-key"] = "x-o-p-e-n-x-r-q-0123456789abcdef"
    producer.send(client.method(1, commands.Queue.Declare(0, "dead", arguments=arguments)))
    assert producer.closed().text == f"ACCESS_REFUSED - {text.replace('x.o.p.e.n.x.', 'x-o-p-e-n-x-')}"
    producer.open(confirm=True)
    arguments["x-dead-letter-routing-key"] = "x.o.p.e.n.x"
    producer.ask(commands.Queue.Declare(0, "alive", exclusive=True, arguments=arguments))
    with pytest.raises(Closed, match="NOT_FOUND"):
        producer.ask(commands.Queue.Declare(0, "dead", passive=True))


# -- filters -----------------------------------------------------------------------------------------------------------


def test_a_violated_filter_closes_only_its_channel_and_earlier_publishes_are_delivered(
    site: Site, producer: Producer
) -> None:
    producer.open(2, confirm=True)
    bodies = (b"before 0", b"before 1", b"before 2", b"x" * 11, b"behind")
    producer.send(*(client.publish(1, b"small", b"k", None, body) for body in bodies))
    names = []
    while (frame := producer.frame()).name != "Channel.Close":
        names.append(frame.name)
    assert set(names) <= {"Basic.Ack"}
    fields = frame.arguments
    assert (fields["reply_code"], fields["reply_text"]) == (406, "PRECONDITION_FAILED - Max size payload hit.")
    assert (fields["class_id"], fields["method_id"]) == PUBLISH
    producer.call(commands.Channel.CloseOk())
    producer.publish("letters", "k", None, b"other", channel=2)
    assert producer.settle(channel=2) == (True, [])
    assert sorted(site.bodies("a")[0]) == [b"before 0", b"before 1", b"before 2", b"other"]


def test_a_large_body_that_violates_a_filter_is_refused_before_it_is_sent(site: Site, producer: Producer) -> None:
    method, _ = client.split(client.publish(1, b"small", b"k", None, b""))
    producer.send(method.raw, client.content_header(1, 1 << 40))
    assert producer.closed().text == "PRECONDITION_FAILED - Max size payload hit."
    producer.open(confirm=True)
    assert producer.send_settled("small", "k", None, b"fine") == (True, [])
    assert site.bodies("a") == [[b"fine"]]


def test_a_refused_publish_is_counted(site: Site, producer: Producer) -> None:
    before = site.metric("protocol_errors_total", reply_code="406")
    producer.publish("small", "k", None, b"x")
    producer.closed()
    assert site.metric("protocol_errors_total", reply_code="406") == before + 1
    assert site.metric("publishes_total", vhost=site.vhost, exchange="small", outcome="rejected") >= 1
