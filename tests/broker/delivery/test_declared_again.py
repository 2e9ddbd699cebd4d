"""Queues and exchanges get messages as soon as they are declared through the sidecar, for the first time or again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.broker.delivery.applications import Application
from tests.broker.delivery.site import Site
from tests.client import method, publish
from tests.producer import Producer, headers, until
from tests.rabbitmq import quoted

RULES = """
queues: [a]
exchanges:
  - name: jobs
    bindings: [{queue: ruled}, {exchange: ruled}]
  - name: jobs.queue
    delivery: queue
    bindings: [{queue: ruled}, {exchange: ruled}]
  - name: found
    bindings: [{queue: a}, {queue: found}]
  - name: found.queue
    delivery: queue
    bindings: [{queue: a}, {queue: found}]
"""
#: The sidecar learns of changes only from the declarations that pass through it.
SETTINGS = {"inventory": {"refresh": "1h"}, "declared": {"client_routes": "any"}}


@pytest.fixture
def app(site: Site) -> Iterator[Application]:
    with Application(site.sidecar.port, site.vhost) as made:
        made.exchange("ox")
        made.queues("late")
        yield made
        made.delete("ox")
        made.send(made.deleting_queue("late"))
        made.expect("Queue.DeleteOk")


@pytest.mark.parametrize(
    "route",
    [
        {"x-addq-ontrue": "late"},
        {"x-addqre-ontrue": "^late$"},
        {"x-adde-ontrue": "behind"},
        {"x-msg-adde-ontrue": ""},
    ],
    ids=str,
)
@pytest.mark.parametrize("bound", [False, True])
def test_a_destination_of_a_clients_route_that_was_deleted_elsewhere_is_reached_when_declared_again(
    site: Site, app: Application, route: dict[str, str], bound: bool
) -> None:
    """`bound`: whether a client has also bound the destination. The broker has deleted this binding."""
    table = {"x-adde-ontrue": "behind"}
    app.exchange("behind", kind="fanout")
    app.bind("late", "behind")
    app.bind("a", "ox", route)
    if bound:
        app.chain("behind", "ox", {"x-?hkex": "never"})
        app.bind("late", "ox", {"x-?hkex": "never"})
    assert app.reached("ox", table, "a", "late") == ["a", "late"]
    site.delete_queue("late")
    site.delete_exchange("behind")
    app.queues("late")
    app.exchange("behind", kind="fanout")
    app.bind("late", "behind")
    assert app.reached("ox", table, "a", "late") == ["a", "late"]
    app.delete("behind")


def test_an_exclusive_queue_does_not_get_messages_by_bindings_of_an_earlier_queue_with_its_name(
    site: Site, app: Application
) -> None:
    """The broker deletes the earlier queue and its bindings with the connection that declared it."""
    for number in range(3):
        with Application(site.sidecar.port, site.vhost) as owner:
            owner.declare("mine", exclusive=True)
            owner.bind("mine", "ox", {"x-?hkv= n": number})
            assert owner.reached("ox", {"n": number - 1}, "mine") == []
            assert owner.reached("ox", {"n": number}, "mine") == ["mine"]
            owner.close()


@pytest.mark.parametrize("nowait", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_an_auto_delete_queue_does_not_get_messages_by_bindings_of_an_earlier_queue_with_its_name(
    app: Application, exclusive: bool, nowait: bool
) -> None:
    """The broker deletes the earlier queue and its bindings with the last consumer."""
    declare = commands.Queue.Declare(queue="brief", auto_delete=True, exclusive=exclusive, nowait=nowait)
    for number in range(3):
        app.call(declare) if nowait else app.ask(declare)
        app.bind("brief", "ox", {"x-?hkv= n": number})
        assert app.reached("ox", {"n": number - 1}, "brief") == []
        assert app.reached("ox", {"n": number}, "brief") == ["brief"]
        app.ask(commands.Basic.Consume(queue="brief", consumer_tag="only"))
        app.call(commands.Basic.Cancel(consumer_tag="only", nowait=True))


@pytest.mark.parametrize("kind", ["fanout", "x-open"])
def test_an_auto_delete_exchange_does_not_get_messages_by_bindings_of_an_earlier_exchange_with_its_name(
    site: Site, app: Application, kind: str
) -> None:
    """The broker deletes the earlier exchange and its bindings with the last queue that is bound to it."""

    def is_deleted() -> bool:
        rows = site.broker.api("GET", f"exchanges/{quoted(site.vhost)}?columns=name")
        return all(row["name"] != "brief" for row in rows)

    for number in range(3):
        app.exchange("brief", kind=kind, auto_delete=True)
        app.chain("brief", "ox", {"x-?hkv= n": number})
        app.declare("last", auto_delete=True)
        app.bind("last", "brief")
        assert app.reached("ox", {"n": number - 1}, "last") == []
        assert app.reached("ox", {"n": number}, "last") == ["last"]
        app.ask(commands.Basic.Consume(queue="last", consumer_tag="only"))
        app.call(commands.Basic.Cancel(consumer_tag="only", nowait=True))
        # RabbitMQ 4.3 can answer the next declare before it deletes the exchange.
        until(is_deleted)
    app.delete("brief")


# -- publishes sent before the reply to the declare --------------------------------------------------------------------


def sent(exchange: str, table: dict[str, object]) -> bytes:
    return publish(1, exchange.encode(), b"k", headers(table), b"body", mandatory=True)


@pytest.mark.parametrize("nowait", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("exchange", ["jobs", "jobs.queue"])
def test_a_message_sent_directly_after_the_declare_of_a_queue_of_the_rules_reaches_it(
    producer: Producer, exchange: str, exclusive: bool, nowait: bool
) -> None:
    declare = commands.Queue.Declare(queue="ruled", exclusive=exclusive, nowait=nowait)
    for _ in range(2):
        producer.send(method(1, declare), sent(exchange, {}))
        if not nowait:
            producer.expect("Queue.DeclareOk")
        assert producer.settle() == (True, [])
        assert [message.body for message in producer.take("ruled")] == [b"body"]
        producer.ask(commands.Queue.Delete(queue="ruled"))


@pytest.mark.parametrize("nowait", [False, True])
@pytest.mark.parametrize("exchange", ["jobs", "jobs.queue"])
def test_a_message_sent_directly_after_the_declare_of_an_exchange_of_the_rules_reaches_it(
    producer: Producer, exchange: str, nowait: bool
) -> None:
    declare = commands.Exchange.Declare(exchange="ruled", exchange_type="fanout", nowait=nowait)
    bind = commands.Queue.Bind(queue="a", exchange="ruled", nowait=nowait)
    for _ in range(2):
        producer.send(method(1, declare), method(1, bind), sent(exchange, {}))
        if not nowait:
            producer.expect("Exchange.DeclareOk")
            producer.expect("Queue.BindOk")
        assert producer.settle() == (True, [])
        assert [message.body for message in producer.take("a")] == [b"body"]
        producer.ask(commands.Exchange.Delete(exchange="ruled"))


@pytest.mark.parametrize("nowait", [False, True])
@pytest.mark.parametrize("route", [{"x-addq-ontrue": "late"}, {"x-addqre-ontrue": "^late$"}, {"x-msg-addq-ontrue": ""}])
def test_a_message_sent_directly_after_a_declare_reaches_the_queue_by_a_clients_route(
    app: Application, route: dict[str, str], nowait: bool
) -> None:
    app.bind("a", "ox", route)
    for _ in range(2):
        app.ask(commands.Queue.Delete(queue="late"))
        declare = commands.Queue.Declare(queue="late", nowait=nowait)
        app.send(method(1, declare), sent("ox", {"x-addq-ontrue": "late"}))
        if not nowait:
            app.expect("Queue.DeclareOk")
        assert app.settle() == (True, [])
        assert [len(app.take(queue)) for queue in ("a", "late")] == [1, 1]


# -- destinations declared elsewhere -----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"x-?hkex": "n"}], ids=str)
def test_a_queue_of_the_rules_that_was_declared_elsewhere_gets_messages_as_soon_as_a_client_binds_it(
    site: Site, producer: Producer, arguments: dict[str, str]
) -> None:
    """Without arguments, the binding is the same as that of the rules."""
    assert producer.send_settled("found", "k", {"n": 1}).acked
    site.make_queue("found")
    producer.send(Application.binding("found", "found", arguments))
    producer.expect("Queue.BindOk")
    assert producer.send_settled("found", "k", {"n": 1}).acked
    assert site.bodies("a", "found") == [[b"body"] * 2, [b"body"]]
    producer.ask(commands.Queue.Delete(queue="found"))


def test_in_queue_delivery_a_queue_is_reached_although_it_is_missing_on_a_carrier(
    site: Site, producer: Producer
) -> None:
    """Only the connection that has declared an exclusive queue can bind it, but any connection can publish to it."""
    site.direct.ask(commands.Queue.Declare(queue="found", exclusive=True))
    assert producer.send_settled("found", "k", {}).acked
    assert producer.send_settled("found.queue", "k", {}).acked
    assert site.bodies("a", "found") == [[b"body"] * 2, [b"body"]]
    site.direct.ask(commands.Queue.Delete(queue="found"))
