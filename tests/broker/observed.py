"""Helpers for the control plane tests: rules without a rules file, and an independent view of the broker.

They do not depend on the control plane; they use blocking calls of the management API and pika.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pika
import pika.adapters.blocking_connection
import pika.exceptions

from oxproxy.broker.connection import ControlSettings
from oxproxy.broker.methods import Bind, DeclareQueue
from oxproxy.broker.topology import Topology
from oxproxy.relay.tokens import is_token
from oxproxy.relay.vhost import Delivery, OwnedExchange, VhostState
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import Destination, Value
from tests.rabbitmq import Broker, quoted
from tests.relay.wire import bound_table, token

#: A queue that rules declare.
Queue = DeclareQueue


def queues(*names: str) -> set[Destination]:
    return {("queue", name.encode()) for name in names}


def exchanges(*names: str) -> set[Destination]:
    return {("exchange", name.encode()) for name in names}


def owned(name: str, delivery: Delivery = Delivery.CARRIER, **more: Any) -> OwnedExchange:
    """An exchange evaluated in the sidecar; its carrier has the same name unless `carrier` is given."""
    more.setdefault("carrier", name.encode())
    more["tokens"] = bound_table(more.pop("bound", ()))
    return OwnedExchange(name.encode(), "x-open", delivery, **more)


def router(named: Mapping[str, Iterable[Destination]], regex: bool = False) -> Router:
    """Rules that send every message to each destination and, with `regex`, to all queues with a name of one letter."""
    arguments = ((b"x-addqre-ontrue", Value("S", b"^[a-z]$")),) if regex else ()
    known = []
    for name, destinations in named.items():
        known.append(Exchange(name.encode(), "x-open"))
        for kind, destination in destinations:
            known[-1].bind(Binding(name.encode(), kind, destination, b"", arguments))
    return Router(known)


async def until(holds: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 -- no event covers every change
            await asyncio.sleep(0.005)


def state(
    vhost: str, named: Mapping[str, Iterable[Destination]], *shaped: OwnedExchange, regex: bool = False
) -> VhostState:
    """A virtual host whose exchanges have destinations; exchanges not in `shaped` have carriers of the same name."""
    evaluated = {exchange.name: exchange for exchange in shaped}
    for name in named:
        evaluated.setdefault(name.encode(), owned(name))
    return VhostState(vhost, router(named, regex), evaluated)


def missing(known: VhostState) -> dict[Destination, str]:
    """Destinations that can't be reached, with the reasons, on the carriers of all exchanges."""
    tables = [exchange.tokens.missing for exchange in known.exchanges.values()]
    return {destination: why.reason for table in tables for destination, why in table.items()}


def settings(broker: Broker, **more: Any) -> ControlSettings:
    more.setdefault("management", broker.management)
    more.setdefault("username", broker.username)
    more.setdefault("password", broker.password)
    return ControlSettings(hosts=((broker.host, broker.port),), **more)


def bind_token(carrier: bytes, destination: Destination, key: bytes | None = None, entries: bytes = b"") -> Bind:
    """Bind a destination to a carrier with this routing key, or with the token of vhost ``/`` if it is None."""
    return Bind(carrier, destination, token(*destination) if key is None else key, entries)


class Outside:
    """Another application on the same broker, in one virtual host."""

    def __init__(self, broker: Broker, vhost: str) -> None:
        self.broker = broker
        self.vhost = vhost

    def make_queue(self, name: str, **arguments: object) -> None:
        self.broker.create_queue(self.vhost, name, True, **arguments)

    def delete_queue(self, name: str) -> None:
        self.broker.api("DELETE", f"queues/{quoted(self.vhost)}/{quoted(name)}")

    def make_exchange(self, name: str, type: str = "direct", internal: bool = False, **arguments: object) -> None:
        body = {
            "type": type,
            "durable": True,
            "internal": internal,
            "arguments": {key.replace("_", "-"): value for key, value in arguments.items()},
        }
        self.broker.api("PUT", f"exchanges/{quoted(self.vhost)}/{quoted(name)}", body)

    def make_queues(self, *names: str) -> None:
        with self.channel() as channel:
            for name in names:
                channel.queue_declare(name, durable=True)

    def delete_exchange(self, name: str) -> None:
        self.broker.api("DELETE", f"exchanges/{quoted(self.vhost)}/{quoted(name)}")

    def exchange(self, name: str) -> dict[str, Any]:
        exchange: dict[str, Any] = self.broker.api("GET", f"exchanges/{quoted(self.vhost)}/{quoted(name)}")
        return exchange

    def queue(self, name: str) -> dict[str, Any]:
        queue: dict[str, Any] = self.broker.api("GET", f"queues/{quoted(self.vhost)}/{quoted(name)}")
        return queue

    def bind(self, exchange: str, queue: str, key: str, **arguments: object) -> None:
        path = f"bindings/{quoted(self.vhost)}/e/{quoted(exchange)}/q/{quoted(queue)}"
        self.broker.api("POST", path, {"routing_key": key, "arguments": arguments})

    def bound(self, exchange: str) -> set[Destination]:
        """Destinations that are bound to an exchange with their tokens."""
        bindings = self.bindings(exchange)
        return {(kind, name) for kind, name, key in bindings if is_token(key)}

    def client_bindings(self, exchange: str) -> list[str]:
        """Destinations of the clients' bindings that are stored on the broker, one name for each copy."""
        rows = self.broker.api("GET", f"exchanges/{quoted(self.vhost)}/{quoted(exchange)}/bindings/source")
        return sorted(row["destination"] for row in rows if "x-oxproxy" in row["arguments"])

    def rows(self, exchange: str) -> list[dict[str, Any]]:
        """Bindings whose source is an exchange, as the management API lists them."""
        listed: list[dict[str, Any]] = self.broker.api(
            "GET", f"exchanges/{quoted(self.vhost)}/{quoted(exchange)}/bindings/source"
        )
        return listed

    def bindings(self, exchange: str) -> set[tuple[str, bytes, bytes]]:
        return {
            (item["destination_type"], item["destination"].encode(), item["routing_key"].encode())
            for item in self.rows(exchange)
        }

    @contextmanager
    def channel(self) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
        """A channel on a separate connection."""
        connection = pika.BlockingConnection(pika.URLParameters(self.broker.url(self.vhost)))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()


Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(accept: Accept) -> AsyncIterator[int]:
    """A listener in place of the broker; yields its port, and closes every connection at the end."""
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            handlers.add(task)
        await accept(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await asyncio.gather(*handlers)
        await server.wait_closed()


def has(events: list[Any], event: str) -> list[Any]:
    """Log entries of one event."""
    return [entry for entry in events if entry["event"] == event]


async def reconcile(topology: Topology, vhost: str) -> None:
    """Reconcile a virtual host now, instead of at the next interval."""
    await topology._vhosts[vhost].refresh()
