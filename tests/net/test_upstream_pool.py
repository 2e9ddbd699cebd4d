from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from pamqp import base, commands

from oxproxy.net import upstream as module
from oxproxy.net.link import Link
from oxproxy.net.upstream import UpstreamPool
from oxproxy.relay.counters import Counters
from oxproxy.relay.handshake.lease import Lease
from tests import client
from tests.net.stage import Peer, eventually


class Broker:
    """Accepts connections, and creates the links that connect to it."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.received = b""
        self.made = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self.peers:
            await peer.disconnect()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers.append(Peer(reader, writer))

    def link(self) -> Link:
        return Link(self._receive, lambda error: None, lambda writable: None, self._connected)

    def _receive(self, data: bytes) -> None:
        self.received += data

    def _connected(self) -> None:
        self.made += 1

    async def connected(self) -> tuple[Link, Peer]:
        assert self._server is not None
        link, before = self.link(), len(self.peers)
        address = self._server.sockets[0].getsockname()
        await asyncio.get_running_loop().create_connection(lambda: link, *address)
        await eventually(lambda: len(self.peers) > before)
        return link, self.peers[-1]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    made = Broker()
    await made.start()
    yield made
    await made.stop()


def lease() -> Lease:
    made = Lease()
    made.start = b"start"
    return made


async def kept(broker: Broker, seconds: float = 60, heartbeat: int = 0) -> tuple[UpstreamPool, Counters, Peer]:
    """A pool that keeps one connection, its counters, and the broker's end of the connection."""
    counters = Counters()
    pool = UpstreamPool(seconds, counters)
    link, peer = await broker.connected()
    pool.keep(link, lease(), heartbeat)
    return pool, counters, peer


def start_answer(pool: UpstreamPool) -> bytes:
    """The pool's reply to the protocol header of a new producer."""
    return pool.negotiation().take([b"AMQP\0\0\x09\x01"])


async def test_a_kept_connection_of_a_paused_link_is_read(broker: Broker) -> None:
    pool = UpstreamPool(60, Counters())
    link, peer = await broker.connected()
    link.pause("producer is slow", True)
    pool.keep(link, lease(), 0)
    peer.call(commands.Connection.Close(320, "maintenance", 0, 0), 0)
    await peer.expect("Connection.CloseOk")
    await peer.disconnect()
    await pool.stop()


async def test_a_kept_connection_sends_and_expects_heartbeats(broker: Broker) -> None:
    pool, _, peer = await kept(broker, heartbeat=1)
    for _ in range(3):
        assert (await peer.any_frame()).kind == 8
        peer.send(client.HEARTBEAT)
    assert start_answer(pool) == b"start"
    assert await peer.is_gone()  # the peer sends no more heartbeats
    await eventually(lambda: start_answer(pool) == b"")


async def test_a_connection_with_a_partial_heartbeat_is_not_handed_on(broker: Broker) -> None:
    pool, _, peer = await kept(broker)
    peer.send(client.HEARTBEAT[:3])
    await eventually(lambda: start_answer(pool) == b"")
    peer.send(client.HEARTBEAT[3:])
    await eventually(lambda: start_answer(pool) == b"start")
    await stop(pool, peer)


async def stop(pool: UpstreamPool, peer: Peer) -> None:
    stopping = asyncio.ensure_future(pool.stop())
    await peer.expect("Connection.Close")
    peer.call(commands.Connection.CloseOk(), 0)
    await stopping


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (commands.Connection.Close(320, "maintenance", 0, 0), "Connection.CloseOk"),
        (commands.Connection.Blocked("memory"), "Connection.Close"),
    ],
    ids=["close", "blocked"],
)
async def test_any_other_method_of_the_broker_ends_a_kept_connection(
    broker: Broker, method: base.Frame, answer: str
) -> None:
    pool, counters, peer = await kept(broker)
    peer.send(client.method(0, method))
    await peer.expect(answer)
    assert (counters.kept_connections, start_answer(pool)) == (0, b"")
    await peer.disconnect()
    await pool.stop()


async def test_a_lost_connection_is_not_kept(broker: Broker) -> None:
    pool, counters, peer = await kept(broker)
    await peer.disconnect()
    await eventually(lambda: counters.kept_connections == 0)
    await pool.stop()


async def test_an_expired_connection_is_closed(broker: Broker) -> None:
    pool, counters, peer = await kept(broker, 0.01)
    await peer.expect("Connection.Close")
    assert counters.kept_connections == 0
    await peer.disconnect()
    await pool.stop()


async def test_a_full_pool_closes_the_oldest_connection(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 1)
    pool, counters, old = await kept(broker)
    second, young = await broker.connected()
    pool.keep(second, lease(), 0)
    await old.expect("Connection.Close")
    assert counters.kept_connections == 1
    await old.disconnect()
    await stop(pool, young)


async def test_a_stopped_pool_keeps_no_connection(broker: Broker) -> None:
    counters = Counters()
    pool = UpstreamPool(60, counters)
    await pool.stop()
    link, peer = await broker.connected()
    pool.keep(link, lease(), 0)
    await peer.expect("Connection.Close")
    assert counters.kept_connections == 0
    peer.call(commands.Connection.CloseOk(), 0)
    assert await peer.is_gone()


async def test_a_closed_socket_is_not_kept(broker: Broker) -> None:
    counters = Counters()
    link, _ = await broker.connected()
    link.abort()
    UpstreamPool(60, counters).keep(link, lease(), 0)
    assert counters.kept_connections == 0
