from __future__ import annotations

import asyncio
import ssl

import aiormq
import pytest

from proxy.broker.connection import ControlConnection, TlsSettings, log_in
from proxy.broker.methods import DeclareQueue
from proxy.errors import UpstreamError, UpstreamFailure
from tests.broker.observed import Outside, answering, settings
from tests.private_broker import free_port
from tests.rabbitmq import Broker


async def failure(broker: Broker, vhost: str, **more: object) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await log_in(settings(broker, **more), vhost, broker.host, broker.port)
    assert "hush" not in str(caught.value)
    return caught.value


async def test_the_requested_heartbeat_is_used(broker: Broker, vhost: str) -> None:
    opened = await log_in(settings(broker, heartbeat_seconds=7), vhost, broker.host, broker.port)
    assert opened.opened.connection_tune.heartbeat == 7
    await opened.close()


async def test_an_unreachable_server_is_unavailable() -> None:
    error = await failure(Broker("127.0.0.1", free_port(), "", password="hush"), "/")
    assert error.failure is UpstreamFailure.UNAVAILABLE


async def test_a_cancellation_that_comes_when_the_attempt_has_just_failed_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()

    async def fail() -> None:
        loop.call_soon(login.cancel)  # called before the callbacks of the tasks that wait for this task
        raise OSError("connection refused")

    async def connect(transport: aiormq.Connection) -> None:
        await loop.create_task(fail())

    monkeypatch.setattr("proxy.broker.connection._Transport.connect", connect)
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
