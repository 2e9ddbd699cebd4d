"""Delivery through the default exchange, if nothing may be declared on the broker: `delivery: queue`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pamqp import commands

from oxproxy.amqp.tables import encode_table
from tests import client
from tests.broker.delivery.site import Site, only, standing
from tests.broker.observed import Outside
from tests.producer import Producer, headers, value
from tests.rabbitmq import Broker

RULES = """
queues:
  - a
  - b
  - c
  - {name: full, arguments: {x-max-length: 1, x-overflow: reject-publish}}
exchanges:
  - name: letters
    delivery: queue
    bindings:
      - {queue: a, arguments: {"x-?hkv= to": all, x-addq-ontrue: [b, c]}}
      - {queue: a, arguments: {"x-?hkv= to": a}}
      - {queue: full, arguments: {"x-?hkv= to": full, x-addq-ontrue: [a, b]}}
      - {queue: ghost, arguments: {"x-?hkv= to": ghost}}
      - {queue: ghost, arguments: {"x-?hkv= to": half, x-addq-ontrue: [b]}}
      - {exchange: copies, arguments: {"x-?hkv= to": both, x-addq-ontrue: [a, b]}}
      - {exchange: copies, arguments: {"x-?hkv= to": exchanges, x-adde-ontrue: [keys]}}
      - {queue: dying, arguments: {"x-?hkv= to": dying, x-addq-ontrue: [a]}}
  - name: safe
    delivery: queue
    arguments: {alternate-exchange: spare}
    bindings:
      - {queue: a, arguments: {"x-?hkv= to": a}}
      - {queue: ghost, arguments: {"x-?hkv= to": ghost}}
      - {queue: full, arguments: {"x-?hkv= to": full, x-addq-ontrue: [a, b]}}
  - name: carried
    arguments: {alternate-exchange: spare}
    bindings:
      - {queue: a}
      - {queue: dying.carried, arguments: {"x-?hkv= to": dying}}
"""


def prepare(outside: Outside) -> None:
    outside.make_queues("a", "b", "fallback", "elsewhere")
    for queue in ("dying", "dying.carried"):
        outside.make_queue(queue, x_message_ttl=1, x_dead_letter_exchange="")
    for name, queue in (("spare", "fallback"), ("copies", "a")):
        outside.make_exchange(name, "fanout")
        outside.bind(name, queue, "")
    outside.make_exchange("keys", "direct")
    outside.bind("keys", "b", "some.key")


def original(key: str, new_exchange: str, new_key: str, exchange: str = "letters") -> object:
    return value({"exchange": exchange, "routing-key": key, "new-exchange": new_exchange, "new-routing-key": new_key})


# -- one publish for all queues ----------------------------------------------------------------------------------------


def test_one_publish_reaches_three_queues_and_is_confirmed_once(site: Site, producer: Producer) -> None:
    for tag in (1, 2):
        producer.publish("letters", "some.key", {"to": "all"})
        assert producer.settle(tag=tag).acked
    assert producer.silent()
    assert len(site.upstream().named("Basic.Publish")) == 2
    assert site.bodies("a", "b", "c") == [[b"body"] * 2] * 3


def test_every_receiver_gets_the_first_queue_as_key_and_the_original_address(site: Site, producer: Producer) -> None:
    producer.send_settled("letters", "some.key", {"n": 5, "to": "all"}, b"text", message_id=b"m")
    messages = [only(site.take(queue)) for queue in ("a", "b", "c")]
    [first] = {message.address for message in messages}
    assert first in {("", "a"), ("", "b"), ("", "c")}
    for message in messages:
        assert message.headers == {
            "n": value(5),
            "to": value("all"),
            "x-original-address": original("some.key", *first),
        }
        assert message.body == b"text"


def test_a_cc_is_set_aside_and_does_not_route(site: Site, producer: Producer) -> None:
    producer.send_settled("letters", "k", {"to": "a", "CC": ["b", "fallback"], "BCC": ["c"]})
    message = only(site.take("a"))
    assert message.headers == {
        "to": value("a"),
        "x-original-cc": value(["b", "fallback"]),
        "x-original-address": original("k", "", "a"),
    }
    assert site.bodies("b", "c", "fallback") == [[], [], []]


@pytest.mark.parametrize("name", ["BCC", "CC"])
def test_a_copy_header_that_is_no_array_gets_the_brokers_406(site: Site, producer: Producer, name: str) -> None:
    producer.publish("letters", "k", {"to": "a", name: "b"})
    assert producer.closed().code == 406
    assert site.bodies("a", "b") == [[], []]


# -- unroutable messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["nobody", "ghost"])
def test_a_mandatory_publish_without_a_destination_is_returned_with_the_original_address(
    site: Site, producer: Producer, to: str
) -> None:
    table = headers({"to": to, "CC": ["a"]})
    settled = producer.send_settled("letters", "some.key", table, b"text", mandatory=True, message_id=b"m")
    returned = only(settled.returned)
    assert settled.acked
    assert (returned.method["reply_code"], returned.address) == (312, ("letters", "some.key"))
    assert sorted(returned.headers) == ["CC", "to"]
    assert returned.body == b"text"
    assert site.bodies("a") == [[]]


def test_a_missing_queue_does_not_affect_an_existing_one(site: Site, producer: Producer) -> None:
    assert producer.send_settled("letters", "k", {"to": "half"}, mandatory=True) == (True, [])
    assert only(site.take("b")).address == ("", "b")


def test_without_a_match_a_message_goes_to_the_alternate_exchange_under_the_original_key(
    site: Site, producer: Producer
) -> None:
    assert producer.send_settled("safe", "some.key", {"to": "nobody"}, mandatory=True) == (True, [])
    message = only(site.take("fallback"))
    assert message.address == ("spare", "some.key")
    assert message.headers["x-original-address"] == original("some.key", "spare", "some.key", "safe")
    producer.send_settled("safe", "some.key", {"to": "nobody"})
    seen = only(producer.take("fallback"))
    assert seen.address == ("safe", "some.key")


def test_a_missing_destination_does_not_use_the_alternate_exchange(site: Site, producer: Producer) -> None:
    settled = producer.send_settled("safe", "k", {"to": "ghost"}, mandatory=True)
    assert settled.acked
    assert only(settled.returned).address == ("safe", "k")
    assert site.bodies("fallback") == [[]]


@pytest.mark.parametrize("exchange", ["letters", "safe"])
@pytest.mark.parametrize("mandatory", [False, True])
def test_a_full_queue_causes_a_nack_and_the_other_queues_get_the_message(
    site: Site, producer: Producer, exchange: str, mandatory: bool
) -> None:
    assert producer.send_settled(exchange, "k", {"to": "full"}, b"1", mandatory=mandatory) == (True, [])
    assert producer.send_settled(exchange, "k", {"to": "full"}, b"2", mandatory=mandatory) == (False, [])
    assert site.bodies("full", "a", "b", "fallback") == [[b"1"], [b"1", b"2"], [b"1", b"2"], []]


def test_a_dead_letter_to_the_default_exchange_goes_to_the_first_queue_with_a_warning(
    site: Site, producer: Producer
) -> None:
    [line] = site.logged("dead-letters to the default exchange")
    assert "queue dying" in line
    producer.send_settled("letters", "k", {"to": "dying"})
    messages = [site.next("a"), site.next("a")]
    assert {message.address for message in messages} == {("", "a")}
    assert sum("x-death" in message.headers for message in messages) == 1


# -- destinations that are exchanges -----------------------------------------------------------------------------------


def test_an_exchange_needs_a_second_publish_and_one_confirm(site: Site, producer: Producer) -> None:
    for tag in (1, 2, 3):
        producer.publish("letters", "some.key", {"to": "both"}, b"%d" % tag)
        assert producer.settle(tag=tag) == (True, [])
    assert producer.silent()
    assert len(site.upstream().named("Basic.Publish")) == 6
    messages = site.take("a")
    assert sorted(message.body for message in messages) == [b"1", b"1", b"2", b"2", b"3", b"3"]
    assert {message.address for message in messages} == {("", "a"), ("copies", "some.key")}
    assert site.bodies("b") == [[b"1", b"2", b"3"]]


def test_a_large_body_to_a_queue_and_an_exchange_is_complete_in_both(site: Site, producer: Producer) -> None:
    body = bytes(range(256)) * 4096
    assert producer.send_settled("letters", "k", {"to": "both"}, body) == (True, [])
    assert site.bodies("a", "b") == [[body, body], [body]]


def test_confirms_of_joined_and_plain_publishes_keep_the_producers_tags(site: Site, producer: Producer) -> None:
    kinds = ["both", "a", "both", "exchanges", "a", "nobody", "both"] * 10
    for number, to in enumerate(kinds):
        producer.publish("letters", "some.key", {"to": to}, b"%d" % number)
    producer.settle_all(len(kinds))
    assert producer.silent()
    at_b = [b"%d" % number for number, to in enumerate(kinds) if to in ("both", "exchanges")]
    assert site.bodies("b") == [at_b]
    site.take("a")


def test_a_publish_is_returned_only_if_every_copy_was_returned(site: Site, producer: Producer) -> None:
    assert producer.send_settled("letters", "other.key", {"to": "both"}, mandatory=True) == (True, [])
    assert producer.send_settled("letters", "other.key", {"to": "exchanges"}, mandatory=True) == (True, [])
    site.bodies("a", "b")
    with unbound(site):
        settled = producer.send_settled("letters", "other.key", {"to": "exchanges"}, mandatory=True)
        assert settled.acked
        assert only(settled.returned).address == ("letters", "other.key")
        assert producer.send_settled("letters", "some.key", {"to": "exchanges"}, mandatory=True) == (True, [])
        assert site.bodies("a", "b") == [[], [b"body"]]


def test_copies_whose_headers_the_broker_reorders_are_returned_once(site: Site, producer: Producer) -> None:
    """RabbitMQ 4.0 sorts the headers of returned copies by name."""
    with unbound(site):
        table = {"x-trace": "t", "to": "exchanges", "x-attempt": 2, "region": "eu"}
        settled = producer.send_settled("letters", "other.key", table, mandatory=True)
        assert settled.acked
        assert only(settled.returned).address == ("letters", "other.key")


def test_a_nack_of_one_copy_is_a_nack(site: Site, producer: Producer) -> None:
    site.bind("copies", "full", "")
    try:
        assert producer.send_settled("letters", "k", {"to": "both"}, b"1") == (True, [])
        assert producer.send_settled("letters", "k", {"to": "both"}, b"2") == (False, [])
    finally:
        site.broker.api("DELETE", f"bindings/{site.vhost}/e/copies/q/full/~")
    assert site.bodies("full", "b") == [[b"1"], [b"1", b"2"]]
    site.take("a")


def test_transactions_over_queues_and_exchanges_are_complete(site: Site) -> None:
    producer = site.producer(confirm=False)
    producer.ask(commands.Tx.Select())
    producer.publish("letters", "k", {"to": "both"}, b"1")
    producer.ask(commands.Tx.Rollback())
    producer.publish("letters", "k", {"to": "both"}, b"2")
    producer.publish("letters", "lost", {"to": "nobody"}, b"3", mandatory=True)
    producer.call(commands.Tx.Commit())
    returned = producer.message(producer.expect("Basic.Return"))
    producer.expect("Tx.CommitOk")
    assert (returned.address, returned.body) == (("letters", "lost"), b"3")
    assert site.bodies("a", "b") == [[b"2", b"2"], [b"2"]]


@contextmanager
def unbound(site: Site) -> Iterator[None]:
    """The exchange `copies` without bindings, for the duration of the context."""
    site.broker.api("DELETE", f"bindings/{site.vhost}/e/copies/q/a/~")
    try:
        yield
    finally:
        site.bind("copies", "a", "")


def test_without_confirms_a_publish_is_returned_if_every_copy_was_returned(site: Site) -> None:
    producer = site.producer(confirm=False)
    with unbound(site):
        for number in range(3):
            producer.publish("letters", "other.key", {"to": "exchanges"}, b"none %d" % number, mandatory=True)
            producer.publish("letters", "some.key", {"to": "exchanges"}, b"half %d" % number, mandatory=True)
            producer.publish("letters", "k", {"to": "nobody"}, b"lost %d" % number, mandatory=True)
        producer.call(commands.Basic.Qos(0, 1))
        returned = []
        while (frame := producer.expect("Basic.Return", "Basic.QosOk")).name == "Basic.Return":
            returned.append(producer.message(frame))
    assert [message.body for message in returned] == [
        body for number in range(3) for body in (b"none %d" % number, b"lost %d" % number)
    ]
    assert {message.address for message in returned} == {("letters", "other.key"), ("letters", "k")}
    assert site.bodies("b") == [[b"half 0", b"half 1", b"half 2"]]


def test_in_a_transaction_a_publish_is_returned_if_every_copy_was_returned(site: Site) -> None:
    producer = site.producer(confirm=False)
    producer.ask(commands.Tx.Select())
    with unbound(site):
        producer.publish("letters", "other.key", {"to": "exchanges"}, b"none", mandatory=True)
        producer.publish("letters", "some.key", {"to": "exchanges"}, b"half", mandatory=True)
        producer.call(commands.Tx.Commit())
        returned = producer.message(producer.expect("Basic.Return"))
        producer.expect("Tx.CommitOk")
    assert (returned.body, returned.address) == (b"none", ("letters", "other.key"))
    assert site.bodies("b") == [[b"half"]]


def test_forged_headers_of_the_sidecar_are_replaced(site: Site, producer: Producer) -> None:
    table = {"to": "a", "x-original-address": {"exchange": "bank"}, "x-original-cc": ["y"]}
    producer.send_settled("letters", "k", table)
    message = only(site.take("a"))
    assert message.entries == encode_table(headers({"to": "a"})) + encode_table(
        ((b"x-original-address", original("k", "", "a")),)  # type: ignore[arg-type]
    )
    assert message.flags == client.encode_properties({}, b"")[0]


@pytest.mark.parametrize("exchange", ["", "amq.direct"])
@pytest.mark.parametrize("split", [False, True])
def test_an_original_address_from_a_producer_is_refused(
    site: Site, producer: Producer, exchange: str, split: bool
) -> None:
    forged = headers({"x-original-address": original("forged", "", "a")})
    producer.publish(exchange, "a", {"x-original-address": {"exchange": "letters"}})  # this would not be restored
    assert producer.settle() == (True, [])
    site.take("a")
    message = client.publish(1, exchange.encode(), b"a", forged, b"body")
    for piece in [frame.raw for frame in client.split(message)] if split else [message]:
        producer.send(piece)
    close = producer.closed()
    text = "ACCESS_REFUSED - header 'x-original-address' names an address that only the proxy may set"
    assert (close.code, close.text, close.method) == (403, text, (60, 40))
    assert site.bodies("a") == [[]]


@pytest.mark.parametrize("exchange", ["letters", "carried"])
def test_an_original_address_written_on_the_broker_is_restored_only_in_queues_of_that_exchange(
    site: Site, producer: Producer, exchange: str
) -> None:
    """The alternate exchange of `carried` sends messages through the default exchange, but only to its queues."""
    forged = {"x-original-address": original("forged", "", "elsewhere", exchange)}
    site.direct.publish("", "elsewhere", forged)
    message = site.next("elsewhere", producer)
    assert message.address == ("", "elsewhere")
    assert message.headers == forged


def test_an_alternate_exchange_that_is_deleted_gets_nothing_until_it_is_declared_again(
    broker: Broker, tmp_path: Path
) -> None:
    rules = "exchanges: [{name: jobs, delivery: queue, arguments: {alternate-exchange: spare}}]"
    with standing(broker, tmp_path, rules, {"inventory": {"refresh": "1h"}}, prepare) as site:
        producer, other = site.producer(), site.producer()
        other.ask(commands.Exchange.Delete(exchange="spare"))
        assert producer.send_settled("jobs", "k", {}, b"1") == (True, [])
        other.ask(commands.Exchange.Declare(exchange="spare", exchange_type="fanout", durable=True))
        other.ask(commands.Queue.Bind(queue="fallback", exchange="spare"))
        assert producer.send_settled("jobs", "k", {}, b"2") == (True, [])
        assert site.bodies("fallback") == [[b"2"]]
