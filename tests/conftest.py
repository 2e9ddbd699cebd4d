"""What every test may ask for: one RabbitMQ for the whole run, and a virtual host of its own in it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from tests.private_broker import BrokerMissing, some_broker
from tests.rabbitmq import Broker


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the broker, so that ``-m "not broker"`` leaves out all of it."""
    for item in items:
        if "broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.broker)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A RabbitMQ shared by all tests of the run; leave its virtual host ``/`` and its settings alone."""
    try:
        with some_broker() as running:
            yield running
    except BrokerMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture
def vhost(broker: Broker) -> Iterator[str]:
    """A virtual host that only this test uses; deleted after it, with all that is in it."""
    name = f"test-{secrets.token_hex(6)}"
    broker.create_vhost(name)
    try:
        yield name
    finally:
        broker.delete_vhost(name)
