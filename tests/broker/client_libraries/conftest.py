"""Fixtures for the client library tests: a sidecar in front of a real broker, an open exchange with each delivery."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.broker.delivery.site import Site, standing
from tests.rabbitmq import Broker

pytest.register_assert_rewrite("tests.broker.client_libraries.programs")

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
  - name: typed
    bindings:
      - {exchange: typed packets}
  - name: typed packets
    delivery: queue
    bindings:
      # True if each of these headers that the message has satisfies its condition.
      - queue: inbox
        match: set 4
        when:
          string: "2000"
          integer >=: 1000
          long >=: 1000
          big >: 1099511627775
          small: 5
          double >: 2000.25
          single >: 2000.25
          boolean: true
          decimal is not: string
          timestamp: !timestamp 2027-01-15T08:00:00Z
          bytes: !bytes 00ff
          list is: list
          "null": null
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
