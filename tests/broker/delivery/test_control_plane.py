"""How the control plane handles unexpected changes and arguments by other clients of the broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from oxproxy.amqp import methods
from oxproxy.amqp.tables import MAX_NESTING, encode_table
from oxproxy.values import Table, Value
from tests.broker.delivery.applications import Application, declared
from tests.broker.delivery.site import Site, standing
from tests.broker.observed import Outside
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar, answering, request_page

RULES = """
queues: [other]
exchanges:
  - name: letters
    bindings: [{queue: late}, {queue: other}]
"""
SETTINGS = {"inventory": {"refresh": "200ms"}}


@pytest.fixture
def site(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(broker, tmp_path_factory.mktemp("site"), RULES, SETTINGS) as site:
        yield site


def nested(depth: int, letter: str = "A") -> bytes:
    """Entries of a table with one argument: arrays or tables nested to this depth."""
    value = b""
    for _ in range(depth):
        inner = value if letter == "A" or not value else b"\x01k" + value
        value = letter.encode() + len(inner).to_bytes(4, "big") + inner
    return b"\x06x-deep" + value


def declare_queue(producer: Producer, name: str, entries: bytes) -> None:
    bits = (False, True, False, False, False)
    producer.send(methods.method_frame(1, methods.QUEUE_DECLARE, 0, name.encode(), *bits, entries))


def declare_exchange(producer: Producer, name: str, type: str, entries: bytes) -> None:
    bits = (False, True, False, False, False)
    producer.send(methods.method_frame(1, methods.EXCHANGE_DECLARE, 0, name.encode(), type.encode(), *bits, entries))


def bind(producer: Producer, queue: str, exchange: str, entries: bytes) -> None:
    producer.send(
        methods.method_frame(1, methods.QUEUE_BIND, 0, queue.encode(), exchange.encode(), b"k", False, entries)
    )


def bind_exchange(producer: Producer, destination: str, source: str, entries: bytes) -> None:
    names = (destination.encode(), source.encode(), b"k")
    producer.send(methods.method_frame(1, methods.EXCHANGE_BIND, 0, *names, False, entries))


@pytest.mark.parametrize("letter", ["A", "F"])
@pytest.mark.parametrize(
    ("ask", "of", "ids"),
    [
        pytest.param(lambda p, e: declare_queue(p, "deep", e), "queue 'deep'", (50, 10), id="queue.declare"),
        pytest.param(
            lambda p, e: declare_exchange(p, "deep", "fanout", e), "exchange 'deep'", (40, 10), id="exchange.declare"
        ),
        pytest.param(
            lambda p, e: declare_exchange(p, "deep", "x-open", e), "exchange 'deep'", (40, 10), id="open declare"
        ),
        pytest.param(
            lambda p, e: bind(p, "other", "amq.direct", e), "binding to queue 'other'", (50, 20), id="queue.bind"
        ),
        pytest.param(lambda p, e: bind(p, "other", "letters", e), "binding to queue 'other'", (50, 20), id="open bind"),
        pytest.param(
            lambda p, e: bind_exchange(p, "amq.fanout", "amq.direct", e),
            "binding to exchange 'amq.fanout'",
            (40, 30),
            id="exchange.bind",
        ),
    ],
)
def test_arguments_nested_deeper_than_a_table_is_decoded_are_refused_on_their_channel(
    running: Site, ask: Callable[[Producer, bytes], None], of: str, ids: tuple[int, int], letter: str
) -> None:
    producer = running.producer()
    producer.open(2, confirm=True)
    ask(producer, nested(MAX_NESTING + 1, letter))
    close = producer.closed()
    assert (close.code, close.method) == (406, ids)
    assert close.text == (
        f"PRECONDITION_FAILED - invalid arg 'x-deep' for {of} in vhost '{running.vhost}': tables and arrays nested "
        f"deeper than {MAX_NESTING} levels"
    )
    producer.publish("letters", channel=2)
    assert producer.settle(2).acked


def test_arguments_as_deep_as_a_table_is_decoded_pass(running: Site) -> None:
    producer = running.producer()
    declare_queue(producer, "accepted", nested(MAX_NESTING))
    producer.expect("Queue.DeclareOk")
    bind(producer, "accepted", "amq.direct", nested(MAX_NESTING, "F"))
    producer.expect("Queue.BindOk")


def not_followed(sidecar: Sidecar) -> list[str]:
    degraded: list[str] = json.loads(sidecar.get("/status"))["degraded"]
    return degraded


def test_a_queue_that_breaks_the_listings_prevents_neither_passes_nor_a_start(site: Site, broker: Broker) -> None:
    """The queue is declared directly on the broker, with arguments that the sidecar's JSON decoder rejects."""
    declare_queue(site.direct, "deep", nested(1500))
    site.direct.expect("Queue.DeclareOk")
    until(lambda: any("deeply nested" in reason for reason in not_followed(site.sidecar)))
    site.make_queue("late")
    until(lambda: ("queue", b"late") in site.bound("letters"))
    assert site.producer().send_settled("letters").acked
    assert site.bodies("late") == [[b"body"]]
    with Sidecar(broker, [site.sidecar.folder / "rules.yaml"], SETTINGS):
        pass  # it became ready
    assert site.metric("control_loop_failures_total", task="vhost") == 0
    site.delete_queue("deep")
    until(lambda: not_followed(site.sidecar) == [])
    assert len(site.logged("inventory complete again")) == 1


def test_an_exchange_that_breaks_a_listing_does_not_affect_another_virtual_host(
    site: Site, broker: Broker, vhost: str
) -> None:
    with Producer(broker.port, vhost) as direct:
        declare_exchange(direct.open(), "deep", "fanout", nested(1500))
        direct.expect("Exchange.DeclareOk")
    producer = site.producer()
    table: Table = ((b"x-match", Value("S", b"any")),)
    declare_exchange(producer, "theirs", "x-open", b"")
    producer.expect("Exchange.DeclareOk")
    bind_open = methods.method_frame(1, methods.QUEUE_BIND, 0, b"other", b"theirs", b"", False, encode_table(table))
    producer.send(bind_open)
    producer.expect("Queue.BindOk")
    with Sidecar(broker, settings=SETTINGS) as second:
        status = json.loads(second.get("/status"))
        assert {item["vhost"]: item["declared"] for item in status["vhosts"]}[site.vhost]["theirs"] == 1
        assert [item for item in status["degraded"] if vhost in item and "deeply nested" in item]


@contextmanager
def odd_management(broker: Broker, change: Callable[[str, bytes], bytes]) -> Iterator[str]:
    """A management API that forwards to the broker's, with responses changed by `change`, which gets path and body."""

    def answer(path: str, headers: Mapping[str, str]) -> tuple[int, str, bytes]:
        status, text = request_page(broker.management + path, Authorization=headers["Authorization"])
        return status, "application/json", change(path, text.encode())

    with answering(answer) as port:
        yield f"http://127.0.0.1:{port}/api"  # the path is optional


def test_an_unexpected_exception_delays_readiness_and_is_counted_and_retried(
    broker: Broker, vhost: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    odd = False

    def change(path: str, body: bytes) -> bytes:
        if not odd or not path.startswith("/api/exchanges/site-") or "/bindings/" in path:
            return body
        odd_arguments = {"alternate-exchange": "\ud800"}
        return json.dumps([row | {"arguments": odd_arguments} for row in json.loads(body)]).encode()

    with odd_management(broker, change) as management:
        settings = {**SETTINGS, "upstream": {"management": management}}
        with standing(broker, tmp_path_factory.mktemp("site"), RULES, settings) as site:
            assert site.metric("control_loop_failures_total", task="vhost") == 0
            odd = True
            until(lambda: site.metric("control_loop_failures_total", task="vhost") > 1)
            code, text = request_page(site.sidecar.admin + "/readyz")
            assert (code, text.splitlines()[0]) == (503, "not ready")
            assert f"control task vhost of vhost {site.vhost}: failed with UnicodeEncodeError" in text
            assert site.producer().send_settled("letters").acked  # active rules still decide
            with Application(site.sidecar.port, vhost) as second:  # another virtual host is not affected
                second.exchange("ox")
                second.queues("bound")
                second.bind("bound", "ox")
                assert second.reached("ox", {}, "bound") == ["bound"]
                Outside(broker, vhost).delete_queue("bound")
                until(lambda: declared(site.sidecar, vhost) == {"ox": 0})
            odd = False
            site.make_queue("late")
            until(lambda: ("queue", b"late") in site.bound("letters"))
            until(lambda: json.loads(site.sidecar.get("/status"))["ready"])
            (line, *_) = site.logged("control task failed")
            assert site.logged("Traceback (most recent call last)")
            assert site.vhost in line
            assert site.logged("control task recovered")


def test_a_deleted_virtual_host_is_no_longer_followed(running: Site) -> None:
    come_and_go(running, f"{running.vhost}-passing")


def test_without_the_management_api_a_deleted_virtual_host_is_no_longer_followed(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {**SETTINGS, "upstream": {"management": None}}
    with standing(broker, tmp_path_factory.mktemp("site"), RULES, settings) as site:
        come_and_go(site, f"{site.vhost}-passing")


def come_and_go(site: Site, name: str) -> None:
    broker = site.broker

    def followed() -> bool:
        return name in {each["vhost"] for each in json.loads(site.sidecar.get("/status"))["vhosts"]}

    for _ in range(2):  # a later virtual host of that name is a new one
        broker.create_vhost(name)
        with Producer(site.sidecar.port, name) as producer:
            producer.open()
            declare_exchange(producer, "theirs", "x-open", b"")
            producer.expect("Exchange.DeclareOk")
            assert followed()
            broker.delete_vhost(name)
            assert producer.closed(0).code == 320
        until(lambda: not followed())
        status = json.loads(site.sidecar.get("/status"))
        assert [each for each in status["degraded"] if name in each] == []
        assert status["ready"]
    assert len(site.logged("virtual host was deleted")) == 2


def test_a_deleted_virtual_host_with_rules_is_still_followed(
    broker: Broker, vhost: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with standing(broker, tmp_path_factory.mktemp("site"), RULES, SETTINGS) as site:
        broker.delete_vhost(site.vhost)
        until(lambda: len(site.logged("control connection failed")) > 0)
        until(lambda: json.loads(site.sidecar.get("/status"))["degraded"] != [])
        broker.create_vhost(site.vhost)
        until(lambda: json.loads(site.sidecar.get("/status"))["degraded"] == [])
        assert ("queue", b"other") in site.bound("letters")


def test_refusals_of_the_broker_are_in_the_status_and_retried(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with broker.temporary_user("monitoring") as name:

        def prepare(outside: Outside) -> None:
            broker.grant(name, outside.vhost, configure=".*", write="^(other|letters)$", read=".*")
            outside.make_queue("late")

        settings = {**SETTINGS, "upstream": {"control": {"username": name, "password": name}}}
        with standing(broker, tmp_path_factory.mktemp("site"), RULES, settings, prepare) as site:
            [text] = site.status["failing"]
            assert text.startswith(
                "bind queue late to exchange letters: refused: the control user needs write permission"
            )
            broker.grant(name, site.vhost, configure=".*", write=".*", read=".*")
            until(lambda: site.status["failing"] == [])
            assert ("queue", b"late") in site.bound("letters")
