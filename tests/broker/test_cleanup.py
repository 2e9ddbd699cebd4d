from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from proxy.broker.cleanup import Cleanup
from proxy.relay.tokens import token
from proxy.values import RESERVED_PREFIX
from tests.broker.world import Outside, settings
from tests.rabbitmq import Broker


@pytest.fixture
async def removal(broker: Broker) -> AsyncIterator[Cleanup]:
    made = Cleanup(settings(broker), broker.management)
    yield made
    await made.close()


@pytest.fixture
def outside(broker: Broker, vhost: str) -> Outside:
    made = Outside(broker, vhost)
    made.make_exchange("ours", x_open_exchange=True)
    made.make_queue("q")
    made.bind("ours", "q", token("queue", b"q").decode())
    made.bind("ours", "q", (RESERVED_PREFIX + b"b.0123").decode(), x=1)
    made.make_exchange("theirs")
    return made


async def test_marked_exchanges_and_bindings_under_the_reserved_prefix_are_leftovers(
    removal: Cleanup, outside: Outside
) -> None:
    (leftover,) = await removal.leftovers([outside.vhost])
    assert (leftover.exchange, len(leftover.bindings), leftover.foreign) == (b"ours", 2, ())
    assert str(leftover) == f"vhost {outside.vhost}: exchange ours: 1 tokens, 1 stored bindings"


async def test_an_exchange_is_removed_with_its_bindings_even_if_deleted_already(
    removal: Cleanup, outside: Outside
) -> None:
    (leftover,) = await removal.leftovers([outside.vhost])
    assert await removal.remove(leftover)
    assert await removal.leftovers([outside.vhost]) == []
    assert await removal.remove(leftover)


async def test_an_exchange_with_foreign_bindings_is_kept(removal: Cleanup, outside: Outside) -> None:
    outside.bind("ours", "q", "theirs")
    (leftover,) = await removal.leftovers([outside.vhost])
    assert not await removal.remove(leftover)
    assert outside.bindings("ours") == {("queue", b"q", b"theirs")}
