from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from oxproxy.broker.management_api import ManagementApi
from oxproxy.broker.reconcile.vhost_loop import VhostTopology
from oxproxy.broker.task_supervisor import Supervisor
from oxproxy.relay.vhost import VhostState
from tests.broker.observed import Outside, Queue, settings
from tests.rabbitmq import Broker

Make = Callable[..., Awaitable[VhostTopology]]


@pytest.fixture
async def make(broker: Broker) -> AsyncIterator[Make]:
    """Build a control plane for a state, connected unless `connect` is false; closed after the test."""
    ending: list[Callable[[], Awaitable[None]]] = []

    async def build(
        known: VhostState, *asked: Queue, connect: bool = True, management: bool = True, **more: Any
    ) -> VhostTopology:
        limits = settings(broker, **more)
        listing = ManagementApi(limits, broker.management) if management else None
        topology = VhostTopology(limits, known, asked, listing, Supervisor())
        ending.append(topology.close)
        if listing is not None:
            ending.append(listing.close)
        if connect:
            await topology.connect()
        return topology

    yield build
    for end in ending:
        await end()


@pytest.fixture
def outside(broker: Broker, vhost: str) -> Outside:
    """Another application in the test's virtual host."""
    return Outside(broker, vhost)
