from __future__ import annotations

import asyncio

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from oxproxy.net.context import SessionLimits
from oxproxy.relay.connection_state import RelayLimits
from tests import client
from tests.net.stage import (
    ANSWER_SECONDS,
    FakeBroker,
    Gone,
    NoControl,
    Peer,
    Stage,
    Tune,
    eventually,
    open_exchange,
    staged,
)

#: Deadlines that expire before any wait in the tests times out.
SOON = SessionLimits(close_seconds=0.1, bind_seconds=0.1)


async def both_ended(stage: Stage) -> None:
    """Wait until both sides have ended and every gauge is zero."""
    counters = stage.counters
    relay = counters.relay("/")
    gauges = (counters.downstream, counters.upstream)
    await eventually(lambda: not any(side.open for side in gauges))
    assert (relay.channels, relay.paused_producers, relay.upstream_blocked) == (0, 0, 0)


async def read_to_end(peer: Peer) -> bytes:
    """Read all bytes until the peer closes the socket."""
    async with asyncio.timeout(ANSWER_SECONDS):
        return await peer.reader.read(-1)


async def write_until_blocked(peer: Peer, data: bytes) -> tuple[int, bytes]:
    """Write until the other side accepts no more; return the number of bytes written and the bytes not written yet."""
    transport = peer.writer.transport
    transport.set_write_buffer_limits(0)
    sent = 0
    while sent < len(data):
        peer.send(data[sent : sent + 65536])
        sent += 65536
        try:
            async with asyncio.timeout(0.3):
                await peer.writer.drain()
        except TimeoutError:
            break
    return sent - transport.get_write_buffer_size(), data[sent:]


# -- forwarding of bytes -----------------------------------------------------------------------------------------------


async def test_a_fault_of_the_producer_ends_its_connection_and_no_other() -> None:
    with capture_logs() as logged:
        async with staged() as stage:
            second, second_link = await stage.opened()
            producer, link = await stage.opened()
            producer.send(client.method(1, commands.Basic.Qos(0, 1))[:-1] + b"\x00")
            assert (await producer.closed())[0] == 501
            assert (await link.closed())[0] == 200
            second.call(commands.Basic.Qos(0, 2))
            await second_link.expect("Basic.Qos")
    [entry] = [entry for entry in logged if entry["event"] == "producer closed because of an error"]
    assert entry["fault"].startswith("501 ")


async def test_bytes_of_the_broker_that_are_no_frames_end_that_connection_with_320() -> None:
    async with staged() as stage:
        producer, link = await stage.opened()
        link.send(client.HEARTBEAT[:-1] + b"\x00")
        code, text = await producer.close_reason()
        assert (code, "malformed frames" in text) == (320, True)
        assert await link.is_gone()


# -- closing -----------------------------------------------------------------------------------------------------------


async def test_a_connection_close_is_answered_by_the_broker_and_both_sides_end() -> None:
    """The producer is expected to close the socket; if it does not, the socket is closed after the deadline."""
    async with staged(SessionLimits(close_seconds=0.1)) as stage:
        producer, link = await stage.opened()
        producer.call(commands.Connection.Close(200, "bye", 0, 0), 0)
        assert (await link.expect("Connection.Close")).arguments["reply_text"] == "bye"
        link.call(commands.Connection.CloseOk(), 0)
        await producer.expect("Connection.CloseOk")
        assert await producer.is_gone()
        assert await link.is_gone()
        await both_ended(stage)


async def test_connection_closes_are_answered_until_the_producer_closes_its_socket() -> None:
    async with staged(SessionLimits(close_seconds=3600)) as stage:
        producer, link = await stage.opened()
        goodbye = commands.Connection.Close(200, "bye", 0, 0)
        producer.call(goodbye, 0)
        await link.expect("Connection.Close")
        producer.call(goodbye, 0)
        link.call(commands.Connection.CloseOk(), 0)
        for _ in range(2):
            await producer.expect("Connection.CloseOk")
        assert await link.is_gone()
        producer.call(goodbye, 0)
        await producer.expect("Connection.CloseOk")
        await producer.disconnect()
        await both_ended(stage)


async def test_an_error_is_reported_after_a_deadline_if_the_broker_does_not_answer() -> None:
    async with staged(SOON) as stage:
        producer, link = await stage.opened()
        producer.call(commands.Channel.Open())
        await link.expect("Connection.Close")
        assert (await producer.close_reason())[0] == 504
        assert await link.is_gone()
        assert await producer.is_gone()
        await both_ended(stage)


async def test_a_connection_close_waits_while_the_broker_processes_earlier_publishes() -> None:
    async with staged(SessionLimits(close_seconds=0.02)) as stage:
        producer, link = await stage.opened()
        producer.send(client.publish(1, b"any", b"k", (), b"x"))
        producer.call(commands.Connection.Close(200, "bye", 0, 0), 0)
        await link.expect("Basic.Publish")
        await asyncio.sleep(0.1)  # several times the limit for a close of our own
        link.call(commands.Connection.CloseOk(), 0)
        await producer.expect("Connection.CloseOk")


async def test_a_close_of_the_broker_and_its_answer_are_forwarded() -> None:
    async with staged() as stage:
        producer, link = await stage.opened()
        link.call(commands.Connection.Close(320, "CONNECTION_FORCED - maintenance", 0, 0), 0)
        assert await producer.close_reason() == (320, "CONNECTION_FORCED - maintenance")
        producer.call(commands.Connection.CloseOk(), 0)
        await link.expect("Connection.CloseOk")
        assert await producer.is_gone()
        await both_ended(stage)


async def test_a_producer_that_does_not_answer_a_close_is_dropped_after_the_deadline() -> None:
    async with staged(SOON) as stage:
        producer, link = await stage.opened()
        await link.disconnect()
        await producer.close_reason()
        assert await producer.is_gone()
        await both_ended(stage)


async def test_a_lost_producer_ends_its_upstream_connection_without_a_partial_publish() -> None:
    whole = client.publish(1, b"any", b"k", (), b"x" * 1000)
    async with staged() as stage:
        for size in (0, 5, 30, len(whole) - 1):
            producer, link = await stage.opened()
            producer.send(whole[:size])
            await producer.disconnect()
            assert client.frame(3, 1, b"x" * 1000) not in await read_to_end(link)
        await both_ended(stage)


async def backlog(stage: Stage, producer: Peer, link: Peer) -> int:
    """Publish to a broker that does not read, until the session buffers data but still reads from the producer."""
    link.pause()
    [session] = stage.listener._sessions
    frame = client.publish(1, b"any", b"k", (), bytes(60_000))
    count = 0
    while not session._upstream.waiting_bytes:
        producer.send(frame)
        count += 1
        await producer.writer.drain()
        await asyncio.sleep(0)
    assert not session.producer.paused
    return count * len(frame)


async def test_publishes_of_a_lost_producer_still_reach_a_slow_broker() -> None:
    async with staged(SessionLimits(close_seconds=0.5)) as stage:
        producer, link = await stage.opened()
        size = await backlog(stage, producer, link)
        await producer.disconnect()
        await eventually(lambda: not [session for session in stage.listener._sessions if session.producer.connected])
        link.resume()
        assert len(await read_to_end(link)) == size
        await both_ended(stage)


async def test_a_broker_that_reads_nothing_does_not_keep_the_session_of_a_lost_producer() -> None:
    async with staged(SessionLimits(close_seconds=0.05)) as stage:
        producer, link = await stage.opened()
        await backlog(stage, producer, link)
        await producer.disconnect()
        await both_ended(stage)


# -- heartbeats --------------------------------------------------------------------------------------------------------


async def exchange_heartbeats(peer: Peer, count: int) -> None:
    """Wait for heartbeats, and send the same number."""
    for _ in range(count):
        assert (await peer.any_frame()).kind == 8
        peer.send(client.HEARTBEAT)


async def test_each_idle_side_gets_heartbeats_and_a_silent_one_is_dropped() -> None:
    async with staged(broker=FakeBroker(Tune(heartbeat=1))) as stage:
        kept, kept_link = await stage.producer(heartbeat=1)
        silent, silent_link = await stage.producer(heartbeat=1)
        alone, alone_link = await stage.producer(heartbeat=1)

        async def producer_is_silent() -> None:
            await exchange_heartbeats(silent_link, 3)
            with pytest.raises(Gone):
                await exchange_heartbeats(silent_link, 10)

        async def broker_is_silent() -> None:
            while (frame := await alone.any_frame()).kind == 8:
                alone.send(client.HEARTBEAT)
            assert frame.arguments["reply_code"] == 320

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(exchange_heartbeats(kept, 5))
            tasks.create_task(exchange_heartbeats(kept_link, 5))
            tasks.create_task(producer_is_silent())
            tasks.create_task(broker_is_silent())
        kept.call(commands.Channel.Open())
        await kept_link.expect("Channel.Open")
        for peer in (silent, alone_link):
            await peer.disconnect()


async def test_a_producer_without_heartbeats_does_not_disable_those_of_the_broker() -> None:
    async with staged(broker=FakeBroker(Tune(heartbeat=1))) as stage:
        producer, link = await stage.producer(heartbeat=0)
        assert stage.broker.opened["TuneOk"]["heartbeat"] == 1
        await exchange_heartbeats(link, 4)
        producer.call(commands.Channel.Open())
        await link.expect("Channel.Open")


async def test_a_busy_producer_one_that_waits_for_a_confirm_and_a_consumer_that_gets_messages_are_not_idle() -> None:
    async with staged(SessionLimits(idle_seconds=1, close_seconds=0.2)) as stage:
        busy, _ = await stage.opened()
        waiting, _ = await stage.opened(confirm=True)
        waiting.send(client.publish(1, b"any", b"k", (), b"x"))
        consumer, link = await stage.producer()

        for _ in range(30):
            link.send(client.method(1, commands.Basic.Deliver("c", 1, False, "any", "k")), client.content(1, (), b""))
            await consumer.expect("Basic.Deliver")
            await consumer.expect("Header")
            busy.call(commands.Basic.Qos(0, 1))
            await asyncio.sleep(0.05)
        assert stage.counters.limits.hits["idle"] == 0
        await eventually(lambda: stage.counters.limits.hits["idle"] >= 1)
        assert (await consumer.close_reason())[0] == 320


# -- back-pressure -----------------------------------------------------------------------------------------------------


async def test_a_slow_broker_pauses_its_own_producer_only() -> None:
    data = client.publish(1, b"any", b"k", (), bytes(32 << 20))
    async with staged() as stage:
        second, second_link = await stage.opened()
        producer, link = await stage.opened()
        relay = stage.counters.relay("/")
        link.pause()
        left, unsent = await write_until_blocked(producer, data)
        assert left < len(data) // 2
        assert relay.paused_producers == 1
        second.call(commands.Basic.Qos(0, 1))
        await second_link.expect("Basic.Qos")
        link.resume()
        producer.send(unsent)
        assert await link.read(len(data)) == data
        await eventually(lambda: relay.paused_producers == 0)
        await producer.disconnect()
        await second.disconnect()
        await both_ended(stage)


async def test_a_slow_consumer_pauses_its_own_broker_connection_only() -> None:
    deliver = client.method(1, commands.Basic.Deliver("c", 1, False, "any", "k"))
    data = deliver + client.content(1, (), bytes(32 << 20))
    async with staged() as stage:
        second, second_link = await stage.opened()
        consumer, link = await stage.opened()
        consumer.pause()
        left, unsent = await write_until_blocked(link, data)
        assert left < len(data) // 2
        second_link.call(commands.Basic.Ack(1, False))
        await second.expect("Basic.Ack")
        consumer.resume()
        link.send(unsent)
        assert await consumer.read(len(data)) == data


async def test_a_paused_producer_is_closed_when_its_broker_is_lost() -> None:
    async with staged() as stage:
        producer, link = await stage.opened()
        link.pause()
        data = client.publish(1, b"any", b"k", (), bytes(16 << 20))
        _, unsent = await write_until_blocked(producer, data)
        link.writer.transport.abort()
        producer.send(unsent)
        assert (await producer.close_reason())[0] == 320
        producer.call(commands.Connection.CloseOk(), 0)
        await both_ended(stage)


# -- the control plane -------------------------------------------------------------------------------------------------


async def test_a_publish_waits_for_its_destination_and_other_channels_do_not() -> None:
    state = open_exchange(b"x", b"q", bound=False)
    control = NoControl(state, answers=False)
    async with staged(state=state, control=control) as stage:
        producer, link = await stage.opened()
        producer.send(
            client.method(2, commands.Channel.Open()),
            client.publish(1, b"x", b"first", (), b"1"),
            client.publish(1, b"x", b"second", (), b"2"),
            client.publish(2, b"any", b"beside", (), b"3"),
        )
        await link.expect("Channel.Open")
        assert await link.published() == ("beside", b"3")
        await eventually(lambda: control.asked == [("bind", b"x", {("queue", b"q")})])
        control.answering.set()
        assert [await link.published() for _ in range(2)] == [("first", b"1"), ("second", b"2")]
        assert len(control.asked) == 1


async def test_a_publish_whose_destination_is_not_bound_in_time_is_sent_without_it() -> None:
    control = NoControl(answers=False)
    with capture_logs() as logged:
        async with staged(SOON, state=open_exchange(b"x", b"q", bound=False), control=control) as stage:
            producer, link = await stage.opened()
            producer.send(client.publish(1, b"x", b"k", (), b"1"))
            await link.expect("Basic.Publish")
            assert b"BCC" not in (await link.expect("Header")).payload
    assert "control plane did not respond" in [entry["event"] for entry in logged]


async def test_a_declare_is_answered_when_the_queue_has_its_tokens_or_after_the_deadline() -> None:
    control = NoControl()
    control.wanted.add(b"q")
    async with staged(SOON, state=open_exchange(b"x", b"q"), control=control) as stage:
        producer, link = await stage.opened()
        for answers in (True, False):
            if not answers:
                control.answering.clear()
            producer.call(commands.Queue.Declare(queue="q"))
            await link.expect("Queue.Declare")
            link.call(commands.Queue.DeclareOk("q", 0, 0))
            assert (await producer.frame()).name == "Queue.DeclareOk"
        assert control.asked.count(("ensure", ("queue", b"q"))) == 2


async def test_a_producer_with_a_full_buffer_is_paused_until_it_is_sent() -> None:
    state = open_exchange(b"x", b"q", bound=False)
    control = NoControl(state, answers=False)
    limits = SessionLimits(relay=RelayLimits(held_bytes=1 << 16))
    data = client.publish(1, b"x", b"k", (), bytes(16 << 20))
    async with staged(limits, state=state, control=control) as stage:
        producer, link = await stage.opened()
        left, unsent = await write_until_blocked(producer, data)
        assert left < len(data)
        assert stage.counters.relay("/").paused_producers == 1
        control.answering.set()
        producer.send(unsent)
        await link.expect("Basic.Publish")
        await link.expect("Header")
        size = 0
        while size < 16 << 20:
            size += len((await link.expect("Body")).payload)
        await eventually(lambda: stage.counters.relay("/").paused_producers == 0)


async def test_a_producer_lost_while_its_publish_waits_leaves_no_state() -> None:
    control = NoControl(answers=False)
    async with staged(state=open_exchange(b"x", b"q", bound=False), control=control) as stage:
        producer, link = await stage.opened()
        before = len(asyncio.all_tasks())
        producer.send(client.publish(1, b"x", b"k", (), b"1"))
        await eventually(lambda: control.asked)
        await producer.disconnect()
        assert await link.is_gone()
        await both_ended(stage)
        await eventually(lambda: len(asyncio.all_tasks()) <= before)
