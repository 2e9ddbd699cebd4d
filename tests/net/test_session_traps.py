"""Known defects of other proxies at their sockets: heartbeats, resets, full buffers, short connections."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import Iterator

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from oxproxy.garbage import without_collection
from oxproxy.net.link import Link
from oxproxy.net.session import Session
from oxproxy.relay.handshake.machine import Handshake
from oxproxy.relay.relay import Relay
from tests import client
from tests.net.stage import FakeBroker, Gone, Peer, Tune, eventually, staged


def reset(peer: Peer) -> None:
    """End a connection with RST and without FIN, as a crashed machine or a firewall does."""
    handle = peer.writer.get_extra_info("socket")
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()


async def test_data_frames_count_as_heartbeats_on_both_sides() -> None:
    """Three intervals without a heartbeat from either peer: each answers ours with a method instead."""

    async def busy(peer: Peer, command: commands.Basic.Qos | commands.Basic.QosOk, heartbeats: int) -> None:
        while heartbeats:
            if (await peer.any_frame()).kind == 8:
                heartbeats -= 1
                peer.call(command)

    async with staged(broker=FakeBroker(Tune(heartbeat=1))) as stage:
        producer, link = await stage.producer(heartbeat=1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(busy(producer, commands.Basic.Qos(0, 1), 7))
            tasks.create_task(busy(link, commands.Basic.QosOk(), 7))
        assert stage.counters.downstream.open == 1


async def test_a_reset_of_an_idle_upstream_closes_the_producer_at_once() -> None:
    async with staged() as stage:
        producer, link = await stage.opened(confirm=True)
        reset(link)
        assert await producer.closed() == (320, "CONNECTION_FORCED - upstream connection lost")


async def test_a_reset_of_a_producer_ends_its_upstream_and_is_no_error() -> None:
    with capture_logs() as logs:
        async with staged() as stage:
            for size in (0, 10, 100):
                producer, link = await stage.opened(confirm=True)
                producer.send(client.publish(1, b"any", b"k", (), bytes(200))[:size])
                reset(producer)
                while True:
                    try:
                        await link.frame()
                    except Gone:
                        break
            await eventually(lambda: not stage.counters.upstream.open)
    assert {item["log_level"] for item in logs} <= {"info", "debug"}


async def test_both_directions_full_at_once_drain_when_both_sides_read_again() -> None:
    """The client publishes and consumes at full speed. Neither direction may wait for the other."""
    up = client.publish(1, b"any", b"k", (), bytes(8 << 20))
    down = client.method(1, commands.Basic.Deliver("c", 1, False, "any", "k")) + client.content(1, (), bytes(8 << 20))
    async with staged() as stage:
        producer, link = await stage.opened(confirm=True)
        producer.pause()
        link.pause()
        producer.send(up)
        link.send(down)
        [session] = stage.listener._sessions
        await eventually(lambda: session.producer.paused and session._upstream.paused)
        producer.resume()
        link.resume()
        async with asyncio.TaskGroup() as tasks:
            got_up = tasks.create_task(link.read(len(up)))
            got_down = tasks.create_task(producer.read(len(down)))
        assert got_up.result() == up
        assert got_down.result() == down


async def test_one_read_of_many_small_publishes_leaves_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged() as stage:
        producer, link = await stage.opened(confirm=True)
        sent: list[int] = []
        send = Link.send

        def counted(self: Link, pieces: list[bytes]) -> None:
            sent.append(sum(map(len, pieces)))
            send(self, pieces)

        monkeypatch.setattr(Link, "send", counted)
        small = client.publish(1, b"any", b"k", (), b"body") * 50
        producer.send(small)
        assert await link.read(len(small)) == small
        assert sent == [len(small)]


def alive(*kinds: type) -> int:
    return sum(isinstance(item, kinds) for item in gc.get_objects())


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """Free only objects without reference cycles, because garbage collection skips objects from before a reload."""
    gc.collect()
    with without_collection():
        yield


@pytest.mark.usefixtures("_no_collection")
async def test_closed_connections_free_their_objects() -> None:
    async with staged() as stage:
        before = alive(Session, Relay, Link, Handshake)
        for number in range(60):
            producer, link = await stage.producer()
            if number % 3 == 0:
                producer.call(commands.Connection.Close(200, "bye", 0, 0), 0)
                await link.expect("Connection.Close")
                link.call(commands.Connection.CloseOk(), 0)
                await producer.expect("Connection.CloseOk")
            elif number % 3 == 1:
                await producer.disconnect()
            else:
                reset(link)
                await producer.close_reason()
                await producer.disconnect()
        await eventually(lambda: not stage.listener._sessions)
        await eventually(lambda: alive(Session, Relay, Link, Handshake) == before)


@pytest.mark.usefixtures("_no_collection")
async def test_refused_logins_free_their_objects() -> None:
    broker = FakeBroker(silent_after="StartOk")
    async with staged(broker=broker) as stage:
        before = alive(Session, Relay, Link, Handshake)
        for _ in range(40):
            producer = await stage.connect()
            await producer.log_in(password="wrong")
            link = await broker.link()
            link.call(commands.Connection.Close(403, "ACCESS_REFUSED - Login was refused", 0, 0), 0)
            await link.disconnect()
            assert (await producer.closed())[0] == 403
        await eventually(lambda: not stage.listener._sessions)
        await eventually(lambda: alive(Session, Relay, Link, Handshake) == before)
