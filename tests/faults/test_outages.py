"""What producers and consumers notice if the sidecar is killed or hangs, or if the management API is down."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pamqp import commands

from tests import client
from tests.broker.delivery.site import Site, standing
from tests.producer import Gone, Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import request_page
from tests.tap import Tap

RULES = """
queues: [kept]
exchanges:
  - name: letters
    bindings: [{queue: kept}]
"""
#: Heartbeat of a consumer in seconds. RabbitMQ closes a connection after two intervals without a frame.
HEARTBEAT_SECONDS = 2


@pytest.fixture
def site(broker: Broker, tmp_path: Path) -> Iterator[Site]:
    with standing(broker, tmp_path, RULES) as site:
        yield site


@contextmanager
def consuming(port: int, vhost: str, heartbeat: int = 0) -> Iterator[Producer]:
    """A consumer that does not acknowledge its messages."""
    with Producer(port, vhost, heartbeat=heartbeat).open() as consumer:
        consumer.ask(commands.Basic.Consume(queue="kept"))
        yield consumer


def received(consumer: Producer) -> bytes:
    """Wait for a delivery; return its body."""
    names = [consumer.expect("Basic.Deliver").name, consumer.frame().name]
    assert names == ["Basic.Deliver", "Header"]
    return consumer.frame().payload


def read_all(connection: Producer) -> None:
    """Read frames until the connection is closed."""
    while True:
        connection.frame()


def test_a_killed_sidecar_loses_connections_but_no_confirmed_message(site: Site) -> None:
    producer = site.producer()
    assert producer.send_settled("letters", "", None, b"confirmed").acked
    with consuming(site.sidecar.port, site.vhost) as consumer:
        assert received(consumer) == b"confirmed"  # not acknowledged
        os.kill(site.sidecar.process_id, signal.SIGKILL)
        for connection in (producer, consumer):
            with pytest.raises((Gone, OSError)):
                read_all(connection)
        with pytest.raises((Gone, OSError)):
            Producer(site.sidecar.port, site.vhost)
        with consuming(site.broker.port, site.vhost) as beside:  # consumers of the broker notice nothing
            assert received(beside) == b"confirmed"
    site.sidecar.stop()
    site.sidecar.start()
    assert site.producer().send_settled("letters", "", None, b"afterwards").acked
    until(lambda: site.queue("kept").get("messages") == 2)


def test_a_hung_sidecar_confirms_nothing_and_continues_with_what_it_has_received(site: Site) -> None:
    """A stopped process (SIGSTOP) accepts TCP connections, but reads and sends nothing."""
    producer = site.producer()
    assert producer.send_settled("letters", "", None, b"first").acked
    with consuming(site.sidecar.port, site.vhost, HEARTBEAT_SECONDS) as consumer:
        assert received(consumer) == b"first"
        os.kill(site.sidecar.process_id, signal.SIGSTOP)
        try:
            producer.publish("letters", "", None, b"second")
            assert producer.silent()
            with pytest.raises(TimeoutError):
                urllib.request.urlopen(f"{site.sidecar.admin}/livez", timeout=1)
            with socket.create_connection(("127.0.0.1", site.sidecar.port), timeout=1) as refused:
                refused.sendall(client.PROTOCOL_HEADER)
                with pytest.raises(TimeoutError):
                    refused.recv(1)
            # The broker closes the consumer's connection, and delivers the message again.
            with consuming(site.broker.port, site.vhost) as beside:
                assert received(beside) == b"first"
        finally:
            os.kill(site.sidecar.process_id, signal.SIGCONT)
        assert producer.settle() == (True, [])
        with pytest.raises((Gone, OSError)):
            read_all(consumer)
    held: list[bytes] = []

    def are_both_held() -> bool:
        held.extend(message.body for message in site.take("kept"))
        return len(held) >= 2

    until(are_both_held)
    assert sorted(held) == [b"first", b"second"]
    assert request_page(f"{site.sidecar.admin}/livez")[0] == 200


def test_without_the_management_api_publishes_and_new_connections_work(broker: Broker, tmp_path: Path) -> None:
    host, port = urlsplit(broker.management).hostname or "", urlsplit(broker.management).port or 0
    with Tap(host, port) as tap:
        upstream = {"management": f"http://{tap.address}"}
        settings = {"upstream": upstream, "inventory": {"refresh": "1s"}}
        with standing(broker, tmp_path, RULES, settings) as site:
            connected = site.producer()
            tap.refuse()
            until(lambda: "degraded: " in site.sidecar.get("/readyz"), 30)
            assert site.sidecar.get("/readyz").startswith("ready\n")
            assert connected.send_settled("letters", "", None, b"old").acked
            assert site.producer().send_settled("letters", "", None, b"new").acked
            with consuming(site.sidecar.port, site.vhost) as consumer:
                assert [received(consumer), received(consumer)] == [b"old", b"new"]
            tap.accept()
            until(lambda: "degraded: " not in site.sidecar.get("/readyz"), 30)
