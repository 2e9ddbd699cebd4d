from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from oxproxy.broker.connection import ControlSettings
from oxproxy.broker.management_api import ExchangeInfo, VhostDiscovery
from oxproxy.errors import UpstreamError, UpstreamFailure
from tests.broker.observed import has

SETTINGS = ControlSettings((), "guest", "guest", refresh_seconds=0.001, retry_seconds=0.001, patience_seconds=0.05)
#: An exchange that a client declared.
DECLARED = ExchangeInfo(b"ox", "direct", arguments={"x-open-exchange": True, "x-oxproxy": "data"})


class Api:
    """A management API that fails until the test lets it respond."""

    def __init__(self, failure: UpstreamFailure | None) -> None:
        self.failure = failure
        self.asked = 0

    async def exchanges_everywhere(self) -> list[tuple[str, ExchangeInfo]]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise UpstreamError(self.failure, "out of order")
        return [("a", DECLARED), ("b", DECLARED), ("c", ExchangeInfo(b"amq.topic", "topic"))]


@pytest.mark.parametrize("failure", [UpstreamFailure.UNAVAILABLE, UpstreamFailure.TIMEOUT])
async def test_a_management_api_that_does_not_answer_is_retried(failure: UpstreamFailure) -> None:
    api = Api(failure)
    discovery = VhostDiscovery(SETTINGS, api)  # type: ignore[arg-type]
    with capture_logs() as events:
        assert await discovery.find() == set()
    assert api.asked > 1
    assert "out of order" in discovery.fault
    assert events[0]["event"] == "the management API is not reachable yet"  # logged at once
    assert len(has(events, "virtual hosts with client declarations can't be listed")) == 1
    api.failure = None
    assert await discovery.find_later() == {"a", "b"}
    assert discovery.fault == ""


async def test_a_management_api_that_refuses_is_not_retried() -> None:
    api = Api(UpstreamFailure.REFUSED)
    discovery = VhostDiscovery(SETTINGS, api)  # type: ignore[arg-type]
    assert await discovery.find() == set()
    assert api.asked == 1
