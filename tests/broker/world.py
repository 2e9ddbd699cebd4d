"""What the tests of the control plane share: rules without rules files, and looks at a broker from outside.

It must not know how the control plane works; it uses blocking calls of the management API and pika.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pika
import pika.adapters.blocking_connection
import pika.exceptions

from proxy.amqp.tokens import token
from proxy.amqp.vhost import Delivery, Destination, OwnedExchange, VhostState
from proxy.broker.settings import ControlSettings
from proxy.routing.decision import Interest
from proxy.routing.router import Router
from proxy.routing.values import Table
from tests.rabbitmq import Broker, quoted


@dataclass
class Rules:
    """A router that names destinations and decides nothing."""

    named: dict[bytes, set[Destination]] = field(default_factory=dict)
    regex: bool = False

    def destinations(self, exchange: bytes) -> frozenset[Destination]:
        return frozenset(self.named[exchange])

    def interest(self, exchange: bytes) -> Interest:
        return Interest(queues=self.regex)


@dataclass(frozen=True)
class Queue:
    """A queue that rules ask for."""

    name: bytes
    arguments: Table = ()


def queues(*names: str) -> set[Destination]:
    return {("queue", name.encode()) for name in names}


def exchanges(*names: str) -> set[Destination]:
    return {("exchange", name.encode()) for name in names}


def owned(name: str, delivery: Delivery = Delivery.CARRIER, **more: Any) -> OwnedExchange:
    """An exchange evaluated here; its carrier has its name unless told otherwise."""
    more.setdefault("carrier", name.encode())
    return OwnedExchange(name.encode(), "x-open", delivery, **more)


def router(named: Mapping[str, set[Destination]], regex: bool = False) -> Router:
    return cast(Router, Rules({name.encode(): set(found) for name, found in named.items()}, regex))


def state(vhost: str, named: Mapping[str, set[Destination]], *shaped: OwnedExchange, regex: bool = False) -> VhostState:
    """A virtual host whose exchanges name destinations; exchanges not among `shaped` are carried under their name."""
    all_of_them = {exchange.name: exchange for exchange in shaped}
    for name in named:
        all_of_them.setdefault(name.encode(), owned(name))
    return VhostState(vhost, router(named, regex), all_of_them)


def settings(broker: Broker, **more: Any) -> ControlSettings:
    more.setdefault("management", broker.management)
    more.setdefault("username", broker.username)
    more.setdefault("password", broker.password)
    return ControlSettings(hosts=((broker.host, broker.port),), **more)


class Outside:
    """Somebody else on the same broker, in one virtual host."""

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

    def delete_exchange(self, name: str) -> None:
        self.broker.api("DELETE", f"exchanges/{quoted(self.vhost)}/{quoted(name)}")

    def exchange(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.broker.api("GET", f"exchanges/{quoted(self.vhost)}/{quoted(name)}")
        return found

    def queue(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.broker.api("GET", f"queues/{quoted(self.vhost)}/{quoted(name)}")
        return found

    def bind(self, exchange: str, queue: str, key: str, **arguments: object) -> None:
        path = f"bindings/{quoted(self.vhost)}/e/{quoted(exchange)}/q/{quoted(queue)}"
        self.broker.api("POST", path, {"routing_key": key, "arguments": arguments})

    def bound(self, exchange: str) -> set[Destination]:
        """Destinations that are bound to an exchange under their token."""
        found = self.bindings(exchange)
        return {(kind, name) for kind, name, key in found if key == token(kind, name)}

    def bindings(self, exchange: str) -> set[tuple[str, bytes, bytes]]:
        path = f"exchanges/{quoted(self.vhost)}/{quoted(exchange)}/bindings/source"
        return {
            (item["destination_type"], item["destination"].encode(), item["routing_key"].encode())
            for item in self.broker.api("GET", path)
        }

    @contextmanager
    def channel(self) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
        """A channel on a connection of its own."""
        connection = pika.BlockingConnection(pika.URLParameters(self.broker.url(self.vhost)))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()


def has(events: list[Any], event: str) -> list[Any]:
    """Log entries of one event."""
    return [entry for entry in events if entry["event"] == event]
