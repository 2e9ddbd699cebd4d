"""On whose connection can a client be asked what it may bind?

What a client's bindings choose must be within that client's reach, which only a connection of the client can tell. Any
of them will do: the producer whose message chose it is often somebody else.

Source: delivery notes, "Tokens and bindings".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from proxy.relay.conversation import Asked


class ClientConnection(Protocol):
    """A connection of a client."""

    def ask(self, asked: Asked, done: Callable[[], None]) -> None:
        """Ask the broker whether the client may bind a destination; `done` is called when it is known."""


class ClientConnections:
    """The connections that are open, by virtual host and user."""

    def __init__(self) -> None:
        """Know none."""
        self._open: dict[tuple[str, str], list[ClientConnection]] = {}

    def enter(self, vhost: str, user: str, speaker: ClientConnection) -> None:
        """A connection is open."""
        self._open.setdefault((vhost, user), []).append(speaker)

    def leave(self, vhost: str, user: str, speaker: ClientConnection) -> None:
        """A connection is open no more."""
        speakers = self._open.get((vhost, user), [])
        if speaker in speakers:
            speakers.remove(speaker)
        if not speakers:
            self._open.pop((vhost, user), None)

    def present(self, vhost: str) -> bool:
        """Whether some client is logged in to a virtual host."""
        return any(name == vhost for name, _ in self._open)

    async def ask(self, vhost: str, asked: Iterable[Asked]) -> None:
        """Ask clients what they may bind; what nobody can be asked about is refused until the client is there again."""
        waiting = []
        for each in asked:
            speakers = self._open.get((vhost, each.reach.client))
            if speakers:
                known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                waiting.append(known)
                speakers[-1].ask(each, _once(known))
            else:
                each.reach.refused[each.destination] = f"{each.reach.client} is not connected"
        if waiting:
            await asyncio.wait(waiting)


def _once(known: asyncio.Future[None]) -> Callable[[], None]:
    def done() -> None:
        if not known.done():
            known.set_result(None)

    return done
