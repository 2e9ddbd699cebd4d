from __future__ import annotations

import asyncio
from dataclasses import replace
from time import monotonic

from proxy.net.link import Link
from proxy.net.listener import ListenerLimits
from proxy.net.upstream import UpstreamPool
from proxy.relay.counters import Counters
from proxy.relay.handshake.lease import Lease
from tests.net.stage import staged


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
