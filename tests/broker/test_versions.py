"""The broker's version: what follows from it, and where operators see it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from structlog.testing import capture_logs

from oxproxy.broker import versions
from oxproxy.broker.management_api import ManagementApi
from oxproxy.broker.topology import status_of
from oxproxy.broker.versions import BrokerVersion, announced
from tests.broker.conftest import Make
from tests.broker.observed import Outside, has, settings, state
from tests.rabbitmq import Broker


def shown(broker: Broker) -> str:
    return "RabbitMQ " + ".".join(map(str, broker.version))


@pytest.mark.parametrize(
    ("product", "version", "supported", "scans"),
    [
        ("RabbitMQ", "3.7.28", False, True),
        ("RabbitMQ", "3.8.9", True, True),
        ("RabbitMQ", "3.12.14", True, True),
        ("RabbitMQ", "3.13.0", True, False),
        ("RabbitMQ", "4.3.6", True, False),
        ("RabbitMQ", "4.3.0-rc.1", True, False),
        ("RabbitMQ", "4.4.0", False, False),
        ("RabbitMQ", "10.0.0", False, False),
        ("LavinMQ", "4.0.0", False, False),
        ("RabbitMQ", "unknown", False, False),
        ("", "", False, False),
    ],
)
def test_a_version_is_supported_and_scans_bindings(product: str, version: str, supported: bool, scans: bool) -> None:
    broker = BrokerVersion(product, version)
    assert (broker.is_supported, broker.scans_bindings) == (supported, scans)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"product": b"RabbitMQ", "version": b"4.3.6", "platform": b"Erlang"}, "RabbitMQ 4.3.6"),
        ({"product": "RabbitMQ", "version": "4.3.6"}, "RabbitMQ 4.3.6"),
        ({"version": b"\xff"}, "\ufffd"),
        ({}, "unknown"),
    ],
)
def test_the_version_is_read_from_the_server_properties(properties: dict[str, object], text: str) -> None:
    assert str(announced(properties)) == text


async def test_the_status_and_the_log_show_the_version(make: Make, broker: Broker, vhost: str) -> None:
    with capture_logs() as events:
        topology = await make(state(vhost, {"documents": ()}))
    [event] = has(events, "control connection established")
    assert event["broker"] == shown(broker)
    version = ".".join(map(str, broker.version))
    assert status_of(topology)["broker"] == {"product": "RabbitMQ", "version": version, "supported": True}
    assert not has(events, "broker is not supported")


async def test_a_broker_that_is_not_supported_is_reported_once(
    make: Make, broker: Broker, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "NEWEST", (3, 0))
    with capture_logs() as events:
        topology = await make(state(vhost, {"documents": ()}))
        await topology.connect()
    [event] = has(events, "broker is not supported")
    assert event["log_level"] == "warning"
    assert event["broker"] == shown(broker)
    assert re.fullmatch(r"RabbitMQ \d\.\d+ to \d\.\d+", event["supported"])
    status: dict[str, Any] = status_of(topology)
    assert status["broker"]["supported"] is False


async def test_the_management_api_returns_the_same_version(broker: Broker, outside: Outside) -> None:
    management = ManagementApi(settings(broker), broker.management)
    try:
        assert str(await management.version()) == shown(broker)
    finally:
        await management.close()
