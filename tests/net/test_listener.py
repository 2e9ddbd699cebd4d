from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from oxproxy.net import listener
from oxproxy.net.context import SessionLimits
from oxproxy.net.link import Link
from oxproxy.net.listener import Listener, ListenerLimits
from oxproxy.net.tls import ServerTls
from oxproxy.net.upstream import Upstream, UpstreamPool
from oxproxy.relay.counters import Counters
from oxproxy.relay.handshake.lease import Lease
from oxproxy.yamlfile.hosts import parse_address
from tests import client
from tests.certificates import Authority
from tests.net.stage import FakeBroker, NoControl, Peer, Stage, context, eventually, open_exchange, staged

SHUTTING_DOWN = (320, "CONNECTION_FORCED - the proxy is shutting down")
QUICK = ListenerLimits(settle_seconds=0.1, close_seconds=0.1)
PATIENT = ListenerLimits(settle_seconds=60, close_seconds=0.1)


async def answered(producer: Peer, link: Peer) -> None:
    """Both peers answer a close."""
    assert await producer.close_reason() == SHUTTING_DOWN
    producer.call(commands.Connection.CloseOk(), 0)
    await link.expect("Connection.Close")
    link.call(commands.Connection.CloseOk(), 0)
    assert await producer.is_gone()
    assert await link.is_gone()


# -- accepting connections ---------------------------------------------------------------------------------------------


async def test_an_address_that_is_taken_is_an_error(authority: Authority) -> None:
    async with staged() as stage:
        context = ServerTls(*authority.certificate("localhost")).context()
        for tls in (None, {0: lambda: context}):
            with pytest.raises(OSError, match="Address already in use"):
                await Listener([("127.0.0.1", stage.port)], stage.shared, QUICK, tls).start()


async def refusal(surplus: Peer) -> tuple[int, str]:
    """Log in; return code and text of the close."""
    await surplus.log_in()
    return await surplus.closed()


@pytest.mark.parametrize(
    ("limits", "reason", "text"),
    [
        (replace(QUICK, connections=2), "connections", "the limit of 2 connections has been reached"),
        (
            replace(QUICK, connections_per_peer=2),
            "connections_per_peer",
            "the limit of 2 connections from 127.0.0.1 has been reached",
        ),
    ],
    ids=["all", "of one address"],
)
async def test_connections_above_a_limit_are_refused_until_one_ends(
    limits: ListenerLimits, reason: str, text: str
) -> None:
    with capture_logs() as logged:
        async with staged(listener_limits=limits) as stage:
            first, _ = await stage.producer()
            await stage.producer()
            for _ in range(3):
                close = await refusal(await stage.connect())
                assert close == (530, f"NOT_ALLOWED - connection refused: {text}")
            await eventually(lambda: stage.counters.downstream.results["refused"] == 3)
            rejected = {"connections": 0, "connections_per_peer": 0, reason: 3}
            assert stage.counters.limits.rejected_connections == rejected
            assert stage.counters.downstream.open == 2
            await first.disconnect()
            await eventually(lambda: stage.counters.downstream.open == 1)
            await stage.producer()
            await eventually(lambda: stage.listener._hosts == {"127.0.0.1": 2})
    assert [entry["limit"] for entry in logged if entry["event"] == "too many connections"] == [2, 2, 2]


async def test_most_connections_of_a_flood_are_closed_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "REFUSED_AT_ONCE", 2)
    async with staged(listener_limits=ListenerLimits(connections=1, close_seconds=0.1)) as stage:
        await stage.producer()
        waiting = [await stage.connect() for _ in range(2)]
        await eventually(lambda: stage.counters.limits.rejected_connections["connections"] == 2)
        flood = await stage.connect()
        assert await flood.is_gone()
        for peer in waiting:
            await peer.begin()


@contextlib.asynccontextmanager
async def with_tls_address(
    authority: Authority, limits: ListenerLimits, handshake_seconds: float = 30.0
) -> AsyncIterator[tuple[Stage, int]]:
    """A listener with a plain and a TLS address, and the port of the TLS address."""
    async with staged(SessionLimits(handshake_seconds=handshake_seconds), listener_limits=limits) as stage:
        context = ServerTls(*authority.certificate("localhost")).context()
        # The same address twice: port 0 is any free port.
        addresses = [("127.0.0.1", 0), ("127.0.0.1", 0)]
        both = Listener(addresses, stage.shared, limits, {1: lambda: context})
        (_, stage.port), (_, port), *_ = await both.start()
        stage.listener = both
        try:
            yield stage, port
        finally:
            for peer in stage.peers:
                await peer.disconnect()
            await both.drain()


async def silent(port: int, source: str = "127.0.0.1") -> Peer:
    return Peer(*await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)))


async def test_a_peer_of_a_tls_listener_counts_before_its_handshake(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "REFUSED_AT_ONCE", 3)
    async with with_tls_address(authority, ListenerLimits(connections=5, close_seconds=0.1)) as (stage, port):
        peers = [await silent(port) for _ in range(40)]
        stage.peers += peers
        await eventually(lambda: stage.counters.limits.rejected_connections["connections"] == 35)
        await eventually(lambda: sum(peer.reader.at_eof() for peer in peers) == 32)
        assert stage.counters.downstream.results["refused"] == 32
        assert await (await stage.connect()).is_gone()
        for peer in peers:
            await peer.disconnect()
        await eventually(lambda: stage.listener._hosts == {})
        await stage.producer()


async def test_peers_of_one_address_count_before_their_tls_handshake_and_others_are_accepted(
    authority: Authority,
) -> None:
    async with with_tls_address(authority, ListenerLimits(connections_per_peer=2, close_seconds=0.1)) as (stage, port):
        peers = [await silent(port) for _ in range(4)]
        await eventually(lambda: stage.counters.limits.rejected_connections["connections_per_peer"] == 2)
        context = authority.client()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost", local_addr=("127.0.0.2", 0)
        )
        accepted = Peer(reader, writer)
        stage.peers += [*peers, accepted]
        await stage.greeted(accepted)
        await accepted.expect("Connection.OpenOk")


async def test_a_tls_connection_above_the_limit_is_refused_after_its_handshake(authority: Authority) -> None:
    async with with_tls_address(authority, ListenerLimits(connections=1, close_seconds=0.1)) as (stage, port):
        await stage.producer()
        context = authority.client()
        surplus = Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost"))
        stage.peers.append(surplus)
        assert await refusal(surplus) == (
            530,
            "NOT_ALLOWED - connection refused: the limit of 1 connections has been reached",
        )


async def test_a_drain_ends_tls_handshakes_and_closes_the_address(authority: Authority) -> None:
    async with with_tls_address(authority, QUICK) as (stage, port):
        late = await silent(port)
        await eventually(lambda: len(stage.listener._sessions) == 1)
        await stage.listener.drain()
        assert await late.is_gone()
        with pytest.raises(ConnectionRefusedError):
            await silent(port)
        await late.disconnect()


async def test_an_unfinished_tls_handshake_is_closed_counted_and_logged(authority: Authority) -> None:
    with capture_logs() as logged:
        async with with_tls_address(authority, QUICK, handshake_seconds=0.3) as (stage, port):
            peer = await silent(port)
            stage.peers.append(peer)
            assert await peer.is_gone()
            await eventually(lambda: not stage.listener._sessions)
            assert stage.counters.downstream.results["timeout"] == 1
    assert [entry["reason"] for entry in logged if entry["event"] == "producer not connected"] == [
        "no TLS handshake within 0.3 s"
    ]


async def test_a_peer_without_tls_is_counted_and_logged(authority: Authority) -> None:
    with capture_logs() as logged:
        async with with_tls_address(authority, QUICK) as (stage, port):
            peer = await silent(port)
            stage.peers.append(peer)
            peer.send(client.PROTOCOL_HEADER)
            await peer.reader.read()
            await eventually(lambda: not stage.listener._sessions)
            assert stage.counters.downstream.results["tls_error"] == 1
    assert ["does not speak TLS" in entry["reason"] for entry in logged] == [True]


async def test_a_probe_that_leaves_before_its_tls_handshake_is_no_event(authority: Authority) -> None:
    with capture_logs() as logged:
        async with with_tls_address(authority, QUICK) as (stage, port):
            peer = await silent(port)
            await eventually(lambda: stage.listener._sessions)
            await peer.disconnect()
            await eventually(lambda: not stage.listener._sessions)
            assert not any(stage.counters.downstream.results.values())
    assert logged == []


# -- draining ----------------------------------------------------------------------------------------------------------


async def test_unsettled_publishes_settle_before_their_producer_is_closed() -> None:
    async with staged(listener_limits=PATIENT) as stage:
        producer, link = await stage.opened(confirm=True)
        for body in (b"1", b"2"):
            producer.send(client.publish(1, b"any", b"k", (), body))
            await link.published()
        draining = asyncio.ensure_future(stage.listener.drain())
        await eventually(lambda: stage.counters.relay("/").paused_producers)
        link.call(commands.Basic.Ack(1, False))
        assert (await producer.expect("Basic.Ack")).arguments["delivery_tag"] == 1
        assert not draining.done()
        link.call(commands.Basic.Nack(2, False))
        assert (await producer.expect("Basic.Nack")).arguments["delivery_tag"] == 2
        await answered(producer, link)
        await draining
        assert stage.counters.relay("/").paused_producers == 0


async def test_a_producer_that_never_stops_publishing_does_not_use_up_the_deadline() -> None:
    async with staged(listener_limits=PATIENT) as stage:
        producer, link = await stage.opened(confirm=True)

        async def publishing() -> None:
            while True:
                producer.send(client.publish(1, b"any", b"k", (), b"x"))
                await asyncio.sleep(0)

        async def confirming() -> None:
            count = 0
            while (frame := await link.frame()).name != "Connection.Close":
                if frame.name == "Body":
                    count += 1
                    link.call(commands.Basic.Ack(count, False))
            link.call(commands.Connection.CloseOk(), 0)

        async with asyncio.TaskGroup() as tasks:
            busy = tasks.create_task(publishing())
            tasks.create_task(confirming())
            await producer.expect("Basic.Ack")
            draining = tasks.create_task(stage.listener.drain())
            while (frame := await producer.frame()).name == "Basic.Ack":
                pass
            assert frame.arguments["reply_code"] == 320
            busy.cancel()
            producer.call(commands.Connection.CloseOk(), 0)
            await draining


async def test_a_producer_that_does_not_answer_the_close_is_dropped_after_the_deadline() -> None:
    async with staged(listener_limits=QUICK) as stage:
        producer, link = await stage.producer()
        await stage.listener.drain()
        assert await producer.close_reason() == SHUTTING_DOWN
        assert await producer.is_gone()
        await link.expect("Connection.Close")
        assert await link.is_gone()


async def test_a_producer_in_its_handshake_is_dropped() -> None:
    async with staged(listener_limits=QUICK, broker=FakeBroker(silent_after="Open")) as stage:
        silent = await stage.connect()
        half = await stage.greeted()
        await stage.broker.link()
        await stage.listener.drain()
        assert await silent.is_gone()
        assert await half.is_gone()


async def test_a_publish_that_waits_for_its_queue_is_not_lost_by_a_drain() -> None:
    state = open_exchange(b"x", b"q", bound=False)
    control = NoControl(state, answers=False)
    async with staged(listener_limits=PATIENT, state=state, control=control) as stage:
        producer, link = await stage.opened(confirm=True)
        producer.send(client.publish(1, b"x", b"k", (), b"x"))
        await eventually(lambda: control.asked)
        draining = asyncio.ensure_future(stage.listener.drain())
        await eventually(lambda: stage.counters.relay("/").paused_producers)
        control.answering.set()
        await link.published()
        link.call(commands.Basic.Ack(1, False))
        await producer.expect("Basic.Ack")
        await answered(producer, link)
        await draining


async def test_a_drain_without_producers_returns_and_can_be_repeated() -> None:
    async with staged() as stage:
        await stage.listener.drain()
        await stage.listener.drain()


def link_local() -> list[str]:
    """The link-local addresses of this machine, with their interfaces (proc(5), /proc/net/if_inet6)."""
    lines = Path("/proc/net/if_inet6").read_text().splitlines() if Path("/proc/net/if_inet6").exists() else []
    return [
        f"{':'.join(re.findall('....', fields[0]))}%{fields[5]}"
        for fields in map(str.split, lines)
        if fields[3] == "20"
    ]


@pytest.mark.skipif(not link_local(), reason="no interface has a link-local address")
async def test_a_link_local_address_is_listened_on() -> None:
    address = parse_address(f"[{link_local()[0]}]:0", least=0)
    shared = context(Upstream([("127.0.0.1", 1)]), SessionLimits())
    listener = Listener([(address.host, address.port)], shared, ListenerLimits())
    [(host, port)] = await listener.start()
    assert host.startswith("fe80::")
    assert port
    await listener.drain()


async def test_kept_connections_to_a_silent_broker_do_not_prolong_a_drain() -> None:
    connected: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: connected.append(writer), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    pool = UpstreamPool(60, Counters())
    link = Link(lambda data: None, lambda error: None, lambda writable: None, lambda: None)
    await asyncio.get_running_loop().create_connection(lambda: link, *address)
    pool.keep(link, Lease(), 0)
    async with staged(listener_limits=ListenerLimits(settle_seconds=0.5, close_seconds=0.5)) as stage:
        producer, _ = await stage.producer()
        stage.listener._context = replace(stage.shared, reuse=pool)
        began = monotonic()
        draining = asyncio.create_task(stage.listener.drain())
        await producer.close_reason()
        assert monotonic() - began < 2
        await draining
    server.close()
    for writer in connected:
        writer.close()
