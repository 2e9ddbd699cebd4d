from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aio_pika
import pytest
from aio_pika.abc import AbstractRobustConnection
from aio_pika.exceptions import DeliveryError, PublishError

from tests.broker.client_libraries.header_types import TYPES, accepted, letters
from tests.broker.delivery.site import Site


@pytest.fixture
async def connection(site: Site) -> AsyncIterator[AbstractRobustConnection]:
    made = await aio_pika.connect_robust(
        host="127.0.0.1", port=site.sidecar.port, virtualhost=site.vhost, reconnect_interval=0.05
    )
    async with made:
        yield made
    # The library ends its tasks in the background, also those of connections that were lost.
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks, timeout=10)


def letter(body: bytes, kind: str = "letter") -> aio_pika.Message:
    return aio_pika.Message(body, headers={"kind": kind, "n": 5}, message_id="m")


async def test_it_publishes_with_confirms_and_consumes(
    connection: AbstractRobustConnection, exchange: str, body: bytes
) -> None:
    channel = await connection.channel()
    target = await channel.get_exchange(exchange, ensure=False)
    await target.publish(letter(body), "some.key", mandatory=True)
    for name in ("inbox", "copy"):
        queue = await channel.get_queue(name)
        async with queue.iterator(timeout=20) as messages:
            async for message in messages:
                async with message.process():
                    assert (message.exchange, message.routing_key, message.body) == (exchange, "some.key", body)
                    assert (message.headers, message.message_id) == ({"kind": "letter", "n": 5}, "m")
                break


async def test_unroutable_messages_are_returned(
    connection: AbstractRobustConnection, exchange: str, body: bytes
) -> None:
    channel = await connection.channel(on_return_raises=True)
    target = await channel.get_exchange(exchange, ensure=False)
    with pytest.raises((PublishError, DeliveryError)) as caught:
        await target.publish(letter(body, "bill"), "some.key", mandatory=True)
    returned = caught.value.message
    assert returned is not None
    assert (returned.delivery.exchange, returned.delivery.routing_key) == (exchange, "some.key")  # type: ignore[union-attr]
    assert returned.body == body


async def test_many_publishes_at_once_are_each_confirmed(
    connection: AbstractRobustConnection, exchange: str, site: Site
) -> None:
    channel = await connection.channel()
    target = await channel.get_exchange(exchange, ensure=False)
    bodies = [b"%d" % number for number in range(200)]
    for body in bodies:
        await target.publish(letter(body), "k")
    assert site.bodies("inbox", "copy") == [bodies, bodies]


# The library sometimes abandons a task of the lost connection, which then is not ended by the fixture above.
@pytest.mark.filterwarnings("ignore:.*FutureStore.reject_all:pytest.PytestUnraisableExceptionWarning")
async def test_a_lost_broker_is_noticed_and_a_reconnect_works(
    connection: AbstractRobustConnection, exchange: str, site: Site
) -> None:
    await connection.channel()
    lost = asyncio.Event()
    connection.close_callbacks.add(lambda *_: lost.set())
    site.upstream().cut()
    async with asyncio.timeout(20):
        await lost.wait()
    again = await aio_pika.connect(host="127.0.0.1", port=site.sidecar.port, virtualhost=site.vhost)
    async with again:
        channel = await again.channel()
        target = await channel.get_exchange(exchange, ensure=False)
        await target.publish(letter(b"x"), "k", mandatory=True)
    assert site.bodies("inbox") == [[b"x"]]


async def test_header_types_are_those_in_the_documentation(
    connection: AbstractRobustConnection, exchange: str, site: Site
) -> None:
    channel = await connection.channel()
    target = await channel.get_exchange(exchange, ensure=False)
    await target.publish(aio_pika.Message(b"x", headers=accepted("aio-pika")), "k", mandatory=True)  # type: ignore[arg-type]
    assert letters(site.next("inbox", through=site.producer()).headers) == TYPES["aio-pika"]
