"""TLS handshakes of producers, and what is counted if they fail."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.net.context import SessionLimits
from proxy.net.listener import Listener, ListenerLimits
from proxy.net.tls import ServerTls
from tests.certificates import Authority
from tests.net.stage import Peer, Stage, eventually, staged


class TlsAddress:
    """A listener with TLS, whose context can be replaced."""

    def __init__(self, stage: Stage, tls: ServerTls) -> None:
        self.stage = stage
        self.context = tls.context()
        limits = ListenerLimits(settle_seconds=0.1, close_seconds=0.1)
        self.listener = Listener([("127.0.0.1", 0)], stage.shared, limits, {0: lambda: self.context})
        self.port = 0

    async def greet(self, context: ssl.SSLContext) -> None:
        """Connect with TLS, and log in as a producer."""
        streams = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname="localhost")
        peer = Peer(*streams)
        self.stage.peers.append(peer)
        await self.stage.greeted(peer)
        await peer.expect("Connection.OpenOk")

    @property
    def results(self) -> dict[str, int]:
        return {name: number for name, number in self.stage.counters.downstream.results.items() if number}

    @property
    def is_unused(self) -> bool:
        return not self.listener._sessions


@asynccontextmanager
async def listening(pair: tuple[Path, Path], handshake_seconds: float = 30.0) -> AsyncIterator[TlsAddress]:
    async with staged(SessionLimits(handshake_seconds=handshake_seconds)) as stage:
        made = TlsAddress(stage, ServerTls(*pair))
        [(_, made.port)] = await made.listener.start()
        yield made
        for peer in stage.peers:
            await peer.disconnect()
        await made.listener.drain()


@pytest.fixture
async def secure(pair: tuple[Path, Path]) -> AsyncIterator[TlsAddress]:
    async with listening(pair) as made:
        yield made


async def test_a_producer_logs_in_over_tls(secure: TlsAddress, authority: Authority) -> None:
    await secure.greet(authority.client())
    assert secure.results == {"ok": 1}


async def test_an_unfinished_handshake_is_closed_counted_and_logged(pair: tuple[Path, Path]) -> None:
    with capture_logs() as logged:
        async with listening(pair, handshake_seconds=0.3) as secure:
            reader, writer = await asyncio.open_connection("127.0.0.1", secure.port)
            assert await reader.read() == b""
            writer.close()
            await eventually(lambda: secure.is_unused)
            assert secure.results == {"timeout": 1}
    assert [entry["reason"] for entry in logged if entry["event"] == "producer not connected"] == [
        "no TLS handshake within 0.3 s"
    ]


async def test_a_peer_without_tls_is_counted_and_logged(secure: TlsAddress) -> None:
    with capture_logs() as logged:
        reader, writer = await asyncio.open_connection("127.0.0.1", secure.port)
        writer.write(b"AMQP\x00\x00\x09\x01")
        await reader.read()
        writer.close()
        await eventually(lambda: secure.is_unused)
        assert secure.results == {"tls_error": 1}
    assert ["does not speak TLS" in entry["reason"] for entry in logged] == [True]


async def test_a_probe_that_connects_and_leaves_is_no_event(secure: TlsAddress) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", secure.port)
    await eventually(lambda: not secure.is_unused)
    writer.close()
    await eventually(lambda: secure.is_unused)
    assert secure.results == {}


async def test_new_connections_get_the_new_context(secure: TlsAddress, authority: Authority, tmp_path: Path) -> None:
    second = Authority(tmp_path / "other")
    secure.context = ServerTls(*second.certificate("localhost")).context()
    with pytest.raises(ssl.SSLCertVerificationError):
        await secure.greet(authority.client())
    await secure.greet(second.client())
