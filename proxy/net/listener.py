"""Where producers connect: listening sockets, the limits on connections, the sessions, and the drain at the end.

A connection counts against the limits from the moment it is accepted, before TLS and before its first byte: otherwise
peers that stay silent would use up the file descriptors that admin pages and control plane need.

Draining is a state: stop accepting, let unsettled publishes settle until the deadline, Connection.Close 320 to every
producer, then close what is left.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from proxy.net.context import SessionContext
from proxy.net.link import peer_address
from proxy.net.session import Session
from proxy.net.tasks import Tasks
from proxy.net.tls import Provider
from proxy.net.tls_listener import TlsListener

_log = structlog.get_logger(__name__)
#: How often a drain looks whether everything is settled.
_LOOK_SECONDS = 0.05
#: Producers beyond a limit that are told so at a time, within the handshake's deadline; more are closed without a word,
#: so that a flood of them does not use up file descriptors (`descriptors.RESERVE` has room for these).
TOLD_AT_ONCE = 64
_BACKLOG = 1024
#: Connections accepted before the event loop does something else.
_ACCEPTED_AT_ONCE = 64
#: Seconds without accepting after the system could not give a socket, as asyncio has it.
_BREATH_SECONDS = 1.0
#: What says that a host has no address of a family.
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


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


class ListenError(OSError):
    """An address can't be listened on.

    Args:
        index: of the address.
        error: why not.
    """

    def __init__(self, index: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.index = index


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
        surroundings: SessionContext,
        limits: ListenerLimits,
        tls: Mapping[tuple[str, int], Provider] | None = None,
    ) -> None:
        """Start closed."""
        self._tls = tls or {}
        self._addresses = addresses
        self._surroundings = surroundings
        self._limits = limits
        self._sockets: list[socket.socket] = []
        #: connections on their way to a session: plain ones for a moment, others for the time of their TLS handshake
        self._tasks = Tasks()
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
            ListenError: an address can't be listened on.
        """
        bound: list[tuple[str, int]] = []
        for index, address in enumerate(self._addresses):
            try:
                bound += await self._listen(*address)
            except OSError as error:
                self._close_sockets()
                raise ListenError(index, error) from error
        return bound

    async def _listen(self, host: str, port: int) -> list[tuple[str, int]]:
        """Listen on each address of a host."""
        loop = asyncio.get_running_loop()
        surroundings, context = self._surroundings, self._tls.get((host, port))
        seconds = (surroundings.limits.handshake_seconds, surroundings.limits.close_seconds)
        door = None if context is None else TlsListener(context, surroundings.counters.downstream, *seconds)
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        bound: list[tuple[str, int]] = []
        absent: OSError | None = None
        for family, _, _, _, address in dict.fromkeys(infos):
            try:
                listening = socket.create_server(
                    address[:2],
                    family=family,
                    backlog=_BACKLOG,
                    reuse_port=self._limits.shared,
                    dualstack_ipv6=False,
                )
            except OSError as error:
                if error.errno not in _NO_SUCH_FAMILY:
                    raise
                absent = error  # `localhost` has an IPv6 address also where IPv6 is switched off
                continue
            listening.setblocking(False)
            self._sockets.append(listening)
            loop.add_reader(listening, self._accept, listening, door)
            bound.append(listening.getsockname()[:2])
        if absent is not None and not bound:
            raise absent
        return bound

    def audit_durable(self, sequence: int) -> None:
        """Audit lines up to a sequence are on disk."""
        for session in tuple(self._sessions):
            session.audit_durable(sequence)

    def audit_failing(self) -> None:
        """The disk refuses audit lines, or does not answer."""
        for session in tuple(self._sessions):
            session.audit_failing()

    def audit_full(self, full: bool) -> None:
        """The audit log can't keep up, or can again."""
        for session in self._sessions:
            session.audit_full(full)

    def _accept(self, listening: socket.socket, door: TlsListener | None) -> None:
        """Accept what has come; the rest comes in the next turn of the event loop."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("no connection can be accepted", error=error.strerror or str(error), repeat="accept")
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_BREATH_SECONDS, self._accept_again, listening, door)
                return
            connection.setblocking(False)
            self._receive(connection, *peer_address(address), door)

    def _accept_again(self, listening: socket.socket, door: TlsListener | None) -> None:
        if not self.draining:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening, door)

    def _receive(self, connection: socket.socket, host: str, name: str, door: TlsListener | None) -> None:
        """Give a connection its session, or close it."""
        refusal = self._refusal(host, name)
        if refusal == "":
            self._surroundings.counters.downstream.attempt("refused")
            connection.close()
            return
        session = Session(self._surroundings, self._ended, refusal)
        self._sessions.add(session)
        if refusal is None:
            self._admitted[session] = host
            self._hosts[host] += 1
        self._tasks.start(self._join(connection, session, name, door), "accept")

    async def _join(self, connection: socket.socket, session: Session, name: str, door: TlsListener | None) -> None:
        """Join a connection to its session, after the TLS handshake where there is one."""
        protocol = session.producer
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if door is not None:
                await door.shake_hands(connection, protocol, name)
            else:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)
        except BaseException as error:
            connection.close()
            protocol.connection_lost(None)  # whatever the cause: the session has to know that it has no socket
            if not isinstance(error, OSError):
                raise

    def _refusal(self, host: str, name: str) -> str | None:
        """Say why a producer can't be let in: None where it can, nothing where it is not told."""
        if self.draining:
            return ""
        limits = self._limits
        if len(self._admitted) >= limits.connections:
            reason, limit, text = "connections", limits.connections, "connections"
        elif 0 < limits.connections_per_peer <= self._hosts[host]:
            reason, limit = "connections_per_peer", limits.connections_per_peer
            text = f"connections from {host}"
        else:
            return None
        self._surroundings.counters.limits.rejected_connections[reason] += 1
        _log.warning("too many connections", limit=limit, reason=reason, peer=name, repeat=reason)
        if len(self._sessions) - len(self._admitted) >= TOLD_AT_ONCE:
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

    def _close_sockets(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    async def _stop_accepting(self) -> None:
        self.draining = True
        self._close_sockets()
        await self._tasks.ended()
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
