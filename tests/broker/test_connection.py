from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from aio_pika.tools import OneShotCallback

from proxy.broker.connection import ControlConnection
from proxy.broker.methods import Bind, DeclareQueue, Find, declare_carrier
from proxy.errors import UpstreamError, UpstreamFailure
from tests.broker.observed import Outside, answering, bind_token, owned, settings
from tests.private_broker import free_port
from tests.rabbitmq import Broker


@pytest.fixture
async def connection(broker: Broker, vhost: str) -> AsyncIterator[ControlConnection]:
    opened = ControlConnection(settings(broker), vhost)
    await opened.connect()
    yield opened
    await opened.close()


async def test_a_method_is_executed_and_answered(connection: ControlConnection, broker: Broker, vhost: str) -> None:
    assert await connection.call(DeclareQueue(b"orders~2")) is None
    assert Outside(broker, vhost).queue("orders~2")["durable"] is True


async def test_a_refusal_is_a_value(connection: ControlConnection) -> None:
    refusal = await connection.call(Find(("queue", b"nowhere")))
    assert refusal is not None
    assert refusal.code == 404
    assert "nowhere" in refusal.text


async def test_a_refusal_among_many_methods_does_not_affect_the_others(connection: ControlConnection) -> None:
    names = [b"q%d" % number for number in range(100)]
    await connection.call(declare_carrier(owned("c")))
    await connection.call_all([DeclareQueue(name) for name in names if name != b"q50"])
    refusals = await connection.call_all([bind_token(b"c", ("queue", name)) for name in names])
    assert [name for name, refusal in zip(names, refusals, strict=True) if refusal is not None] == [b"q50"]


async def test_a_refusal_in_every_batch_of_binds_keeps_the_connection(connection: ControlConnection) -> None:
    await connection.call_all([declare_carrier(owned("c")), DeclareQueue(b"there")])
    names = [b"there" if number % 10 else b"nowhere" for number in range(1000)]
    binds = [Bind(b"c", ("queue", name), b"%d" % number) for number, name in enumerate(names)]
    for _ in range(2):
        refusals = await connection.call_all(binds)
        assert [None if name == b"there" else 404 for name in names] == [
            None if refusal is None else refusal.code for refusal in refusals
        ]


async def test_missing_objects_are_found(connection: ControlConnection, broker: Broker, vhost: str) -> None:
    outside = Outside(broker, vhost)
    outside.make_queue("a")
    asked = [("queue", b"a"), ("queue", b"b"), ("exchange", b"amq.topic"), ("exchange", b"x")]
    with outside.channel() as channel:
        channel.queue_declare("mine", exclusive=True)
        lacking = await connection.find_missing([*asked, ("queue", b"mine")])
    assert lacking == {("queue", b"b"): "does not exist", ("exchange", b"x"): "does not exist"}


async def test_many_refusals_keep_the_connection(connection: ControlConnection) -> None:
    refusals = await connection.call_all([Find(("queue", b"q%d" % number)) for number in range(300)])
    assert {refusal.code for refusal in refusals if refusal is not None} == {404}
    assert await connection.call(DeclareQueue(b"q")) is None


async def test_a_refusal_leaves_nothing_on_the_connection(connection: ControlConnection) -> None:
    def callbacks() -> int:
        gc.collect()
        return sum(isinstance(instance, OneShotCallback) for instance in gc.get_objects())

    missing = [Find(("queue", b"q%d" % number)) for number in range(300)]
    await connection.call_all(missing)
    before = callbacks()
    await connection.call_all(missing)
    assert callbacks() <= before + 10


async def test_a_refusal_whose_text_is_cut_keeps_the_connection(connection: ControlConnection) -> None:
    # The text quotes the name and exceeds 255 bytes, so the broker truncates it.
    name = "ä".encode() * 70
    assert await connection.call(Find(("queue", name))) is not None
    assert connection.connected


async def test_an_empty_list_of_methods_is_answered(connection: ControlConnection) -> None:
    assert await connection.call_all([]) == []


async def test_channels_left_over_from_a_bulk_are_closed(
    connection: ControlConnection, broker: Broker, vhost: str
) -> None:
    await connection.call_all([DeclareQueue(b"q%d" % number) for number in range(64)])
    # This call blocks the event loop on purpose: the channels must have been closed already.
    listed = broker.api("GET", f"vhosts/{vhost}/channels?columns=number")
    assert len(listed) <= 8


async def test_the_next_host_is_tried(broker: Broker, vhost: str) -> None:
    hosts = (("127.0.0.1", free_port()), (broker.host, broker.port))
    opened = ControlConnection(
        type(settings(broker))(hosts=hosts, username=broker.username, password=broker.password), vhost
    )
    await opened.connect()
    assert opened.connected
    await opened.close()
    assert not opened.connected


async def test_an_unreachable_server_is_unavailable() -> None:
    port = free_port()
    opened = ControlConnection(settings(Broker("127.0.0.1", port, "http://127.0.0.1", password="hush")), "/")
    with pytest.raises(UpstreamError) as caught:
        await opened.connect()
    assert caught.value.failure is UpstreamFailure.UNAVAILABLE
    assert caught.value.message == f"127.0.0.1:{port}: Connection refused"
    assert "hush" not in str(caught.value)


async def test_a_connection_that_could_not_be_made_leaves_no_task() -> None:
    unreachable = settings(Broker("127.0.0.1", free_port(), "http://127.0.0.1"))
    for _ in range(3):
        with pytest.raises(UpstreamError):
            await ControlConnection(unreachable, "/").connect()
    gc.collect()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_lost_connection_is_noticed_and_can_be_reopened(
    connection: ControlConnection, broker: Broker, vhost: str
) -> None:
    broker.delete_vhost(vhost)
    assert await connection.wait_lost(30)
    with pytest.raises(UpstreamError) as caught:
        await connection.call(DeclareQueue(b"q"))
    assert caught.value.failure is UpstreamFailure.UNAVAILABLE
    broker.create_vhost(vhost)
    await connection.connect()
    assert await connection.call(DeclareQueue(b"q")) is None


async def test_an_open_connection_is_not_lost(connection: ControlConnection) -> None:
    assert not await connection.wait_lost(0.01)


async def test_pending_methods_fail_with_the_connection(
    connection: ControlConnection, broker: Broker, vhost: str
) -> None:
    many = asyncio.ensure_future(connection.call_all([DeclareQueue(b"q%d" % number) for number in range(1000)]))
    await connection.call(DeclareQueue(b"first"))
    await connection.close()
    with pytest.raises(UpstreamError) as caught:
        await many
    assert caught.value.failure is UpstreamFailure.UNAVAILABLE


async def test_a_cancelled_caller_is_cancelled(connection: ControlConnection) -> None:
    many = asyncio.ensure_future(connection.call_all([DeclareQueue(b"q%d" % number) for number in range(1000)]))
    await connection.call(DeclareQueue(b"first"))
    many.cancel()
    with pytest.raises(asyncio.CancelledError):
        await many
    assert await connection.call(DeclareQueue(b"after")) is None


async def test_a_broker_that_stops_answering_counts_as_lost(broker: Broker, vhost: str) -> None:
    talking = asyncio.Event()
    talking.set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await talking.wait()
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        beyond, to_broker = await asyncio.open_connection(broker.host, broker.port)
        await asyncio.gather(pump(reader, to_broker), pump(beyond, writer))

    async with answering(accept) as port:
        between = Broker("127.0.0.1", port, "", broker.username, broker.password)
        connection = ControlConnection(settings(between, deadline_seconds=1), vhost)
        await connection.connect()
        talking.clear()
        with pytest.raises(UpstreamError) as caught:
            await connection.call(DeclareQueue(b"q"))
        assert caught.value.failure is UpstreamFailure.TIMEOUT
        assert await connection.wait_lost(30)
        talking.set()
        await connection.close()
