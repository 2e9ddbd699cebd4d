"""Rules for an exchange that already exists: `carrier: NAME` and `unmatched: pass` on a real broker."""

from __future__ import annotations

import pytest
from pamqp import commands

from oxproxy.amqp.tables import encode_table
from oxproxy.values import RESERVED_PREFIX
from tests import client
from tests.broker.delivery.site import Site, only
from tests.broker.observed import Outside
from tests.producer import Producer, headers, value

RULES = """
queues: [new, receipt, renamed, second]
exchanges:
  - name: invoices
    carrier: invoices.oxproxy
    unmatched: pass
    arguments: {max-payload-size-silent: 100, alternate-exchange: spare}
    bindings:
      - {queue: new, arguments: {"x-?hkv= kind": new}}
      - {queue: ghost, arguments: {"x-?hkv= kind": ghost}}
  - name: receipts
    delivery: queue
    unmatched: pass
    arguments: {max-payload-size-silent: 100}
    bindings:
      - {queue: receipt, arguments: {"x-?rkta": "*.new"}}
  - name: renamed
    carrier: renamed.c
    bindings:
      - {queue: renamed, arguments: {"x-?hkv= to": one}}
      - {queue: renamed, arguments: {"x-?hkv= to": two, x-addq-ontrue: second}}
"""


def prepare(outside: Outside) -> None:
    for name in ("invoices", "receipts"):
        outside.make_exchange(name, "topic")
        outside.make_queue(f"{name}.old")
        outside.bind(name, f"{name}.old", "#")
    outside.make_exchange("spare", "fanout")
    outside.make_queue("fallback")
    outside.bind("spare", "fallback", "")


# -- carrier: NAME -----------------------------------------------------------------------------------------------------


def test_a_consumer_of_the_broker_sees_the_carrier_and_the_original_address(site: Site, producer: Producer) -> None:
    producer.send_settled("renamed", "some.key", {"to": "one", "CC": ["second"]}, message_id=b"m")
    message = only(site.take("renamed"))
    assert message.address == ("renamed.c", "some.key")
    assert message.headers == {
        "to": value("one"),
        "CC": value(["second"]),
        "x-original-address": value(
            {
                "exchange": "renamed",
                "routing-key": "some.key",
                "new-exchange": "renamed.c",
                "new-routing-key": "some.key",
            }
        ),
    }
    assert site.bodies("second") == [[]]


def test_deliveries_and_gets_through_us_have_the_original_byte_for_byte(site: Site, producer: Producer) -> None:
    table = headers({"to": "two", "n": 5, "CC": ["x"]})
    producer.send_settled("renamed", "some.key", table, b"text", message_id=b"m", priority=1)
    sent = client.encode_properties({"message_id": b"m", "priority": 1}, encode_table(site.stored(table)))
    consumer = site.producer()
    got = only(consumer.take("renamed"))
    consumer.ask(commands.Basic.Consume(queue="second", no_ack=True))
    for message in (got, consumer.delivery()):
        assert message.address == ("renamed", "some.key")
        assert (message.flags, message.properties, message.body) == (*sent, b"text")


def test_a_delivery_of_a_message_without_headers_has_an_empty_table(site: Site) -> None:
    producer = site.producer()
    producer.publish("receipts", "a.new", None, b"x")
    producer.settle()
    message = only(producer.take("receipt"))
    assert (message.address, message.entries) == (("receipts", "a.new"), b"")


def test_many_successive_deliveries_have_their_originals(site: Site, producer: Producer) -> None:
    for number in range(300):
        producer.publish("renamed", f"key.{number}", {"to": "one"}, b"%d" % number)
        producer.publish("", "renamed", {"to": "one"}, b"beside")
    producer.settle_all(600)
    consumer = site.producer()
    consumer.ask(commands.Basic.Consume(queue="renamed", no_ack=True))
    for number in range(300):
        first, second = consumer.delivery(), consumer.delivery()
        assert (first.address, first.body) == (("renamed", f"key.{number}"), b"%d" % number)
        assert (second.address, second.body) == (("", "renamed"), b"beside")
        assert "x-original-address" not in first.headers


def test_a_return_has_the_original_byte_for_byte(site: Site, producer: Producer) -> None:
    table = headers({"to": "nobody", "CC": ["x"]})
    settled = producer.send_settled("renamed", "some.key", table, b"text", mandatory=True, type=b"t")
    returned = only(settled.returned)
    assert settled.acked
    assert returned.address == ("renamed", "some.key")
    sent = client.encode_properties({"type": b"t"}, encode_table(site.stored(table)))
    assert (returned.flags, returned.properties) == sent


def test_one_publish_upstream_carries_both_tokens(site: Site, producer: Producer) -> None:
    producer.send_settled("renamed", "k", {"to": "two"})
    [method] = site.upstream().named("Basic.Publish")
    assert (method.arguments["exchange"], method.arguments["routing_key"]) == ("renamed.c", "k")
    [header] = site.upstream().named("Header")
    assert header.payload.count(RESERVED_PREFIX + b"q.") == 2
    assert site.bodies("renamed", "second") == [[b"body"], [b"body"]]


# -- the original address can't be forged ------------------------------------------------------------------------------


def forged(exchange: str, key: str, new_exchange: str, new_key: str) -> dict[str, object]:
    return {
        "x-original-address": {
            "exchange": exchange,
            "routing-key": key,
            "new-exchange": new_exchange,
            "new-routing-key": new_key,
        }
    }


def test_an_original_address_from_a_producer_is_replaced_in_routed_messages(site: Site, producer: Producer) -> None:
    table = {"to": "one", **forged("bank", "pay", "renamed.c", "k"), "x-original-cc": ["y"]}
    producer.send_settled("renamed", "k", table)
    assert producer.get("renamed") is not None
    producer.send_settled("renamed", "k", table)
    message = only(site.take("renamed"))
    assert message.headers["x-original-address"] == value(
        {"exchange": "renamed", "routing-key": "k", "new-exchange": "renamed.c", "new-routing-key": "k"}
    )
    assert "x-original-cc" not in message.headers


@pytest.mark.parametrize(
    "table",
    [
        forged("bank", "pay", "", "renamed"),  # an exchange that the sidecar does not evaluate
        forged("renamed", "other", "renamed.c", "k"),  # not the pair in the frame
        forged("renamed", "other", "", "renamed"),  # a pair that this exchange never uses
        {"x-original-address": "renamed"},
        {"x-original-address": {"exchange": "renamed"}},
    ],
)
def test_invalid_original_addresses_are_not_restored(site: Site, producer: Producer, table: dict[str, object]) -> None:
    producer.send_settled("", "renamed", table)
    message = only(producer.take("renamed"))
    assert message.address == ("", "renamed")
    assert message.entries == encode_table(headers(table))


# -- unmatched: pass ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exchange", "queue"), [("invoices", "new"), ("receipts", "receipt")])
def test_rules_take_over_some_messages_of_an_exchange_and_pass_the_others(
    site: Site, producer: Producer, exchange: str, queue: str
) -> None:
    assert producer.send_settled(exchange, "a.old", {"kind": "old"}, b"1", mandatory=True) == (True, [])
    assert producer.send_settled(exchange, "a.new", {"kind": "new"}, b"2", mandatory=True) == (True, [])
    assert producer.send_settled(exchange, "b.old", None, b"3") == (True, [])
    assert site.bodies(f"{exchange}.old", queue, "fallback") == [[b"1", b"3"], [b"2"], []]


@pytest.mark.parametrize("exchange", ["invoices", "receipts"])
def test_a_passed_message_is_forwarded_byte_for_byte(site: Site, producer: Producer, exchange: str) -> None:
    table = {"BCC": ["other.key"], "CC": ["x"], **forged("bank", "pay", "", "")}
    frames = client.publish(1, exchange.encode(), b"a.old", headers(table), b"x" * 50, {"message_id": b"m"})
    producer.send(frames)
    assert producer.settle() == (True, [])
    assert b"".join(frame.raw for frame in site.upstream().frames[-3:]) == frames
    site.take(f"{exchange}.old")


@pytest.mark.parametrize(("exchange", "queue"), [("invoices", "new"), ("receipts", "receipt")])
def test_a_message_dropped_by_a_filter_is_not_passed(site: Site, producer: Producer, exchange: str, queue: str) -> None:
    producer.send_settled(exchange, "a.old", {"kind": "old"}, b"x" * 101)
    assert site.bodies(f"{exchange}.old", queue) == [[], []]
    site.take("fallback")


def test_a_match_with_a_missing_destination_is_not_passed(site: Site, producer: Producer) -> None:
    assert len(producer.send_settled("invoices", "k", {"kind": "ghost"}, mandatory=True).returned) == 1
    assert site.bodies("invoices.old", "fallback") == [[], []]
