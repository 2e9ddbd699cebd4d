"""The idle timeout of producers. Heartbeats that are sent and missed are tested in test_session."""

from __future__ import annotations

import asyncio

from pamqp import commands
from structlog.testing import capture_logs

from proxy.net.context import SessionLimits
from tests import client
from tests.net.stage import FakeBroker, Tune, eventually, staged

SOON = SessionLimits(idle_seconds=1, close_seconds=0.2)


async def test_a_producer_that_sends_only_heartbeats_is_closed_with_320_and_an_active_one_is_not() -> None:
    with capture_logs() as logged:
        async with staged(SOON, broker=FakeBroker(Tune(heartbeat=1))) as stage:
            idle, _ = await stage.producer(heartbeat=1)
            busy, busy_link = await stage.producer(heartbeat=1)
            busy.call(commands.Channel.Open(), 1)

            async def beating() -> None:
                while True:
                    idle.send(client.HEARTBEAT, client.HEARTBEAT)
                    await asyncio.sleep(0.02)

            async def working() -> None:
                while True:
                    busy.call(commands.Basic.Qos(0, 1))
                    await asyncio.sleep(0.02)

            async with asyncio.TaskGroup() as tasks:
                senders = [tasks.create_task(beating()), tasks.create_task(working())]
                close = await idle.closed()
                for sender in senders:
                    sender.cancel()
            assert close == (320, "CONNECTION_FORCED - only heartbeats were received for 1 s (idle_timeout)")
            assert stage.counters.limits.hits["idle"] == 1
            busy.call(commands.Channel.Open(), 2)
            while (await busy_link.frame()).name != "Channel.Open":
                pass
    assert [entry["seconds"] for entry in logged if entry["event"] == "producer is idle"] == [1]


async def test_a_consumer_that_gets_messages_and_a_producer_that_waits_for_a_confirm_are_not_idle() -> None:
    async with staged(SOON) as stage:
        waiting, _ = await stage.opened(confirm=True)
        waiting.send(client.publish(1, b"any", b"k", (), b"x"))
        consumer, link = await stage.producer()

        for _ in range(30):
            link.send(client.method(1, commands.Basic.Deliver("c", 1, False, "any", "k")), client.content(1, (), b""))
            await consumer.expect("Basic.Deliver")
            await consumer.expect("Header")
            await asyncio.sleep(0.05)
        assert stage.counters.limits.hits["idle"] == 0
        await eventually(lambda: stage.counters.limits.hits["idle"] == 1)
        assert (await consumer.close_reason())[0] == 320
