"""Which connection of a client is queried for the client's permissions: the most recent one first."""

from __future__ import annotations

from collections.abc import Callable

from proxy.net.vhosts import ClientConnections
from proxy.relay.connection_state import PermissionCheck
from proxy.relay.vhost import Delivery, OwnedExchange

QUEUE = ("queue", b"q")


class Client:
    """A connection that grants every request at once."""

    def __init__(self) -> None:
        self.asked: list[PermissionCheck] = []

    def ask(self, asked: PermissionCheck, done: Callable[[], None]) -> None:
        self.asked.append(asked)
        asked.reach.allowed.add(asked.destination)
        done()
        done()


def question(client: str = "client") -> PermissionCheck:
    owned = OwnedExchange(b"xo", "x-open", Delivery.CARRIER, b"xo")
    return PermissionCheck(owned, owned.reach(client), QUEUE)


async def test_a_connection_of_the_client_is_queried() -> None:
    client_connections, first, second = ClientConnections(), Client(), Client()
    client_connections.enter("/", "client", first)
    client_connections.enter("/", "client", second)
    asked = question()
    await client_connections.ask("/", [asked])
    assert (first.asked, second.asked) == ([], [asked])
    assert asked.reach.allowed == {QUEUE}


async def test_a_disconnected_client_reaches_nothing_new() -> None:
    client_connections = ClientConnections()
    client_connections.enter("/other", "client", Client())
    client_connections.enter("/", "somebody else", Client())
    asked = question()
    await client_connections.ask("/", [asked])
    assert asked.reach.refused == {QUEUE: "client is not connected"}


async def test_a_closed_connection_is_not_queried() -> None:
    client_connections, first, second = ClientConnections(), Client(), Client()
    client_connections.enter("/", "client", first)
    client_connections.enter("/", "client", second)
    client_connections.leave("/", "client", second)
    client_connections.leave("/", "client", second)
    await client_connections.ask("/", [question()])
    assert (len(first.asked), len(second.asked)) == (1, 0)
    client_connections.leave("/", "client", first)
    asked = question()
    await client_connections.ask("/", [asked])
    assert asked.reach.refused
