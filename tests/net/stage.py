"""A producer, a fake broker and a listener between them, on loopback sockets in one event loop.

The fake broker answers as RabbitMQ does while a connection opens; after that, the test reads and writes its frames.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pamqp import commands
from pamqp.base import Frame as Method

from oxproxy.net.context import SessionContext, SessionLimits
from oxproxy.net.listener import Listener, ListenerLimits
from oxproxy.net.remote.pool import RemotePool
from oxproxy.net.tasks import Tasks
from oxproxy.net.tls import TlsContexts
from oxproxy.net.upstream import Upstream
from oxproxy.net.vhosts import ControlPlane, Vhosts
from oxproxy.relay.connection_state import RelayLimits
from oxproxy.relay.counters import Counters
from oxproxy.relay.plan.plan import Sources
from oxproxy.relay.rate_limits import UserRateLimits
from oxproxy.relay.vhost import Delivery, OwnedExchange, VhostState
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import Destination
from tests import client
from tests.client import Frame

#: Maximum seconds for one reply.
ANSWER_SECONDS = 20.0
VHOST = "/"


class Gone(Exception):  # noqa: N818 - states a fact
    """The other side closed the socket."""


class Peer:
    """One end of a connection, which reads and writes single frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.heartbeats = 0

    def send(self, *pieces: bytes) -> None:
        self.writer.write(b"".join(pieces))

    def call(self, command: Method, channel: int = 1) -> None:
        self.send(client.method(channel, command))

    async def read(self, size: int) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionResetError) as error:
            raise Gone from error

    async def any_frame(self) -> Frame:
        """The next frame."""
        head = await self.read(7)
        tail = await self.read(int.from_bytes(head[3:], "big") + 1)
        assert tail[-1] == 0xCE
        return Frame(head[0], int.from_bytes(head[1:3], "big"), tail[:-1])

    async def frame(self) -> Frame:
        """The next frame other than heartbeats, which are counted."""
        while (frame := await self.any_frame()).kind == 8:
            self.heartbeats += 1
        return frame

    async def expect(self, name: str) -> Frame:
        frame = await self.frame()
        assert frame.name == name, frame
        return frame

    async def published(self) -> tuple[str, bytes]:
        """Routing key and body of the next publish, whose body must be one frame."""
        method = await self.expect("Basic.Publish")
        await self.expect("Header")
        return str(method.arguments["routing_key"]), (await self.expect("Body")).payload

    async def begin(self) -> dict[str, object]:
        """Send the protocol header; return the arguments of Connection.Start."""
        self.send(client.PROTOCOL_HEADER)
        return (await self.expect("Connection.Start")).arguments

    async def log_in(self, user: str = "guest", password: str = "guest") -> dict[str, object]:
        """Send the protocol header and, after Connection.Start, the login; return the arguments of Connection.Start."""
        start = await self.begin()
        capabilities: Any = {"authentication_failure_close": True}
        properties = {"capabilities": capabilities}
        self.call(commands.Connection.StartOk(properties, "PLAIN", f"\0{user}\0{password}", "en_US"), 0)
        return start

    async def close_reason(self) -> tuple[int, str]:
        """Code and text of the next Connection.Close."""
        fields = (await self.expect("Connection.Close")).arguments
        return int(str(fields["reply_code"])), str(fields["reply_text"])

    async def closed(self) -> tuple[int, str]:
        """Answer the next Connection.Close and wait until the peer closes the socket; return code and text."""
        reason = await self.close_reason()
        self.call(commands.Connection.CloseOk(), 0)
        assert await self.is_gone()
        return reason

    async def is_gone(self) -> bool:
        """Wait until the peer closes the socket; return False if a frame arrives first."""
        try:
            await self.frame()
        except Gone:
            return True
        return False

    async def disconnect(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    def pause(self) -> None:
        """Stop reading from the socket."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume(self) -> None:
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]


@dataclass
class Tune:
    """The limits that the broker proposes."""

    channel_max: int = 2047
    frame_max: int = 131072
    heartbeat: int = 0


class FakeBroker:
    """Accepts connections and logs them in, unless it is configured to stop answering at some point."""

    def __init__(self, tune: Tune | None = None, silent_after: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.tune = tune or Tune()
        self._tls = tls
        self.silent_after = silent_after
        #: Whether logins are refused.
        self.refuse = False
        self.links: asyncio.Queue[Peer] = asyncio.Queue()
        self.opened: dict[str, dict[str, object]] = {}
        self.peers: list[Peer] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self.peers:
            await peer.disconnect()

    async def link(self) -> Peer:
        """The broker's end of the next connection that was opened."""
        async with asyncio.timeout(ANSWER_SECONDS):
            return await self.links.get()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        with suppress(Gone):
            await self._log_in(peer)

    async def _log_in(self, peer: Peer) -> None:
        assert await peer.read(8) == client.PROTOCOL_HEADER
        if await self._stops("header", peer):
            return
        properties: dict[str, Any] = {
            "product": "RabbitMQ",
            "version": "3.10.8",
            "capabilities": {"publisher_confirms": True, "authentication_failure_close": True},
        }
        peer.call(commands.Connection.Start(0, 9, properties, "PLAIN AMQPLAIN", "en_US"), 0)
        self.opened["StartOk"] = (await peer.expect("Connection.StartOk")).arguments
        if self.refuse:
            peer.call(commands.Connection.Close(403, "ACCESS_REFUSED", 0, 0), 0)
            return
        if await self._stops("StartOk", peer):
            return
        peer.call(commands.Connection.Tune(self.tune.channel_max, self.tune.frame_max, self.tune.heartbeat), 0)
        self.opened["TuneOk"] = (await peer.expect("Connection.TuneOk")).arguments
        self.opened["Open"] = (await peer.expect("Connection.Open")).arguments
        if await self._stops("Open", peer):
            return
        peer.call(commands.Connection.OpenOk(), 0)
        self.links.put_nowait(peer)

    async def _stops(self, point: str, peer: Peer) -> bool:
        if self.silent_after == point:
            self.links.put_nowait(peer)
            return True
        return False


class NoControl:
    """A control plane that records its calls.

    Args:
        state: the virtual host in which it binds destinations; None for one without exchanges.
        answers: whether calls return at once; if False, they wait until `answering` is set.
        followed: result of `follows` until the virtual host has been adopted.
    """

    def __init__(self, state: VhostState | None = None, *, answers: bool = True, followed: bool = True) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.answering = asyncio.Event()
        if answers:
            self.answering.set()
        self.wanted: set[bytes] = set()
        self.state = state if state is not None else VhostState(VHOST, Router(()))
        self.followed = followed

    def interested(self, queue: bytes) -> bool:
        return queue in self.wanted

    async def ensure(self, destination: Destination) -> None:
        self.asked.append(("ensure", destination))
        await self.answering.wait()

    async def bind(self, exchange: bytes, destinations: Iterable[Destination]) -> set[Destination]:
        requested = set(destinations)
        self.asked.append(("bind", exchange, requested))
        await self.answering.wait()
        if exchange in self.state.exchanges:
            for destination in requested:
                table = self.state.exchanges[exchange].tokens
                table.bind_ok(destination, self.state.candidates(self.state.exchanges[exchange], destination)[:1])
            self.state.changed()
        return requested

    async def hold(self, owned: OwnedExchange) -> None:
        self.asked.append(("hold", owned.name))
        await self.answering.wait()

    async def restore(self, owned: OwnedExchange) -> None:
        self.asked.append(("restore", owned.name))

    async def end(self, owned: OwnedExchange) -> bool:
        self.asked.append(("end", owned.name))
        await self.answering.wait()
        return True

    def declared(self, destination: Destination, exclusive: bool) -> None:
        self.asked.append(("declared", destination, exclusive))

    def queue_deleted(self, queue: bytes) -> None:
        self.asked.append(("deleted", queue))

    def requests_of(self, vhost: str) -> NoControl | None:
        return self if self.state.name == vhost else None

    def follows(self, vhost: str) -> bool:
        return self.followed

    async def adopt(self, vhost: str, state: VhostState) -> None:
        self.asked.append(("adopt", vhost))
        await self.answering.wait()
        self.followed = True

    async def look_up(self, exchange: bytes, destination: Destination | None) -> str | None:
        self.asked.append(("look up", exchange))
        return None

    def changed(self, exchange: bytes) -> None:
        self.asked.append(("changed", exchange))


def open_exchange(name: bytes, *queues: bytes, bound: bool = True) -> VhostState:
    """A virtual host with one open exchange that routes every message to all given queues."""
    exchange = Exchange(name, "x-open")
    for queue in queues:
        exchange.bind(Binding(name, "queue", queue, b"", ()))
    owned = OwnedExchange(name, "x-open", Delivery.CARRIER, name)
    if bound:
        for destination in {("queue", queue) for queue in queues}:
            owned.tokens.bind_ok(destination)
    return VhostState(VHOST, Router([exchange]), {name: owned})


def context(
    upstream: Upstream, limits: SessionLimits, state: VhostState | None = None, control: ControlPlane | None = None
) -> SessionContext:
    counters = Counters()
    sources = Sources(time.time, time.perf_counter, lambda below: 0)
    states = [] if state is None else [state]
    vhosts = Vhosts(states, control, counters, sources)
    remotes = RemotePool({}, counters, "1.2.3", Tasks(), TlsContexts())
    return SessionContext(upstream, vhosts, counters, limits, "1.2.3", remotes)


@dataclass
class Stage:
    """A listener in front of the fake broker."""

    broker: FakeBroker
    listener: Listener
    shared: SessionContext
    port: int
    peers: list[Peer] = field(default_factory=list)

    @property
    def counters(self) -> Counters:
        return self.shared.counters

    async def connect(self) -> Peer:
        """A socket to the listener on which nothing has been sent."""
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self.peers.append(peer)
        return peer

    async def greeted(self, peer: Peer | None = None, user: str = "guest", heartbeat: int = 0) -> Peer:
        """A producer that has sent its Connection.Open."""
        peer = peer or await self.connect()
        await peer.log_in(user, user)
        tune = (await peer.expect("Connection.Tune")).method
        assert isinstance(tune, commands.Connection.Tune)
        peer.call(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, heartbeat), 0)
        peer.call(commands.Connection.Open(VHOST), 0)
        return peer

    async def producer(self, heartbeat: int = 0) -> tuple[Peer, Peer]:
        """A producer that is logged in, and the broker's end of its connection."""
        peer = await self.greeted(heartbeat=heartbeat)
        await peer.expect("Connection.OpenOk")
        return peer, await self.broker.link()

    async def opened(self, *numbers: int, confirm: bool = False) -> tuple[Peer, Peer]:
        """The same, with open channels, optionally in confirm mode."""
        producer, link = await self.producer()
        asked: list[tuple[Method, Method]] = [(commands.Channel.Open(), commands.Channel.OpenOk())]
        asked += [(commands.Confirm.Select(), commands.Confirm.SelectOk())] * confirm
        for number in numbers or (1,):
            for command, answer in asked:
                producer.call(command, number)
                await link.expect(command.name)
                link.call(answer, number)
                await producer.expect(answer.name)
        return producer, link


async def eventually(holds: Callable[[], object]) -> None:
    """Run the event loop until the condition holds."""
    async with asyncio.timeout(ANSWER_SECONDS):
        while not holds():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.002)


@asynccontextmanager
async def staged(
    limits: SessionLimits | None = None,
    listener_limits: ListenerLimits | None = None,
    broker: FakeBroker | None = None,
    upstream: Upstream | None = None,
    state: VhostState | None = None,
    control: ControlPlane | None = None,
    allowances: UserRateLimits | None = None,
) -> AsyncIterator[Stage]:
    broker = broker or FakeBroker()
    if not broker.port:
        await broker.start()
    shared = context(
        upstream or Upstream([("127.0.0.1", broker.port)]), limits or SessionLimits(relay=RelayLimits()), state, control
    )
    if allowances is not None:
        shared = replace(shared, allowances=allowances)
    listener = Listener([("127.0.0.1", 0)], shared, listener_limits or ListenerLimits(close_seconds=0.2))
    [(_, port)] = await listener.start()
    stage = Stage(broker, listener, shared, port)
    try:
        yield stage
    finally:
        for peer in stage.peers:
            await peer.disconnect()
        await broker.stop()
        await listener.drain()
