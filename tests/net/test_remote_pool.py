"""Links to other brokers, with sockets to one fake broker on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pamqp import commands

from oxproxy.addressing.targets import Remote
from oxproxy.net.remote.connection import IDLE_SECONDS, RemoteConnection
from oxproxy.net.remote.endpoints import RemoteBroker, RemoteLimits
from oxproxy.net.remote.pool import ProducerRemotes, RemotePool
from oxproxy.net.tasks import Tasks
from oxproxy.net.tls import ClientTls, TlsContexts
from oxproxy.relay.counters import Counters
from oxproxy.relay.remote_link import RemotePublisher, RemoteResult
from oxproxy.yamlfile.hosts import HostPort
from tests.net.stage import FakeBroker, Peer, eventually
from tests.relay.remote_broker import Told

FAR = Remote(b"far", b"far", None, None)
LIMITS = RemoteLimits(deadline_seconds=30.0, messages=4, message_bytes=1 << 20)


async def ready(peer: Peer, channel: int = 1) -> None:
    """Answer the opening of a lane's channel."""
    assert [(await peer.frame()).name for _ in range(2)] == ["Channel.Open", "Confirm.Select"]
    peer.call(commands.Channel.OpenOk(), channel)
    peer.call(commands.Confirm.SelectOk(), channel)


class Stage:
    def __init__(self, broker: FakeBroker, limits: RemoteLimits) -> None:
        self.broker = broker
        self.tasks = Tasks()
        self.counters = Counters()
        self.pool = RemotePool({}, self.counters, "1.0", self.tasks, TlsContexts())
        self.full: list[bool] = []
        self.use(limits)

    def use(self, limits: RemoteLimits) -> None:
        self.pool.brokers = {"/": {b"far": RemoteBroker("127.0.0.1", self.broker.port, limits=limits)}}

    def port(self) -> ProducerRemotes:
        return self.pool.port("/", self.full.append)

    def publisher(self, remote: Remote = FAR, producer: ProducerRemotes | None = None) -> RemotePublisher:
        publisher = (producer or self.port()).publisher(remote, 1)
        assert not isinstance(publisher, str)
        return publisher

    def link(self, remote: Remote = FAR) -> RemoteConnection:
        link = self.pool.connection(remote, "/")
        assert not isinstance(link, str)
        return link

    async def sent(self, publisher: RemotePublisher | None = None) -> tuple[Told, Peer]:
        """Send a message; return it and the broker's end of the link once the broker has the message."""
        sent_message = message()
        (publisher or self.publisher()).send(sent_message)
        peer = await self.broker.link()
        await ready(peer)
        await peer.published()
        return sent_message, peer


@asynccontextmanager
async def stage(limits: RemoteLimits = LIMITS) -> AsyncIterator[Stage]:
    broker = FakeBroker()
    await broker.start()
    made = Stage(broker, limits)
    try:
        yield made
    finally:
        await made.tasks.ended()
        await broker.stop()


@pytest.fixture
async def other() -> AsyncIterator[FakeBroker]:
    """Another broker, to which a reload may move the name `far`."""
    broker = FakeBroker()
    await broker.start()
    yield broker
    await broker.stop()


def message(body: bytes = b"body") -> Told:
    return Told(body, since=asyncio.get_running_loop().time())


async def test_two_producers_share_a_link_and_have_channels_of_their_own() -> None:
    async with stage() as made:
        for _ in range(2):
            made.publisher().send(message())
        peer = await made.broker.link()
        names = [(frame.channel, frame.name) for frame in [await peer.frame() for _ in range(4)]]
        assert sorted(channel for channel, name in names if name == "Channel.Open") == [1, 2]
        assert made.broker.links.empty()


async def test_messages_sent_over_a_lost_link_are_lost_and_waiting_ones_use_the_next_link() -> None:
    async with stage() as made:
        publisher, waiting = made.publisher(), message(b"waiting")
        sent, peer = await made.sent(publisher)
        peer.writer.transport.abort()
        await eventually(lambda: sent.results == [RemoteResult.LOST])
        publisher.send(waiting)
        again = await made.broker.link()
        await ready(again)
        assert (await again.published())[1] == b"waiting"
        again.call(commands.Basic.Ack(1, False))
        await eventually(lambda: waiting.results == [RemoteResult.ACKED])
        assert sent.results == [RemoteResult.LOST]


async def test_a_new_producer_of_a_full_link_waits_and_producers_of_other_links_do_not() -> None:
    async with stage() as made:
        others: list[bool] = []
        made.pool.port("/", others.append)
        publisher = made.publisher()
        for _ in range(4):
            publisher.send(message())
        late: list[bool] = []
        made.pool.port("/", late.append).publisher(FAR, 1)
        assert (late, others) == ([True], [])


async def test_an_abandoned_lane_closes_when_everything_is_settled() -> None:
    async with stage() as made:
        sent_message = message()
        publisher = made.publisher()
        publisher.send(sent_message)
        publisher.close()
        peer = await made.broker.link()
        await ready(peer)
        await peer.published()
        peer.call(commands.Basic.Ack(1, False))
        assert (await peer.frame()).name == "Channel.Close"
        assert sent_message.results == [RemoteResult.ACKED]


async def test_a_reopened_channel_continues_after_the_messages_of_the_closed_one() -> None:
    async with stage() as made:
        made.broker.refuse = True
        producer = made.port()
        for number in range(3):
            publisher = made.publisher(FAR, producer)
            publisher.send(message(b"%d" % number))
            publisher.close()
        connection = made.link()
        await eventually(lambda: connection.failure.startswith("refused: 403"))
        made.broker.refuse = False
        peer = await made.broker.link()
        await ready(peer)
        assert [(await peer.published())[1] for _ in range(3)] == [b"0", b"1", b"2"]
        peer.call(commands.Basic.Ack(3, True))
        assert (await peer.frame()).name == "Channel.Close"


async def test_more_producers_than_channels_share_the_channels() -> None:
    async with stage() as made:
        made.broker.tune.channel_max = 2
        busy, idle, late = (made.publisher() for _ in range(3))
        first, peer = await made.sent(busy)
        second = message(b"second")
        idle.send(second)
        await ready(peer, 2)
        await peer.published()
        third = message(b"third")
        late.send(third)
        # The second lane is busy, so its channel is released when its message is settled.
        peer.call(commands.Basic.Ack(1, False), 2)
        assert ((await peer.frame()).name, second.results) == ("Channel.Close", [RemoteResult.ACKED])
        peer.call(commands.Channel.CloseOk(), 2)
        await ready(peer, 2)
        assert (await peer.published())[1] == b"third"
        assert (first.results, third.results) == ([], [])
        # The lane that has released its channel gets a channel again for its next message.
        peer.call(commands.Basic.Ack(1, False), 2)
        await eventually(lambda: third.results == [RemoteResult.ACKED])
        idle.send(message(b"fourth"))
        assert (await peer.frame()).name == "Channel.Close"
        peer.call(commands.Channel.CloseOk(), 2)
        await ready(peer, 2)
        assert (await peer.published())[1] == b"fourth"


async def test_waiting_messages_of_closed_channels_follow_a_broker(other: FakeBroker) -> None:
    async with stage() as made:
        made.broker.refuse = True
        publisher, waiting = made.publisher(), message(b"waiting")
        publisher.send(waiting)
        publisher.close()
        made.pool.use({"/": {b"far": RemoteBroker("127.0.0.1", other.port, limits=LIMITS)}})
        new = await other.link()
        await ready(new)
        assert (await new.published())[1] == b"waiting"
        new.call(commands.Basic.Ack(1, False))
        assert (await new.frame()).name == "Channel.Close"
        assert waiting.results == [RemoteResult.ACKED]


async def test_new_limits_apply_to_an_open_link() -> None:
    async with stage() as made:
        publisher = made.publisher()
        sent, _ = await made.sent(publisher)
        made.pool.use({"/": {b"far": RemoteBroker("127.0.0.1", made.broker.port, limits=RemoteLimits(0.1))}})
        await eventually(lambda: sent.results == [RemoteResult.LOST])


async def test_a_link_to_the_sidecar_itself_is_refused() -> None:
    async with stage() as made:
        made.pool.listening = [HostPort("127.0.0.1", made.broker.port)]
        assert made.port().publisher(FAR, 1) == "leads back to this sidecar"
        assert made.counters.remotes == {}


async def test_a_host_name_of_the_sidecar_itself_is_detected_after_the_connect() -> None:
    async with stage() as made:
        made.pool.brokers = {"/": {b"far": RemoteBroker("127.1", made.broker.port)}}
        made.pool.listening = [HostPort("127.0.0.1", made.broker.port)]
        sent_message = message()
        made.publisher().send(sent_message)
        connection = made.link()
        await eventually(lambda: connection.failure == "leads back to this sidecar")
        assert sent_message.results == [RemoteResult.LOST]


async def test_a_link_to_an_unknown_broker_is_refused() -> None:
    async with stage() as made:
        assert made.port().publisher(Remote(b"gone", b"gone", None, None), 1) == "a broker that is no longer configured"


@pytest.mark.parametrize("settled", [True, False])
async def test_a_drain_waits_for_unconfirmed_messages_until_its_deadline(settled: bool) -> None:
    async with stage() as made:
        sent_message, peer = await made.sent()
        if settled:
            peer.call(commands.Basic.Ack(1, False))
        await made.pool.drain(20.0 if settled else 0.05)
        assert (sent_message.results == [RemoteResult.ACKED]) is settled


async def test_an_open_channel_does_not_use_a_link_without_tls_if_a_reload_configures_tls() -> None:
    plain = Remote(b"far", b"far", None, False)
    async with stage() as made:
        publisher = made.publisher(plain)
        _, old = await made.sent(publisher)
        waiting = [message(), message()]
        made.pool.use({"/": {b"far": RemoteBroker("127.0.0.1", made.broker.port, ClientTls(), limits=LIMITS)}})
        for late in waiting:
            publisher.send(late)
        assert [late.results for late in waiting] == [[RemoteResult.NACKED]] * 2
        made.pool.use({"/": {b"far": RemoteBroker("127.0.0.1", made.broker.port, limits=LIMITS)}})
        publisher.send(message(b"after"))
        assert (await old.published())[1] == b"after"


async def test_a_channel_reopened_after_a_reload_uses_the_new_address(other: FakeBroker) -> None:
    async with stage() as made:
        port = made.port()
        publisher = made.publisher(FAR, port)
        await made.sent(publisher)
        publisher.close()
        made.pool.use({"/": {b"far": RemoteBroker("127.0.0.1", other.port, limits=LIMITS)}})
        reopened = made.publisher(FAR, port)
        reopened.send(message(b"second"))
        new = await other.link()
        await ready(new)
        assert (await new.published())[1] == b"second"


async def test_all_messages_are_given_up_although_an_idle_link_ends() -> None:
    async with stage() as made:
        full = made.publisher()
        messages = [message() for _ in range(LIMITS.messages)]
        idle, last = (Remote(name, name, None, None) for name in (b"idle", b"last"))
        brokers = {
            name: RemoteBroker("127.0.0.1", made.broker.port, user=name, limits=LIMITS) for name in (b"idle", b"last")
        }
        made.pool.brokers = {"/": {**made.pool.brokers["/"], **brokers}}
        link = made.link(idle)
        for each in messages:
            full.send(each)
        publisher = made.publisher(last)
        messages.append(message())
        publisher.send(messages[-1])
        assert link.unused_since is not None
        link.unused_since -= IDLE_SECONDS + 1
        made.pool.give_up()
        assert [each.results for each in messages] == [[RemoteResult.LOST]] * len(messages)


async def test_a_host_with_a_zero_byte_is_refused() -> None:
    async with stage() as made:
        refused = made.port().publisher(Remote(b"", b"10.0.0.1\0x", 5672, False), 1)
        assert refused == "a host whose name is not valid"


def others(port: int, count: int) -> dict[bytes, RemoteBroker]:
    return {b"other %d" % number: RemoteBroker("127.0.0.1", port, user=b"%d" % number) for number in range(count)}


async def test_an_open_channel_follows_a_broker_although_the_maximum_number_of_links_exists() -> None:
    async with stage() as made:
        brokers = others(made.broker.port, 255)
        made.pool.brokers = {"/": {**made.pool.brokers["/"], **brokers}}
        producer = made.port()
        for name in brokers:
            producer.publisher(Remote(name, name, None, None), 1)
        publisher = made.publisher(FAR, producer)
        new = RemoteBroker("127.0.0.1", made.broker.port, user=b"new", limits=LIMITS)
        made.pool.use({"/": {b"far": new, **brokers}})
        sent_message = message()
        publisher.send(sent_message)
        assert sent_message.results == []
        assert producer.publisher(Remote(b"far", b"far", None, None, b"another", b""), 1) == (
            "too many links to other brokers"
        )


async def test_a_channel_that_was_refused_because_of_too_many_links_uses_the_next_one_available() -> None:
    async with stage() as made:
        brokers = others(made.broker.port, 255)
        made.pool.brokers = {"/": {**made.pool.brokers["/"], **brokers}}
        producer = made.port()
        # The last two share a link until the configured user changes.
        remotes = [Remote(name, name, None, None) for name in brokers]
        publishers = [
            producer.publisher(remote, 1)
            for remote in (*remotes, Remote(b"far", b"far", None, None, b"guest", b"guest"), FAR)
        ]
        idle, publisher = publishers[0], publishers[-1]
        assert not isinstance(idle, str)
        assert not isinstance(publisher, str)
        new = RemoteBroker("127.0.0.1", made.broker.port, user=b"new", limits=LIMITS)
        made.pool.use({"/": {b"far": new, **brokers}})
        refused, accepted = message(), message()
        publisher.send(refused)
        idle.close()
        link = made.link(remotes[0])
        assert link.unused_since is not None
        link.unused_since -= IDLE_SECONDS + 1
        publisher.send(accepted)
        assert (refused.results, accepted.results) == ([RemoteResult.NACKED], [])
