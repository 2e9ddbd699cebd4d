from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from proxy.net.listener import TlsListener
from proxy.net.tls import ServerTls
from proxy.relay.counters import ConnectionCounters
from tests.certificates import Authority
from tests.net.stage import eventually


class RecordingProtocol(asyncio.Protocol):
    """A protocol that records its events."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data.upper())

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")


class OpenedListener:
    """A listening socket with its TLS listener, protocols and counters."""

    def __init__(self, tls: ServerTls) -> None:
        self.protocols: list[RecordingProtocol] = []
        self.counters = ConnectionCounters()
        self.context = tls.context()
        self.tls_listener = TlsListener(lambda: self.context, self.counters, 0.3, 1.0)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.port: int = self.listening.getsockname()[1]

    async def accept(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as handshakes:
            while True:
                connection, _ = await loop.sock_accept(self.listening)
                handshakes.create_task(self.let_in(connection))

    async def let_in(self, connection: socket.socket) -> None:
        self.protocols.append(protocol := RecordingProtocol())
        try:
            await self.tls_listener.handshake(connection, protocol, "somebody")
        except OSError:
            protocol.events.append("failed")
            connection.close()

    @property
    def results(self) -> dict[str, int]:
        return {name: number for name, number in self.counters.results.items() if number}


@pytest.fixture
async def opened(pair: tuple[Path, Path]) -> AsyncIterator[OpenedListener]:
    made = OpenedListener(ServerTls(*pair))
    accepting = asyncio.ensure_future(made.accept())
    yield made
    accepting.cancel()
    await asyncio.gather(accepting, return_exceptions=True)
    made.listening.close()


async def say(port: int, context: ssl.SSLContext, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    writer.write(text)
    answer = await reader.readexactly(len(text))
    writer.close()
    await writer.wait_closed()
    return answer


async def test_data_over_tls_reaches_the_protocol(opened: OpenedListener, authority: Authority) -> None:
    assert await say(opened.port, authority.client(), b"hello") == b"HELLO"
    await eventually(lambda: opened.protocols[0].events == ["made", "lost"])
    assert opened.results == {}


async def test_an_unfinished_handshake_is_closed_and_counted(opened: OpenedListener) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
    assert await reader.read() == b""
    writer.close()
    assert (opened.results, opened.protocols[0].events) == ({"timeout": 1}, ["failed"])


async def test_a_peer_without_tls_is_counted(opened: OpenedListener) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
    writer.write(b"AMQP\x00\x00\x09\x01")
    await reader.read()
    writer.close()
    await eventually(lambda: opened.results == {"tls_error": 1})
    assert opened.protocols[0].events == ["failed"]


async def test_a_probe_that_connects_and_leaves_is_no_event(opened: OpenedListener) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", opened.port)
    writer.close()
    await eventually(lambda: opened.protocols and opened.protocols[0].events)
    assert (opened.protocols[0].events, opened.results) == (["failed"], {})


async def test_new_connections_get_the_new_context(
    opened: OpenedListener, authority: Authority, tmp_path: Path
) -> None:
    second = Authority(tmp_path / "other")
    opened.context = ServerTls(*second.certificate("localhost")).context()
    with pytest.raises(ssl.SSLCertVerificationError):
        await say(opened.port, authority.client(), b"hello")
    assert await say(opened.port, second.client(), b"hello") == b"HELLO"
