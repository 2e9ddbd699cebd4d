"""Sidecars and a broker in one process, without sockets: every interleaving of single steps can be run.

The sidecars are real: relays, token tables, listings, and the control plane of a virtual host. The broker is a model
that keeps queues, exchanges and bindings. It executes the frames of each connection in order, one by one, and answers
in order. A request of a control plane is executed in one step and answered in a later one, so anything can happen
in between. `World.step` takes one step, which the caller chooses; no step takes time.

`World` checks what users are promised: after a bind-ok, a message that the binding selects reaches the destination,
through the same sidecar at once, and through another sidecar after a pass of that sidecar that began after the bind-ok.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar, cast

from pamqp import commands

from oxproxy.amqp import method_frames, methods
from oxproxy.amqp.method_frames import (
    ExchangeDeclare,
    ExchangeDelete,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueueUnbind,
    channel_close,
    exchange_declare,
    read_method,
)
from oxproxy.amqp.methods import method_frame, method_in, reply_of
from oxproxy.amqp.tables import decode_table, encode_table
from oxproxy.broker.connection import ControlConnection, ControlSettings, DeclaredSettings
from oxproxy.broker.management_api import BindingInfo, ExchangeInfo, ManagementApi, QueueInfo
from oxproxy.broker.methods import ABSENT, Find, Method, Refusal
from oxproxy.broker.reconcile.reconciler import Reconciler
from oxproxy.broker.reconcile.relay_requests import RelayRequests
from oxproxy.broker.task_supervisor import Supervisor
from oxproxy.errors import UpstreamError
from oxproxy.relay.connection_state import (
    NOT_LOOKED_UP,
    BindDestinations,
    ConnectionTerms,
    EndExchange,
    EnsureDestination,
    HoldTokens,
    QueueInventory,
    RelayLimits,
    Request,
    RestoreTokens,
)
from oxproxy.relay.counters import Counters
from oxproxy.relay.declare.storage import MARK
from oxproxy.relay.plan.plan import Plans, Sources
from oxproxy.relay.relay import Relay
from oxproxy.relay.tokens import Secrets, is_storage_key, is_token
from oxproxy.relay.vhost import Delivery, OwnedExchange, VhostState
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import EXCHANGE, QUEUE, Destination, Table, Value
from tests import client
from tests.client import Frame, split
from tests.relay.wire import TUNING, say, table_of
from tests.routing.building import NOW, no_draw

T = TypeVar("T")

XO = b"xo"
#: reply codes of the broker
NOT_FOUND, IN_USE = 404, 406
#: number of rounds of the event loop after which all tasks wait for a step
_ROUNDS = 25
#: maximum number of steps in a run, which must end
_STEPS = 1000


class LostError(AssertionError):
    """A promise was broken."""


# -- the broker --------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A binding on the broker."""

    source: bytes
    destination: Destination
    key: bytes
    entries: bytes


@dataclass(eq=False)
class Life:
    """The time from the creation to the deletion of a row; `confirmed`: the connections that bound it."""

    row: Row
    alive: bool = True
    confirmed: set[Connection] = field(default_factory=set)


class Refused(Exception):  # noqa: N818 - a reply of the broker
    """A method was refused, which closes its channel."""


class ModelBroker:
    """The queues, exchanges and bindings of one virtual host."""

    def __init__(self) -> None:
        self.exchanges: dict[bytes, ExchangeInfo] = {b"e": ExchangeInfo(b"e", "fanout")}
        self.queues: set[bytes] = set()
        self.rows: dict[Row, Life] = {}
        #: identities that were ever bound to a destination: key of a storage row, destination
        self.ever: set[tuple[bytes, Destination]] = set()

    def execute(self, frame: bytes, by: Connection | None = None) -> bytes:
        """Execute one method; return the reply, or raise `Refused`."""
        index, payload = method_in(frame), frame[7:-1]
        channel = int.from_bytes(frame[1:3], "big")
        if index in (methods.QUEUE_BIND, methods.EXCHANGE_BIND):
            self._bind(self._row(index, read_method(QueueBind, payload)), by)
        elif index == methods.QUEUE_UNBIND:
            self._unbind(self._row(index, read_method(QueueUnbind, payload)))
        elif index == methods.EXCHANGE_UNBIND:
            self._unbind(self._row(index, read_method(QueueBind, payload)))
        elif index == methods.QUEUE_DECLARE:
            declare = read_method(QueueDeclare, payload)
            self._declare_queue(declare.queue, passive=declare.passive)
            return say(channel, commands.Queue.DeclareOk(declare.queue.decode(), 0, 0))
        elif index == methods.QUEUE_DELETE:
            self.delete_queue(read_method(QueueDelete, payload).queue)
            return say(channel, commands.Queue.DeleteOk(0))
        elif index == methods.EXCHANGE_DECLARE:
            self._declare_exchange(read_method(ExchangeDeclare, payload))
        elif index == methods.EXCHANGE_DELETE:
            delete = read_method(ExchangeDelete, payload)
            if delete.if_unused and any(row.source == delete.exchange for row in self.rows):
                raise Refused(IN_USE, "in use")
            self.delete_exchange(delete.exchange)
        elif index == methods.CHANNEL_FLOW:
            return say(channel, commands.Channel.FlowOk(active=True))
        elif index == methods.CHANNEL_OPEN:
            return say(channel, commands.Channel.OpenOk())
        elif index == methods.CHANNEL_CLOSE:
            return say(channel, commands.Channel.CloseOk())
        else:
            raise AssertionError(f"unexpected {split(frame)[0].name}")
        return method_frame(channel, reply_of(index))

    def _row(self, index: int, request: QueueBind | QueueUnbind) -> Row:
        exchange = index in (methods.EXCHANGE_BIND, methods.EXCHANGE_UNBIND)
        # In exchange.bind, the destination has the place of the queue.
        destination = (EXCHANGE if exchange else QUEUE, request.queue)
        return Row(request.exchange, destination, request.routing_key, request.arguments)

    def _require(self, row: Row) -> None:
        kind, name = row.destination
        if row.source not in self.exchanges or name not in (self.queues if kind == QUEUE else self.exchanges):
            raise Refused(NOT_FOUND, "NOT_FOUND")

    def _bind(self, row: Row, by: Connection | None) -> None:
        self._require(row)
        life = self.rows.setdefault(row, Life(row))
        if by is not None:
            life.confirmed.add(by)
        self.ever.add((row.key, row.destination))

    def _unbind(self, row: Row) -> None:
        self._require(row)
        if row in self.rows:
            self._remove([row])

    def _remove(self, rows: Iterable[Row]) -> None:
        for row in list(rows):
            self.rows.pop(row).alive = False
            info = self.exchanges.get(row.source)
            if info is not None and info.auto_delete and not any(other.source == row.source for other in self.rows):
                self.delete_exchange(row.source)

    def _declare_queue(self, name: bytes, *, passive: bool = False) -> None:
        if passive and name not in self.queues:
            raise Refused(NOT_FOUND, "NOT_FOUND")
        self.queues.add(name)

    def delete_queue(self, name: bytes) -> None:
        self.queues.discard(name)
        self._remove([row for row in self.rows if row.destination == (QUEUE, name)])

    def _declare_exchange(self, declare: ExchangeDeclare) -> None:
        known = self.exchanges.get(declare.exchange)
        if declare.passive:
            if known is None:
                raise Refused(NOT_FOUND, "NOT_FOUND")
        elif known is None:
            arguments = {
                name.decode(): _plain(value)
                for name, value in decode_table(declare.arguments, 0, len(declare.arguments))
            }
            self.exchanges[declare.exchange] = ExchangeInfo(
                declare.exchange,
                declare.exchange_type.decode(),
                declare.internal,
                arguments,
                declare.durable,
                declare.auto_delete,
            )

    def delete_exchange(self, name: bytes) -> None:
        self.exchanges.pop(name, None)
        for row in [row for row in self.rows if row.source == name]:
            self.rows.pop(row).alive = False

    def route(self, exchange: bytes, keys: Iterable[bytes]) -> set[Destination]:
        """Return the destinations that keys reach.

        A bind is forwarded unchanged if its exchange is looked up and does not exist. If another client declares the
        exchange in the meantime, the broker stores a foreign binding, which sidecars report; it is not counted here.
        """
        wanted = {key for key in keys if is_token(key) or is_storage_key(key)}
        return {row.destination for row in self.rows if row.source == exchange and row.key in wanted}

    def listed(self, exchange: bytes) -> list[BindingInfo]:
        return [binding_info(row) for row in self.rows if row.source == exchange]


def _plain(value: Value) -> object:
    return value.value.decode(errors="replace") if isinstance(value.value, bytes) else value.value


def binding_info(row: Row) -> BindingInfo:
    arguments = {name: value.value for name, value in decode_table(row.entries, 0, len(row.entries))}
    kept, signature = (
        cast(bytes, arguments.get(name, b"")).decode() for name in (b"x-oxproxy", b"x-oxproxy-signature")
    )
    return BindingInfo(row.destination, row.key, "", kept, signature)


# -- the control plane of a sidecar ------------------------------------------------------------------------------------


@dataclass(eq=False)
class Operation:
    """A request of a control plane: it is executed in one step, and answered in a later one."""

    run: Callable[[], object]
    answer: asyncio.Future[Any]
    executed: bool = False
    result: object = None

    def step(self) -> bool:
        """Execute or answer; return True after the answer."""
        if self.executed:
            self.answer.set_result(self.result)
            return True
        self.executed, self.result = True, self.run()
        return False


class Operations(list[Operation]):
    async def do(self, run: Callable[[], T]) -> T:
        operation = Operation(run, asyncio.get_running_loop().create_future())
        self.append(operation)
        return cast(T, await operation.answer)


class ModelConnection:
    """Takes the place of `ControlConnection`."""

    connected = True

    def __init__(self, world: World, sidecar: Sidecar) -> None:
        self._world, self._sidecar = world, sidecar

    async def call(self, method: Method) -> Refusal | None:
        return (await self.call_all([method]))[0]

    async def call_all(self, made: Sequence[Method]) -> list[Refusal | None]:
        if not made:
            return []
        return await self._sidecar.operations.do(lambda: [self._one(method) for method in made])

    async def find_missing(self, destinations: Iterable[Destination]) -> dict[Destination, str]:
        asked = list(destinations)
        refusals = await self.call_all([Find(destination) for destination in asked])
        return {name: ABSENT for name, refusal in zip(asked, refusals, strict=True) if refusal is not None}

    async def find_existing(self, destinations: Iterable[Destination]) -> set[Destination]:
        asked = list(destinations)
        return set(asked) - (await self.find_missing(asked)).keys()

    def _one(self, method: Method) -> Refusal | None:
        frame = method.frame
        try:
            self._world.broker.execute(frame)
        except Refused as refusal:
            return Refusal(*refusal.args)
        if method_in(frame) in (methods.QUEUE_UNBIND, methods.EXCHANGE_UNBIND):
            self._sidecar.ending = True
        return None


class ModelManagement:
    """Takes the place of `ManagementApi`."""

    def __init__(self, world: World, sidecar: Sidecar) -> None:
        self._broker, self._do = world.broker, sidecar.operations.do

    async def queues(self, vhost: str) -> dict[bytes, QueueInfo]:
        return await self._do(lambda: {name: QueueInfo(name) for name in self._broker.queues})

    async def exchanges(self, vhost: str) -> dict[bytes, ExchangeInfo]:
        return await self._do(lambda: dict(self._broker.exchanges))

    async def find(self, vhost: str, kind: str, name: bytes) -> QueueInfo | ExchangeInfo | None:
        def found() -> QueueInfo | ExchangeInfo | None:
            if kind == EXCHANGE:
                return self._broker.exchanges.get(name)
            return QueueInfo(name) if name in self._broker.queues else None

        return await self._do(found)

    async def sources(self, vhost: str, exchange: bytes) -> set[bytes]:
        return set()

    async def bindings(self, vhost: str, exchange: bytes) -> list[BindingInfo]:
        return await self._do(lambda: self._broker.listed(exchange))

    async def changed_bindings(
        self,
        vhost: str,
        exchange: bytes,
        digest: bytes,
        destinations: Iterable[Destination] | None = None,
        read_ahead: Callable[[list[BindingInfo]], Awaitable[None]] | None = None,
    ) -> tuple[bytes, list[BindingInfo]] | None:
        wanted = None if destinations is None else set(destinations)
        every = await self._do(lambda: self._broker.listed(exchange))
        listed = [info for info in every if wanted is None or info.destination in wanted]
        now = blake2b(repr(sorted(listed)).encode(), digest_size=16).digest()
        if digest and digest == now:
            return None
        if read_ahead is not None:
            await read_ahead(listed)
        return now, listed


def rules(
    named: Iterable[tuple[str, Destination]] = (), *, file: bool = False
) -> tuple[dict[bytes, OwnedExchange], Router]:
    """Rules with the exchange ``xo``, if `file` is set, and bindings for messages of a kind."""
    if not file:
        return {}, Router(())
    made = Exchange(XO, "x-open")
    for kind, (type_, name) in named:
        made.bind(Binding(XO, type_, name, b"", condition(kind)))
    return {XO: OwnedExchange(XO, "x-open", Delivery.CARRIER, XO)}, Router([made])


def condition(kind: str) -> Table:
    """The arguments of a binding that selects messages of a kind."""
    return ((b"x-?hkv= kind", Value("S", kind.encode())),)


class Sidecar:
    """A sidecar: its shared state, its control plane, and its connections."""

    def __init__(
        self, world: World, number: int, secrets: Sequence[bytes] = (b"secret",), *, file: bool = False
    ) -> None:
        self.world, self.number = world, number
        self.operations = Operations()
        exchanges, router = rules(file=file)
        self.state = VhostState("/", router, exchanges)
        self.state.set_secrets(Secrets(secrets))
        settings = ControlSettings((("broker", 1),), "control", "secret", declared=DeclaredSettings())
        self.reconciler = Reconciler(
            settings,
            self.state,
            cast(ControlConnection, ModelConnection(world, self)),
            cast(ManagementApi, ModelManagement(world, self)),
        )
        self.requests = RelayRequests(self.reconciler, Supervisor(), lambda exchange: None, self._wants)
        self.requests.connected.set()
        self.plans = Plans(self.state, Counters(), Sources(lambda: NOW, lambda: 0.0, no_draw))
        self.tasks: set[asyncio.Task[None]] = set()
        #: whether a pass is running
        self.looking = False
        #: the bindings in the rules file
        self.named: Sequence[tuple[str, Destination]] = ()
        #: whether the sidecar itself requests a pass
        self.wants_pass = False
        #: whether this sidecar has unbound tokens of an exchange that ends, and has not finished
        self.ending = False

    def _wants(self) -> None:
        self.wants_pass = True

    @property
    def inventory(self) -> QueueInventory:
        requests = self.requests
        return QueueInventory(requests.interested, requests.declared, requests.queue_deleted, requests.changed)

    def start(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        task = asyncio.get_running_loop().create_task(run())
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.errors.append(error)

    async def run_pass(self) -> None:
        """Run a pass, as `VhostTopology.refresh` does."""
        self.looking, self.wants_pass = True, False
        promised = [promise.life for promise in self.world.promises if promise.life.alive]
        await self.reconciler.run_pass(thorough=False)
        names = self.reconciler.names.names(self.state.queues)
        changed = names is not self.state.queues and self.state.router.sees_queues
        self.state.queues = names
        if changed:
            self.state.changed()
        self.requests.confirm()
        self.looking = self.ending = False
        self.world.promise(self, promised)

    async def list_bindings(self) -> None:
        """List the bindings of the exchange, as for an announcement."""
        await self.reconciler.read_announced([XO])

    async def reload(self, named: Sequence[tuple[str, Destination]]) -> None:
        self.looking = True
        exchanges, router = rules(named, file=True)
        self.reconciler.swap(await self.reconciler.prepare(exchanges, router, ()))
        self.named = named
        self.looking = False

    async def carry_out(self, connection: Connection, request: Request) -> None:
        """Carry out a request of a relay, as a session does."""
        exchange_type: str | None = None
        ended = True
        try:
            if isinstance(request, EnsureDestination):
                await self.requests.ensure(request.destination)
            elif isinstance(request, BindDestinations):
                await self.requests.bind(request.exchange, request.destinations)
            elif isinstance(request, EndExchange):
                ended = await self.requests.end(request.owned)
                self.ending = False
            elif isinstance(request, HoldTokens):
                await self.requests.hold(request.owned)
            elif isinstance(request, RestoreTokens):
                await self.requests.restore(request.owned)
            else:
                exchange_type = await self.requests.look_up(request.exchange, request.destination)
        except (TimeoutError, UpstreamError):
            exchange_type, ended = NOT_LOOKED_UP, False
        connection.relay.answer(request, exchange_type, ended=ended)
        connection.collect()


# -- a client and its connection ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class Publish:
    """A publish on its way through a sidecar."""

    kind: str
    promised: list[Life]


@dataclass(eq=False)
class Connection:
    """A client's connection: it sends frames to the sidecar, which sends frames to the broker."""

    sidecar: Sidecar
    relay: Relay = field(init=False)
    #: frames that the broker has not executed yet, and replies that have not reached the sidecar
    to_broker: deque[Frame] = field(default_factory=deque)
    replies: deque[bytes] = field(default_factory=deque)
    #: what the client waits for, in order
    awaited: deque[str] = field(default_factory=deque)
    publishes: deque[Publish] = field(default_factory=deque)
    #: channels that the broker has closed
    closed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        terms = ConnectionTerms(TUNING, RelayLimits(), self.sidecar.inventory)
        self.relay = Relay(terms, self.sidecar.plans)
        self._open()

    def _open(self) -> None:
        self.relay.producer_sent(say(1, commands.Channel.Open()), 0.0)
        self.relay.connection.to_upstream.clear()
        self.relay.broker_sent(say(1, commands.Channel.OpenOk()), 0.0)
        self.relay.connection.for_producer.clear()

    @property
    def idle(self) -> bool:
        return not self.awaited and not self.publishes

    def send(self, *frames: bytes, awaited: Sequence[str] = ()) -> None:
        self.awaited += awaited
        self.relay.producer_sent(b"".join(frames), 0.0)
        self.collect()

    def collect(self) -> None:
        """Take the output of the relay."""
        connection = self.relay.connection
        self.to_broker += self.sidecar.world.reordered(split(b"".join(connection.to_upstream)))
        connection.to_upstream.clear()
        requests, connection.pending.requests[:] = list(connection.pending.requests), []
        for request in requests:
            self.sidecar.start(self.sidecar.carry_out(self, request))
        output = split(b"".join(connection.for_producer))
        connection.for_producer.clear()
        for frame in output:
            self._received(frame)

    def _received(self, frame: Frame) -> None:
        if frame.name == "Channel.Close":
            self.awaited.clear()
            self.publishes.clear()
            self.relay.producer_sent(say(1, commands.Channel.CloseOk(), commands.Channel.Open()), 0.0)
            self.collect()
            return
        if frame.name in ("Channel.OpenOk", "Channel.FlowOk"):
            return
        assert self.awaited, frame.name
        assert self.awaited.popleft() == frame.name
        if frame.name in ("Queue.BindOk", "Exchange.BindOk"):
            self.sidecar.world.bound(self)

    # -- steps of the broker

    def execute(self) -> None:
        """Let the broker execute the next frame; a whole publish counts as one."""
        frame = self.to_broker.popleft()
        if frame.kind != 1:
            return
        if frame.name == "Channel.CloseOk":
            self.closed.discard(frame.channel)
        elif frame.name == "Basic.Publish":
            header = self.to_broker[0]
            while self.to_broker and self.to_broker[0].kind != 1:
                self.to_broker.popleft()
            if frame.channel not in self.closed:
                self.sidecar.world.arrived(self, frame, header)
        elif frame.channel not in self.closed:
            try:
                self.replies.append(self.sidecar.world.broker.execute(frame.raw, self))
            except Refused as refusal:
                self.closed.add(frame.channel)
                index = method_in(frame.raw)
                self.replies.append(
                    channel_close(frame.channel, refusal.args[0], b"refused", index >> 16, index & 0xFFFF)
                )

    def execute_and_deliver(self) -> None:
        self.execute()
        while self.replies:
            self.deliver()

    def deliver(self) -> None:
        """Let the next reply reach the sidecar."""
        self.relay.broker_sent(self.replies.popleft(), 0.0)
        self.collect()


class Promise(NamedTuple):
    """Messages that the binding of a row selects reach its destination through a sidecar."""

    sidecar: Sidecar
    life: Life


class World:
    """Sidecars, a broker, and the promises to the clients.

    Args:
        secrets: the secrets of each sidecar.
        file: whether a rules file declares the exchange ``xo``; otherwise, a client has declared it.
        auto_delete: whether the client has declared it with auto-delete.
        topic: whether its carrier is a topic exchange.
        token_first: a wrong order of rows, which must break promises.
        at_once: whether a reply reaches the sidecar in the step in which the broker executes the method.
    """

    def __init__(
        self,
        secrets: Sequence[Sequence[bytes]] = ((b"s",), (b"s",)),
        *,
        file: bool = False,
        auto_delete: bool = False,
        topic: bool = False,
        token_first: bool = False,
        at_once: bool = False,
    ) -> None:
        self.broker = ModelBroker()
        self.token_first, self.auto_delete, self.at_once = token_first, auto_delete, at_once
        self.promises: list[Promise] = []
        #: the destinations that the last publish reached
        self.reached: set[Destination] = set()
        self.errors: list[BaseException] = []
        self.trace: list[str] = []
        entries = b"\x0f" + MARK + b"t\x01"
        kind = b"topic" if topic else b"direct"
        if file:
            self.broker.execute(exchange_declare(0, XO, kind, entries))
        self.sidecars = [Sidecar(self, number, listed, file=file) for number, listed in enumerate(secrets)]
        self.connections = [Connection(sidecar) for sidecar in self.sidecars for _ in range(2)]
        self.file, self.topic = file, topic

    async def begin(self) -> World:
        if not self.file:
            type_ = (b"x-carrier-type", Value("S", b"topic" if self.topic else b"direct"))
            self.declare_exchange(self.connections[0], type_)
            await self.settle()
            await self.drain()
        await self.passes()
        self.trace.clear()
        return self

    # -- actions

    def declare_exchange(self, connection: Connection, *more: tuple[bytes, Value]) -> None:
        frame = exchange_declare(1, XO, b"x-open", encode_table(tuple(more)), auto_delete=self.auto_delete)
        connection.send(frame, awaited=["Exchange.DeclareOk"])

    def bind(self, connection: Connection, *binds: tuple[str, Destination]) -> None:
        """Bind destinations for messages of a kind; several binds are sent at once."""
        frames = [
            method_frames.bind(1, destination, XO, b"", encode_table(condition(kind))) for kind, destination in binds
        ]
        connection.send(*frames, awaited=[f"{destination[0].title()}.BindOk" for _, destination in binds])

    def unbind(self, connection: Connection, kind: str, destination: Destination) -> None:
        frame = method_frames.unbind(1, destination, XO, b"", encode_table(condition(kind)))
        connection.send(frame, awaited=[f"{destination[0].title()}.UnbindOk"])

    def declare_queue(self, connection: Connection, name: str) -> None:
        connection.send(say(1, commands.Queue.Declare(0, name)), awaited=["Queue.DeclareOk"])

    def delete_queue(self, connection: Connection, name: str) -> None:
        connection.send(say(1, commands.Queue.Delete(0, name)), awaited=["Queue.DeleteOk"])

    def publish(self, connection: Connection, kind: str) -> None:
        promised = [
            promise.life
            for promise in self.promises
            if promise.sidecar is connection.sidecar and self._selects(promise.life, kind)
        ]
        connection.publishes.append(Publish(kind, promised))
        connection.send(client.publish(1, XO, b"", ((b"kind", Value("S", kind.encode())),), b"", {}))

    def _selects(self, life: Life, kind: str) -> bool:
        return encode_table(condition(kind)) in life.row.entries

    # -- promises

    def bound(self, connection: Connection) -> None:
        """A bind of a connection was answered: rows that it stored, and that still exist, are promised."""
        lives = [
            life for row, life in self.broker.rows.items() if is_storage_key(row.key) and connection in life.confirmed
        ]
        self.promise(connection.sidecar, lives)

    def promise(self, sidecar: Sidecar, lives: Iterable[Life]) -> None:
        self.promises = [promise for promise in self.promises if promise.life.alive]
        known = {promise.life for promise in self.promises if promise.sidecar is sidecar}
        self.promises += [Promise(sidecar, life) for life in lives if life.alive and life not in known]

    def arrived(self, connection: Connection, frame: Frame, header: Frame) -> None:
        """A publish was executed by the broker."""
        publish = connection.publishes.popleft()
        keys = [str(frame.arguments["routing_key"]).encode()]
        for name, value in table_of(header):
            if name == b"BCC":
                keys += [cast(bytes, key.value) for key in cast("tuple[Value, ...]", value.value)]
        self.reached = reached = self.broker.route(XO, keys)
        if not any(sidecar.ending for sidecar in self.sidecars):
            lost = [life for life in publish.promised if life.alive and life.row.destination not in reached]
            if lost:
                raise LostError(f"sidecar {connection.sidecar.number}: {lost[0].row.destination} after {self.trace}")

    # -- steps

    def reordered(self, frames: list[Frame]) -> list[Frame]:
        """With `token_first`, send the token rows of a batch first."""
        if not self.token_first:
            return frames

        def tokens_last(frame: Frame) -> bool:
            return not (frame.name.endswith(".Bind") and is_token(str(frame.arguments["routing_key"]).encode()))

        return sorted(frames, key=tokens_last)

    def steps(self) -> list[tuple[str, Callable[[], object]]]:
        """The steps that can be taken now, in addition to those of clients."""
        found: list[tuple[str, Callable[[], object]]] = []
        for number, connection in enumerate(self.connections):
            if connection.to_broker:
                take = connection.execute_and_deliver if self.at_once else connection.execute
                found.append((f"broker executes {connection.to_broker[0].name} of {number}", take))
            if connection.replies:
                found.append((f"reply to {number}", connection.deliver))
        for sidecar in self.sidecars:
            for at, operation in enumerate(sidecar.operations):
                verb = "answer" if operation.executed else "execute"
                found.append((f"{verb} request {at} of sidecar {sidecar.number}", self._operate(sidecar, operation)))
        return found

    def _operate(self, sidecar: Sidecar, operation: Operation) -> Callable[[], None]:
        def step() -> None:
            if operation.step():
                sidecar.operations.remove(operation)

        return step

    async def step(self, name: str, take: Callable[[], object]) -> None:
        self.trace.append(name)
        assert len(self.trace) < _STEPS, self.trace[-40:]
        take()
        await self.settle()

    async def settle(self) -> None:
        if any(sidecar.tasks for sidecar in self.sidecars):
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
        if self.errors:
            raise self.errors[0]

    async def drain(self) -> None:
        """Take steps until none is left."""
        while steps := self.steps():
            await self.step(*steps[0])
        assert all(connection.idle for connection in self.connections), self.trace
        assert not any(sidecar.tasks for sidecar in self.sidecars), self.trace

    async def passes(self) -> None:
        """Run a pass of each sidecar, one after another, and those that the sidecars request."""
        for sidecar in self.sidecars:
            sidecar.wants_pass = True
        while waiting := [sidecar for sidecar in self.sidecars if sidecar.wants_pass]:
            waiting[0].start(waiting[0].run_pass())
            await self.settle()
            await self.drain()

    async def finish(self) -> None:
        """End everything that is under way, run passes, and check that all sidecars agree with the broker."""
        await self.drain()
        await self.passes()
        for connection in self.connections:
            for kind in "12":
                self.publish(connection, kind)
                await self.settle()
                await self.drain()
                expected = self.selected(kind, connection.sidecar)
                if self.reached != expected:
                    raise LostError(f"kind {kind} reaches {self.reached} instead of {expected} after {self.trace}")

    def selected(self, kind: str, sidecar: Sidecar) -> set[Destination]:
        """Return the destinations of the bindings on the broker, and in the rules of a sidecar, for a kind."""
        entries = encode_table(condition(kind))
        stored = {row.destination for row in self.broker.rows if is_storage_key(row.key) and entries in row.entries}
        named = {destination for its_kind, destination in sidecar.named if its_kind == kind}
        return stored | {(type_, name) for type_, name in named if type_ == EXCHANGE or name in self.broker.queues}


class Action(NamedTuple):
    """What a client does; `waits`: for the connection to have nothing under way."""

    name: str
    connection: Connection | None
    take: Callable[[], object]


def _next(script: deque[Action]) -> Callable[[], object]:
    return lambda: script.popleft().take()


async def interleave(world: World, choose: Callable[[int], int], *scripts: Sequence[Action]) -> None:
    """Take all steps, and the actions of each script in order, as chosen; then check that all sidecars agree."""
    left = [deque(script) for script in scripts]
    while True:
        steps = world.steps()
        for script in left:
            if script and (script[0].connection is None or script[0].connection.idle):
                steps.append((script[0].name, _next(script)))
        if not steps:
            break
        await world.step(*steps[choose(len(steps)) if len(steps) > 1 else 0])
    await world.finish()


def every_run(run: Callable[[Callable[[int], int]], Awaitable[None]]) -> Iterator[Awaitable[None]]:
    """Yield the run for every sequence of choices; `run` gets a function that chooses one of n alternatives."""
    choices: list[list[int]] = []
    while True:
        at = 0

        def choose(count: int) -> int:
            nonlocal at
            if at == len(choices):
                choices.append([0, count])
            at += 1
            return choices[at - 1][0]

        yield run(choose)
        while choices and choices[-1][0] == choices[-1][1] - 1:
            choices.pop()
        if not choices:
            return
        choices[-1][0] += 1
