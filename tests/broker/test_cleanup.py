from __future__ import annotations

from proxy.broker.cleanup import Cleanup
from tests.broker.observed import Outside, settings
from tests.rabbitmq import Broker


async def test_the_removal_of_an_exchange_that_was_deleted_already_succeeds(
    broker: Broker, vhost: str, outside: Outside
) -> None:
    outside.make_exchange("ours", x_open_exchange=True)
    removal = Cleanup(settings(broker), broker.management)
    (leftover,) = await removal.leftovers([vhost])
    outside.delete_exchange("ours")
    assert await removal.remove(leftover)
    await removal.close()
