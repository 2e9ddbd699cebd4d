"""What several modules of these tests ask for; one that needs it otherwise has its own of that name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.broker.delivery.distance import Far, distant
from tests.broker.world import Outside
from tests.private_broker import BrokerMissing
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar


@pytest.fixture(scope="module")
def sidecar(broker: Broker) -> Iterator[Sidecar]:
    """A sidecar without rules that looks at the broker often."""
    with Sidecar(broker, settings={"inventory": {"refresh": "200ms"}}) as running:
        yield running


@pytest.fixture(params=["carrier", "queue"])
def delivery(request: pytest.FixtureRequest) -> str:
    """Each of the two deliveries."""
    return str(request.param)


@pytest.fixture
def outside(broker: Broker, vhost: str) -> Outside:
    """Somebody else in the test's virtual host."""
    return Outside(broker, vhost)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    """The other broker."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command")
    try:
        with distant(tmp_path_factory.mktemp("authority")) as other:
            yield other
    except BrokerMissing as missing:
        pytest.skip(str(missing))
