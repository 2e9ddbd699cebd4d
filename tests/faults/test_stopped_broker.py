"""Back-pressure while the broker reads nothing."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests import client
from tests.broker.delivery.site import Site, standing
from tests.rabbitmq import Broker

RULES = """
queues: [other]
exchanges:
  - name: letters
    bindings: [{queue: other}]
"""


@pytest.fixture
def site(broker: Broker, tmp_path: Path) -> Iterator[Site]:
    with standing(broker, tmp_path, RULES) as site:
        yield site


def memory_mib(process_id: int) -> float:
    """Resident memory."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def test_a_flood_of_declares_while_the_broker_is_stopped_waits_in_the_producer(site: Site) -> None:
    producer = site.producer(confirm=False)
    before = memory_mib(site.sidecar.process_id)
    upstream = site.upstream()
    upstream.reading.clear()
    flood = b"".join(client.method(1, commands.Queue.Declare(queue=f"f{number % 100}")) for number in range(1000))
    producer.socket.setblocking(False)
    taken = 0
    with contextlib.suppress(TimeoutError):
        while taken < 2000 * len(flood):
            _, writable, _ = select.select([], [producer.socket], [], 2.0)
            if not writable:
                break
            taken += producer.socket.send(flood[taken % len(flood) :])
    assert taken < 2000 * len(flood), "the producer was never made to wait"
    assert memory_mib(site.sidecar.process_id) - before < 8
    producer.disconnect()
    upstream.reading.set()
    assert site.producer().send_settled("letters").acked
