"""Where producers connect: listening sockets, the sessions behind them, and the drain at the end.

Draining is a state: stop accepting, let unsettled publishes settle until the deadline, Connection.Close 320 to
every producer, then close what is left.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from proxy.net.secure_door import SecureDoor
from proxy.net.session import Session
from proxy.net.surroundings import Surroundings
from proxy.net.tls import Provider

_log = structlog.get_logger(__name__)
#: How often a drain looks whether everything is settled.
_LOOK_SECONDS = 0.05
#: Producers beyond a limit that are told so at a time, within the handshake's deadline; more are closed without a word,
#: so that a flood of them does not use up file descriptors.
TOLD_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Limits of the listener.

    Args:
        connections: producers at a time; one more is told 530.
        connections_per_peer: from one address; 0: as many as there may be in all.
        settle_seconds: a drain waits this long for unsettled publishes.
        close_seconds: then this long for close-oks.
        shared: other processes of ours listen there as well (socket(7), SO_REUSEPORT).
    """

    connections: int = 10000
    connections_per_peer: int = 0
    settle_seconds: float = 10.0
    close_seconds: float = 5.0
    shared: bool = False


class Listener:
    """The listening side.

    Args:
        addresses: (host, port) to listen on; port 0 picks a free one.
        surroundings: what sessions share.
        limits: see ListenerLimits.
        tls: of those addresses that are not plain TCP, what gives the context for a new connection.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        surroundings: Surroundings,
        limits: ListenerLimits,
        tls: Mapping[tuple[str, int], Provider] | None = None,
    ) -> None:
        """Start closed."""
        self._tls = tls or {}
        self._secure: list[SecureDoor] = []
        self._addresses = addresses
        self._surroundings = surroundings
        self._limits = limits
        self._servers: list[asyncio.Server] = []
        self._sessions: set[Session] = set()
        #: those that are not being turned away, with the address they come from
        self._admitted: dict[Session, str] = {}
        self._hosts: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self.draining = False

    async def start(self) -> list[tuple[str, int]]:
        """Listen.

        Returns:
            The addresses listened on.

        Raises:
            OSError: an address can't be listened on.
        """
        loop = asyncio.get_running_loop()
        bound: list[tuple[str, int]] = []
        for host, port in self._addresses:
            shared = self._limits.shared or None
            if (host, port) in self._tls:
                bound += await self._open_secure(host, port)
                continue
            server = await loop.create_server(self._accept, host, port, backlog=1024, reuse_port=shared)
            self._servers.append(server)
            bound += [socket.getsockname()[:2] for socket in server.sockets]
        return bound

    async def _open_secure(self, host: str, port: int) -> list[tuple[str, int]]:
        shared = self._surroundings
        seconds = (shared.limits.handshake_seconds, shared.limits.close_seconds)
        door = SecureDoor(self._accept, self._tls[host, port], shared.counters.downstream, *seconds)
        self._secure.append(door)
        return await door.open(host, port, shared=self._limits.shared)

    def audit_durable(self, sequence: int) -> None:
        """Audit lines up to a sequence are on disk."""
        for session in self._sessions:
            session.audit_durable(sequence)

    def audit_full(self, full: bool) -> None:
        """The audit log can't keep up, or can again."""
        for session in self._sessions:
            session.audit_full(full)

    def _accept(self) -> asyncio.Protocol:
        session = Session(self._surroundings, self._ended, self._admit)
        self._sessions.add(session)
        return session.producer

    def _admit(self, session: Session) -> str | None:
        """Say whether a producer may come in: None where it may, else why not; nothing where it is not told."""
        if self.draining:
            return ""
        host, limits = session.producer.peer_host, self._limits
        if len(self._admitted) >= limits.connections:
            reason, limit, text = "connections", limits.connections, "connections"
        elif 0 < limits.connections_per_peer <= self._hosts[host]:
            reason, limit = "connections_per_peer", limits.connections_per_peer
            text = f"connections from {host}"
        else:
            self._admitted[session] = host
            self._hosts[host] += 1
            return None
        self._surroundings.counters.limits.turned_away[reason] += 1
        _log.warning("too many connections", limit=limit, reason=reason, peer=session.producer.peer_name, repeat=reason)
        if len(self._sessions) - len(self._admitted) > TOLD_AT_ONCE:
            return ""
        return f"connection refused: limit of {limit} {text} is reached"

    def _ended(self, session: Session) -> None:
        self._sessions.discard(session)
        host = self._admitted.pop(session, None)
        if host is not None:
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
        if not self._sessions:
            self._empty.set()

    def _settling(self) -> int:
        """How many sessions have publishes that are not settled; these read no more."""
        return sum([session.settling() for session in self._sessions])

    async def _stop_accepting(self) -> None:
        self.draining = True
        for door in self._secure:
            await door.close()
        for server in self._servers:
            server.close()
        if self._surroundings.reuse is not None:
            await self._surroundings.reuse.stop()

    async def drain(self) -> None:
        """Stop accepting, let publishes settle, close every producer with 320, close the sockets.

        What another broker has not settled at the deadline is nacked; what this broker has not is for the close to say.
        """
        await self._stop_accepting()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._limits.settle_seconds
        while self._settling():
            if loop.time() >= end:
                _log.warning("publishes not settled in time", seconds=self._limits.settle_seconds)
                if self._surroundings.remotes is not None:
                    self._surroundings.remotes.give_up()
                break
            await asyncio.sleep(_LOOK_SECONDS)
        for session in tuple(self._sessions):
            session.close(320, "the proxy is shutting down")
        self._empty.clear()
        if self._sessions:
            try:
                async with asyncio.timeout(self._limits.close_seconds):
                    await self._empty.wait()
            except TimeoutError:
                for session in tuple(self._sessions):
                    session.abort()
        for server in self._servers:
            await server.wait_closed()
