"""Fixtures for these tests. A module that needs other values overrides them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.delivery.site import Site, standing
from tests.producer import Producer
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar


@pytest.fixture(scope="module")
def sidecar(broker: Broker) -> Iterator[Sidecar]:
    """A sidecar without rules that reconciles with the broker often."""
    with Sidecar(broker, settings={"inventory": {"refresh": "200ms"}}) as running:
        yield running


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with the module's ``RULES`` and, if they exist, its ``SETTINGS`` and its function ``prepare``."""
    settings, prepare = (getattr(request.module, name, None) for name in ("SETTINGS", "prepare"))
    with standing(broker, tmp_path_factory.mktemp("site"), request.module.RULES, settings, prepare) as site:
        yield site


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    """The module's site; connections that the test opened are closed."""
    yield running
    running.tidy()


@pytest.fixture
def producer(site: Site) -> Producer:
    return site.producer()


@pytest.fixture
def user(broker: Broker) -> Iterator[str]:
    """A user without permissions."""
    with broker.temporary_user() as name:
        yield name
