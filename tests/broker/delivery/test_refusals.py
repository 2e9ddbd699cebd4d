"""Which publishes of a producer are refused: reserved keys, filters, invalid headers, on a real broker."""

from __future__ import annotations

import pytest
from pamqp import commands
from pamqp.common import FieldTable

from proxy.relay.tokens import token
from tests import client
from tests.broker.delivery.site import Site
from tests.broker.world import Outside
from tests.producer import Closed, Producer, headers

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
    arguments: {max-payload-size: 10, min-payload-size: 2, max-headers-depth: 1, max-headers-size: 100}
    bindings: [{queue: a}]
  - name: silent
    arguments: {max-payload-size-silent: 10, alternate-exchange: spare}
    bindings: [{queue: a}]
  - name: granted
    bindings:
      - {queue: a, arguments: {x-msg-addqre-ontrue: ""}}
"""
RESERVED = "ACCESS_REFUSED - routing keys that begin with 'x.o.p.e.n.x.' are reserved"
RESERVED_WORD = RESERVED.replace("x.o.p.e.n.x.", "x-o-p-e-n-x-")
PUBLISH = (60, 40)


def prepare(outside: Outside) -> None:
    outside.make_exchange("spare", "fanout")
    outside.make_exchange("leads-to-letters", alternate_exchange="letters")
    outside.make_queue("fallback")
    outside.bind("spare", "fallback", "")


# -- the reserved prefix -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", ["letters", "renamed", "renamed.c", "direct"])
@pytest.mark.parametrize("key", ["x.o.p.e.n.x.", token("queue", b"a").decode()])
def test_a_key_under_the_reserved_prefix_is_refused_on_its_channel_only(
    site: Site, producer: Producer, exchange: str, key: str
) -> None:
    producer.open(2, confirm=True)
    producer.publish(exchange, key)
    close = producer.closed()
    assert (close.code, close.text, close.method) == (403, RESERVED, PUBLISH)
    producer.publish("letters", "k", channel=2)
    assert producer.settle(channel=2) == (True, [])
    assert site.bodies("a") == [[b"body"]]


@pytest.mark.parametrize("exchange", ["letters", "renamed", "renamed.c", "direct"])
def test_a_cc_under_the_reserved_prefix_is_refused(site: Site, producer: Producer, exchange: str) -> None:
    producer.publish(exchange, "k", {"CC": ["fine", token("queue", b"a")]})
    close = producer.closed()
    assert (close.code, close.text, close.method) == (403, RESERVED, PUBLISH)
    assert site.bodies("a") == [[]]


@pytest.mark.parametrize("exchange", ["letters", "direct", "amq.topic"])
@pytest.mark.parametrize("header", [None, "CC"])
def test_keys_under_the_prefix_in_one_word_are_refused(
    site: Site, producer: Producer, exchange: str, header: str | None
) -> None:
    key = "x-o-p-e-n-x-r-q-0123456789abcdef"
    producer.publish(exchange, "k" if header else key, {header: ["fine", key]} if header else None)
    close = producer.closed()
    assert (close.code, close.text, close.method) == (403, RESERVED_WORD, PUBLISH)
    assert site.bodies("a") == [[]]


def test_a_bind_under_the_prefix_in_one_word_is_refused(producer: Producer) -> None:
    bind = commands.Queue.Bind(0, "a", "amq.topic", "x-o-p-e-n-x-b-1")
    producer.send(client.method(1, bind))
    close = producer.closed()
    assert (close.code, close.method) == (403, (50, 20))
    assert "begins with 'x-o-p-e-n-x-', which is reserved for the proxy" in close.text


def test_keys_that_only_resemble_the_prefix_are_not_refused(site: Site, producer: Producer) -> None:
    for key in ("x.o.p.e.n.x", "X.O.P.E.N.X.q", "a.x.o.p.e.n.x.q", "x-o-p-e-n-x", "a-x-o-p-e-n-x-q", "x-open"):
        assert producer.send_settled("letters", key, {"CC": [key], "n": "x.o.p.e.n.x.q"}) == (True, [])
    assert len(site.take("a")) == 6


@pytest.mark.parametrize("exchange", ["", "amq.direct", "spare", "leads-to-letters"])
@pytest.mark.parametrize("header", [None, "CC", "BCC"])
def test_the_reserved_prefix_is_refused_on_exchanges_that_no_rule_names(
    site: Site, producer: Producer, exchange: str, header: str | None
) -> None:
    key = token("queue", b"a").decode()
    producer.publish(exchange, "k" if header else key, {header: ["fine", key]} if header else None)
    close = producer.closed()
    assert (close.code, close.text, close.method) == (403, RESERVED, PUBLISH)
    assert site.bodies("a") == [[]]
    producer.open(confirm=True)
    assert producer.send_settled("letters", "k").acked
    assert site.bodies("a") == [[b"body"]]


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


def test_a_refused_channel_can_be_opened_again_at_once(site: Site, producer: Producer) -> None:
    for _ in range(3):
        producer.publish("letters", "x.o.p.e.n.x.q")
        producer.publish("letters", "behind it")
        assert producer.closed().code == 403
        producer.open(confirm=True)
        assert producer.send_settled("letters", "k") == (True, [])
    assert site.bodies("a") == [[b"body"] * 3]


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "body", "text"),
    [
        (None, b"x" * 11, "Max size payload hit."),
        (None, b"x", "Min size payload hit."),
        ({"n": [["deep"]]}, b"xx", "Max headers depth hit."),
        ({"n": "x" * 101}, b"xx", "Max headers size hit."),
    ],
)
def test_a_violated_filter_closes_only_its_channel_and_earlier_publishes_are_delivered(
    site: Site, producer: Producer, table: dict[str, object] | None, body: bytes, text: str
) -> None:
    producer.open(2, confirm=True)
    producer.send(
        *(client.publish(1, b"small", b"k", None, b"before %d" % number) for number in range(3)),
        client.publish(1, b"small", b"k", None if table is None else headers(table), body),
        client.publish(1, b"small", b"k", None, b"behind"),
    )
    names = []
    while (frame := producer.frame()).name != "Channel.Close":
        names.append(frame.name)
    assert set(names) <= {"Basic.Ack"}
    fields = frame.arguments
    assert (fields["reply_code"], fields["reply_text"]) == (406, f"PRECONDITION_FAILED - {text}")
    assert (fields["class_id"], fields["method_id"]) == PUBLISH
    producer.call(commands.Channel.CloseOk())
    producer.publish("letters", "k", None, b"other", channel=2)
    assert producer.settle(channel=2) == (True, [])
    assert sorted(site.bodies("a")[0]) == [b"before 0", b"before 1", b"before 2", b"other"]


def test_a_silently_dropped_message_is_acked_and_goes_to_the_alternate_exchange(site: Site, producer: Producer) -> None:
    assert producer.send_settled("silent", "k", None, b"x" * 11, mandatory=True) == (True, [])
    assert site.bodies("a", "fallback") == [[], [b"x" * 11]]


def test_a_large_body_that_violates_a_filter_is_refused_before_it_is_sent(site: Site, producer: Producer) -> None:
    method, _ = client.split(client.publish(1, b"small", b"k", None, b""))
    producer.send(method.raw, client.content_header(1, 1 << 40))
    assert producer.closed().text == "PRECONDITION_FAILED - Max size payload hit."
    producer.open(confirm=True)
    assert producer.send_settled("small", "k", None, b"fine") == (True, [])
    assert site.bodies("a") == [[b"fine"]]


def test_an_invalid_regex_of_a_producer_closes_its_channel(site: Site, producer: Producer) -> None:
    producer.publish("granted", "k", {"x-addqre-ontrue": "("})
    close = producer.closed()
    assert (close.code, close.text) == (
        406,
        "PRECONDITION_FAILED - Invalid regex '(': missing closing parenthesis at offset 1",
    )
    assert site.bodies("a") == [[]]


def test_a_refused_publish_is_counted(site: Site, producer: Producer) -> None:
    before = site.metric("protocol_errors_total", reply_code="406")
    producer.publish("small", "k", None, b"x")
    producer.closed()
    assert site.metric("protocol_errors_total", reply_code="406") == before + 1
    assert site.metric("publishes_total", vhost=site.vhost, exchange="small", outcome="rejected") >= 1
