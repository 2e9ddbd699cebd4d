"""Fixtures for the client library tests: a sidecar in front of a real broker, an open exchange with each delivery."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.broker.delivery.site import Site, standing
from tests.rabbitmq import Broker

RULES = """
queues: [inbox, copy]
exchanges:
  - name: letters
    bindings:
      - {queue: inbox, arguments: {"x-?hkv= kind": letter, x-addq-ontrue: copy}}
  - name: packets
    delivery: queue
    bindings:
      - {queue: inbox, arguments: {"x-?hkv= kind": letter, x-addq-ontrue: copy}}
"""


@pytest.fixture(scope="package")
def running(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(broker, tmp_path_factory.mktemp("clients"), RULES) as site:
        yield site


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    yield running
    running.bodies("inbox", "copy")
    running.tidy()


@pytest.fixture(params=["letters", "packets"])
def exchange(request: pytest.FixtureRequest) -> str:
    """An open exchange, with carrier delivery and with queue delivery."""
    return str(request.param)


@pytest.fixture(params=[5, 1 << 20], ids=["small", "1 MiB"])
def body(request: pytest.FixtureRequest) -> bytes:
    """Bytes that must not change."""
    return random.Random(7).randbytes(request.param)
