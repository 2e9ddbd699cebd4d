"""Tests that clients affect neither other clients nor their messages, on a real broker."""

from __future__ import annotations

import pytest
from pamqp import commands

from oxproxy.amqp.methods import CONNECTION_START_OK, method_frame
from oxproxy.amqp.tables import encode_table
from oxproxy.values import Table, Value
from tests import client
from tests.broker.delivery.site import Site
from tests.broker.observed import Outside
from tests.producer import Producer
from tests.rabbitmq import Broker

RULES = """
queues: [all]
exchanges:
  - name: xo
    bindings:
      - {queue: all, arguments: {"x-?hkv= to": all}}
      - {exchange: copies, arguments: {"x-?hkv= to": copies}}
  - name: chosen
    bindings:
      - {queue: all, arguments: {"x-msg-destq-rk": ""}}
  - name: queued
    delivery: queue
    bindings:
      - {queue: all, arguments: {x-msg-addq-ontrue: ""}}
  - name: words
    type: topic
    bindings:
      - {queue: all, routing_key: all}
"""
SETTINGS = {"inventory": {"refresh": "5s"}}  # no pass of the control plane corrects anything during a test


def prepare(outside: Outside) -> None:
    outside.make_queues("unnamed", "secret", "hers", "copied")
    outside.make_exchange("copies", "fanout")
    outside.bind("copies", "copied", "")


def entries(**texts: str) -> bytes:
    return encode_table(
        tuple((name.replace("_", "-").encode(), Value("S", text.encode())) for name, text in texts.items())
    )


def logged_in(site: Site, user: str, configure: str, write: str = "^$", read: str = "^$") -> Producer:
    site.broker.grant(user, site.vhost, configure, write, read)
    return Producer(site.sidecar.port, site.vhost, user, user).open(confirm=True)


def test_the_delete_of_a_server_named_queue_does_not_count_as_the_delete_of_another_queue(
    site: Site, user: str
) -> None:
    producer = site.producer()
    # RabbitMQ 4.3 also requires a permission for the passive declare.
    other = logged_in(site, user, "^(all|amq[.]gen.*)$")
    other.ask(commands.Queue.Declare(queue="all", passive=True))
    other.call(commands.Queue.Declare(queue="", nowait=True))
    other.ask(commands.Queue.Delete(queue=""))
    assert producer.send_settled("xo", "", {"to": "all"}, b"x") == (True, [])
    assert site.bodies("all") == [[b"x"]]
    other.disconnect()


def test_an_empty_name_in_a_bind_is_the_server_named_queue(site: Site) -> None:
    owner = site.producer()
    owner.ask(commands.Queue.Declare(queue="mine"))
    owner.send(
        client.method(1, commands.Queue.Declare(queue="", nowait=True)),
        client.queue_bind(1, b"", b"words", b"a.key", b""),
    )
    owner.expect("Queue.BindOk")
    assert owner.send_settled("words", "a.key", {}, b"x", mandatory=True) == (True, [])
    assert site.bodies("mine") == [[]]


def test_a_refused_nowait_declare_does_not_make_a_queue_exclusive(site: Site, user: str) -> None:
    producer = site.producer()
    other = logged_in(site, user, "^$")
    other.call(commands.Queue.Declare(queue="unnamed", exclusive=True, nowait=True))
    assert other.closed().code == 403
    assert producer.send_settled("chosen", "unnamed", {}, b"x") == (True, [])
    assert site.bodies("unnamed") == [[b"x"]]
    other.disconnect()


def amqplain(site: Site, *login: tuple[bytes, str]) -> Producer:
    made = Producer(site.sidecar.port, site.vhost, log_in=False)
    made.send(client.PROTOCOL_HEADER)
    made.expect("Connection.Start")
    response = encode_table(tuple((name, Value("S", text.encode())) for name, text in login))
    made.send(method_frame(0, CONNECTION_START_OK, b"", b"AMQPLAIN", response, b"en_US"))
    made.expect("Connection.Tune")
    tune_ok = commands.Connection.TuneOk(2000, 131072, 0)
    made.send(client.method(0, tune_ok), client.method(0, commands.Connection.Open(site.vhost)))
    made.expect("Connection.OpenOk")
    return made.open(confirm=True)


def test_a_second_login_name_gives_no_permissions_of_another_user(site: Site, broker: Broker, user: str) -> None:
    with broker.temporary_user() as alice:
        owner = logged_in(site, alice, "^alices$", "^(alices|secret)$", "^alices$")
        owner.ask(commands.Exchange.Declare(exchange="alices", exchange_type="x-open", durable=True))
        condition = encode_table(((b"x-?hkv= to", Value("S", b"alice")), (b"x-addq-ontrue", Value("S", b"secret"))))
        owner.send(client.queue_bind(1, b"secret", b"alices", b"", condition))
        owner.expect("Queue.BindOk")
        bind = client.queue_bind(1, b"hers", b"alices", b"", entries(x_addq_ontrue="secret"))
        honest = logged_in(site, user, "^$", "^(hers|alices)$", "^alices$")
        honest.send(bind)
        assert honest.closed().code == 403
        mallory = amqplain(site, (b"LOGIN", user), (b"PASSWORD", user), (b"LOGIN", alice))
        mallory.send(bind)
        try:
            assert mallory.closed().code == 403
        except AssertionError:  # accepted
            mallory.send_settled("alices", "", {}, b"from mallory")
            assert site.bodies("secret") == [[]]
            raise
        for made in (owner, honest, mallory):
            made.disconnect()


@pytest.mark.parametrize("name", [b"A" * 300, b"a\xff"])
def test_a_queue_name_that_cannot_exist_is_a_missing_queue(site: Site, name: bytes) -> None:
    headers: Table = ((b"x-addq-ontrue", Value("S", name)),)
    assert site.producer().send_settled("queued", "", headers, b"x") == (True, [])
    assert site.bodies("all") == [[b"x"]]


@pytest.mark.parametrize("exclusive", [False, True])
def test_an_exclusive_queue_that_no_binding_names_is_unreachable(site: Site, exclusive: bool) -> None:
    owner, name = site.producer(), f"reply.{exclusive}"
    owner.ask(commands.Queue.Declare(queue=name, exclusive=exclusive))
    assert site.producer().send_settled("chosen", name, {}, b"x") == (True, [])
    assert len(owner.take(name)) == (0 if exclusive else 1)
