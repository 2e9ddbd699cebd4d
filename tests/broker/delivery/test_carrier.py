"""Carrier delivery on a real broker: one publish in, one publish out, for any number of queues."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from oxproxy.amqp.tables import encode_table
from tests import client
from tests.broker.delivery.site import Site, only
from tests.broker.observed import Outside
from tests.producer import Closed, Producer, headers, value

RULES = """
queues:
  - a
  - b
  - c
  - dead
  - requests
  - {name: full, arguments: {x-max-length: 1, x-overflow: reject-publish}}
  - {name: dying, arguments: {x-message-ttl: 1, x-dead-letter-exchange: graves}}
  - {name: quorum, arguments: {x-queue-type: quorum}}
exchanges:
  - name: letters
    bindings:
      - {queue: a, arguments: {"x-?hkv= to": all, x-addq-ontrue: [b, c]}}
      - {queue: a, arguments: {"x-?hkv= to": twice}}
      - {queue: a, arguments: {"x-?hkv= to": twice, "x-?hkex": to}}
      - {exchange: copies, arguments: {"x-?hkv= to": twice}}
      - {queue: full, arguments: {"x-?hkv= to": full, x-addq-ontrue: [a, b]}}
      - {queue: dying, arguments: {"x-?hkv= to": dying}}
      - {queue: quorum, arguments: {"x-?hkv= to": quorum, x-addq-ontrue: a}}
      - {queue: requests, arguments: {"x-?hkv= to": requests}}
      - {queue: ghost, arguments: {"x-?hkv= to": ghost}}
  - name: keys
    type: direct
    bindings:
      - {queue: a, routing_key: a}
  - name: topics
    type: topic
    bindings:
      - {queue: a, routing_key: "a.#"}
  - name: many
    bindings:
      - {queue: many.0, arguments: {x-addqre-ontrue: "^many[.]"}}
  - name: safe
    arguments: {alternate-exchange: spare}
    bindings:
      - {queue: a, arguments: {"x-?hkv= to": a}}
      - {queue: ghost, arguments: {"x-?hkv= to": ghost}}
      - {queue: full, arguments: {"x-?hkv= to": full, x-addq-ontrue: [a, b]}}
"""

MANY = [f"many.{number}" for number in range(400)]


def prepare(outside: Outside) -> None:
    for name, queue in (("spare", "fallback"), ("graves", "dead"), ("copies", "a")):
        outside.make_exchange(name, "fanout")
        outside.make_queue(queue)
        outside.bind(name, queue, "")
    outside.make_queues(*MANY)


def refusal_of_the_broker(site: Site, *arguments: object, **more: object) -> Closed:
    """The broker's reply to the same publish on an exchange of type direct."""
    with Producer(site.broker.port, site.vhost).open(confirm=True) as peer:
        peer.publish("amq.direct", *arguments, **more)  # type: ignore[arg-type]
        return peer.closed()


# -- one publish in, one publish out -----------------------------------------------------------------------------------


def test_one_publish_to_three_queues_is_one_publish_upstream_and_one_confirm(site: Site, producer: Producer) -> None:
    for tag in (1, 2, 3):
        producer.publish("letters", "any.key", {"to": "all"})
        assert producer.settle(tag=tag).acked
    assert producer.silent()
    assert len(site.upstream().named("Basic.Publish")) == 3
    assert site.bodies("a", "b", "c") == [[b"body"] * 3] * 3


def test_method_and_body_frames_are_forwarded_byte_for_byte(site: Site, producer: Producer) -> None:
    frames = client.split(client.publish(1, b"letters", b"any.key", headers({"to": "all"}), b"x", mandatory=True))
    producer.send(*(frame.raw for frame in frames))
    producer.settle()
    method, _, body = site.upstream().frames[-3:]
    assert (method, body) == (frames[0], frames[2])
    assert site.bodies("a", "b", "c") == [[b"x"]] * 3


def test_classic_and_quorum_queues_get_the_same_message(site: Site, producer: Producer) -> None:
    assert producer.send_settled("letters", "k", {"to": "quorum"}, b"x").acked
    messages = [only(site.take(queue)) for queue in ("a", "quorum")]
    assert [message.address for message in messages] == [("letters", "k")] * 2
    assert {name for message in messages for name in message.headers} <= {"to", "x-delivery-count"}


def test_a_queue_reached_by_two_bindings_and_an_exchange_gets_the_message_once(site: Site, producer: Producer) -> None:
    producer.send_settled("letters", "k", {"to": "twice"})
    assert len(site.upstream().named("Basic.Publish")) == 1
    assert site.bodies("a") == [[b"body"]]


def test_a_message_without_a_header_table_arrives_with_an_empty_one(site: Site, producer: Producer) -> None:
    producer.send_settled("safe", "k", None)
    assert only(site.take("fallback")).entries is None  # no token, so no header table is added
    producer.publish("keys", "a", None, message_id=b"m")
    producer.settle()
    message = only(site.take("a"))
    assert (message.flags, message.properties) == client.encode_properties({"message_id": b"m"}, b"")


# -- CC and BCC of the producer ----------------------------------------------------------------------------------------


def test_a_bcc_of_the_producer_does_not_route_and_is_removed(site: Site, producer: Producer) -> None:
    producer.send_settled("letters", "k", {"BCC": ["b", "c"], "to": "twice", "n": 1})
    message = only(site.take("a"))
    assert message.entries == encode_table(site.stored(headers({"to": "twice", "n": 1})))
    assert site.bodies("b", "c") == [[], []]


def test_a_cc_of_the_producer_stays_visible_and_does_not_route(site: Site, producer: Producer) -> None:
    producer.send_settled("letters", "k", {"CC": ["b", "c"], "to": "twice"})
    message = only(site.take("a"))
    assert message.entries == encode_table(headers({"CC": ["b", "c"], "to": "twice"}))
    assert site.bodies("b", "c") == [[], []]


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize(("exchange", "brokers_own"), [("keys", "amq.direct"), ("topics", "amq.topic")])
def test_direct_and_topic_exchanges_of_the_rules_do_not_route_by_cc_as_those_of_the_broker_do(
    site: Site, producer: Producer, exchange: str, brokers_own: str, header: str
) -> None:
    site.bind(brokers_own, "b", "a")
    for name in (exchange, brokers_own):
        assert producer.send_settled(name, "other", {header: ["a"]}).acked
    assert site.bodies("a", "b") == [[], [b"body"]]
    assert producer.send_settled(exchange, "a", {header: ["other"]}).acked
    assert site.bodies("a", "b") == [[b"body"], []]


def test_two_bcc_entries_do_not_route_and_are_removed(site: Site, producer: Producer) -> None:
    table = (*headers({"BCC": ["b"]}), *headers({"to": "twice"}), *headers({"BCC": ["c"]}))
    producer.send_settled("letters", "k", table)
    assert only(site.take("a")).entries == encode_table(headers({"to": "twice"}))
    assert site.bodies("b", "c") == [[], []]


@pytest.mark.parametrize("name", ["BCC", "CC"])
def test_a_copy_header_that_is_no_array_gets_the_brokers_own_406(site: Site, producer: Producer, name: str) -> None:
    table = {"to": "twice", name: "b"}
    producer.publish("letters", "k", table)
    close = producer.closed()
    own = refusal_of_the_broker(site, "k", table)
    assert (close.code, close.text, close.method) == (406, own.text, own.method)
    assert site.bodies("a", "b") == [[], []]


# -- many tokens -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("frame_max", "publishes"), [(131072, 1), (8192, 2)])
def test_tokens_beyond_frame_max_need_several_publishes_and_one_confirm(
    site: Site, frame_max: int, publishes: int
) -> None:
    producer = site.producer(frame_max=frame_max)
    for tag in (1, 2):
        producer.publish("many", "k", {"n": 1}, b"x")
        assert producer.settle(tag=tag).acked
    assert producer.silent()
    assert len(site.upstream().named("Basic.Publish")) == 2 * publishes
    assert all(len(frame.raw) <= frame_max for frame in site.upstream().frames)
    assert site.bodies(*MANY) == [[b"x", b"x"]] * len(MANY)


# -- unroutable messages -----------------------------------------------------------------------------------------------


def test_a_mandatory_publish_without_a_destination_is_returned_unchanged_and_acked(
    site: Site, producer: Producer
) -> None:
    settled = producer.send_settled("letters", "some.key", {"to": "nobody"}, b"text", mandatory=True, message_id=b"m")
    returned = only(settled.returned)
    assert settled.acked
    assert (returned.method["reply_code"], returned.method["reply_text"]) == (312, "NO_ROUTE")
    assert returned.address == ("letters", "some.key")
    sent = client.encode_properties({"message_id": b"m"}, encode_table(headers({"to": "nobody"})))
    assert (returned.flags, returned.properties, returned.body) == (*sent, b"text")


def test_a_publish_without_a_destination_is_only_acked_unless_mandatory(producer: Producer) -> None:
    assert producer.send_settled("letters", "k", {"to": "nobody"}) == (True, [])


def test_a_publish_to_an_alternate_exchange_is_not_returned(site: Site, producer: Producer) -> None:
    table = headers({"to": "nobody"})
    assert producer.send_settled("safe", "some.key", table, b"text", mandatory=True) == (True, [])
    message = only(site.take("fallback"))
    assert message.address == ("safe", "some.key")
    assert message.entries == encode_table(table)


def test_a_missing_destination_does_not_use_the_alternate_exchange(site: Site, producer: Producer) -> None:
    assert producer.send_settled("safe", "k", {"to": "ghost"}) == (True, [])
    settled = producer.send_settled("safe", "k", headers({"to": "ghost", "CC": ["a"]}), mandatory=True)
    assert settled.acked
    returned = only(settled.returned)
    assert returned.address == ("safe", "k")
    assert returned.entries == encode_table(headers({"to": "ghost", "CC": ["a"]}))
    assert site.bodies("fallback", "a") == [[], []]


@pytest.mark.parametrize("exchange", ["letters", "safe"])
@pytest.mark.parametrize("mandatory", [False, True])
def test_a_full_queue_causes_a_nack_and_the_other_queues_get_the_message(
    site: Site, producer: Producer, exchange: str, mandatory: bool
) -> None:
    assert producer.send_settled(exchange, "k", {"to": "full"}, b"1", mandatory=mandatory) == (True, [])
    assert producer.send_settled(exchange, "k", {"to": "full"}, b"2", mandatory=mandatory) == (False, [])
    assert site.bodies("full", "a", "b", "fallback") == [[b"1"], [b"1", b"2"], [b"1", b"2"], []]


# -- transactions ------------------------------------------------------------------------------------------------------


def test_a_transaction_is_delivered_completely_or_not_at_all(site: Site) -> None:
    producer = site.producer(confirm=False)
    producer.ask(commands.Tx.Select())
    producer.publish("letters", "k", {"to": "all"}, b"1")
    producer.publish("letters", "k", {"to": "twice"}, b"2")
    producer.ask(commands.Tx.Rollback())
    producer.publish("letters", "k", {"to": "all"}, b"3")
    producer.publish("letters", "k", {"to": "twice"}, b"4")
    producer.ask(commands.Tx.Commit())
    assert site.bodies("a", "b", "c") == [[b"3", b"4"], [b"3"], [b"3"]]


def test_returns_of_a_transaction_come_before_its_commit_ok(site: Site) -> None:
    producer = site.producer(confirm=False)
    producer.ask(commands.Tx.Select())
    producer.publish("letters", "lost", {"to": "nobody"}, b"1", mandatory=True)
    producer.publish("letters", "k", {"to": "all"}, b"2", mandatory=True)
    producer.call(commands.Tx.Commit())
    returned = producer.message(producer.expect("Basic.Return"))
    producer.expect("Tx.CommitOk")
    assert (returned.address, returned.body) == (("letters", "lost"), b"1")
    assert site.bodies("a", "b", "c") == [[b"2"]] * 3


def test_a_full_queue_in_a_transaction_closes_the_channel_as_on_the_broker(site: Site) -> None:
    producer = site.producer(confirm=False)
    producer.ask(commands.Tx.Select())
    producer.publish("letters", "k", {"to": "full"}, b"1")
    producer.publish("letters", "k", {"to": "full"}, b"2")
    producer.call(commands.Tx.Commit())
    assert producer.closed().code == 406
    site.bodies("full", "a", "b")


# -- the broker's own features: dead-lettering, reply-to, expiration ---------------------------------------------------


def test_a_dead_lettered_copy_shows_the_original_key_and_no_token(site: Site, producer: Producer) -> None:
    producer.send_settled("letters", "some.key", {"to": "dying", "CC": ["seen"]})
    message = site.next("dead")
    assert message.key == "some.key"
    deaths = message.headers["x-death"].value
    assert isinstance(deaths, tuple)
    fields = dict(deaths[0].value)
    assert fields[b"exchange"] == value("letters")
    assert fields[b"routing-keys"] == value(["some.key", "seen"])
    assert b"x.o.p.e.n" not in message.properties


def test_direct_reply_to_works_across_an_open_exchange(site: Site, producer: Producer) -> None:
    producer.ask(commands.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True))
    producer.publish("letters", "k", {"to": "requests"}, b"question", reply_to=b"amq.rabbitmq.reply-to")
    producer.settle()
    server = site.producer()
    question = only(server.take("requests"))
    reply_to = question.properties[question.properties.index(b"amq.rabbitmq.reply-to.") :].decode()
    server.send_settled("", reply_to, {}, b"answer")
    assert producer.delivery().body == b"answer"


def test_expiration_and_user_id_have_the_brokers_meaning(site: Site, producer: Producer) -> None:
    producer.send_settled("letters", "k", {"to": "twice"}, b"x", expiration=b"60000", user_id=b"guest")
    message = only(site.take("a"))
    sent = client.encode_properties(
        {"expiration": b"60000", "user_id": b"guest"}, encode_table(headers({"to": "twice"}))
    )
    assert (message.flags, message.properties) == sent
    wrongs: list[dict[str, Any]] = [{"expiration": b"soon"}, {"user_id": b"somebody"}]
    for wrong in wrongs:
        peer = site.producer()
        peer.publish("letters", "k", {"to": "twice"}, b"x", **wrong)
        own = refusal_of_the_broker(site, "k", {"to": "twice"}, b"x", **wrong)
        close = peer.closed()
        assert (close.code, close.text) == (406, own.text)
