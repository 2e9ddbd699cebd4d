"""The methods that the control plane sends (declares, binds and unbinds), and explanations of refusals.

Most methods are sent through aio-pika, which uses pamqp to encode them. However, pamqp changes the integer types in
argument tables, and refuses some names that RabbitMQ allows (``orders~2``, ``Käse``). Methods with such tables or names
are encoded by `oxproxy.amqp` and sent as bytes, as in relays.

Sources: AMQP 0-9-1 spec, 1.6 (exchange class) and 1.7 (queue class); RabbitMQ's access control guide (permissions).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractQueue
from aiormq import Channel, spec
from aiormq.abc import ChannelFrame, FieldTable

from oxproxy.amqp import method_frames
from oxproxy.amqp.frames import FRAME_HEAD
from oxproxy.amqp.methods import method_of
from oxproxy.amqp.tables import encode_table
from oxproxy.relay.declare.storage import ALTERNATE, MARK
from oxproxy.relay.vhost import OwnedExchange
from oxproxy.values import LONGEST_NAME_BYTES, QUEUE, Destination, Table, Value, shown

#: RabbitMQ quotes names in reply texts and truncates each text to 255 bytes. If this splits a character, pamqp can't
#: decode the text, and the connection is closed. If names have at most this number of bytes, only RabbitMQ's own ASCII
#: text is truncated.
_QUOTABLE_BYTES = 140
_METHOD_BYTES = 4

#: Reply code if an object does not exist.
NOT_FOUND = 404
#: Reply code if a queue is exclusive to another connection.
LOCKED = 405

EXCLUSIVE = "exclusive queue of another connection"
ABSENT = "does not exist"
INTERNAL = "is internal: clients cannot publish to it"


class Refusal(NamedTuple):
    """The reply code and text with which the broker closed one of our channels."""

    code: int
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.text}"

    def reason(self, kind: str) -> str:
        """Describe, for operators, why a destination of this kind could not be bound or found."""
        if self.code == NOT_FOUND:
            carrier = kind == QUEUE and "no exchange" in self.text
            return f"the carrier exchange does not exist: {self.text}" if carrier else ABSENT
        if self.code == LOCKED:
            return EXCLUSIVE
        if self.code == 403:
            return (
                f"refused: the control user needs write permission on this {kind} "
                f"and read permission on the carrier exchange ({self.text})"
            )
        return f"refused: {self}"


class Method(Protocol):
    """A method that the control plane sends."""

    @property
    def frame(self) -> bytes:
        """The encoded method, as a frame on channel 0."""

    async def call(self, channel: AbstractChannel, limit_seconds: float) -> object:
        """Send the method through aio-pika. A refusal or a timeout closes the channel and raises an error.

        Raises:
            ValueError: aio-pika can't send the method unchanged.
        """


@dataclass(frozen=True, slots=True)
class Find:
    """Checks with a passive declare whether a queue or an exchange exists."""

    destination: Destination

    @property
    def frame(self) -> bytes:
        return method_frames.passive_declare(0, self.destination)

    async def call(self, channel: AbstractChannel, limit_seconds: float) -> object:
        kind, name = self.destination
        declare = channel.declare_queue if kind == QUEUE else channel.declare_exchange
        return await declare(name.decode(), passive=True, timeout=limit_seconds)


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Declares a durable queue, unless it exists."""

    name: bytes
    arguments: Table = ()

    def __str__(self) -> str:
        return f"declare queue {shown(self.name)}"

    @property
    def frame(self) -> bytes:
        return method_frames.queue_declare(0, self.name, encode_table(self.arguments))

    async def call(self, channel: AbstractChannel, limit_seconds: float) -> object:
        _refuse_arguments(self.arguments)
        return await channel.declare_queue(self.name.decode(), durable=True, timeout=limit_seconds)


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Declares a durable exchange. Its only arguments, both optional, are our mark and an alternate exchange."""

    name: bytes
    type: bytes
    marked: bool = False
    alternate: bytes | None = None

    @property
    def frame(self) -> bytes:
        table: Table = ((MARK, Value("t", True)),) if self.marked else ()
        if self.alternate is not None:
            table = ((ALTERNATE, Value("S", self.alternate)), *table)
        return method_frames.exchange_declare(0, self.name, self.type, encode_table(table))

    async def call(self, channel: AbstractChannel, limit_seconds: float) -> object:
        arguments: FieldTable = {MARK.decode(): True} if self.marked else {}
        if self.alternate is not None:
            arguments[ALTERNATE.decode()] = self.alternate.decode()
        named = self.name.decode(), self.type.decode()
        return await channel.declare_exchange(*named, durable=True, arguments=arguments, timeout=limit_seconds)


@dataclass(frozen=True, slots=True)
class Bind:
    """Binds a destination to an exchange, using a routing key and the raw entries of an argument table.

    If `unbinds` is set, removes this binding instead. Both operations are idempotent.
    """

    source: bytes
    destination: Destination
    key: bytes
    entries: bytes = b""
    unbinds: bool = False

    @property
    def frame(self) -> bytes:
        make = method_frames.unbind if self.unbinds else method_frames.bind
        return make(0, self.destination, self.source, self.key, self.entries)

    async def call(self, channel: AbstractChannel, limit_seconds: float) -> object:
        _refuse_arguments(self.entries)
        kind, name = self.destination
        receiver: AbstractQueue | AbstractExchange  # created without a request to the broker
        if kind == QUEUE:
            receiver = await channel.get_queue(name.decode(), ensure=False)
        else:
            receiver = await channel.get_exchange(name.decode(), ensure=False)
        make = receiver.unbind if self.unbinds else receiver.bind
        return await make(self.source.decode(), self.key.decode(), timeout=limit_seconds)


async def make(method: Method, channel: AbstractChannel, limit_seconds: float) -> None:
    """Send a method through aio-pika, or as bytes if aio-pika can't send it unchanged."""
    try:
        await method.call(channel, limit_seconds)
    except ValueError:
        await send(method.frame, channel, limit_seconds)


async def make_all(binds: Sequence[Bind], channel: AbstractChannel, limit_seconds: float) -> None:
    """Create many bindings on one channel. The broker replies only to the last bind; any refusal closes the channel."""
    underlay = cast(Channel, await channel.get_underlay_channel())
    frames = b"".join(
        method_frames.bind(
            underlay.number, bind.destination, bind.source, bind.key, bind.entries, nowait=bind is not binds[-1]
        )
        for bind in binds
    )

    async def call() -> None:
        async with underlay.lock:
            # All frames are sent in a single write. Otherwise, some of them could follow the close-ok after a refusal,
            # and the broker would close the connection.
            await underlay.write_queue.put(ChannelFrame(frames, should_close=False))
            await underlay.rpc_frames.get()
            underlay.rpc_frames.task_done()

    async with asyncio.timeout(limit_seconds):
        await underlay.create_task(call())


async def send(frame: bytes, channel: AbstractChannel, limit_seconds: float) -> None:
    """Send a method encoded by `oxproxy.amqp`, and wait for the reply. The channel number in `frame` is ignored."""
    underlay = cast(Channel, await channel.get_underlay_channel())
    payload = frame[FRAME_HEAD.size : -1]
    method = _encoded(method_of(payload))()
    vars(method)["encoded"] = payload[_METHOD_BYTES:]
    await underlay.rpc(method, timeout=limit_seconds)


@cache
def _encoded(method: int) -> type[Any]:  # a method of pamqp
    """Return a class for encoded methods. aiormq sends the bytes in the ``encoded`` attribute of its instances."""
    kind: type[Any] = spec.INDEX_MAPPING[method]
    return type(kind.__name__, (kind,), {"marshal": lambda self: self.encoded})


def _refuse_arguments(arguments: bytes | Table) -> None:
    if arguments:
        raise ValueError("pamqp changes the types of arguments")


def declare_carrier(exchange: OwnedExchange) -> DeclareExchange:
    carrier_type = exchange.carrier_type.value.encode()
    return DeclareExchange(exchange.carrier, carrier_type, marked=True, alternate=exchange.alternate)


def unnameable(name: bytes) -> str | None:
    """Return why a name can't be used in a declaration; None if it can."""
    if not name:
        return "the name is empty"
    if len(name) > LONGEST_NAME_BYTES:
        return "the name is longer than 255 bytes"
    try:
        name.decode()
    except UnicodeDecodeError:
        return "the name is not UTF-8"  # RabbitMQ closes the connection if it receives such a name
    if len(name) > _QUOTABLE_BYTES and not name.isascii():
        return f"the name contains non-ASCII characters and is longer than {_QUOTABLE_BYTES} bytes"
    return None
