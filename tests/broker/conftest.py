from __future__ import annotations

import pytest

from tests.broker.observed import Outside
from tests.rabbitmq import Broker


@pytest.fixture
def outside(broker: Broker, vhost: str) -> Outside:
    """Another application in the test's virtual host."""
    return Outside(broker, vhost)
