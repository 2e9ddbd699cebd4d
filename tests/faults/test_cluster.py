"""Faults of a cluster of three RabbitMQ nodes with Khepri: docs/reference/brokers.md describes the results."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.broker.delivery.applications import Application
from tests.cluster import Cluster, cluster_of_three
from tests.other_rabbitmq import NEWEST, file_system, obstacle
from tests.producer import Closed, Gone, Producer, until
from tests.sidecar import Sidecar, request_page

#: Each step waits for timeouts of the broker, which are up to 30 s long.
pytestmark = [pytest.mark.matrix, pytest.mark.timeout(900)]

RULES = """\
queues:
  - {name: orders, arguments: {x-queue-type: quorum}}
exchanges:
  - name: shop
    bindings:
      - {queue: orders, arguments: {"x-?hkex": number}}
"""


def new_name() -> str:
    """Return the name of a queue that does not exist. Without a majority, a declare of an existing queue succeeds."""
    return f"new.{secrets.token_hex(4)}"


class Publisher(threading.Thread):
    """Publishes numbered messages one after the other, and connects again after an error; `number` is the last one."""

    def __init__(self, port: int, number: int = 0) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._ended = threading.Event()
        self._number = number
        self.acked: set[int] = set()
        self.nacks = 0

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                with Producer(self._port).open(confirm=True) as producer:
                    self._publish(producer)
            except (Closed, Gone, OSError):
                self._ended.wait(0.2)

    def _publish(self, producer: Producer) -> None:
        while not self._ended.wait(0.02):
            self._number += 1
            number = self._number
            if producer.send_settled("shop", "k", {"number": number}, str(number).encode()).acked:
                self.acked.add(number)
            else:
                self.nacks += 1

    def end(self) -> None:
        self._ended.set()
        self.join()

    def is_confirmed(self) -> None:
        """Wait for the confirm of a message that is published from now on."""
        number = self._number + 1
        until(lambda: any(acked >= number for acked in self.acked.copy()), 90)


class Scene:
    """A cluster, a sidecar that knows all nodes and the management API of the first one, and a publisher.

    New connections are to the first node that accepts them.
    """

    def __init__(self, cluster: Cluster, sidecar: Sidecar, rules: Path, publisher: Publisher) -> None:
        self.cluster = cluster
        self.sidecar = sidecar
        self.publisher = publisher
        self.rules = rules
        #: Messages that were confirmed through other sidecars.
        self.acked_elsewhere: set[int] = set()

    def reload(self, queue: str) -> int:
        """Reload the rules with a further destination; return the HTTP status."""
        text = RULES.replace("queues:\n", f"queues:\n  - {{name: {queue}, arguments: {{x-queue-type: quorum}}}}\n")
        self.rules.write_text(f"{text}      - {{queue: {queue}, arguments: {{'x-?hkex': {queue}}}}}\n")
        return request_page(f"{self.sidecar.admin}/-/reload", b"")[0]

    def declare(self, port: int = 0) -> str:
        """Declare and bind a queue as a client, and check that it gets a message; return its name."""
        queue = new_name()
        with Application(port or self.sidecar.port, "/") as app:
            app.exchange("declared")
            app.ask(commands.Queue.Declare(queue=queue, durable=True, arguments={"x-queue-type": "quorum"}))
            app.bind(queue, "declared", {"x-?hkex": queue})
            assert app.reached("declared", {queue: 1}, queue) == [queue]
        return queue

    def works(self) -> None:
        """Wait until everything works, and check that it does."""
        until(lambda: json.loads(self.sidecar.get("/status"))["vhosts"][0]["connected"], 90)
        self.publisher.is_confirmed()
        self.declare()
        queue = new_name()
        until(lambda: self.reload(queue) == 200, 90)

    def is_refused(self) -> None:
        """Check that changes are refused, and that no message is confirmed."""
        confirmed = len(self.publisher.acked)
        with pytest.raises(Closed) as caught:
            self.declare()
        assert caught.value.code == 541
        assert re.search("timed out|due to timeout", caught.value.text)
        assert self.reload(new_name()) == 503
        assert len(self.publisher.acked) == confirmed


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if reason := obstacle():
        pytest.skip(reason)
    with cluster_of_three(file_system(NEWEST)) as running:
        yield running


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    settings = {"upstream": {"address": [node.address for node in cluster.nodes]}}
    with Sidecar(cluster.nodes[0], [rules], settings, tmp_path) as sidecar:
        publisher = Publisher(sidecar.port)
        publisher.start()
        scene = Scene(cluster, sidecar, rules, publisher)
        scene.works()
        yield scene
        scene.works()
        publisher.end()
    with Producer(cluster.nodes[1].port).open() as producer:
        arrived = {int(message.body) for message in producer.take("orders")}
    assert publisher.acked | scene.acked_elsewhere <= arrived


def test_everything_works_without_the_node_that_led(scene: Scene) -> None:
    leader = scene.cluster.leader(scene.cluster.nodes[1])
    with scene.cluster.without(leader):
        scene.works()


def test_a_minority_confirms_nothing_and_refuses_changes(scene: Scene) -> None:
    with scene.cluster.without(*scene.cluster.nodes[1:]):
        until(lambda: scene.publisher.nacks, 60)
        scene.is_refused()


def test_the_majority_of_a_partition_works_and_the_minority_follows_when_it_heals(scene: Scene) -> None:
    first, *others = scene.cluster.nodes
    # The connections of the first sidecar remain on the separated node, those of another are on the other side.
    settings = {"upstream": {"address": [node.address for node in others]}}
    with Sidecar(others[0], [scene.rules], settings) as elsewhere:
        publisher = Publisher(elsewhere.port, 1_000_000)
        publisher.start()
        with scene.cluster.separated(first):
            until(lambda: scene.publisher.nacks, 60)
            publisher.is_confirmed()
            declared = [scene.declare(elsewhere.port) for _ in range(5)]
            scene.is_refused()
        scene.works()
        with Application(scene.sidecar.port, "/") as app:
            until(lambda: all(app.reached("declared", {queue: 1}, queue) == [queue] for queue in declared), 30)
        publisher.is_confirmed()
        publisher.end()
        scene.acked_elsewhere = publisher.acked


def test_nothing_is_lost_while_the_management_api_is_that_of_an_empty_node(scene: Scene) -> None:
    first = scene.cluster.nodes[0]
    first.kill()
    scene.publisher.is_confirmed()
    scene.cluster.empty(first)
    until(lambda: scene.sidecar.logged("the management API is not that of the broker"), 60)
    scene.publisher.is_confirmed()
    # A connection to the empty node finds no exchange.
    with Producer(scene.sidecar.port).open(confirm=True) as producer:
        producer.publish("shop", "k", {"number": -1})
        assert producer.closed().code == 404
    scene.cluster.add(first)
    until(lambda: scene.sidecar.logged("inventory complete again"), 60)
