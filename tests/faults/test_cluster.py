"""Faults of a cluster of three RabbitMQ nodes with Khepri: docs/explanation/lifecycle.md describes the results."""

from __future__ import annotations

import json
import re
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


class Publisher(threading.Thread):
    """Publishes numbered messages one after the other, and connects again after an error."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._ended = threading.Event()
        self._number = 0
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
    """A cluster, a sidecar that knows all nodes and the management API of the first one, and a publisher."""

    def __init__(self, cluster: Cluster, sidecar: Sidecar, rules: Path, publisher: Publisher) -> None:
        self.cluster = cluster
        self.sidecar = sidecar
        self.publisher = publisher
        self._rules = rules
        self._count = 0

    def _name(self) -> str:
        self._count += 1
        return f"new.{self._count}"

    def reload(self) -> int:
        """Reload the rules with another destination; return the HTTP status."""
        queue = self._name()
        text = RULES.replace("queues:\n", f"queues:\n  - {{name: {queue}, arguments: {{x-queue-type: quorum}}}}\n")
        self._rules.write_text(f"{text}      - {{queue: {queue}, arguments: {{'x-?hkex': {queue}}}}}\n")
        return request_page(f"{self.sidecar.admin}/-/reload", b"")[0]

    def declare(self) -> None:
        """Declare and bind a queue as a client, and check that it gets a message."""
        queue = self._name()
        with Application(self.sidecar.port, "/") as app:
            app.exchange("declared")
            app.ask(commands.Queue.Declare(queue=queue, durable=True, arguments={"x-queue-type": "quorum"}))
            app.bind(queue, "declared", {"x-?hkex": queue})
            assert app.reached("declared", {queue: 1}, queue) == [queue]

    def works(self) -> None:
        """Wait until everything works, and check that it does."""
        until(lambda: json.loads(self.sidecar.get("/status"))["vhosts"][0]["connected"], 90)
        self.publisher.is_confirmed()
        self.declare()
        until(lambda: self.reload() == 200, 90)

    def is_refused(self) -> None:
        """Check that changes are refused, and that no message is confirmed."""
        confirmed = len(self.publisher.acked)
        with pytest.raises(Closed) as caught:
            self.declare()
        assert caught.value.code == 541
        assert re.search("timed out|due to timeout", caught.value.text)
        assert self.reload() == 503
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
    assert publisher.acked - arrived == set()


def test_everything_works_without_the_node_that_led(scene: Scene) -> None:
    leader = scene.cluster.leader(scene.cluster.nodes[1])
    leader.kill()
    scene.works()
    leader.start()


def test_a_minority_confirms_nothing_and_refuses_changes(scene: Scene) -> None:
    _, *others = scene.cluster.nodes
    for node in others:
        node.kill()
    until(lambda: scene.publisher.nacks, 60)
    scene.is_refused()
    for node in others:
        node.start()
