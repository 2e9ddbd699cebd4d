"""Whom a client's reach is asked of: any connection of that client, the one that came last first."""

from __future__ import annotations

from collections.abc import Callable

from proxy.net.vhosts import ClientConnections
from proxy.relay.connection_state import PermissionCheck
from proxy.relay.vhost import Delivery, OwnedExchange

QUEUE = ("queue", b"q")


class Client:
    """A connection that says yes at once."""

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


async def test_a_connection_of_the_client_is_asked() -> None:
    speakers, first, second = ClientConnections(), Client(), Client()
    speakers.enter("/", "client", first)
    speakers.enter("/", "client", second)
    asked = question()
    await speakers.ask("/", [asked])
    assert (first.asked, second.asked) == ([], [asked])
    assert asked.reach.allowed == {QUEUE}


async def test_a_client_that_is_not_there_reaches_nothing_new() -> None:
    speakers = ClientConnections()
    speakers.enter("/other", "client", Client())
    speakers.enter("/", "somebody else", Client())
    asked = question()
    await speakers.ask("/", [asked])
    assert asked.reach.refused == {QUEUE: "client is not connected"}


async def test_a_connection_that_ended_is_not_asked() -> None:
    speakers, first, second = ClientConnections(), Client(), Client()
    speakers.enter("/", "client", first)
    speakers.enter("/", "client", second)
    speakers.leave("/", "client", second)
    speakers.leave("/", "client", second)
    await speakers.ask("/", [question()])
    assert (len(first.asked), len(second.asked)) == (1, 0)
    speakers.leave("/", "client", first)
    asked = question()
    await speakers.ask("/", [asked])
    assert asked.reach.refused
