from __future__ import annotations

import pytest

from proxy.broker.cleanup import find_leftovers, remove_leftover
from proxy.broker.management_api import ManagementApi
from proxy.errors import UpstreamError
from tests.broker.observed import Outside, settings
from tests.rabbitmq import Broker
from tests.sidecar import answering


async def test_the_removal_of_an_exchange_that_was_deleted_already_succeeds(
    broker: Broker, vhost: str, outside: Outside
) -> None:
    outside.make_exchange("ours", x_open_exchange=True)
    management = ManagementApi(settings(broker), broker.management)
    (leftover,) = await find_leftovers(management, [vhost])
    outside.delete_exchange("ours")
    assert await remove_leftover(management, leftover)
    await management.close()


@pytest.mark.parametrize("content", [b"{}", b"[0]", b'[{"name": "x"}]'])
async def test_an_unexpected_answer_is_an_error(broker: Broker, content: bytes) -> None:
    with answering(lambda path, headers: (200, "application/json", content)) as port:
        management = ManagementApi(settings(broker), f"http://127.0.0.1:{port}")
        with pytest.raises(UpstreamError):
            await find_leftovers(management)
        await management.close()
