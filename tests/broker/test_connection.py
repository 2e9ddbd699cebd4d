from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiormq
import pytest
from aio_pika.tools import OneShotCallback

from oxproxy.broker.connection import ControlConnection, TlsSettings, log_in
from oxproxy.broker.methods import Bind, DeclareQueue, Find, declare_carrier
from oxproxy.errors import UpstreamError, UpstreamFailure
from tests.broker.observed import Outside, answering, bind_token, owned, settings
from tests.private_broker import free_port
from tests.rabbitmq import Broker


@pytest.fixture
async def connection(broker: Broker, vhost: str) -> AsyncIterator[ControlConnection]:
    opened = ControlConnection(settings(broker), vhost)
    await opened.connect()
    yield opened
    await opened.close()


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


async def test_channels_left_over_from_a_bulk_are_closed(
    connection: ControlConnection, broker: Broker, vhost: str
) -> None:
    await connection.call_all([DeclareQueue(b"q%d" % number) for number in range(64)])
    # This call blocks the event loop on purpose: the channels must have been closed already.
    listed = broker.api("GET", f"vhosts/{vhost}/channels?columns=number")
    assert len(listed) <= 8


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


# -- login -------------------------------------------------------------------------------------------------------------


async def failure(broker: Broker, vhost: str, **more: object) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await log_in(settings(broker, **more), vhost, broker.host, broker.port)
    assert "hush" not in str(caught.value)
    return caught.value


async def test_the_requested_heartbeat_is_used(broker: Broker, vhost: str) -> None:
    opened = await log_in(settings(broker, heartbeat_seconds=7), vhost, broker.host, broker.port)
    assert opened.opened.connection_tune.heartbeat == 7
    await opened.close()


async def test_a_cancellation_that_comes_when_the_attempt_has_just_failed_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()

    async def fail() -> None:
        loop.call_soon(login.cancel)  # called before the callbacks of the tasks that wait for this task
        raise OSError("connection refused")

    async def connect(transport: aiormq.Connection) -> None:
        await loop.create_task(fail())

    monkeypatch.setattr("oxproxy.broker.connection._Transport.connect", connect)
    unreachable = Broker("127.0.0.1", free_port(), "")
    login = loop.create_task(log_in(settings(unreachable), "/", unreachable.host, unreachable.port))
    with pytest.raises(asyncio.CancelledError):
        await login


async def test_a_server_that_does_not_answer_is_abandoned_at_the_deadline() -> None:
    came, done = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await done.wait()

    async with answering(silent) as port:
        error = await failure(Broker("127.0.0.1", port, ""), "/", deadline_seconds=0.05)
        await came.wait()
        done.set()
    assert error.failure is UpstreamFailure.TIMEOUT
    assert "0.05 s" in error.message


async def test_a_server_with_another_protocol_is_unavailable() -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"AMQP\x00\x01\x00\x00")

    async with answering(odd) as port:
        error = await failure(Broker("127.0.0.1", port, ""), "/")
    assert error.failure is UpstreamFailure.UNAVAILABLE


async def test_a_server_that_closes_the_connection_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    open_connection = asyncio.open_connection

    async def opened(*arguments: Any, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await open_connection(*arguments, **more)
        while not reader.at_eof():  # noqa: ASYNC110 -- no event covers it
            await asyncio.sleep(0)
        return reader, writer

    monkeypatch.setattr(asyncio, "open_connection", opened)
    async with answering(closing) as port:
        error = await failure(Broker("127.0.0.1", port, ""), "/")
    assert error.failure is UpstreamFailure.UNAVAILABLE
    assert str(error).endswith("connection closed during the login; check that this is the broker's AMQP port")


async def test_a_web_server_is_reported_as_the_wrong_port() -> None:
    async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.close()

    async with answering(web_server) as port:
        error = await failure(Broker("127.0.0.1", port, ""), "/")
    assert error.failure is UpstreamFailure.UNAVAILABLE
    expected = "connection closed during the login; check that this is the broker's AMQP port"
    assert error.message == f"127.0.0.1:{port}: {expected}"


async def test_a_listener_without_tls_is_unavailable_over_tls(broker: Broker) -> None:
    context = ssl.create_default_context()
    error = await failure(broker, "/", tls=TlsSettings(lambda: context, "broker.example"))
    assert error.failure is UpstreamFailure.UNAVAILABLE


async def test_a_wrong_password_is_refused(broker: Broker, vhost: str) -> None:
    error = await failure(broker, vhost, password="hush")
    assert error.failure is UpstreamFailure.REFUSED
    assert "ACCESS_REFUSED" in error.message


async def test_a_missing_virtual_host_is_refused(broker: Broker) -> None:
    error = await failure(broker, "nowhere")
    assert error.failure is UpstreamFailure.REFUSED
    assert "nowhere" in error.message


async def test_special_characters_in_names_and_passwords_are_quoted(broker: Broker) -> None:
    name, user, password = "test-a/b %2F", "test user@:/", "p@ss:/ %2F?#ü"
    broker.create_vhost(name)
    broker.create_user(user, password)
    broker.grant(user, name)
    try:
        connection = ControlConnection(settings(broker, username=user, password=password), name)
        await connection.connect()
        assert await connection.call(DeclareQueue(b"q")) is None
        await connection.close()
        assert Outside(broker, name).queue("q")["name"] == "q"
    finally:
        broker.delete_user(user)
        broker.delete_vhost(name)
